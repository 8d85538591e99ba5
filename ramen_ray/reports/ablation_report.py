"""An ablation's tables: each variant's metrics, and its gains over its base."""

from collections.abc import Mapping
from dataclasses import dataclass

from ramen_ray.method.metrics.comparison import in_points
from ramen_ray.method.metrics.ranking import HEADLINES
from ramen_ray.reports.report_tables import ReportTable


@dataclass(frozen=True)
class VariantFigures:
    """A variant's figures: fractions by metric, with ``tail/`` for clicks on tail ads only."""

    base: str  # name of the variant that it is compared with
    means: Mapping[str, float]  # over the seeds
    # the differences to ``base``, with the bounds of their intervals; empty for the first base
    gains: Mapping[str, tuple[float, float, float]]
    # seconds of training and of waiting for background results, divided by those of the base
    seconds_ratio: float


def ablation_tables(variants: Mapping[str, VariantFigures]) -> list[ReportTable]:
    """Return tables of the variants: per cent, and differences in points."""
    metrics = next(iter(variants.values())).means
    values = []
    differences = []
    for variant, figures in variants.items():
        means = [f"{100 * figures.means[name]:.2f}" for name in metrics]
        values.append([variant, *means, f"{figures.seconds_ratio:.2f}"])
        if figures.gains:
            gains = [_difference(figures.gains[name]) for name in metrics]
            differences.append([f"{variant} over {figures.base}", *gains])
    columns = ["variant", *metrics]
    title = "Differences (points, 95 % interval over queries and seeds)"
    with_seconds = [*columns, "train seconds / base"]
    return [
        ReportTable("Test split (%, means over seeds)", with_seconds, values),
        ReportTable(title, columns, differences),
    ]


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
