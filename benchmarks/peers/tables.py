"""The tables of what was measured."""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.graph_gain import shown
from benchmarks.peers.measuring import METRICS, Run
from ramen_ray.method.metrics.comparison import paired_differences_over_seeds

Runs = Mapping[str, Sequence[Run]]
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
OF_THE_PAPER = {"ance + RAMEN": "1×, 1×, 1×", "ance": "0.9×, 1×, 1×", "OAK": "1.5×, 2×, 3.5×"}


def value(runs: Sequence[Run], metric: str, split: str = "test") -> float:
    """Return a metric's mean over the seeds."""
    return float(np.mean([run.value(metric, split) for run in runs]))


def cost(runs: Sequence[Run], name: str) -> float:
    """Return a figure's median over the seeds."""
    return float(np.median([run.figures[name] for run in runs]))


def best_by_validation(found: Runs, names: Sequence[str]) -> str:
    """Return which of ``names`` validation would choose."""
    return max(names, key=lambda name: np.mean([run.validation_score for run in found[name]]))


def quality(found: Runs) -> str:
    """Return the table of metrics in per cent, and of how many seeds they are the mean."""
    names = [name.replace("tail/", "tail ") for name in METRICS]
    lines = [
        [name, *(f"{100 * value(runs, m):.2f}" for m in METRICS), str(len(runs))]
        for name, runs in found.items()
    ]
    return table(["", *names, "seeds"], lines)


def costs(found: Runs) -> str:
    """Return the table of seconds, bytes and rates."""
    lines = [
        [name, *(_three_digits(cost(runs, key) / unit) for key, (_, unit) in COSTS.items())]
        for name, runs in found.items()
    ]
    return table(["", *(title for title, _ in COSTS.values())], lines)


def _three_digits(figure: float) -> str:
    return np.format_float_positional(figure, 3, unique=False, fractional=False, trim="-")


def lead(found: Runs, first: str) -> str:
    """Return the table of how much ``first`` is ahead of each other row, with intervals."""
    lines = []
    for name, runs in found.items():
        if name == first:
            continue
        seeds = range(max(len(runs), len(found[first])))
        ours, theirs = (
            [_of_seed(side, seed).metrics["test"] for seed in seeds]
            for side in (found[first], runs)
        )
        bounds = paired_differences_over_seeds(ours, theirs)
        lines.append([name, *(shown(*bounds[metric]) for metric in COMPARED)])
    return table([f"{first} over", *COMPARED], lines)


def _of_seed(runs: Sequence[Run], seed: int) -> Run:
    """Return the run of a seed; what does not depend on the seed has one run."""
    return runs[seed % len(runs)]


def relative_costs(found: Runs, names: Sequence[str]) -> str:
    """Return training, answering and size over those of RAMEN on ance, beside the paper's."""
    if "ance + RAMEN" not in found:
        return ""
    unit = found["ance + RAMEN"]
    lines = []
    for name in names:
        if name in found:
            runs = found[name]
            size, of_unit = (
                cost(side, "model_bytes") + cost(side, "index_bytes") for side in (runs, unit)
            )
            ratios = [
                cost(runs, "processor_s") / cost(unit, "processor_s"),
                cost(unit, "queries_per_s") / cost(runs, "queries_per_s"),
                size / of_unit,
            ]
            lines.append([name, *(f"{r:.2f}×" for r in ratios), OF_THE_PAPER.get(name, "")])
    return table(["", "training", "answering", "size", "the paper's"], lines)


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    rows = [" | ".join(line) for line in (header, *lines)]
    rule = "|---|" + "--:|" * (len(header) - 1)
    return "\n".join([f"| {rows[0]} |", rule, *(f"| {row} |" for row in rows[1:])])
