"""Tables, for a terminal, Markdown or a page; and what those of metrics and answers show."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ramen_ray.data.store.made_folder import whole_file
from ramen_ray.errors import printable
from ramen_ray.method.metrics.comparison import Difference, in_points
from ramen_ray.method.metrics.ranking import HEADLINES
from ramen_ray.tracking.addresses import TrackingError

Metrics = Mapping[str, float]
BySplit = Mapping[str, Mapping[str, Metrics]]  # by row, split and metric
Differences = Mapping[str, Mapping[str, Mapping[str, Difference]]]

SHOWN = ("P@1", "P@3", "P@5", "N@5", "PSP@1", "PSP@5", "R@10", "R@100")
SHOWN_OF_COMBINERS = ("P@1", "P@5", "N@5", "R@10", "R@100")
SHOWN_IF_JUDGED = ("bad@1", "bad@5", "judged@5", "judged/N@5")
SHOWN_GAINS = ("P@1", "N@5", "R@10")
GAINS_NOTE = "in brackets: 95 % intervals; a gain whose interval contains 0 may be noise"
OF_QUERIES = {"train queries": "seen", "new queries": "new", "by clicks": "traffic"}


@dataclass(frozen=True)
class ReportTable:
    """A table with a title and a note."""

    title: str  # shown above the table
    columns: Sequence[str]  # headings
    rows: Sequence[Sequence[str]]  # cells as they are shown
    text_columns: int = 1  # number of first columns with words; the others have numbers
    note: str = ""  # how to read the table
    is_open: bool = False  # whether a page shows it before it is clicked on


def show(report: ReportTable, width: int = 110) -> None:
    """Print a table."""
    table = Table(title=report.title or None, caption=report.note or None, title_justify="left")
    table.caption_justify = "left"
    for place, column in enumerate(report.columns):
        is_text = place < report.text_columns
        table.add_column(column, justify="left" if is_text else "right", overflow="fold")
    for row in report.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=width).print(table)


def as_markdown(table: ReportTable) -> str:
    """Return a table as Markdown, below its title, if it has one."""
    num_numbers = len(table.columns) - table.text_columns
    rules = ["---"] * table.text_columns + ["--:"] * num_numbers
    rows = [f"| {' | '.join(row)} |" for row in (table.columns, rules, *table.rows)]
    return "\n".join([f"## {table.title}\n"] * bool(table.title) + rows)


def as_list(sentences: Iterable[str]) -> str:
    """Return sentences as a list in Markdown."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


def headlines(metrics: Metrics, gains: Mapping[str, Difference] = {}) -> str:
    """Say P@1 and R@10 in per cent, with gains in points, if there are any: ``39.1+1.2 56.2-0.3``.

    It is short, as MLflow's list of runs shows some sixteen letters of a name.
    """
    words = []
    for name in HEADLINES:
        gain = f"{100 * gains[name].value:+.1f}" if name in gains else ""
        words.append(f"{100 * metrics[name]:.1f}{gain}")
    return " ".join(words)


def metrics_table(metrics: BySplit) -> ReportTable:
    """Lay out metrics, given by row and split, in per cent.

    A split with train queries also gets the metrics of these, of the others, and by clicks.
    """
    rows = []
    in_order = _in_order(metrics)
    shown = _shown(values for _, _, values in in_order)
    for split, row, values in in_order:
        rows.append([split, row, *_per_cent(values, shown)])
        if "seen/P@1" in values:
            for kind, group in OF_QUERIES.items():
                rows.append([f"{split}, {kind}", row, *_per_cent(values, shown, f"{group}/")])
    return ReportTable("", ("split", "encoder", *shown), rows, text_columns=2)


def difference_table(
    metrics: Metrics,
    differences: Mapping[str, Difference],
    names: tuple[str, str] = ("candidate", "champion"),
    more: Sequence[Sequence[str]] = (),
) -> ReportTable:
    """Lay out a retriever's test ``metrics``, in per cent, beside those of another.

    ``differences`` are by how much they exceed these; rows of cells in ``more`` come last.
    """
    rows = []
    for name in _shown([metrics]):
        ours = metrics[name]
        by, low, high = differences[name]
        cells = f"{100 * ours:.2f}", f"{100 * (ours - by):.2f}", f"{100 * by:+.2f}"
        rows.append([name, *cells, f"{100 * low:+.2f} to {100 * high:+.2f}"])
    return ReportTable("", ("test metric", *names, "difference", "95 % interval"), [*rows, *more])


def judging_table(figures: Mapping[str, Mapping[str, Difference]]) -> ReportTable:
    """Lay out what judges say of retrievers, in per cent with 95 % intervals, by row."""
    names = list(next(iter(figures.values())))
    rows = [[row, *(in_points(by[name], 1) for name in names)] for row, by in figures.items()]
    return ReportTable("", ("judged", *names), rows)


def gains_table(gains: Mapping[str, Mapping[str, Difference]]) -> ReportTable:
    """Lay out what runs gain over others, in points with 95 % intervals, by row."""
    rows = [[row, *(in_points(by[name]) for name in SHOWN_GAINS)] for row, by in gains.items()]
    return ReportTable("", ("test, points", *SHOWN_GAINS), rows)


def unearned_note(weights: Mapping[str, tuple[list[int], list[float]]]) -> str:
    """Name the graphs whose weight, of a run's histories by name, was always 0; or return ""."""
    unused = [name for name, (_, values) in weights.items() if not any(values)]
    return f"{', '.join(unused)}: earned no weight, not used" if unused else ""


def worse_note(metrics: BySplit, metric: str) -> str:
    """Say that the last row of ``metrics`` is below another in validation; or return ""."""
    *earlier, end = ((100 * row["validation"][metric], name) for name, row in metrics.items())
    best = max(earlier)
    if end[0] >= best[0]:
        return ""
    return (
        f"{metric} of validation is {end[0]:.2f}, below the {best[0]:.2f} of {best[1]}: take that, "
        f"or lower optimizer.lr"
    )


def combiner_table(metrics: BySplit, differences: Differences) -> ReportTable:
    """Lay out metrics in per cent; ``differences`` say by how much rows exceed texts alone."""
    rows = []
    for split, row, values in _in_order(metrics):
        less_text = in_points(differences[row][split]["R@10"]) if row in differences else ""
        rows.append([split, row, *_per_cent(values, SHOWN_OF_COMBINERS), less_text])
    columns = ("split", "ads by", *SHOWN_OF_COMBINERS, "R@10 minus text alone")
    return ReportTable("", columns, rows, text_columns=2)


def answers_table(
    queries: Sequence[str], answers: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()
) -> ReportTable:
    """Lay out what a retriever answers, one row per ad, best first, with values of ``columns``."""
    rows = []
    blank = [""] * len(columns)
    for query, answer in zip(queries, answers, strict=True):
        ads = zip(answer["ads"], answer["ad_ids"], answer["scores"], strict=True)
        if answer["error"]:
            rows.append([query, f"error: {answer['error']}", "", *blank, ""])
        values = [answer["columns"][name] for name in columns]
        if answer.get("doubt"):
            query = f"{query} (doubted: {answer['doubt']})"
        for place, (ad, ad_id, score) in enumerate(ads):
            beside = [column[place] or "" for column in values]
            rows.append(["" if place else query, ad, ad_id, *beside, f"{score:.3f}"])
    header = "query", "ad", "id", *columns, "score"
    return ReportTable("", header, rows, text_columns=3 + len(columns))


def _shown(metrics: Iterable[Metrics]) -> tuple[str, ...]:
    """Return the names of the metrics to show, with those of judgements if there are any."""
    has_judgements = any(SHOWN_IF_JUDGED[0] in values for values in metrics)
    return SHOWN + SHOWN_IF_JUDGED * has_judgements


def _in_order(metrics: BySplit) -> list[tuple[str, str, Metrics]]:
    """Return (split, row, metrics), by splits first."""
    splits = dict.fromkeys(split for by_split in metrics.values() for split in by_split)
    return [(split, row, by_split[split]) for split in splits for row, by_split in metrics.items()]


def _per_cent(metrics: Metrics, names: Sequence[str], prefix: str = "") -> list[str]:
    values = (metrics.get(f"{prefix}{name}") for name in names)
    return ["–" if value is None else f"{100 * value:.2f}" for value in values]


TEMPLATE = Path(__file__).with_name("page.html")


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
