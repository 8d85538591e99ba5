"""Describe a dataset directory: its size, graphs, popularity, token lengths, and what lacks clicks.

Examples:
    python jobs/describe.py datasets/foldoc
    python jobs/describe.py path/to/mine --page mine.html --max-length 64
    python jobs/describe.py datasets/debian --mlflow
"""

import sys
from pathlib import Path

import tyro
from rich.console import Console

from ramen_ray.command_line import parse_call, run_job
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.preparation.description import describe, log_description
from ramen_ray.presets import MINILM
from ramen_ray.reports.dataset import dataset_note, dataset_sections
from ramen_ray.reports.page import terminal_table, write_page
from ramen_ray.tracking.runs import ui_command


def describe_dataset(
    dataset: tyro.conf.Positional[Path],
    page: Path | None = None,
    encoder: str = MINILM,
    max_length: int = 32,
    mlflow: bool = False,
    output: Path = Path("outputs"),
) -> None:
    """Print a description of a dataset and write it as one HTML page with plots.

    Args:
        dataset: The dataset directory.
        page: HTML file to write; default: descriptions/NAME.html in the output folder.
        encoder: Encoder whose tokenizer counts the tokens.
        max_length: Say how many texts have more tokens than this.
        mlflow: Also log the numbers and the page as an MLflow run.
        output: Folder of the page and, unless MLFLOW_TRACKING_URI is set, the MLflow store.
    """
    opened = Dataset(dataset)
    description = describe(opened, encoder, max_length)
    sections = dataset_sections(description)
    console = Console(width=140)
    for section in sections:
        console.print(terminal_table(section), "")
    page = page or output / "descriptions" / f"{opened.path.resolve().name}.html"
    write_page(page, opened.name, dataset_note(description), sections)
    print(f"page:    {page}")
    if mlflow:
        run = log_description(description, page, output)
        print(f"run:     {run.id}")
        print(f"look at: {ui_command(run.uri)}")


def main() -> None:
    """Parse and describe."""
    parse_call(describe_dataset, __doc__)()


if __name__ == "__main__":
    sys.exit(run_job(main))
