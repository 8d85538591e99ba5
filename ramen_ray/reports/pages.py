"""Plots as PNG files, of a run's curves and of other results; and pages with tables."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import Environment
from matplotlib.figure import Figure

from ramen_ray.data.store.made_folder import whole_file
from ramen_ray.reports.report_tables import ReportTable
from ramen_ray.tracking.addresses import TrackingError
from ramen_ray.tracking.runs import Run

GROUPS = ("head", "torso", "tail")
GROUP_METRIC = "R@10"
CURVES = ("P@1", "P@3", "P@5", "R@10")
PIXELS_PER_INCH = 120
TEMPLATE = Path(__file__).with_name("page.html")


@contextmanager
def drawn(file: Path, width: float, height: float) -> Iterator[Any]:
    """Yield axes of so many inches; what is drawn on them goes into a PNG file, with a legend."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    yield axes
    axes.legend()
    figure.savefig(file, dpi=PIXELS_PER_INCH)


def write_run_plots(folder: Path, run: Run, compared: Mapping[str, Mapping[str, float]]) -> None:
    """Write a run's curves, and bars of two encoders' test metrics, as PNG into ``folder``."""
    losses = run.read_histories("loss/")
    named = {name.removeprefix("loss/"): curve for name, curve in losses.items()}
    _plot_curves(folder / "losses.png", named, "loss")
    weights = run.read_histories("lambda_")
    if any(any(values) for _, values in weights.values()):
        _plot_curves(folder / "weights.png", weights, "λ")
    curves = {name: run.read_history(f"validation/{name}") for name in CURVES}
    _plot_curves(folder / "validation.png", curves, "validation metric", marker="o")
    width = 0.4
    with drawn(folder / "head_torso_tail.png", 6, 4) as axes:
        for shift, (label, metrics) in enumerate(compared.items()):
            heights = [100 * metrics[f"{group}/{GROUP_METRIC}"] for group in GROUPS]
            places = [row + (shift - 0.5) * width for row in range(len(GROUPS))]
            axes.bar_label(axes.bar(places, heights, width, label=label), fmt="%.1f")
        axes.set_xticks(range(len(GROUPS)), GROUPS)
        axes.set_ylabel(f"test {GROUP_METRIC} (%) of each group's ads")


def _plot_curves(
    file: Path, curves: Mapping[str, tuple[list[int], list[float]]], label: str, marker: str = ""
) -> None:
    with drawn(file, 8, 4.5) as axes:
        for name, (steps, values) in curves.items():
            axes.plot(steps, values, marker=marker, markersize=3, linewidth=1, label=name)
        axes.set_xlabel("step")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)


def write_page(
    file: Path, title: str, note: str, words: Sequence[str], tables: Sequence[ReportTable]
) -> None:
    """Write one HTML page that loads nothing from elsewhere, or raise a TrackingError."""
    environment = Environment(autoescape=True, trim_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    html = template.render(title=title, note=note, words=words, tables=tables)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as aside:
            aside.write_text(html, encoding="utf-8")
    except OSError as error:
        raise TrackingError(f"cannot write the page {file}: {error.strerror}") from error
