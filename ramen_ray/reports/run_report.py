"""Plots and tables of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from ramen_ray.errors import printable
from ramen_ray.method.metrics.comparison import Difference, in_points
from ramen_ray.tracking.runs import Run

Metrics = Mapping[str, float]
BySplit = Mapping[str, Mapping[str, Metrics]]  # by row, split and metric
Differences = Mapping[str, Mapping[str, Mapping[str, Difference]]]

GROUPS = ("head", "torso", "tail")
GROUP_METRIC = "R@10"
COMBINER_METRICS = ("P@1", "P@5", "N@5", "R@10", "R@100")
GAIN_METRICS = ("P@1", "N@5", "R@10")
GAINS_NOTE = "in brackets: 95 % intervals; a gain whose interval contains 0 may be noise"
TABLE_METRICS = ("P@1", "P@3", "P@5", "N@5", "PSP@1", "PSP@5", "R@10", "R@100")
OF_QUERIES = {"train queries": "seen", "new queries": "new", "by clicks": "traffic"}
CURVES = ("P@1", "P@3", "P@5", "R@10")
BAD_MATCHES = ("named_queries", "BMR@1", "BMR@3", "BMR@5")


def write_plots(folder: Path, run: Run, untrained: Metrics, trained: Metrics) -> None:
    """Write the run's curves and head/torso/tail bars as PNG files into ``folder``, which exists.

    The bars compare test metrics of the untrained and of the best encoder.
    """
    losses = run.read_histories("loss/")
    named = {name.removeprefix("loss/"): curve for name, curve in losses.items()}
    _plot_lines(folder / "losses.png", named, "step", "loss")
    weights = run.read_histories("lambda_")
    if weights:
        _plot_lines(folder / "weights.png", weights, "step", "λ")
    curves = {name: run.read_history(f"validation/{name}") for name in CURVES}
    _plot_lines(folder / "validation.png", curves, "step", "validation metric", marker="o")
    _plot_groups(folder / "head_torso_tail.png", untrained, trained)


def metrics_table(metrics: BySplit) -> Table:
    """Return a table in per cent of metrics, given by row and split.

    A split that has train queries too also gets the metrics of these, of the others, and of all by
    their clicks.
    """
    table = Table("split", "encoder", *TABLE_METRICS)
    splits = list(dict.fromkeys(split for by_split in metrics.values() for split in by_split))
    for split in splits:
        for row, by_split in metrics.items():
            found = by_split[split]
            table.add_row(split, row, *(f"{100 * found[name]:.2f}" for name in TABLE_METRICS))
            for of, group in OF_QUERIES.items() if "seen/P@1" in found else ():
                values = (found.get(f"{group}/{name}") for name in TABLE_METRICS)
                cells = ("–" if value is None else f"{100 * value:.2f}" for value in values)
                table.add_row(f"{split}, {of}", row, *cells)
    return table


def difference_table(
    metrics: Metrics,
    differences: Mapping[str, Difference],
    names: tuple[str, str] = ("candidate", "champion"),
) -> Table:
    """Return a table in per cent of a retriever's metrics beside another's.

    ``differences`` say by how much the ``metrics`` of the first exceed the other's.
    """
    table = Table("test metric", *names, "difference", "95 % interval")
    for name in TABLE_METRICS:
        ours, (by, low, high) = metrics[name], differences[name]
        shown = f"{100 * ours:.2f}", f"{100 * (ours - by):.2f}", f"{100 * by:+.2f}"
        table.add_row(name, *shown, f"{100 * low:+.2f} to {100 * high:+.2f}")
    return table


def gains_table(gains: Mapping[str, Mapping[str, Difference]]) -> Table:
    """Return a table of what runs gain over others, in points with 95 % intervals, by row."""
    table = Table("test, points", *GAIN_METRICS)
    for row, by in gains.items():
        table.add_row(row, *(in_points(by[name]) for name in GAIN_METRICS))
    return table


def combiner_table(metrics: BySplit, differences: Differences) -> Table:
    """Return a table in per cent; ``differences`` say by how much a row exceeds texts alone."""
    table = Table("split", "ads by", *COMBINER_METRICS, "R@10 minus text alone")
    splits = list(dict.fromkeys(split for by_split in metrics.values() for split in by_split))
    for split in splits:
        for row, by_split in metrics.items():
            values = [f"{100 * by_split[split][name]:.2f}" for name in COMBINER_METRICS]
            less_text = in_points(differences[row][split]["R@10"]) if row in differences else ""
            table.add_row(split, row, *values, less_text)
    return table


def answers_table(queries: Sequence[str], answers: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of what a retriever answers, one row per ad, best first."""
    table = Table("query", "ad", "id", "score")
    for query, answer in zip(queries, answers, strict=True):
        rows = [*zip(answer["ads"], answer["ad_ids"], answer["scores"], strict=True)]
        if answer["error"]:
            table.add_row(Text(printable(query)), Text(f"error: {answer['error']}"), "", "")
        for place, (ad, ad_id, score) in enumerate(rows):
            shown = Text(printable(query if place == 0 else ""))
            table.add_row(shown, Text(printable(ad)), Text(printable(ad_id)), f"{score:.3f}")
        table.add_section()
    return table


def bad_match_table(metrics: Metrics) -> Table:
    """Return a table in per cent of bad match rates by kind of names."""
    kinds = [name.rpartition("/")[0] for name in metrics if name.endswith(BAD_MATCHES[0])]
    table = Table("kind of names", "queries with one", *BAD_MATCHES[1:])
    for kind in kinds:
        values = (metrics[f"{kind}/{name}" if kind else name] for name in BAD_MATCHES)
        table.add_row(Text(printable(kind or "all")), *(f"{100 * value:.2f}" for value in values))
    return table


def _plot_lines(
    file: Path,
    curves: Mapping[str, tuple[list[int], list[float]]],
    x_label: str,
    y_label: str,
    marker: str = "",
) -> None:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, (steps, values) in curves.items():
        axes.plot(steps, values, marker=marker, markersize=3, linewidth=1, label=name)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)


def _plot_groups(file: Path, untrained: Metrics, trained: Metrics) -> None:
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes, width = figure.subplots(), 0.4
    for shift, (label, metrics) in enumerate((("untrained", untrained), ("trained", trained))):
        heights = [100 * metrics[f"{group}/{GROUP_METRIC}"] for group in GROUPS]
        places = [row + (shift - 0.5) * width for row in range(len(GROUPS))]
        axes.bar_label(axes.bar(places, heights, width, label=label), fmt="%.1f")
    axes.set_xticks(range(len(GROUPS)), GROUPS)
    axes.set_ylabel(f"test {GROUP_METRIC} (%) of each group's ads")
    axes.legend()
    figure.savefig(file, dpi=120)
