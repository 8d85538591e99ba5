"""What a worker of a run does: it trains, evaluates the model that answers, makes its retriever."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from ramen_ray.bases import Part
from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.distributed import world
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.training.step import StepMemoryError
from ramen_ray.orchestration.background.from_checkpoints import pruning_task, shortlist_task
from ramen_ray.orchestration.background.task import TaskContext
from ramen_ray.orchestration.cluster.local_folder import LocalFolder
from ramen_ray.orchestration.run.answering import (
    Metrics,
    choose_answering,
    evaluate_answering,
    make_retriever,
)
from ramen_ray.orchestration.run.build import (
    build_objective,
    build_sampler,
    build_training_data,
    use_bf16,
)
from ramen_ray.orchestration.run.directory import Identity
from ramen_ray.orchestration.run.loop import Plan, start_or_resume, train
from ramen_ray.orchestration.run.processes import WorkerContext, prepare_process
from ramen_ray.orchestration.run.setup import RunSetup
from ramen_ray.tracking.runs import Run


@dataclass(frozen=True)
class WorkerResult:
    """What a worker returns; the driver uses that of the first. Times are seconds since 1970."""

    # rows are ``untrained`` and ``trained``; with classifiers also ``encoder``, ``classifier`` and
    # ``both``
    metrics: Metrics
    best_checkpoint: Path  # the folder of the model that answers
    best_step: int  # the step after which it was written
    part: Part  # which part of its vectors answers
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
        """Train to the end in this process, then evaluate the untrained model and what answers.

        The first worker then makes a retriever of that, in RETRIEVER.
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
        answering = choose_answering(setup, training.checkpoints)
        folder = answering.checkpoint.folder
        metrics = evaluate_answering(setup, answering)
        index = {}
        if world()[0] == 0:  # last, as other workers would wait for it to evaluate with them
            model = load_model(folder, part=answering.part).to(worker.device)
            index = make_retriever(self.config, setup.data, model, self.run_directory)
        return WorkerResult(
            metrics=metrics,
            best_checkpoint=folder,
            best_step=answering.checkpoint.step,
            part=answering.part,
            index=index,
            trained_seconds=training.progress.trained_seconds,
            waited_seconds=sum(task.waited_s for task in setup.background),
            entered_at=entered_at,
            first_step_at=training.first_step_at or entered_at,
        )


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
    setup = RunSetup(
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
    is_frugal = setup.texts_at_once is not None
    return replace(setup, objective=replace(objective, is_frugal=is_frugal))
