"""Write a dataset directory as files of the extreme classification (XC) repository.

Examples:
    python jobs/export.py datasets/foldoc --output exports/foldoc
    python jobs/ingest.py xc --source exports/foldoc --output datasets/foldoc-again
"""

import sys
from pathlib import Path

import tyro

from ramen_ray.command_line import parse_call, run_job
from ramen_ray.data.importers.xc.exporting import export_xc
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.validation import check


def export(dataset: tyro.conf.Positional[Path], output: Path) -> None:
    """Write a dataset directory as XC files.

    Args:
        dataset: Dataset directory to read.
        output: Folder to write.
    """
    opened = Dataset(dataset)
    check(opened)
    export_xc(opened, output)
    print(f"wrote {output}")


def main() -> None:
    """Parse and export."""
    parse_call(export, __doc__)()


if __name__ == "__main__":
    sys.exit(run_job(main))
