"""What every worker runs: train classifiers and combiner, checkpoint, resume, evaluate."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.checksums import check_intact
from ramen_ray.method.distributed import sum_over_workers, world
from ramen_ray.method.metrics.comparison import paired_differences
from ramen_ray.method.metrics.ranking import PerQuery, ratios
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.novel_ads.clicks import SeenClicks
from ramen_ray.method.novel_ads.evaluation import (
    SPLITS,
    TEXT,
    Embedded,
    RevealedClicks,
    row_vectors,
)
from ramen_ray.method.novel_ads.neighbours import SeenAds
from ramen_ray.method.novel_ads.representation import (
    COMBINER_FOLDER,
    CombinedAds,
    open_combined_ads,
)
from ramen_ray.method.novel_ads.stages import Stages
from ramen_ray.orchestration.combining.embeddings import open_embedded
from ramen_ray.orchestration.combining.inputs import revealed_clicks
from ramen_ray.orchestration.combining.task import CombineTask, Evaluation
from ramen_ray.orchestration.run.checkpoints import SCORE, Checkpoints
from ramen_ray.orchestration.run.setup import ray_train_worker
from ramen_ray.tracking.step_logger import StepLogger

NUM_CHECKPOINTS = 10
COMPARED = ("P@1", "P@5", "N@5", "R@10", "R@100")


def run_worker(task: CombineTask) -> Evaluation | None:
    """Train to the end; the first worker then writes the combiner and evaluates it."""
    torch.set_num_threads(task.settings.workers.cpus_per_worker)
    process = ray_train_worker()
    checkpoints = Checkpoints(Path(task.folder), process.device)
    data = Prepared(Path(task.prepared))
    sibling = None if task.sibling is None else Prepared(Path(task.sibling))
    model = load_model(Path(task.model), part=task.part)
    embedded, of_sibling = open_embedded(model, data, sibling, Path(task.embeddings))
    stages = build_stages(task, model, embedded, process.device)
    if (last := checkpoints.last()) is not None:
        check_intact(last.folder)
        stages.restore(last.folder)
    train(stages, checkpoints, StepLogger(task.run, Path(task.folder)) if world()[0] == 0 else None)
    if world()[0] != 0:
        return None
    stages.combined_ads().save(Path(task.folder) / COMBINER_FOLDER)
    combined = open_combined_ads(Path(task.folder) / COMBINER_FOLDER)  # as it is served
    revealed: RevealedClicks | None = None
    if sibling is not None and of_sibling is not None:
        ads, rows = revealed_clicks(sibling)
        revealed = ads, of_sibling.take(rows)
    return evaluate(task, embedded, combined, revealed)


def build_stages(
    task: CombineTask, model: DualEncoder, embedded: Embedded, device: torch.device
) -> Stages:
    """Build the training of a task, before its first step.

    If the model answers by classifiers, those are taken as they are.
    """
    settings, data = task.settings, embedded.data
    is_seen = data.train_click_counts >= settings.classifiers.min_clicks
    ids = np.flatnonzero(is_seen)
    vectors = embedded.ads.take(ids)
    seen = SeenAds(ids, vectors, model.with_classifiers(vectors, ids))
    clicks = SeenClicks.from_prepared(data, embedded.queries["train"], ids)
    return Stages(settings.stages(has_classifiers=task.part != "encoder"), clicks, seen, device)


def train(stages: Stages, checkpoints: Checkpoints, log: StepLogger | None) -> None:
    """Train from the current step to the last, with checkpoints on the way."""
    for stop in _stops(stages):
        first, losses = stages.step, list(stages.run(stop))
        values = sum_over_workers(torch.stack(losses)).float().cpu().numpy()[:, None]
        if log is not None:
            steps = np.arange(first, stop)[:, None]
            is_first = steps < stages.first_steps
            names = ["loss/classifiers", "loss/combiner"]
            known = np.concatenate([is_first, ~is_first], axis=1)
            log.log_losses(names, np.repeat(values, 2, axis=1), known, stop)
        report = {"step": stages.step, SCORE: stages.step}  # the last alone is kept
        with checkpoints.written(report, is_shared=False) as folder:
            if world()[0] == 0:
                stages.save(folder)


def _stops(stages: Stages) -> Iterator[int]:
    """Yield the steps after the current one at which a checkpoint is written: ends of epochs."""
    num_epochs = stages.total_steps // stages.steps_per_epoch
    every = max(num_epochs // NUM_CHECKPOINTS, 1) * stages.steps_per_epoch
    stops = {*range(every, stages.total_steps, every), stages.first_steps, stages.total_steps}
    yield from sorted(stop for stop in stops if stop > stages.step)


def evaluate(
    task: CombineTask, embedded: Embedded, combined: CombinedAds, revealed: RevealedClicks | None
) -> Evaluation:
    """Compare text alone, the sum and the combiner on the splits with novel ads."""
    text = embedded.all_ads()
    by_query: dict[str, dict[str, dict[str, PerQuery]]] = {
        row: {split: embedded.measure(vectors, split, task.propensity) for split in SPLITS}
        for row, vectors in row_vectors(combined, text, revealed)
    }
    metrics = {
        row: {split: ratios(values) for split, values in by_split.items()}
        for row, by_split in by_query.items()
    }
    differences = {
        row: {
            split: paired_differences(
                {name: values[name] for name in COMPARED},
                {name: by_query[TEXT][split][name] for name in COMPARED},
            )
            for split, values in by_split.items()
        }
        for row, by_split in by_query.items()
        if row != TEXT
    }
    return Evaluation(metrics, differences)
