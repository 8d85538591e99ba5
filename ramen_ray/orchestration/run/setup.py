"""What a worker trains with: its process and data, and the model and state that it begins from."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
from torch import nn

from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.checksums import check_intact
from ramen_ray.method.distributed import world
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.model.pretrained import content_of
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.sampling.batches import Sampler
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.checkpoints import restore_checkpoint
from ramen_ray.method.training.step import TrainState
from ramen_ray.orchestration.background.task import BackgroundTask, TaskContext
from ramen_ray.orchestration.background.tasks import background_tasks
from ramen_ray.orchestration.cluster.local_folder import LocalFolder
from ramen_ray.orchestration.run.build import (
    add_free_vectors,
    build_model,
    build_objective,
    build_sampler,
    build_state,
    held_classifiers,
    use_bf16,
)
from ramen_ray.orchestration.run.checkpoints import Checkpoints
from ramen_ray.orchestration.run.identity import check_meanwhile
from ramen_ray.orchestration.run.progress import RunLog
from ramen_ray.orchestration.run.task import OnReport, WorkerTask
from ramen_ray.tracking.step_logger import StepLogger

ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Variables for torch's allocator of GPU memory; the second is its earlier name."""
NOT_VALIDATED = -1.0
"""The score of a model that was not validated: below all others."""


@dataclass(frozen=True)
class Process:
    """What a worker's process offers: a worker of Ray Train, or the only one of a run.

    Attributes:
        device: where it computes.
        is_first_on_machine: whether it is the one of its machine's workers that copies files there.
        wrap: returns what steps call: a model, or its wrapper for several workers.
        report: passes the metrics of a checkpoint on, once that outlives the process.
    """

    device: torch.device
    is_first_on_machine: bool
    wrap: Callable[[nn.Module], nn.Module]
    report: OnReport


def ray_train_worker() -> Process:
    """Describe this process, a worker of Ray Train; its reports reach the callbacks there."""
    return Process(
        ray.train.torch.get_device(),
        ray.train.get_context().get_local_rank() == 0,
        ray.train.torch.prepare_model,
        ray.train.report,
    )


def only_worker(on_report: OnReport = lambda metrics: None) -> Process:
    """Describe this process, which has the GPU that Ray gives it, or else the CPU."""
    device = torch.device("cuda", 0) if ray.get_gpu_ids() else torch.device("cpu")
    return Process(device, True, lambda model: model, on_report)


@dataclass(frozen=True)
class Setup:
    """What a worker trains with; it stays the same during training.

    Attributes:
        config: the run's.
        folder: the run's.
        process: the one that it trains in.
        checkpoints: what the run goes on from.
        use_bf16: whether it encodes under bfloat16 autocast.
        local: where this machine has its copies of what steps read.
        data: the prepared dataset.
        objective: the terms.
        sampler: draws this worker's share of the batches.
        background: the run's background tasks; these keep track of their own work.
        log: the run's log on the first worker; None on the others.
        made_from: what the run is made from, as the driver has found it.
    """

    config: RunConfig
    folder: Path
    process: Process
    checkpoints: Checkpoints
    use_bf16: bool
    local: LocalFolder
    data: Prepared
    objective: Objective
    sampler: Sampler
    background: list[BackgroundTask]
    log: RunLog | None
    made_from: dict[str, str]

    @property
    def device(self) -> torch.device:
        """Where this worker computes."""
        return self.process.device

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole training."""
        return self.sampler.steps_per_epoch * self.config.training.epochs


def set_up(task: WorkerTask, process: Process) -> Setup:
    """Map the data into memory, and build what training needs besides the model."""
    config, device = task.config, process.device
    torch.manual_seed(config.seed)  # as this process may have trained another run before
    torch.set_num_threads(config.workers.cpus_per_worker)
    torch.set_float32_matmul_precision("high")  # TF32 on GPUs that have it
    if not os.environ.keys() & set(ALLOCATOR):  # read when a GPU's memory is first asked for
        os.environ[ALLOCATOR[0]] = "expandable_segments:True"  # as no two steps have one size
    objective = build_objective(config)
    regularizers = objective.regularizers
    on_disk = None if config.local_folder is None else Path(config.local_folder)
    local = LocalFolder(on_disk, process.is_first_on_machine, device)
    prepared, edges = Path(task.prepared), Path(task.edges)
    data = Prepared(local.copy_of(prepared))
    if edges.is_relative_to(prepared):
        graphs = data.path / edges.relative_to(prepared)
    else:
        graphs = local.copy_of_graphs(edges, regularizers)
    training_data = TrainingData.from_prepared(data, regularizers, graphs)
    sampler = build_sampler(config, data, training_data)
    folder, bf16 = Path(task.run_directory), use_bf16(config, device)
    context = TaskContext(
        prepared, edges, regularizers, folder, sampler.steps_per_epoch, device, bf16, local
    )  # tasks may run on other machines, so they read the shared folders
    log = None
    if world()[0] == 0:
        total_steps = sampler.steps_per_epoch * config.training.epochs
        log = RunLog(StepLogger(task.run, folder), objective, total_steps, folder)
    background = background_tasks(config, context)
    return Setup(
        config,
        folder,
        process,
        Checkpoints(folder, device),
        bf16,
        local,
        data,
        objective,
        sampler,
        background,
        log,
        task.made_from,
    )


@dataclass
class Progress:
    """What checkpoints keep besides the training state; plain values."""

    best: float = NOT_VALIDATED
    validations_since_best: int = 0
    trained_seconds: float = 0.0
    background: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Progress of each background task, by name, when the checkpoint was written."""


@dataclass
class Training:
    """A worker's run in progress: the model, and what changes as it is trained."""

    setup: Setup
    model: DualEncoder
    state: TrainState
    progress: Progress
    first_step_at: float | None = None


def start_or_resume(setup: Setup) -> Training:
    """Build the model and its training state, new or from the last checkpoint."""
    last = setup.checkpoints.last()
    if last is None:
        run = _new_run(setup, untrained_model(setup))
        for one in setup.background:
            one.forget_after(0)
        run.state.advance()
        return run
    check_intact(last.folder)
    model = load_model(last.folder, held_classifiers(setup.config, setup.data))
    run = _new_run(setup, _to_train(model, setup.device))
    run.progress = Progress(**restore_checkpoint(last.folder, run.state))
    for one in setup.background:
        one.forget_after(run.state.step)
        progress = run.progress.background[one.name]
        run.state.draws = one.restore(progress, run.state.draws)
    return run


def untrained_model(setup: Setup) -> DualEncoder:
    """Build the model that training starts from, on this worker's device.

    It is built in each attempt, and again for the evaluation at the end.

    Raises:
        RunError: the encoder is not the one that the run began with.
    """
    model = build_model(setup.config).to(setup.device)
    expected = {"encoder": setup.made_from["encoder"]}
    check_meanwhile(expected, {"encoder": content_of(setup.config.encoder.pretrained)})
    return add_free_vectors(setup.config, model, setup.data)


def _to_train(model: DualEncoder, device: torch.device) -> DualEncoder:
    """Move a loaded model to a device, and its classifiers too, which otherwise stay mapped."""
    if model.classifiers is not None:
        vectors = model.classifiers.vectors.to(device)
        model.classifiers = replace(model.classifiers, vectors=vectors)
    return model.to(device)


def _new_run(setup: Setup, model: DualEncoder) -> Training:
    keep_tokens(model.encoder, setup.data.occurring_tokens)
    trained = setup.process.wrap(model)
    state = build_state(setup.config, model, trained, setup.sampler)
    return Training(setup, model, state, Progress())
