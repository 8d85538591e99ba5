"""A run beside its bases: the same training without the graph, and in plain batches."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from ramen_ray.bases import Part
from ramen_ray.config import WITHOUT_GRAPH, ConfigError, RunConfig, overlay
from ramen_ray.data.store.made_folder import in_use
from ramen_ray.data.store.same_texts import alike_queries
from ramen_ray.method.metrics.comparison import Difference, by_piece, paired_differences
from ramen_ray.orchestration.evaluate import scores_of_run
from ramen_ray.orchestration.run.directory import PART_ADS_FILE, RunDirectory, step_of
from ramen_ray.orchestration.run.fit import TrainResult, fit_on
from ramen_ray.orchestration.run.identity import Inputs, default_name
from ramen_ray.orchestration.run.inputs import check_config, prepared_data
from ramen_ray.orchestration.run.processes import train_in_all_workers
from ramen_ray.orchestration.run.worker import Metrics
from ramen_ray.presets import used_sets, with_base

PLAIN = "in_batch"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ladder:
    """A run and its bases."""

    results: Mapping[str, TrainResult]  # by name, from the plainest to the run asked for
    # by how much the test metrics of each exceed those of the one before; and the last, the first
    gains: Mapping[str, Mapping[str, Difference]]

    @property
    def rows(self) -> Metrics:
        """Metrics by row, from what training started with to the run asked for."""
        last = list(self.results.values())[-1]
        trained = {name: result.metrics["trained"] for name, result in self.results.items()}
        return {last.started_from: last.metrics["untrained"], **trained}

    @property
    def metrics(self) -> Metrics:
        """The same of the test split alone."""
        return {row: {"test": by_split["test"]} for row, by_split in self.rows.items()}


def fit_beside_base(config: RunConfig) -> Ladder:
    """Train a run's bases, then the run, unless they are trained already, and compare them.

    These are plain batches; the run's own base, if it is another; and the run, with the graph. Its
    description in MLflow gets the comparison. Raises a ConfigError if the run is its own base, and
    what :func:`~ramen_ray.orchestration.run.fit.fit` raises.
    """
    inputs = Inputs.of(config)
    config = inputs.config
    dataset = inputs.dataset
    configs = _configs(config)
    for rung in configs.values():
        check_config(rung, dataset)
    results = {}
    with in_use(dataset.path):
        for number, (name, rung) in enumerate(configs.items(), 1):
            logger.info("training %d of %d: %s", number, len(configs), name)
            inputs.check_still()
            rung_inputs = replace(inputs, config=rung)
            named = overlay(rung, {"name": rung.name or default_name(rung_inputs)})
            results[name] = fit_on(replace(inputs, config=named), train_in_all_workers)
    data = prepared_data(config, dataset)
    pairs = list(pairwise(results))
    if len(results) > 2:
        pairs.append((next(iter(results)), next(reversed(results))))
    pieces = alike_queries(dataset, "test")
    gains = {}
    for before, name in pairs:
        runs = [RunDirectory(results[rung].run_directory) for rung in (name, before)]
        part, answering = _compared_by(runs)
        ours, base = (
            by_piece(scores_of_run(run.path, config, data, "test", part), pieces) for run in runs
        )
        gains[f"{name} over {before} ({answering})"] = paired_differences(ours, base)
    # imported here, so that training does not wait for what only its end needs
    from ramen_ray.orchestration.run.results import PAGE
    from ramen_ray.reports.report_tables import (
        GAINS_NOTE,
        as_markdown,
        gains_table,
        headlines,
        metrics_table,
        unearned_note,
    )

    ladder = Ladder(results, gains)
    *_, last = results.values()
    run = last.run
    over_plain = list(gains.values())[-1]
    run.rename(
        f"{headlines(last.metrics['trained']['test'], over_plain)} {last.run_directory.name}"
    )
    tables = as_markdown(gains_table(gains)), as_markdown(metrics_table(ladder.metrics))
    unearned = unearned_note(run.read_histories("lambda_"))
    parts = [tables[0], GAINS_NOTE, unearned, tables[1], run.link_to(PAGE)]
    run.describe("\n\n".join(filter(None, parts)))
    return ladder


def _compared_by(runs: Sequence[RunDirectory]) -> tuple[Part | None, str]:
    """Return the part that a run and its base are compared by, and say so, with their steps.

    It is the run's if both have classifiers; None stands for each one's own.
    """
    have_all = all((run.path / PART_ADS_FILE.format("both")).is_file() for run in runs)
    part = runs[0].notes["part"] if have_all else None
    parts = dict.fromkeys(part or run.notes["part"] for run in runs)
    steps = [str(step_of(run.best_checkpoint)) for run in runs]
    return part, f"{'/'.join(parts)}, step {'/'.join(steps)}"


def _configs(config: RunConfig) -> dict[str, RunConfig]:
    """Return the configurations by name, from the plainest."""
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
