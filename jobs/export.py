"""Write a dataset directory as files of the extreme classification (XC) repository.

Examples:
    python jobs/export.py datasets/foldoc --output exports/foldoc
    python jobs/ingest.py xc --source exports/foldoc --output datasets/foldoc-again
"""

import sys
from pathlib import Path

import tyro

from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.config import Section
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.xc.exporting import export_xc


class ExportSettings(Section):
    """Write a dataset directory as XC files."""

    dataset: tyro.conf.Positional[Path]
    """Dataset directory to read."""
    output: Path
    """Folder to write."""


def main() -> None:
    """Check the dataset directory and write it."""
    settings = parse_settings(ExportSettings, __doc__)
    export_xc(Dataset(settings.dataset), settings.output)
    print(f"wrote {settings.output}")


if __name__ == "__main__":
    sys.exit(run_job(main))
