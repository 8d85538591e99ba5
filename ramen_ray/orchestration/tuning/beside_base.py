"""A run beside its base: the same training without the graph, and what the graph brings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay, with_absolute_paths
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.comparison import Difference, paired_differences
from ramen_ray.method.metrics.judgement import Judgement
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.prepare.pipeline import prepare
from ramen_ray.orchestration.runs.components import build_propensity, encoder_tokenizer
from ramen_ray.orchestration.runs.identity import identity_of
from ramen_ray.orchestration.runs.run_directory import experiment_hash
from ramen_ray.orchestration.training.results import TrainResult, finished_result
from ramen_ray.orchestration.training.run import fit
from ramen_ray.orchestration.worker.final_evaluation import TEST_ADS_FILE


@dataclass(frozen=True)
class BesideBase:
    """A run and its base.

    Attributes:
        result: the run.
        base: the same run without the graph.
        differences: by how much the run's test metrics exceed the base's.
    """

    result: TrainResult
    base: TrainResult
    differences: Mapping[str, Difference]


def fit_beside_base(config: RunConfig) -> BesideBase:
    """Train the base of a run, unless it is trained already, then the run, and compare them.

    Raises:
        DatasetError, EncoderError, ConfigError, ClusterError, RunError, TrackingError: as
            :func:`~ramen_ray.orchestration.training.run.fit`.
    """
    config = with_absolute_paths(config)
    dataset = Dataset(config.dataset)
    made_from = identity_of(config, dataset)
    without = overlay(config, WITHOUT_GRAPH)
    key = experiment_hash(without, dataset.fingerprint)
    without = overlay(without, {"name": joined_name(dataset.name, "base", key)})
    base = finished_result(without, made_from) or fit(without, expected=made_from)
    result = fit(config, expected=made_from)
    tokenizer = encoder_tokenizer(config.encoder)
    data = prepare(dataset, Path(config.output) / "prepared", tokenizer)
    judgement = Judgement.from_prepared(data, "test", build_propensity(config))
    ours, theirs = (
        judgement.by_query(np.load(one.run_directory / TEST_ADS_FILE)) for one in (result, base)
    )
    return BesideBase(result, base, paired_differences(ours, theirs))
