"""The lines of docs/evidence/peers*.csv."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.peers.measuring import METRICS, Run
from benchmarks.tables import compared

Runs = Mapping[str, Sequence[Run]]
Line = dict[str, str]
COMPARED = ("P@1", "R@10", "tail/R@10")
MEGABYTE = 1e6
COSTS = {
    "processor_s": ("training, s", 1.0),
    "memory_bytes": ("memory, MB", MEGABYTE),
    "model_bytes": ("model, MB", MEGABYTE),
    "index_bytes": ("index, MB", MEGABYTE),
    "queries_per_s": ("queries/s", 1.0),
    "p50_ms": ("one query, ms", 1.0),
    "p99_ms": ("99 %, ms", 1.0),
}


def value(runs: Sequence[Run], metric: str) -> float:
    """Return a metric of the test split, as the mean over the seeds."""
    return float(np.mean([run.value(metric) for run in runs]))


def cost(runs: Sequence[Run], name: str) -> float:
    """Return a figure's median over the seeds."""
    return float(np.median([run.figures[name] for run in runs]))


def best_by_validation(found: Runs, names: Sequence[str]) -> str:
    """Return which of ``names`` validation would choose."""
    return max(names, key=lambda name: np.mean([run.validation_score for run in found[name]]))


def quality_and_costs(dataset: str, found: Runs) -> Iterator[Line]:
    """Yield each rival's metrics in per cent, number of seeds, seconds, bytes and rates."""
    for name, runs in found.items():
        line = {"dataset": dataset, "rival": name}
        line |= {m.replace("/", " "): f"{100 * value(runs, m):.2f}" for m in METRICS}
        line["seeds"] = str(len(runs))
        for key, (title, unit) in COSTS.items():
            figure = cost(runs, key) / unit
            line[title] = np.format_float_positional(
                figure, 3, unique=False, fractional=False, trim="-"
            )
        yield line


def lead(dataset: str, found: Runs, first: str) -> Iterator[Line]:
    """Yield how much ``first`` is ahead of each other row, with intervals."""
    for name in (name for name in found if name != first):
        seeds = range(max(len(found[name]), len(found[first])))
        ours, theirs = (
            # what does not depend on the seed has one run
            [_compared(side[seed % len(side)]) for seed in seeds]
            for side in (found[first], found[name])
        )
        yield from compared(dataset, first, ours, name, theirs)


def _compared(run: Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {metric.replace("/", " "): run.metrics["test"][metric] for metric in COMPARED}


def relative_costs(dataset: str, found: Runs, names: Sequence[str]) -> Iterator[Line]:
    """Yield training, answering and size over those of RAMEN on ance."""
    if "ance + RAMEN" not in found:
        return
    unit = found["ance + RAMEN"]
    for name in names:
        if name in found:
            runs = found[name]
            size, of_unit = (
                cost(side, "model_bytes") + cost(side, "index_bytes") for side in (runs, unit)
            )
            ratios = {
                "training": cost(runs, "processor_s") / cost(unit, "processor_s"),
                "answering": cost(unit, "queries_per_s") / cost(runs, "queries_per_s"),
                "size": size / of_unit,
            }
            shown = {title: f"{one:.2f}" for title, one in ratios.items()}
            yield {"dataset": dataset, "rival": name, **shown}
