"""Tables with plots, in a terminal or as a page: one HTML file."""

import io
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from jinja2 import Environment
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.errors import printable
from ramen_ray.tracking.runs import TrackingError

WIDEST = 1000
TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.45 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff }
h1 { font-size: 1.6rem }
p { margin: .4rem 0; color: #555 }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; text-align: right; vertical-align: top }
th { border-bottom: 2px solid #888 } td { border-bottom: 1px solid #ddd }
.text { text-align: left } td.text { overflow-wrap: anywhere }
.plots { display: flex; flex-wrap: wrap; gap: 1rem }
img { width: 32rem; max-width: 100% }
summary { font-weight: 600; margin: 1rem 0 .2rem; cursor: pointer }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ note }}</p>
<ul>
{% for sentence in words %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
<div class="plots">
{% for plot in plots %}
<img alt="{{ plot.y_label }}: {{ plot.x_label }}" src="data:image/svg+xml;base64,{{ draw(plot) }}">
{% endfor %}
</div>
{% for table in tables %}
<details{% if table.is_open %} open{% endif %}>
<summary>{{ table.title }}</summary>
{% if table.note %}<p>{{ table.note }}</p>{% endif %}
<div class="wide"><table>
<tr>
{%- for column in table.columns -%}
<th{% if loop.index0 < table.text_columns %} class="text"{% endif %}>{{ column }}</th>
{%- endfor -%}
</tr>
{% for row in table.rows %}
<tr>
{%- for cell in row -%}
<td{% if loop.index0 < table.text_columns %} class="text"{% endif %}>{{ cell }}</td>
{%- endfor -%}
</tr>
{% endfor %}
</table></div>
</details>
{% endfor %}
</body>
</html>
"""


@dataclass(frozen=True)
class Plot:
    """Lines over one pair of axes."""

    x_label: str  # label of the x axis, which also names the plot
    y_label: str  # label of the y axis
    lines: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]  # x and y values by name
    log_y: bool = True  # whether the y axis is logarithmic too; the x axis always is
    mark: tuple[float, str] | None = None  # x of a vertical line, and its name


@dataclass(frozen=True)
class ReportTable:
    """A table with a title, a note and plots."""

    title: str  # shown above the table
    columns: Sequence[str]  # headings
    rows: Sequence[Sequence[str]]  # cells as they are shown
    text_columns: int = 1  # number of first columns with words; the others have numbers
    note: str = ""  # how to read the table
    plots: Sequence[Plot] = ()  # shown before all tables of a page
    is_open: bool = False  # whether a page shows it before it is clicked on


def terminal_table(report: ReportTable) -> Table:
    """Return a table for a terminal, without its plots."""
    table = Table(title=report.title, caption=report.note, title_justify="left")
    table.caption_justify = "left"
    for place, column in enumerate(report.columns):
        is_text = place < report.text_columns
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in report.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def as_markdown(table: Table) -> str:
    """Return a table as Markdown."""
    table.box = MARKDOWN
    console = Console(width=WIDEST)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines() if line.strip())


def write_page(
    file: Path, title: str, note: str, words: Sequence[str], tables: Sequence[ReportTable]
) -> None:
    """Write one HTML page that loads nothing from elsewhere, or raise a TrackingError."""
    template = Environment(autoescape=True, trim_blocks=True).from_string(TEMPLATE)
    plots = [plot for table in tables for plot in table.plots]
    html = template.render(
        title=title, note=note, words=words, plots=plots, tables=tables, draw=_draw_svg
    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as aside:
            aside.write_text(html, encoding="utf-8")
    except OSError as error:
        raise TrackingError(f"cannot write the page {file}: {error.strerror}") from error


def _draw_svg(plot: Plot) -> str:
    """Draw a plot as base64 SVG; the same plot always gives the same bytes."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    for name, (x, y) in plot.lines.items():
        axes.plot(x, y, marker=".", markersize=3, linewidth=1, label=name)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.4)))
    if plot.log_y:
        axes.set_yscale("log")
    if plot.mark is not None:
        place, name = plot.mark
        axes.axvline(place, color="grey", linestyle="--", linewidth=1, label=name)
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(alpha=0.3)
    axes.legend()
    drawn = io.BytesIO()
    nameless = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ramen_ray"}):
        figure.savefig(drawn, format="svg", metadata=nameless)
    return b64encode(drawn.getvalue()).decode()
