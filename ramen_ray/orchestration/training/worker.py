"""What every Ray Train worker runs: train, validate, checkpoint, go on where a lost worker was."""

import logging
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray.train
import ray.train.torch
import torch
from numpy.typing import NDArray
from ray.train import Checkpoint, CheckpointConsistencyMode
from torch import Tensor

from ramen_ray.config import write_config
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.evaluation import evaluate
from ramen_ray.method.model.encoder import Encoder, load_encoder
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.method.retrieval.shortlists import open_shortlists
from ramen_ray.method.sampling.batches import Batches, open_graphs
from ramen_ray.method.training.checkpoints import (
    ENCODER_FOLDER,
    read_state,
    restore_state,
    save_checkpoint,
)
from ramen_ray.method.training.distributed import world
from ramen_ray.method.training.step import global_losses, train_steps
from ramen_ray.method.training.step_figures import Floats, StepLosses
from ramen_ray.orchestration.background.pruning import GraphPruning, pruned_graphs
from ramen_ray.orchestration.background.renewal import Renewal
from ramen_ray.orchestration.background.shortlists import (
    SHORTLISTS_FILE,
    ShortlistMining,
    build_curriculum,
    mined_shortlists,
)
from ramen_ray.orchestration.training.components import (
    build_encoder,
    build_objective,
    build_propensity,
    build_state,
)
from ramen_ray.orchestration.training.entry import WorkerTask
from ramen_ray.orchestration.training.final_evaluation import (
    NOT_VALIDATED,
    SCORE,
    VALIDATION,
    evaluate_best,
)
from ramen_ray.orchestration.training.run_directory import CONFIG_FILE
from ramen_ray.tracking.runs import StepLogger

STEPS_PER_LOG = 50
SECONDS_BETWEEN_LINES = 30
CHECKPOINT_FOLDER = "checkpoint_{:09d}"

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """What a run remembers besides the training state."""

    best: float = NOT_VALIDATED
    validations_since_best: int = 0
    trained_seconds: float = 0.0
    renewals: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The progress of each renewal, by name, when the checkpoint was written."""

    @property
    def values(self) -> dict[str, Any]:
        """The fields as plain values."""
        return dict(vars(self))


def run_worker(task: WorkerTask) -> dict[str, Any]:
    """Train to the end and evaluate the best encoder beside the untrained one.

    Returns:
        ``metrics`` by row (untrained, trained) and split, ``sample`` predictions for test queries,
        the ``best_checkpoint``'s path and what took how long; the same on every worker.
    """
    worker = Worker(task)
    worker.train()
    worker.stop_background()
    untrained = build_encoder(task.config.encoder)
    splits = worker.data.splits[1:]
    folder = Path(task.run_directory)
    outcome = evaluate_best(task.config, splits, untrained, worker.evaluate, worker.device, folder)
    return outcome | worker.timing


@dataclass
class Worker:
    """One worker's encoder, data and state."""

    task: WorkerTask
    progress: Progress = field(default_factory=Progress)
    entered_at: float = field(default_factory=time.time)
    first_step_at: float | None = None

    def __post_init__(self) -> None:
        config = self.task.config
        torch.set_num_threads(config.workers.cpus_per_worker)
        torch.set_float32_matmul_precision("high")  # TF32 on GPUs that have it
        self.config = config
        self.device = ray.train.torch.get_device()
        self.use_bf16 = config.training.precision == "bf16" or (
            config.training.precision == "auto" and self.device.type == "cuda"
        )
        self.data = Prepared(Path(self.task.prepared))
        self.objective = build_objective(config)
        self.batches = Batches.of(
            self.data,
            self.objective.regularizers,
            config.training.global_batch_size,
            config.seed,
            Path(self.task.edges),
        )
        self.total_steps = self.batches.steps_per_epoch * config.training.epochs
        self.renewals = self._renewals()
        self._restore_or_start()
        self.logger = (
            StepLogger(self.task.tracking_uri, self.task.mlflow_run_id) if world()[0] == 0 else None
        )

    def _renewals(self) -> list[Renewal]:
        prune = GraphPruning(
            self.data.path,
            Path(self.task.edges),
            list(self.objective.regularizers),
            self.config.pruning.prune_threshold,
            self.use_bf16,
        )
        mine = ShortlistMining(self.data.path, self.config.base.shortlist_size, self.use_bf16)
        folder, epoch = Path(self.task.run_directory), self.batches.steps_per_epoch
        graphs = pruned_graphs(self.config, prune, folder / "graphs", epoch, self.device)
        lists = mined_shortlists(self.config, mine, folder / "shortlists", epoch, self.device)
        renewals = []
        if graphs is not None:
            renewals.append(Renewal("graph", graphs, self._take_graph))
        if lists is not None:
            renewals.append(Renewal("shortlists", lists, self._take_shortlists))
        return renewals

    def _restore_or_start(self) -> None:
        checkpoint = ray.train.get_checkpoint()
        content: dict[str, Any] | None = None
        if checkpoint is None:
            self.encoder = build_encoder(self.config.encoder)
            self._begin_base()
        else:
            with checkpoint.as_directory() as folder:
                self.encoder = load_encoder(Path(folder) / ENCODER_FOLDER)
                self._begin_base(Path(folder))
                content = read_state(Path(folder))
        model = ray.train.torch.prepare_model(self.encoder)
        self.state = build_state(self.config, self.encoder, model, self.total_steps)
        if content is not None:
            restore_state(self.state, content)
            self.progress = Progress(**content["progress"])
            for renewal in self.renewals:
                renewal.restore(self.progress.renewals[renewal.name])

    def _begin_base(self, checkpoint: Path | None = None) -> None:
        """Let the base add to the batches what it does at the start, or did at ``checkpoint``."""
        config = self.config
        if config.base.kind == "ance":
            self.batches.expect_hard_negatives(config.base.num_hard_negatives)
        self.curriculum = build_curriculum(config, self.batches, self.encoder.dim, self.device)
        if self.curriculum is None:
            return
        if checkpoint is None:
            self.curriculum.advance(0)
        else:
            self.curriculum.restore(checkpoint)

    def train(self) -> None:
        """Train from the present step to the last, with validations and checkpoints on the way."""
        steps_per_epoch = self.batches.steps_per_epoch
        for stop in self._stops():
            if self._stopped_early():
                return
            self._renew()
            losses = self._train_until(stop)
            epoch, rest = divmod(stop, steps_per_epoch)
            metrics: dict[str, float] = {}
            every = self.config.training.validate_every
            if not rest and (epoch % every == 0 or stop == self.total_steps):
                metrics = self._validate()
            self._tell(epoch + bool(rest), stop, losses.means, metrics)
            self._advance_curriculum(stop)
            self._report(stop, metrics)

    def _advance_curriculum(self, step: int) -> None:
        if self.curriculum is not None:
            started = time.monotonic()
            self.curriculum.advance(step)
            self.progress.trained_seconds += time.monotonic() - started

    def _renew(self) -> None:
        """At the start of an epoch, take what background tasks have made, and begin what is due."""
        step = self.state.step
        if step == 0 or step % self.batches.steps_per_epoch:
            return
        checkpoint = Path(self.task.run_directory) / CHECKPOINT_FOLDER.format(step)
        for renewal in self.renewals:
            known = renewal.advance(step, checkpoint / ENCODER_FOLDER)
            if self.logger is not None:
                self.logger.log_renewal(renewal.name, known, step)
                if "step" in known:
                    told = ", ".join(f"{name} {value:.4g}" for name, value in known.items())
                    logger.info("new %s: %s", renewal.name, told)

    def _take_graph(self, folder: Path) -> None:
        self.batches.graphs = open_graphs(folder, self.objective.regularizers)

    def _take_shortlists(self, folder: Path) -> None:
        self.batches.shortlists = open_shortlists(folder / SHORTLISTS_FILE)

    def stop_background(self) -> None:
        """Keep only the results in use: a training that is over has no use for others."""
        for renewal in self.renewals:
            renewal.results.stop(renewal.taken)

    def _stops(self) -> Iterator[int]:
        """Yield the steps to come after which a checkpoint is written."""
        every = self.config.training.checkpoint_every_steps
        stops = set(range(0, self.total_steps + 1, self.batches.steps_per_epoch))
        if every is not None:
            stops |= set(range(every, self.total_steps, every))
        yield from sorted(stop for stop in stops if stop > self.state.step)

    def _stopped_early(self) -> bool:
        patience = self.config.training.early_stop_patience
        return patience is not None and self.progress.validations_since_best >= patience

    def _train_until(self, stop: int) -> StepLosses:
        """Train up to step ``stop``; returns the losses of the steps."""
        started, first, told = time.monotonic(), self.state.step, 0
        waiting: list[Tensor] = []
        weights: list[Tensor] = []
        trained: list[NDArray[np.float32]] = []
        steps = train_steps(
            self.state,
            self.batches,
            self.objective,
            stop,
            use_bf16=self.use_bf16,
            max_gradient_norm=self.config.optimizer.max_gradient_norm,
        )
        for terms in steps:
            if self.first_step_at is None:
                self.first_step_at = time.time()
            waiting.append(terms)
            if self.state.adaptation is not None:
                weights.append(self.state.adaptation.weights)
            if len(waiting) == STEPS_PER_LOG or self.state.step == stop:
                trained.append(global_losses(waiting))
                seconds = time.monotonic() - started
                self._log_steps(trained[-1], weights, (self.state.step - first) / seconds)
                waiting, weights = [], []
                if seconds > SECONDS_BETWEEN_LINES * (told + 1) and self.logger is not None:
                    told = int(seconds / SECONDS_BETWEEN_LINES)
                    logger.info("step %d/%d", self.state.step, self.total_steps)
        self.progress.trained_seconds += time.monotonic() - started
        return StepLosses.of(self.objective, first, np.concatenate(trained))

    def _log_steps(
        self, terms: NDArray[np.float32], weights: list[Tensor], steps_per_second: float
    ) -> None:
        """Log the latest steps' terms (steps, terms) and, where they move, each step's weights."""
        if self.logger is None:
            return
        step = self.state.step
        losses = StepLosses.of(self.objective, step - len(terms), terms)
        moved = torch.stack(weights).cpu().numpy() if weights else None
        figures = losses.figures(moved, steps_per_second * self.batches.batch_size)
        self.logger.log_losses(*figures, step)

    def _validate(self) -> dict[str, float]:
        metrics, _ = self.evaluate(self.encoder, "validation")
        score = metrics[self.config.training.selection_metric]
        self.progress.validations_since_best += 1
        if score > self.progress.best:
            self.progress.best = score
            self.progress.validations_since_best = 0
        return metrics

    def evaluate(self, encoder: Encoder, split: str) -> tuple[dict[str, float], TopK]:
        """Measure ``encoder`` on a split; returns the metrics and the best ads of each query."""
        propensity = build_propensity(self.config)
        return evaluate(encoder, self.data, split, propensity, self.use_bf16)

    def _tell(self, epoch: int, step: int, losses: Floats, metrics: dict[str, float]) -> None:
        if self.logger is None:
            return
        named = zip(self.objective.terms, losses, strict=True)
        parts = [f"{name} {value:.4f}" for name, value in named]
        parts += [f"{k} {100 * metrics[k]:.2f}" for k in ("P@1", "R@10") if k in metrics]
        epochs = self.config.training.epochs
        told = f"epoch {epoch}/{epochs} step {step}/{self.total_steps}"
        logger.info("%s: %s", told, ", ".join(parts))

    def _report(self, step: int, metrics: dict[str, float]) -> None:
        """Write a checkpoint, and wait until Ray Train would come back to it."""
        named = {VALIDATION + name: value for name, value in metrics.items()}
        score = metrics.get(self.config.training.selection_metric, NOT_VALIDATED)
        if self.logger is not None and metrics:
            self.logger.log_validation(named, step)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if world()[0] == 0:
                self.progress.renewals = {one.name: one.progress for one in self.renewals}
                max_length = self.config.encoder.max_length
                save_checkpoint(
                    Path(folder), self.encoder, self.state, max_length, self.progress.values
                )
                write_config(self.config, Path(folder) / CONFIG_FILE)
                if self.curriculum is not None:
                    self.curriculum.save(Path(folder))
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report(
                {"step": step, "epoch": step / self.batches.steps_per_epoch, SCORE: score, **named},
                checkpoint=checkpoint,
                checkpoint_dir_name=CHECKPOINT_FOLDER.format(step),
            )
        ray.train.get_all_reported_checkpoints(consistency_mode=CheckpointConsistencyMode.COMMITTED)

    @property
    def timing(self) -> dict[str, float]:
        """Seconds trained and waited so far, and when this process was entered and made a step."""
        return {
            "trained_seconds": self.progress.trained_seconds,
            "waited_seconds": sum(renewal.waited_s for renewal in self.renewals),
            "entered_at": self.entered_at,
            "first_step_at": self.first_step_at or self.entered_at,
        }
