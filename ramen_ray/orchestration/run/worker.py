"""What a worker of a run trains with, and how it evaluates the best model."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ramen_ray.bases import Part
from ramen_ray.config import RunConfig, write_config
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.made_folder import check_intact, whole_file
from ramen_ray.method.distributed import world
from ramen_ray.method.metrics.judgement import evaluate
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.model.pretrained import content_of
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.method.sampling.step_inputs import pool_figures
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.state import TrainState
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
    held_classifiers,
    use_bf16,
)
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    IDENTITY_FILE,
    TEST_ADS_FILE,
    VALIDATION_ADS_FILE,
    Identity,
)
from ramen_ray.orchestration.run.loop import Plan, Setup
from ramen_ray.orchestration.run.made_from import CARRIED_FILE, check_meanwhile
from ramen_ray.orchestration.run.processes import Process, prepare_process

PARTS: tuple[Part, ...] = ("encoder", "classifier", "both")


@dataclass(frozen=True, kw_only=True)
class RunSetup(Setup[DualEncoder]):
    """What a worker of a run trains with; ``local`` has its machine's copies of what steps read."""

    config: RunConfig
    data: Prepared
    local: LocalFolder
    made_from: Identity  # as the driver has found it

    def new_model(self) -> DualEncoder:
        """Build the model that training starts from; a RunError if the encoder has changed."""
        model = build_model(self.config).to(self.process.device)
        expected = {"encoder": self.made_from["encoder"]}  # compared after the model was read
        check_meanwhile(expected, {"encoder": content_of(self.config.encoder.pretrained)})
        if model.classifier_head is not None:
            file = self.folder / CARRIED_FILE
            carried = np.load(file) if file.is_file() else None
            model.classifiers = build_classifiers(self.config, model, self.data, carried)
        return model

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
        if self.config.encoder.compile:
            model.encoder.backbone.compile(dynamic=True)  # no two steps have one shape
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
        batch = self.sampler.draw(step, state.draws, []).gathered()
        return pool_figures(batch, self.sampler.data.clicks)


def run_setup(
    config: RunConfig,
    prepared: Path,
    edges: Path,
    folder: Path,
    made_from: Identity,
    process: Process,
) -> RunSetup:
    """Map the data into memory, and build what training needs besides the model."""
    device = process.device
    prepare_process(config.seed, config.workers)
    objective = build_objective(config)
    regularizers = objective.regularizers
    on_disk = None if config.local_folder is None else Path(config.local_folder)
    local = LocalFolder(on_disk, process.is_first_on_machine, device)
    data = Prepared(local.copy_of(prepared))
    if edges.is_relative_to(prepared):  # not walked, and copied with the other arrays
        graphs = data.path / edges.relative_to(prepared)
    else:
        graphs = local.copy_of_graphs(edges, regularizers)
    training_data = TrainingData.from_prepared(data, regularizers, graphs)
    sampler = build_sampler(config, data, training_data)
    plan = Plan.of_run(config.training, sampler.steps_per_epoch)
    bf16 = use_bf16(config, device)
    # tasks may run on other machines, so they read the shared folders
    context = TaskContext(
        prepared, edges, regularizers, folder, sampler.steps_per_epoch, bf16, local
    )
    # in the order in which their results are taken
    background = (pruning_task(config, context), shortlist_task(config, context))
    return RunSetup(
        folder=folder,
        process=process,
        plan=plan,
        objective=objective,
        sampler=sampler,
        advice="lower optimizer.lr, or set optimizer.max_gradient_norm",
        background=[one for one in background if one is not None],
        use_bf16=bf16,
        max_gradient_norm=config.optimizer.max_gradient_norm,
        config=config,
        data=data,
        local=local,
        made_from=made_from,
    )


def evaluate_best(
    setup: RunSetup, best: Path
) -> tuple[dict[str, dict[str, dict[str, float]]], Part]:
    """Evaluate the model of the checkpoint ``best`` and the untrained one on all held-out splits.

    A model with classifiers is evaluated by each part of its vectors; validation chooses the one
    that answers. The first worker writes the best ads of test and validation queries, ids (queries,
    k), into TEST_ADS_FILE and VALIDATION_ADS_FILE, and those of each part into
    ``test_ads_PART.npy``. Returns metrics by row, split and name, and the part that answers.
    """
    config, splits, folder = setup.config, setup.data.splits[1:], setup.folder
    untrained = setup.new_model()
    check_intact(best)
    trained = load_model(best, held_classifiers(config, setup.data)).to(setup.process.device)
    metrics = {"untrained": {split: setup.measure(untrained, split)[0] for split in splits}}
    parts = PARTS if trained.classifiers is not None else PARTS[:1]
    found: dict[Part, dict[str, TopK]] = {part: {} for part in parts}
    by_part: dict[Part, dict[str, dict[str, float]]] = {part: {} for part in parts}
    for part in parts:
        trained.part = part
        for split in splits:
            by_part[part][split], found[part][split] = setup.measure(trained, split)
    selection = config.training.selection_metric
    chosen = max(parts, key=lambda part: by_part[part]["validation"][selection])
    if len(parts) > 1:
        metrics |= {str(part): of_splits for part, of_splits in by_part.items()}
    metrics["trained"] = by_part[chosen]
    if world()[0] == 0:
        _save_ads(folder / TEST_ADS_FILE, found[chosen]["test"])
        _save_ads(folder / VALIDATION_ADS_FILE, found[chosen]["validation"])
        if len(parts) > 1:
            for part, of_splits in found.items():
                _save_ads(folder / f"test_ads_{part}.npy", of_splits["test"])
    return metrics, chosen


def _save_ads(file: Path, topk: TopK) -> None:
    with whole_file(file) as aside, aside.open("wb") as opened:
        np.save(opened, topk[0])
