"""Describe a dataset directory: size, graphs, token lengths, and nodes without clicks or edges.

Examples:
    python jobs/describe.py datasets/foldoc
    python jobs/describe.py path/to/mine --page mine.html --max-length 64
"""

from pathlib import Path

import tyro

from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.config import Section
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import printable
from ramen_ray.long_work import logged_progress
from ramen_ray.presets import MINILM
from ramen_ray.printed_commands import training_on

SHOWN = ("Without clicks, without edges", "Some train queries")
"""Tables that a terminal shows; the page has all of them."""


class DescribeSettings(Section):
    """Say what is in a dataset, and write its figures as one HTML page."""

    dataset: tyro.conf.Positional[Path]
    """The dataset directory."""
    page: Path | None = None
    """HTML file to write; default: descriptions/NAME.html in the output folder."""
    encoder: str = MINILM
    """Encoder whose tokenizer counts the tokens."""
    max_length: int = 32
    """Report how many texts have more tokens than this."""
    output: Path = Path("outputs")
    """Folder of the page."""


def main() -> None:
    """Print what matters, write the page and print where it is."""
    settings = parse_settings(DescribeSettings, __doc__)
    dataset = Dataset(settings.dataset)
    with logged_progress("loading libraries"):
        from ramen_ray.reports.description import describe
        from ramen_ray.reports.report_tables import show, write_page
    description = describe(dataset, settings.encoder, settings.max_length)
    for sentence in description.words:
        print(printable(f"- {sentence}"))
    for table in description.tables:
        if table.title in SHOWN:
            show(table)
    name = f"{dataset.path.resolve().name}.html"
    page = settings.page or settings.output / "descriptions" / name
    write_page(page, dataset.name, description.note, description.words, description.tables)
    print(f"page:    {page} has all tables")
    print(f"next:    {training_on(settings.dataset, [])}")


if __name__ == "__main__":
    run_job(main)
