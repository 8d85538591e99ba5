"""What a worker of a run does: it trains, evaluates the best model, and makes its retriever."""

import json
import shutil
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ramen_ray.bases import Part
from ramen_ray.config import RunConfig, write_config
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.made_folder import check_intact, whole_file
from ramen_ray.errors import UserError
from ramen_ray.method.distributed import world
from ramen_ray.method.metrics.ground_truth import evaluate
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.model.pretrained import content_of
from ramen_ray.method.retrieval.index import IndexKind, choose_kind
from ramen_ray.method.retrieval.retriever_folder import RetrieverSettings, write_retriever
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.method.sampling.step_inputs import pool_figures
from ramen_ray.method.training.state import TrainState
from ramen_ray.method.training.step import StepMemoryError
from ramen_ray.orchestration.background.from_checkpoints import pruning_task, shortlist_task
from ramen_ray.orchestration.background.task import TaskContext
from ramen_ray.orchestration.cluster.local_folder import LocalFolder
from ramen_ray.orchestration.run.build import (
    build_classifiers,
    build_model,
    build_objective,
    build_propensity,
    build_sampler,
    build_state,
    build_training_data,
    held_classifiers,
    use_bf16,
)
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    IDENTITY_FILE,
    PART_ADS_FILE,
    TEST_ADS_FILE,
    VALIDATION_ADS_FILE,
    Identity,
)
from ramen_ray.orchestration.run.identity import check_meanwhile
from ramen_ray.orchestration.run.inputs import CARRIED_FILE
from ramen_ray.orchestration.run.loop import Plan, Setup, start_or_resume, train
from ramen_ray.orchestration.run.processes import TooManyTexts, WorkerContext, prepare_process
from ramen_ray.tracking.runs import Run

LEAST_TEXTS_AT_ONCE = 16  # fewer are not what fills a memory
TEXTS_AT_ONCE_FILE = "texts_at_once"  # in a run's folder, once a step has not fitted into memory
PARTS: tuple[Part, ...] = ("encoder", "classifier", "both")
RETRIEVER = ".retriever/retriever"  # in a run's folder, until it is logged

Metrics = dict[str, dict[str, dict[str, float]]]  # by row, split and name


@dataclass(frozen=True)
class WorkerResult:
    """What a worker returns; the driver uses that of the first. Times are seconds since 1970."""

    # rows are ``untrained`` and ``trained``; with classifiers also ``encoder``, ``classifier`` and
    # ``both``
    metrics: Metrics
    best_checkpoint: Path  # the best model's folder
    best_step: int  # the step after which it was written
    part: Part  # which part of its vectors answers best on the validation split
    index: dict[str, float]  # figures of the retriever's index; only of the first worker
    trained_seconds: float  # time spent in steps, over all attempts
    waited_seconds: float  # time spent waiting for background tasks
    entered_at: float
    first_step_at: float


@dataclass(frozen=True)
class WorkerTask:
    """What a run's workers are sent; paths are folders that all machines can reach."""

    config: RunConfig
    prepared: Path
    edges: Path  # the graphs to train on
    run_directory: Path
    run: Run
    made_from: Identity  # as the driver has found it

    def train(self, worker: WorkerContext) -> WorkerResult:
        """Train to the end in this process, then evaluate the best model and the untrained one.

        The first worker then makes a retriever of the best one, in RETRIEVER.
        """
        entered_at = time.time()
        setup = run_setup(self, worker)
        try:
            training = start_or_resume(setup, self.run)
            if (
                training.log is not None
                and setup.texts_at_once != self.config.training.texts_at_once
            ):
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
        best = training.checkpoints.best()
        metrics, part = evaluate_best(setup, best.folder)
        return WorkerResult(
            metrics=metrics,
            best_checkpoint=best.folder,
            best_step=best.step,
            part=part,
            index=make_retriever(setup, best.folder, part) if world()[0] == 0 else {},
            trained_seconds=training.progress.trained_seconds,
            waited_seconds=sum(task.waited_s for task in setup.background),
            entered_at=entered_at,
            first_step_at=training.first_step_at or entered_at,
        )


@dataclass(frozen=True, kw_only=True)
class RunSetup(Setup[DualEncoder]):
    """What a worker of a run trains with; ``local`` has its machine's copies of what steps read."""

    config: RunConfig
    data: Prepared
    local: LocalFolder
    made_from: Identity  # as the driver has found it

    def new_model(self) -> DualEncoder:
        """Build the model that training starts from; a RunError if the encoder has changed."""
        model = build_model(self.config).to(self.worker.device)
        expected = {"encoder": self.made_from["encoder"]}  # compared after the model was read
        check_meanwhile(expected, {"encoder": content_of(self.config.encoder.pretrained)})
        if model.classifier_head is not None:
            file = self.folder / CARRIED_FILE
            carried = np.load(file) if file.is_file() else None
            model.classifiers = build_classifiers(self.config, model, self.data, carried)
        return model

    def open_model(self, checkpoint: Path) -> DualEncoder:
        """Open a checkpoint's model; its classifiers, otherwise mapped, go to the device too."""
        device = self.worker.device
        model = load_model(checkpoint, held_classifiers(self.config, self.data))
        if model.classifiers is not None:
            vectors = model.classifiers.vectors.to(device)
            model.classifiers = replace(model.classifiers, vectors=vectors)
        return model.to(device)

    def new_state(self, model: DualEncoder) -> TrainState:
        """Build what changes besides the model, which keeps only the tokens that occur."""
        keep_tokens(model.encoder, self.data.occurring_tokens)
        model.texts_at_once = self.texts_at_once
        if self.config.encoder.compile:
            model.encoder.backbone.compile(dynamic=True)  # no two steps have one shape
        return build_state(
            self.config, model, self.worker.wrap(model), self.sampler, self.objective
        )

    @cached_property  # as this attempt began: another worker may note fewer for the next
    def texts_at_once(self) -> int | None:
        """How many texts a step encodes at once: what has fitted into memory, once noted."""
        file = self.folder / TEXTS_AT_ONCE_FILE
        return int(file.read_text()) if file.is_file() else self.config.training.texts_at_once

    def with_fewer_texts(self, error: StepMemoryError) -> Exception:
        """Note half as many texts at once for the next attempt; returns what this one ends with."""
        fewer = min(self.texts_at_once or error.num_texts, error.num_texts) // 2
        if fewer < LEAST_TEXTS_AT_ONCE:
            return UserError(str(error))
        with whole_file(self.folder / TEXTS_AT_ONCE_FILE) as aside:
            aside.write_text(f"{fewer}\n")
        return TooManyTexts(error.step, fewer)

    def save_model(self, model: DualEncoder, checkpoint: Path) -> None:
        """Write the model, the configuration, and what the run is made from."""
        model.save(checkpoint, self.config.encoder.max_length)
        write_config(self.config, checkpoint / CONFIG_FILE)
        (checkpoint / IDENTITY_FILE).write_text(json.dumps(self.made_from) + "\n")

    def measure(self, model: DualEncoder, split: str) -> tuple[dict[str, float], TopK]:
        """Evaluate a model on a split; returns the metrics and the best ads of each query."""
        return evaluate(model, self.data, split, build_propensity(self.config), self.use_bf16)

    def validate(self, model: DualEncoder) -> dict[str, float]:
        """Return the metrics of the validation split."""
        return self.measure(model, "validation")[0]

    def figures_of_batch(self, step: int, state: TrainState) -> dict[str, float]:
        """Return figures of a step's pool, if the loss sees all of it."""
        if self.config.base.parts.loss == "triplet":
            return {}
        batch = self.sampler.draw(step, state.sources, []).gathered(self.sampler.batch_size)
        return pool_figures(batch, self.sampler.data.clicks)


def run_setup(task: WorkerTask, worker: WorkerContext) -> RunSetup:
    """Map the data into memory, and build what training needs besides the model."""
    config = task.config
    prepare_process(config.seed, config.workers)
    objective = build_objective(config)
    regularizers = objective.regularizers
    on_disk = None if config.local_folder is None else Path(config.local_folder)
    local = LocalFolder(on_disk, worker.is_first_on_machine, worker.device)
    data = Prepared(local.copy_of(task.prepared))
    if task.edges.is_relative_to(task.prepared):  # not walked, and copied with the other arrays
        graphs = data.path / task.edges.relative_to(task.prepared)
    else:
        graphs = local.copy_of_graphs(task.edges, regularizers)
    sampler = build_sampler(config, data, build_training_data(config, data, regularizers, graphs))
    bf16 = use_bf16(config, worker.device)
    # background tasks may run on other machines, so they read the shared folders
    context = TaskContext(
        task.prepared,
        task.edges,
        regularizers,
        task.run_directory,
        sampler.steps_per_epoch,
        bf16,
        local,
    )
    # in the order in which their results are taken
    background = (pruning_task(config, context), shortlist_task(config, context))
    return RunSetup(
        folder=task.run_directory,
        worker=worker,
        plan=Plan.of_run(config.training, sampler.steps_per_epoch),
        objective=objective,
        sampler=sampler,
        advice="lower optimizer.lr, or set optimizer.max_gradient_norm",
        background=[each for each in background if each is not None],
        use_bf16=bf16,
        max_gradient_norm=config.optimizer.max_gradient_norm,
        config=config,
        data=data,
        local=local,
        made_from=task.made_from,
    )


def evaluate_best(setup: RunSetup, best: Path) -> tuple[Metrics, Part]:
    """Evaluate the model of the checkpoint ``best`` and the untrained one on all held-out splits.

    A model with classifiers is evaluated by each part of its vectors; validation chooses the one
    that answers. The first worker writes the best ads of test and validation queries, ids (queries,
    k), into TEST_ADS_FILE and VALIDATION_ADS_FILE, and those of each part into
    PART_ADS_FILE. Returns the metrics, and the part that answers.
    """
    config = setup.config
    splits = setup.data.splits[1:]
    untrained = setup.new_model()
    check_intact(best)
    trained = load_model(best, held_classifiers(config, setup.data)).to(setup.worker.device)
    metrics = {"untrained": {split: setup.measure(untrained, split)[0] for split in splits}}
    parts = PARTS if trained.classifiers is not None else PARTS[:1]
    best_ads: dict[Part, dict[str, TopK]] = {part: {} for part in parts}
    by_part: dict[Part, dict[str, dict[str, float]]] = {part: {} for part in parts}
    for part in parts:
        trained.part = part
        for split in splits:
            by_part[part][split], best_ads[part][split] = setup.measure(trained, split)
    selection = config.training.selection_metric
    chosen = max(parts, key=lambda part: by_part[part]["validation"][selection])
    if len(parts) > 1:
        metrics |= {str(part): of_splits for part, of_splits in by_part.items()}
    metrics["trained"] = by_part[chosen]
    if world()[0] == 0:
        _save_ads(setup.folder / TEST_ADS_FILE, best_ads[chosen]["test"])
        _save_ads(setup.folder / VALIDATION_ADS_FILE, best_ads[chosen]["validation"])
        if len(parts) > 1:
            for part, of_splits in best_ads.items():
                _save_ads(setup.folder / PART_ADS_FILE.format(part), of_splits["test"])
    return metrics, chosen


def make_retriever(setup: RunSetup, best: Path, part: Part) -> dict[str, float]:
    """Write a retriever of a checkpoint, which answers by a part of its vectors, into RETRIEVER.

    Returns figures of its index.
    """
    config = setup.config
    folder = setup.folder / RETRIEVER
    shutil.rmtree(folder.parent, ignore_errors=True)  # of a worker that was killed
    folder.mkdir(parents=True)
    model = load_model(best, part=part).to(setup.worker.device)
    settings = RetrieverSettings(index_kind(config, setup.data), config.encoder.max_length)
    return write_retriever(folder, model, Dataset(config.dataset), setup.data, settings)


def index_kind(config: RunConfig, data: Prepared) -> IndexKind:
    """Return the kind of a run's index, by default by the number of ads."""
    return choose_kind(len(data.ads)) if config.index.kind == "auto" else config.index.kind


def _save_ads(file: Path, topk: TopK) -> None:
    with whole_file(file) as aside, aside.open("wb") as opened:
        np.save(opened, topk[0])
