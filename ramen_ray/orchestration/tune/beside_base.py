"""A run beside its bases: the same training without the graph, and in plain batches."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from ramen_ray.config import WITHOUT_GRAPH, ConfigError, RunConfig, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.comparison import Difference, paired_differences
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.evaluate import scores_of_run
from ramen_ray.orchestration.run.directory import experiment_hash
from ramen_ray.orchestration.run.fit import TrainResult, finished_result, fit
from ramen_ray.orchestration.run.start import identity_of, prepared_for, resolved
from ramen_ray.presets import used_sets, with_base

PLAIN = "in_batch"


@dataclass(frozen=True)
class Rung:
    """A run on the way from the plainest to the one asked for.

    ``gains`` say by how much its test metrics exceed those of the rung before; none for the first.
    """

    result: TrainResult
    gains: Mapping[str, Difference]


def fit_beside_base(config: RunConfig) -> dict[str, Rung]:
    """Train a run's bases, unless they are trained already, then the run, and compare them.

    The rungs are plain batches; the run's own base, if it is another; and with the graph.

    Raises:
        ConfigError: the run is its own base.
        UserError: as :func:`~ramen_ray.orchestration.run.fit.fit`.
    """
    config = resolved(config)
    dataset = Dataset(config.dataset)
    made_from = identity_of(config, dataset)
    ladder = _ladder(config)
    results = {}
    for name, one in ladder.items():
        if one is config:
            results[name] = fit(config, expected=made_from)
        else:
            key = experiment_hash(one, dataset.fingerprint)
            base = overlay(one, {"name": joined_name(dataset.name, "base", key)})
            results[name] = finished_result(base, made_from) or fit(base, expected=made_from)
    data = prepared_for(config, dataset)
    rungs: dict[str, Rung] = {}
    before = None
    for name, result in results.items():
        scores = scores_of_run(result.run_directory, config, data, "test")
        rungs[name] = Rung(result, {} if before is None else paired_differences(scores, before))
        before = scores
    return rungs


def _ladder(config: RunConfig) -> dict[str, RunConfig]:
    ladder = {}
    if config.base.kind != PLAIN:
        parts = {f"base.{part.name}": None for part in fields(config.base.parts)}
        plain = with_base(config, {**parts, "base.kind": PLAIN})
        ladder[PLAIN] = overlay(plain, {**WITHOUT_GRAPH, "name": None})
    if used_sets(config):
        ladder[config.base.kind] = overlay(config, {**WITHOUT_GRAPH, "name": None})
        ladder[f"{config.base.kind} + graph"] = config
    else:
        ladder[config.base.kind] = config
    if len(ladder) == 1:
        raise ConfigError(f"--with-base: {PLAIN} without a graph is the base itself")
    return ladder
