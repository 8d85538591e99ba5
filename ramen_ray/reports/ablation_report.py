"""An ablation's tables and plot: each variant's metrics, and its gains over its base."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ramen_ray.method.metrics.comparison import in_points
from ramen_ray.method.metrics.ranking import HEADLINES
from ramen_ray.reports.pages import PIXELS_PER_INCH
from ramen_ray.reports.report_tables import ReportTable, as_list, as_markdown

TAIL = "tail/"
PLOTTED = ("P@1", "R@10", "tail/P@1", "tail/R@10")
TABLES_FILE = "ablation.md"
PLOT_FILE = "ablation.png"


@dataclass(frozen=True)
class VariantFigures:
    """A variant's figures: fractions by metric, with ``tail/`` for clicks on tail ads only."""

    base: str  # name of the variant that it is compared with
    means: Mapping[str, float]  # means over the seeds
    deviations: Mapping[str, float]  # standard deviations over the seeds
    # the differences to ``base``, with the bounds of their intervals; empty for the first base
    gains: Mapping[str, tuple[float, float, float]]
    # seconds of training and of waiting for background results, divided by those of the base
    seconds_ratio: float
    share_waited: float  # share of these seconds that were spent waiting


def write_ablation_report(
    folder: Path, variants: Mapping[str, VariantFigures], sentences: list[str]
) -> None:
    """Write the sentences and tables as Markdown and the plot as PNG into ``folder``."""
    folder.mkdir(exist_ok=True)
    parts = {"What it says": as_list(sentences), **ablation_tables(variants)}
    said = [f"## {title}\n\n{part}\n" for title, part in parts.items()]
    (folder / TABLES_FILE).write_text("\n".join(said))
    plot_differences(folder / PLOT_FILE, variants)


def ablation_tables(variants: Mapping[str, VariantFigures]) -> dict[str, str]:
    """Return Markdown tables of the variants in per cent, by title: all ads, and tail ads."""
    metrics = next(iter(variants.values())).means
    tables = {}
    for group, is_tail in (("all ads", False), ("tail ads", True)):
        names = [name for name in metrics if name.startswith(TAIL) == is_tail]
        columns = ["variant", *(name.removeprefix(TAIL) for name in names)]
        values = []
        differences = []
        for variant, figures in variants.items():
            cells = [
                f"{100 * figures.means[name]:.2f} ±{100 * figures.deviations[name]:.2f}"
                for name in names
            ]
            seconds = f"{figures.seconds_ratio:.2f}", f"{100 * figures.share_waited:.1f} %"
            values.append([variant, *cells, *seconds])
            if figures.gains:
                gains = [_difference(figures.gains[name]) for name in names]
                differences.append([f"{variant} over {figures.base}", *gains])
        timed = [*columns, "train seconds / base", "of these waited"]
        title = f"Test split, {group} (%, mean ± standard deviation over seeds)"
        tables[title] = as_markdown(ReportTable("", timed, values))
        title = f"Differences, {group} (points, 95 % interval over queries and seeds)"
        tables[title] = as_markdown(ReportTable("", columns, differences))
    return tables


def verdict(variants: Mapping[str, VariantFigures]) -> list[str]:
    """Say in words which base is best, and whether the graph helps on each."""
    sentences = []
    for name, figures in variants.items():
        is_graph = name == f"{figures.base}-ramen"
        is_base = f"{name}-ramen" in variants
        if not figures.gains or not (is_graph or is_base):
            continue
        bounds = [figures.gains[metric][1:] for metric in HEADLINES]
        word = {
            (True, False): "is better than",
            (False, True): "is worse than",
            (True, True): "gains one metric and loses the other against",
            (False, False): "cannot be told from",
        }[any(low > 0 for low, _ in bounds), any(high < 0 for _, high in bounds)]
        by = [f"{metric} {_difference(figures.gains[metric])}" for metric in HEADLINES]
        what = "the graph" if is_graph else "the base"
        sentences.append(f"{what}, {name} {word} {figures.base}: {', '.join(by)}")
    return sentences


def _difference(difference: tuple[float, float, float]) -> str:
    """Format a difference in points; bold if its interval excludes 0."""
    _, low, high = difference
    points = in_points(difference)
    return f"**{points}**" if low > 0 or high < 0 else points


def plot_differences(file: Path, variants: Mapping[str, VariantFigures]) -> None:
    """Plot each variant's differences with their intervals, one panel per metric."""
    compared = {variant: figures for variant, figures in variants.items() if figures.gains}
    figure = Figure(figsize=(13, 1 + 0.4 * len(compared)), layout="constrained")
    panels = figure.subplots(1, len(PLOTTED), sharey=True)
    for axes, name in zip(panels, PLOTTED, strict=True):
        for place, figures in enumerate(compared.values()):
            value, low, high = (100 * bound for bound in figures.gains[name])
            axes.plot([low, high], [place, place], color="C0", linewidth=2)
            axes.plot(value, place, "o", color="C0")
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel(f"test {name}, difference (points)")
        axes.grid(axis="x", alpha=0.3)
    names = [f"{variant} over {figures.base}" for variant, figures in compared.items()]
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.savefig(file, dpi=PIXELS_PER_INCH)
