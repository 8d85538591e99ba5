"""Bring a published source into a dataset directory.

Examples:
    python jobs/ingest.py xc --source downloads/LF-AmazonTitles-131K --output datasets/titles-131k
    python jobs/ingest.py foldoc --source sources/foldoc --output datasets/foldoc
    python jobs/ingest.py debian --source sources/debian --output datasets/debian
"""

import logging
import sys

import tyro

from ramen_ray.command_line import run_job
from ramen_ray.data.importers.debian import import_debian
from ramen_ray.data.importers.foldoc import import_foldoc
from ramen_ray.data.xc.importing import import_xc

IMPORTERS = {"foldoc": import_foldoc, "debian": import_debian, "xc": import_xc}


def main() -> None:
    """Run the importer that the command line names."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    dataset = tyro.extras.subcommand_cli_from_dict(IMPORTERS, description=__doc__)
    print(f"wrote {dataset.name} to {dataset.path}")


if __name__ == "__main__":
    sys.exit(run_job(main))
