"""What a worker of a run trains with: its data, and the model and state that it begins from."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ramen_ray.config import RunConfig, write_config
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.judgement import evaluate
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.model.pretrained import content_of
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.method.sampling.step_inputs import pool_figures
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.step import TrainState
from ramen_ray.orchestration.background.task import TaskContext
from ramen_ray.orchestration.background.tasks import background_tasks
from ramen_ray.orchestration.cluster.local_folder import LocalFolder
from ramen_ray.orchestration.run.build import (
    add_free_vectors,
    build_model,
    build_objective,
    build_propensity,
    build_sampler,
    build_state,
    held_classifiers,
    use_bf16,
)
from ramen_ray.orchestration.run.checkpoints import Checkpoints
from ramen_ray.orchestration.run.directory import CONFIG_FILE, IDENTITY_FILE
from ramen_ray.orchestration.run.identity import check_meanwhile
from ramen_ray.orchestration.run.progress import RunLog
from ramen_ray.orchestration.run.start import CARRIED_FILE
from ramen_ray.orchestration.run.task import WorkerTask
from ramen_ray.orchestration.run.training import Plan, Process, Setup


@dataclass(frozen=True, kw_only=True)
class RunSetup(Setup[DualEncoder]):
    """What a worker of a run trains with.

    Attributes:
        config: the run's.
        data: the prepared dataset.
        local: where this machine has its copies of what steps read.
        made_from: what the run is made from, as the driver has found it.
    """

    config: RunConfig
    data: Prepared
    local: LocalFolder
    made_from: dict[str, str]

    def new_model(self) -> DualEncoder:
        """Build the model that training starts from, on this worker's device.

        It is built in each attempt, and again for the evaluation at the end.

        Raises:
            RunError: the encoder is not the one that the run began with.
        """
        model = build_model(self.config).to(self.process.device)
        expected = {"encoder": self.made_from["encoder"]}
        check_meanwhile(expected, {"encoder": content_of(self.config.encoder.pretrained)})
        file = self.folder / CARRIED_FILE
        carried = np.load(file) if file.is_file() else None
        return add_free_vectors(self.config, model, self.data, carried)

    def open_model(self, checkpoint: Path) -> DualEncoder:
        """Open a checkpoint's model; its classifiers, otherwise mapped, go to the device too."""
        device = self.process.device
        model = load_model(checkpoint, held_classifiers(self.config, self.data))
        if model.classifiers is not None:
            vectors = model.classifiers.vectors.to(device)
            model.classifiers = replace(model.classifiers, vectors=vectors)
        return model.to(device)

    def new_state(self, model: DualEncoder) -> TrainState:
        """Build what changes besides the model, which keeps only the tokens that occur."""
        keep_tokens(model.encoder, self.data.occurring_tokens)
        return build_state(self.config, model, self.process.wrap(model), self.sampler)

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
        batch = self.sampler.draw(step, state.draws, []).gathered(self.process.device)
        return pool_figures(batch, self.sampler.data.clicks)


def set_up(task: WorkerTask, process: Process) -> RunSetup:
    """Map the data into memory, and build what training needs besides the model."""
    config, device = task.config, process.device
    process.settle(config.seed, config.workers)
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
    plan = Plan.of_run(config.training, sampler.steps_per_epoch)
    folder, bf16 = Path(task.run_directory), use_bf16(config, device)
    context = TaskContext(
        prepared, edges, regularizers, folder, sampler.steps_per_epoch, device, bf16, local
    )  # tasks may run on other machines, so they read the shared folders
    return RunSetup(
        folder=folder,
        process=process,
        checkpoints=Checkpoints(folder, device),
        plan=plan,
        objective=objective,
        sampler=sampler,
        log=RunLog.of_first_worker(task.run, folder, objective, plan.total_steps),
        advice="lower optimizer.lr, or set optimizer.max_gradient_norm",
        background=background_tasks(config, context),
        use_bf16=bf16,
        max_gradient_norm=config.optimizer.max_gradient_norm,
        config=config,
        data=data,
        local=local,
        made_from=task.made_from,
    )
