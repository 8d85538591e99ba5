"""What a worker of a run does: it trains, evaluates the model that answers, makes its retriever."""

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ramen_ray.bases import Part
from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.made_folder import whole_file
from ramen_ray.data.store.same_texts import alike_queries
from ramen_ray.method.distributed import from_first_worker, is_first_worker
from ramen_ray.method.metrics.comparison import Evidence, by_piece
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.retrieval.index import IndexKind, choose_kind
from ramen_ray.method.retrieval.retriever_folder import RetrieverSettings, write_retriever
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.method.training.step import StepMemoryError
from ramen_ray.orchestration.cluster.local_folder import LocalFolder
from ramen_ray.orchestration.run.build import (
    build_ground_truth,
    build_objective,
    build_sampler,
    build_training_data,
    use_bf16,
)
from ramen_ray.orchestration.run.checkpoints import Checkpoint, Checkpoints
from ramen_ray.orchestration.run.directory import (
    PART_ADS_FILE,
    TEST_ADS_FILE,
    VALIDATION_ADS_FILE,
    RunDirectory,
)
from ramen_ray.orchestration.run.identity import Inputs
from ramen_ray.orchestration.run.loop import Plan, start_or_resume, train
from ramen_ray.orchestration.run.processes import WorkerContext, prepare_process
from ramen_ray.orchestration.run.setup import (
    TEXTS_AT_ONCE,
    Measured,
    RunSetup,
    pruning_task,
    shortlist_task,
)
from ramen_ray.tracking.runs import Run

PARTS: tuple[Part, ...] = ("encoder", "classifier", "both")
RETRIEVER = ".retriever/retriever"  # in a run's folder, until it is logged

Metrics = dict[str, dict[str, dict[str, float]]]  # by row, split and name


@dataclass(frozen=True)
class WorkerResult:
    """What a worker returns; the driver uses that of the first."""

    # rows are ``untrained`` and ``trained``; with classifiers also ``encoder``, ``classifier`` and
    # ``both``
    metrics: Metrics
    best_checkpoint: Path  # the folder of the model that answers
    part: Part  # which part of its vectors answers
    index: dict[str, float]  # figures of the retriever's index; only of the first worker
    trained_seconds: float  # time spent in steps, over all attempts
    waited_seconds: float  # time spent waiting for background tasks
    first_step_at: float  # seconds since 1970


@dataclass(frozen=True)
class WorkerTask:
    """What a run's workers are sent; paths are folders that all machines can reach."""

    inputs: Inputs  # as the driver has found them
    prepared: Path
    edges: Path  # the graphs to train on
    run_directory: Path
    run: Run

    def train(self, worker: WorkerContext) -> WorkerResult:
        """Train to the end in this process, then evaluate the untrained model and what answers.

        The first worker then makes a retriever of that, in RETRIEVER.
        """
        setup = run_setup(self, worker)
        config = setup.config
        try:
            training = start_or_resume(setup, self.run)
            if training.log is not None and setup.texts_at_once != config.training.texts_at_once:
                said = (
                    f"encoding {setup.texts_at_once} texts at once, as more do not fit into memory"
                )
                training.log.show(said, training.state.step)
            train(training)
        except StepMemoryError as error:
            raise setup.with_fewer_texts(error) from None  # the cause says that training ends
        finally:
            for task in setup.background:
                task.cancel()
        for task in setup.background:
            task.keep_only_taken()
        setup.local.forget(setup.folder)
        answering = choose_answering(setup, training.checkpoints)
        folder = answering.checkpoint.folder
        metrics = evaluate_answering(setup, answering)
        index = {}
        if is_first_worker():  # last, as other workers would wait for it to evaluate with them
            model = load_model(folder, part=answering.part).to(worker.device)
            index = make_retriever(setup, model)
        return WorkerResult(
            metrics=metrics,
            best_checkpoint=folder,
            part=answering.part,
            index=index,
            trained_seconds=training.progress.trained_seconds,
            waited_seconds=sum(task.waited_s for task in setup.background),
            first_step_at=training.first_step_at or time.time(),
        )


def run_setup(task: WorkerTask, worker: WorkerContext) -> RunSetup:
    """Map the data into memory, and build what training needs besides the model."""
    config = task.inputs.config
    prepare_process(config.seed, config.workers)
    notes = RunDirectory(task.run_directory).notes
    at_once = notes.get(TEXTS_AT_ONCE, config.training.texts_at_once)
    objective = replace(build_objective(config), is_frugal=at_once is not None)
    regularizers = objective.regularizers
    on_disk = None if config.local_folder is None else Path(config.local_folder)
    local = LocalFolder(on_disk, worker.is_first_on_machine, worker.device)
    data = Prepared(local.copy_of(task.prepared))
    if task.edges.is_relative_to(task.prepared):  # not walked, and copied with the other arrays
        graphs = data.path / task.edges.relative_to(task.prepared)
    else:
        graphs = local.copy_of_graphs(task.edges, regularizers)
    sampler = build_sampler(config, data, build_training_data(config, data, regularizers, graphs))
    setup = RunSetup(
        folder=task.run_directory,
        worker=worker,
        plan=Plan.of_run(config.training, sampler.steps_per_epoch),
        objective=objective,
        sampler=sampler,
        advice="lower optimizer.lr, or set optimizer.max_gradient_norm",
        use_bf16=use_bf16(config, worker.device),
        max_gradient_norm=config.optimizer.max_gradient_norm,
        inputs=task.inputs,
        data=data,
        local=local,
        texts_at_once=at_once,
    )
    # they may run on other machines, and read shared folders; in the order of taking their results
    tasks = (pruning_task(setup, task.prepared, task.edges), shortlist_task(setup, task.prepared))
    background = [each for each in tasks if each is not None]
    return replace(setup, background=background)


@dataclass(frozen=True)
class Answering:
    """The checkpoint that answers, and the part of its vectors that does."""

    checkpoint: Checkpoint
    model: DualEncoder
    part: Part
    validated: dict[Part, Measured]  # by part, on the validation split


def choose_answering(setup: RunSetup, checkpoints: Checkpoints) -> Answering:
    """Choose the last checkpoint and all of its vectors, unless others are better beyond noise.

    The highest of some figures is mostly a choice of noise. Validation decides by paired queries,
    first about the part of the last checkpoint, then about the best checkpoint.
    """
    last = checkpoints.last()
    best = checkpoints.best()
    assert last is not None, "the last step has a checkpoint"
    model = setup.trained_model(last.folder)
    parts = PARTS if model.classifiers is not None else PARTS[:1]
    validated = {part: _validated(setup, model, part) for part in parts}
    whole = parts[-1]
    others = [part for part in parts if is_better(setup, validated[part], validated[whole])]
    metric = setup.plan.metric
    part = max(others, key=lambda part: validated[part][0][metric], default=whole)
    if best.step != last.step:
        model_of_best = setup.trained_model(best.folder)
        validated_best = _validated(setup, model_of_best, part)
        if is_better(setup, validated_best, validated[part]):
            validated = {each: _validated(setup, model_of_best, each) for each in parts}
            return Answering(best, model_of_best, part, validated)
    return Answering(last, model, part, validated)


def _validated(setup: RunSetup, model: DualEncoder, part: Part) -> Measured:
    model.part = part
    return setup.measure(model, "validation")


def is_better(setup: RunSetup, ours: Measured, others: Measured) -> bool:
    """Say, on every worker the same, whether validation prefers ``ours`` beyond noise."""
    is_beyond_noise = False
    if is_first_worker():
        ground_truth = build_ground_truth(setup.config, setup.data, "validation")
        metric = setup.plan.metric
        pieces = alike_queries(setup.inputs.dataset, "validation")
        gains, gains_of_others = (
            by_piece({metric: ground_truth.by_query(topk[0])[metric]}, pieces)[metric]
            for _, topk in (ours, others)
        )
        evidence = Evidence.measured(gains, gains_of_others, time=1)
        is_beyond_noise = evidence.value > evidence.noise
    return from_first_worker(is_beyond_noise)


def evaluate_answering(setup: RunSetup, answering: Answering) -> Metrics:
    """Evaluate the model that answers and the untrained one on all held-out splits.

    A model with classifiers is evaluated by each part of its vectors. The first worker writes the
    best ads of test and validation queries, ids (queries, k), into TEST_ADS_FILE and
    VALIDATION_ADS_FILE, and those of test queries by each part into PART_ADS_FILE.
    """
    splits = setup.data.splits[1:]
    untrained = setup.new_model()
    metrics = {"untrained": {split: setup.measure(untrained, split)[0] for split in splits}}
    measured: dict[Part, dict[str, Measured]] = {}
    for part, validated in answering.validated.items():
        answering.model.part = part
        measured[part] = {
            split: validated if split == "validation" else setup.measure(answering.model, split)
            for split in splits
        }
        of_splits = {split: figures for split, (figures, _) in measured[part].items()}
        if len(answering.validated) > 1:
            metrics[part] = of_splits
        if part == answering.part:
            metrics["trained"] = of_splits
    if is_first_worker():
        chosen = measured[answering.part]
        _save_ads(setup.folder / TEST_ADS_FILE, chosen["test"][1])
        _save_ads(setup.folder / VALIDATION_ADS_FILE, chosen["validation"][1])
        if len(measured) > 1:
            for part, by_split in measured.items():
                _save_ads(setup.folder / PART_ADS_FILE.format(part), by_split["test"][1])
    return metrics


def _save_ads(file: Path, topk: TopK) -> None:
    with whole_file(file) as aside, aside.open("wb") as opened:
        np.save(opened, topk[0])


def make_retriever(setup: RunSetup, model: DualEncoder) -> dict[str, float]:
    """Write a retriever of a model into RETRIEVER; returns figures of its index."""
    config = setup.config
    folder = setup.folder / RETRIEVER
    shutil.rmtree(folder.parent, ignore_errors=True)  # of a worker that was killed
    folder.mkdir(parents=True)
    settings = RetrieverSettings(index_kind(config, setup.data), config.encoder.max_length)
    return write_retriever(folder, model, setup.inputs.dataset, setup.data, settings)


def index_kind(config: RunConfig, data: Prepared) -> IndexKind:
    """Return the kind of a run's index, by default by the number of ads."""
    return choose_kind(len(data.ads)) if config.index.kind == "auto" else config.index.kind
