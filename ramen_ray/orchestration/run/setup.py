"""What a worker of a run trains with, and how it measures the models of the run."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ramen_ray.config import EncoderConfig, RunConfig, write_config
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.made_folder import check_intact, write_json
from ramen_ray.errors import UserError
from ramen_ray.method.metrics.ground_truth import evaluate
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.model.pretrained import content_of
from ramen_ray.method.model.sentence_folder import open_encoder
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.method.retrieval.shards import BYTES_PER_NUMBER, shard_ranges
from ramen_ray.method.training.state import TrainState
from ramen_ray.method.training.step import StepMemoryError
from ramen_ray.orchestration.background.from_checkpoints import GraphPruning, ShortlistMining
from ramen_ray.orchestration.background.task import BackgroundTask, Schedule
from ramen_ray.orchestration.cluster.local_folder import LocalFolder
from ramen_ray.orchestration.run.build import (
    build_classifiers,
    build_model,
    build_propensity,
    build_state,
    held_classifiers,
)
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    IDENTITY_FILE,
    RunDirectory,
)
from ramen_ray.orchestration.run.identity import Inputs, check_meanwhile
from ramen_ray.orchestration.run.inputs import CARRIED_FILE
from ramen_ray.orchestration.run.loop import Setup
from ramen_ray.orchestration.run.processes import TooManyTexts

LEAST_TEXTS_AT_ONCE = 16  # fewer are not what fills a memory
TEXTS_AT_ONCE = "texts_at_once"  # note of a run, once a step has not fitted into memory

Measured = tuple[dict[str, float], TopK]  # metrics, and ids of the best ads


@dataclass(frozen=True, kw_only=True)
class RunSetup(Setup[DualEncoder]):
    """What a worker of a run trains with; ``local`` has its machine's copies of what steps read."""

    inputs: Inputs  # as the driver has found them
    data: Prepared
    local: LocalFolder
    texts_at_once: int | None  # that a step encodes: what has fitted into memory, once noted

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        return self.inputs.config

    def new_model(self) -> DualEncoder:
        """Build the model that training starts from; a RunError if the encoder has changed."""
        model = build_model(self.config).to(self.worker.device)
        # after the model was read
        expected = {"encoder": self.inputs.made_from["encoder"]}
        check_meanwhile(expected, {"encoder": content_of(self.config.encoder.pretrained)})
        if model.classifier_head is not None:
            file = self.folder / CARRIED_FILE
            carried = np.load(file) if file.is_file() else None
            model.classifiers = build_classifiers(self.config, model, self.data, carried)
        return model

    def open_model(self, checkpoint: Path) -> DualEncoder:
        """Open a checkpoint's model; its classifiers, otherwise mapped, go to the device too."""
        model = self._loaded(checkpoint)
        if model.classifiers is not None:
            vectors = model.classifiers.vectors.to(self.worker.device)
            model.classifiers = replace(model.classifiers, vectors=vectors)
        return model

    def _loaded(self, checkpoint: Path) -> DualEncoder:
        model = load_model(checkpoint, held_classifiers(self.config, self.data))
        return model.to(self.worker.device)

    def new_state(self, model: DualEncoder) -> TrainState:
        """Build what changes besides the model, which keeps only the tokens that occur."""
        keep_tokens(model.encoder, self.data.occurring_tokens)
        model.texts_at_once = self.texts_at_once
        if self.config.encoder.compile:
            model.encoder.backbone.compile(dynamic=True)  # no two steps have one shape
        return build_state(
            self.config, model, self.worker.wrap(model), self.sampler, self.objective
        )

    def with_fewer_texts(self, error: StepMemoryError) -> Exception:
        """Note half as many texts at once for the next attempt; returns what this one ends with."""
        fewer = min(self.texts_at_once or error.num_texts, error.num_texts) // 2
        if fewer < LEAST_TEXTS_AT_ONCE:
            return UserError(str(error))
        RunDirectory(self.folder).note(**{TEXTS_AT_ONCE: fewer})
        return TooManyTexts(error.step, fewer)

    def save_model(self, model: DualEncoder, checkpoint: Path) -> None:
        """Write the model, the configuration, and what the run is made from."""
        model.save(checkpoint, self.config.encoder.max_length)
        write_config(self.config, checkpoint / CONFIG_FILE)
        write_json(checkpoint / IDENTITY_FILE, self.inputs.made_from)

    def measure(self, model: DualEncoder, split: str) -> Measured:
        """Evaluate a model on a split; returns the metrics and the best ads of each query."""
        return evaluate(model, self.data, split, build_propensity(self.config), self.use_bf16)

    def trained_model(self, checkpoint: Path) -> DualEncoder:
        """Open the intact model of a checkpoint, with this worker's share of its classifiers."""
        check_intact(checkpoint)
        return self._loaded(checkpoint)

    def validate(self, model: DualEncoder) -> dict[str, float]:
        """Return the metrics of the validation split."""
        return self.measure(model, "validation")[0]


def pruning_task(setup: RunSetup, data: Path, edges: Path) -> BackgroundTask | None:
    """Return the task that prunes a run's graph; None if the run does not prune.

    The prepared ``data`` and the ``edges`` that the run began with are in folders that all machines
    can reach.
    """
    settings = setup.config.pruning
    regularizers = setup.objective.regularizers
    if settings.mode == "never" or not regularizers:
        return None
    wait = settings.mode == "synchronous"
    pruning = GraphPruning(
        data,
        edges,
        regularizers,
        settings.prune_threshold,
        setup.use_bf16,
        num_threads=setup.config.workers.cpus_per_worker if wait else 1,  # these are free then
    )
    schedule = _schedule(setup, settings.warmup_epochs, settings.every_epochs, wait, "pruning.mode")
    return BackgroundTask("graph", setup.folder / "graphs", pruning, schedule, True, setup.local)


def shortlist_task(setup: RunSetup, data: Path) -> BackgroundTask | None:
    """Return the task that makes a run's shortlists; None if the run has none.

    The prepared ``data`` are in a folder that all machines can reach.
    """
    base = setup.config.base
    workers = setup.config.workers
    if base.parts.hard_negatives == "none":
        return None
    wait = base.refresh_mode == "synchronous"
    num_ads = len(Prepared(data).candidates("validation"))
    bytes_of_ad = embedding_dim(setup.config.encoder) * BYTES_PER_NUMBER
    needs_shards = len(shard_ranges(num_ads, bytes_of_ad, workers.gb_per_shard)) > 1
    mining = ShortlistMining(
        data,
        base.parts.shortlist_size,
        setup.use_bf16,
        num_threads=workers.cpus_per_worker if wait else 1,  # these are free then
        gb_per_shard=workers.gb_per_shard if needs_shards else None,
    )
    every = base.refresh_every
    schedule = _schedule(setup, every, every, wait, "base.refresh_mode")
    folder = setup.folder / "shortlists"
    return BackgroundTask("shortlists", folder, mining, schedule, needs_shards, setup.local)


def _schedule(setup: RunSetup, first: int, every: int, wait: bool, flag: str) -> Schedule:
    epochs = setup.config.training.epochs
    return Schedule(first, every, epochs, setup.sampler.steps_per_epoch, wait, flag)


def embedding_dim(config: EncoderConfig) -> int:
    """Return the width of an encoder's embeddings, without loading its weights."""
    folder = open_encoder(config.pretrained, config.kind)
    return config.dim or config.projection_dim or folder.dense_dim or folder.width
