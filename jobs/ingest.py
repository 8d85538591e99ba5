"""Bring a published source into a dataset directory.

Examples:
    python jobs/ingest.py foldoc --source sources/foldoc --output datasets/foldoc
    python jobs/ingest.py debian --source sources/debian --output datasets/debian
    python jobs/ingest.py novel --dataset datasets/foldoc --output foldoc-zero-shot
    python jobs/ingest.py novel --dataset datasets/foldoc --output foldoc-one-shot --one-shot
"""

import sys

import tyro

from ramen_ray.data.dataset import DatasetError
from ramen_ray.data.importers.debian import import_debian
from ramen_ray.data.importers.foldoc import import_foldoc
from ramen_ray.data.novel import make_novel_split

IMPORTERS = {"foldoc": import_foldoc, "debian": import_debian, "novel": make_novel_split}


def main() -> int:
    """Run the importer that the command line names; return the exit code."""
    try:
        dataset = tyro.extras.subcommand_cli_from_dict(IMPORTERS, description=__doc__)
    except DatasetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {dataset.name} to {dataset.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
