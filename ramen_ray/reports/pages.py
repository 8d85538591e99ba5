"""Pages with tables."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment

from ramen_ray.data.store.made_folder import whole_file
from ramen_ray.reports.report_tables import ReportTable
from ramen_ray.tracking.addresses import TrackingError

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
