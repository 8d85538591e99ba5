"""What last week's sweep is worth to this week's, and whether a finalist's figure holds on test.

Trials of the preset tiny are drawn at random, the first with the preset's own values, and trained:
last week's on nine tenths of the train queries, this week's on all. A table has their P@1 on
validation in per cent. A replayed sweep gets, for each trial that it asks for, the nearest one of
the table that it has not had. `ratio` is the best after 4 trials that know a sweep of 16 of last
week, over the best of 8 that know nothing: medians of five sweeps.

With `--finalists`, trials are taken 16 at a time as sweeps, and end as sweeps do; a second table
has what was told of the best trial and of the finalist, and what these reach on the test split.

    python -m benchmarks.sweeps [--sets rdocs] [--trials 200] [--finalists] [--into docs/evidence]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import optuna
import torch
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial

from benchmarks.common import CACHE, finish, options
from benchmarks.graph_gain import dataset_of
from benchmarks.in_process import first_queries, train
from benchmarks.tables import ByQuery, Found, kept, write
from ramen_ray.config import overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity, evaluate
from ramen_ray.method.metrics.ranking import ratio
from ramen_ray.orchestration.tune.choice import choose, half_of_validation, mean
from ramen_ray.orchestration.tune.draws import Draw, Drawing, TrialSearch, tree_of_estimators
from ramen_ray.presets import tiny
from ramen_ray.reports.search_report import TrialRecord
from tune_spaces import SPACES

STORE = CACHE / "sweeps"
VERSION = 1  # of what is kept; a change of what a run computes makes the runs anew
METRIC = "P@1"
NUM_LAST_WEEK = 48  # trials
LAST_WEEK = 0.9  # share of the train queries
SEEDS = range(5)  # of the sweeps that are replayed
NUM_PRIOR, NUM_WARM, NUM_COLD = 16, 4, 8
NUM_TRIALS, NUM_FINALISTS, FURTHER_SEEDS = 16, 3, (1, 2)
OWN = "own"


@dataclass(frozen=True)
class Row:
    """A trial of the table: what a sampler drew, and the changes of the configuration."""

    name: str
    changes: Mapping[str, Any]
    trial: FrozenTrial


def space(draw: Draw) -> None:
    """Draw learning rates, and then the graph and the margin, as a user's own space might."""
    SPACES["optimizer"](draw)
    SPACES["regularization"](draw)


def main() -> None:
    asked = options(__doc__, sets=["rdocs"], trials=200, finalists=False, into="")
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    drawings = {dataset: drawing_of(dataset) for dataset in asked.sets}
    if asked.finalists:
        lines = [
            line
            for dataset, drawing in drawings.items()
            for line in told_and_reached(dataset, drawing, rows_of(drawing, asked.trials))
        ]
        write("finalists", lines, asked.into)
        return
    lines, warm, cold = [], list[float](), list[float]()
    for dataset, drawing in drawings.items():
        table = Table(drawing, rows_of(drawing, asked.trials))
        lines += [{"dataset": dataset, **line} for line in table.lines()]
        for seed in SEEDS:
            prior = table.sweep(NUM_PRIOR, len(SEEDS) + seed, is_last_week=True)
            warm.append(max(value for _, value in table.sweep(NUM_WARM, seed, prior)))
            cold.append(max(value for _, value in table.sweep(NUM_COLD, seed)))
    write("sweeps", lines, asked.into)
    finish(median(warm) / median(cold), {"warm": warm, "cold": cold})


def drawing_of(dataset: str) -> Drawing:
    config = tiny(dataset)
    return Drawing.of(config, space, Dataset(config.dataset))


def rows_of(drawing: Drawing, count: int) -> list[Row]:
    """Draw the trials of the table, no two of which train the same."""
    search = TrialSearch(drawing, RandomSampler(0), {}, METRIC, lambda: None)
    own = drawing.own()
    assert own is not None
    search.first = [own]
    for number in range(count):
        search.suggest(str(number))
    replayed = {name: drawing.replayed(record.drawn) for name, record in search.records.items()}
    return [
        Row(name, search.records[name].params, trial)
        for name, trial in replayed.items()
        if trial is not None
    ]


def trained(drawing: Drawing, row: Row, seed: int, share: float = 1.0) -> Mapping[str, ByQuery]:
    """Return what a trial reaches by split and query, trained now or earlier."""
    config = overlay(drawing.config, {**row.changes, "seed": seed})
    data = dataset_of(config.dataset, config.encoder)

    def measure() -> Found:
        changes = [partial(first_queries, share=share)] if share < 1 else []
        model = train(config, data, *changes)
        found = {}
        for split in ("validation", "test"):
            topk, _ = evaluate(model, data, split, Propensity())[1]
            scores = GroundTruth.from_prepared(data, split, Propensity()).by_query(topk)
            found[split] = {METRIC: scores[METRIC]}
        return found, {}

    content = [VERSION, Path(config.dataset).name, row.changes, seed, share]
    return kept(STORE, content, measure)[0]


class Table:
    """Trained trials, on which sweeps are replayed."""

    def __init__(self, drawing: Drawing, rows: Sequence[Row]) -> None:
        self.drawing = drawing
        self.rows = rows
        self.last_week = {
            row.name: validated(trained(drawing, row, 1, LAST_WEEK)) for row in rows[:NUM_LAST_WEEK]
        }
        self.this_week = {row.name: validated(trained(drawing, row, 0)) for row in rows}

    def lines(self) -> list[dict[str, str]]:
        """Return the table's lines."""
        return [
            {
                "last week": (
                    f"{100 * self.last_week[row.name]:.2f}" if row.name in self.last_week else ""
                ),
                "this week": f"{100 * self.this_week[row.name]:.2f}",
                **{key: str(value) for key, value in row.trial.params.items()},
            }
            for row in self.rows
        ]

    def sweep(
        self,
        count: int,
        seed: int,
        prior: Sequence[tuple[Row, float]] = (),
        is_last_week: bool = False,
    ) -> list[tuple[Row, float]]:
        """Replay a sweep of ``count`` trials that knows a ``prior``; returns rows and values."""
        values = self.last_week if is_last_week else self.this_week
        search = TrialSearch(self.drawing, tree_of_estimators(seed), {}, METRIC, lambda: None)
        best_first = sorted(prior, key=lambda known: -known[1])
        for row, value in best_first:
            drawn = row.trial.params
            search.learn(TrialRecord(row.name, row.changes, value, end="ended", drawn=drawn))
        own = self.rows[0].trial.params
        search.first = [dict(own), *(dict(row.trial.params) for row, _ in best_first[:1])]
        left = [row for row in self.rows if row.name in values]
        taken = []
        for number in range(count):
            search.suggest(str(number))
            asked = search.asked[str(number)]
            row = min(left, key=lambda row: distance(asked.params, asked.distributions, row.trial))
            left.remove(row)
            taken.append((row, values[row.name]))
            search.on_trial_complete(str(number), {METRIC: values[row.name]})
        return taken


def distance(
    params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution], other: FrozenTrial
) -> float:
    """Return how far two trials are apart: 1 for each choice that differs, or an end of a range."""
    total = float(len(params.keys() ^ other.params.keys()))
    for key in params.keys() & other.params.keys():
        ours, theirs = params[key], other.params[key]
        bounds = distributions[key]
        if isinstance(bounds, FloatDistribution):
            ends = np.array([ours, theirs, bounds.low, bounds.high])
            ours, theirs, low, high = np.log(ends) if bounds.log else ends
            total += abs(ours - theirs) / (high - low)
        else:
            total += ours != theirs
    return total


def told_and_reached(dataset: str, drawing: Drawing, rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return a line for each sweep: what was told of its best and its choice, and test's figures.

    Gains are over the preset's own settings with the same seeds, in points.
    """
    own, *others = rows
    half = half_of_validation(Dataset(drawing.config.dataset), 0)
    lines = []
    for start in range(0, len(others) - NUM_TRIALS + 2, NUM_TRIALS - 1):
        trials = [own, *others[start : start + NUM_TRIALS - 1]]
        first = {row.name: trained(drawing, row, 0) for row in trials}
        ranked = sorted(trials[1:], key=lambda row: -validated(first[row.name]))
        finalists = {OWN: own, **{row.name: row for row in ranked[:NUM_FINALISTS]}}
        runs = {
            name: [trained(drawing, row, seed) for seed in FURTHER_SEEDS]
            for name, row in finalists.items()
        }
        scores = {name: [run["validation"] for run in of] for name, of in runs.items()}
        choice = choose(scores, half, METRIC, OWN)
        told = choose({name: scores[name] for name in scores if name != OWN}, half, METRIC, OWN)
        of_own = validated(first[own.name])
        test = {name: mean([run["test"] for run in of], METRIC) for name, of in runs.items()}
        gains = {
            "best trial": validated(first[ranked[0].name]) - of_own,
            "best finalist as told": mean(told.expected, METRIC) - mean(scores[OWN], METRIC),
            "best finalist on test": test[told.chosen] - test[OWN],
        }
        figures = {name: f"{100 * gain:+.2f}" for name, gain in gains.items()}
        lines.append({"dataset": dataset, "chosen": choice.chosen, **figures})
    return lines


def validated(reached: Mapping[str, ByQuery]) -> float:
    return ratio(reached["validation"][METRIC])


if __name__ == "__main__":
    main()
