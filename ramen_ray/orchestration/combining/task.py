"""What the workers of a combiner's training receive and return."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramen_ray.bases import Part
from ramen_ray.method.metrics.comparison import Difference
from ramen_ray.method.metrics.judgement import Propensity
from ramen_ray.orchestration.combining.settings import CombineSettings
from ramen_ray.tracking.runs import Run

Metrics = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Metrics by row, split and name."""


@dataclass(frozen=True)
class CombineTask:
    """What the driver sends to every worker; plain values only.

    Attributes:
        settings: what is trained.
        model: folder of the run's best model.
        part: which of its vectors answer.
        prepared: folder of the run's prepared dataset.
        sibling: folder of the prepared one-shot sibling, if clicks are revealed.
        embeddings: file of the frozen embeddings.
        folder: where the result goes.
        propensity: constants of the metrics.
        run: the MLflow run.
    """

    settings: CombineSettings
    model: str
    part: Part
    prepared: str
    sibling: str | None
    embeddings: str
    folder: str
    propensity: Propensity
    run: Run


@dataclass(frozen=True)
class Evaluation:
    """How the rows compare.

    Attributes:
        metrics: by row, split and name.
        differences: how much a row exceeds text alone, with intervals; in the same order.
    """

    metrics: Metrics
    differences: Mapping[str, Mapping[str, Mapping[str, Difference]]]


def combine_loop_per_worker(settings: dict[str, Any]) -> Evaluation | None:
    """Run the ``task`` of ``settings``, a :class:`CombineTask`; what Ray Train calls."""
    logging.getLogger().setLevel(logging.WARNING)  # otherwise Ray Train logs every report
    from ramen_ray.orchestration.combining.worker import run_worker

    return run_worker(settings["task"])
