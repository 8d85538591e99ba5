r"""Bring data into a dataset directory.

Examples:
    python jobs/ingest.py tables --clicks clicks.csv --output datasets/mine
    python jobs/ingest.py tables --clicks 'clicks/*.parquet' --columns.clicks-weight count \
        --queries queries.jsonl --ads ads.csv --columns.ad-text title --output datasets/mine
    python jobs/ingest.py tables --clicks s3://bucket/clicks --columns.clicks-time day \
        --splits.validation-from 2026-09-01 --splits.test-from 2026-09-08 --output datasets/mine
    python jobs/ingest.py tables --clicks clicks.csv --query-edges links links.csv \
        --ad-edges links ad_links.csv --anchors links anchors.csv --output datasets/mine
    python jobs/ingest.py xc --source downloads/LF-AmazonTitles-131K --output datasets/titles-131k
    python jobs/ingest.py foldoc --source sources/foldoc --output datasets/foldoc
    python jobs/ingest.py debian --source sources/debian --output datasets/debian
    python jobs/ingest.py novel --dataset datasets/foldoc --output foldoc-zero-shot
    python jobs/ingest.py novel --dataset datasets/foldoc --output foldoc-one-shot --one-shot
    python jobs/ingest.py propagate --dataset datasets/foldoc --output foldoc-propagated
    python jobs/ingest.py propagate --dataset datasets/foldoc --output foldoc-propagated \
        --via clicks --anchor-sets links --top-k 3
"""

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from ramen_ray.command_line import parse_call, run_job
from ramen_ray.data.importers.debian import import_debian
from ramen_ray.data.importers.foldoc import import_foldoc
from ramen_ray.data.importers.tables.settings import UserTables
from ramen_ray.data.importers.xc.importing import import_xc
from ramen_ray.data.splits.novel import make_novel_split
from ramen_ray.data.splits.propagation import PropagationSettings, propagate_clicks
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.preparation.tables import import_tables


def ingest_tables(
    tables: Annotated[UserTables, tyro.conf.arg(name="")], output: Path, name: str | None = None
) -> Dataset:
    """Import your own tables: clicks, and where you have them queries and ads.

    Args:
        tables: Where the tables are and what is in them.
        output: Dataset directory to write; must not exist.
        name: Name of the dataset; default the folder's name.
    """
    return import_tables(tables, output.absolute(), name)


def propagate(
    dataset: Path,
    output: Path,
    settings: Annotated[PropagationSettings, tyro.conf.arg(name="")],
) -> Dataset:
    """Give train queries the ads that they share anchors with, as the paper's AugGT does.

    Args:
        dataset: Dataset directory to start from.
        output: Dataset directory to write; must not exist.
        settings: Which ads are added.
    """
    return propagate_clicks(dataset, output, settings)


IMPORTERS: dict[str, Callable[..., Dataset]] = {
    "tables": ingest_tables,
    "xc": import_xc,
    "novel": make_novel_split,
    "propagate": propagate,
    "foldoc": import_foldoc,
    "debian": import_debian,
}


def main() -> None:
    """Run the importer that the command line names."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dataset = parse_call(IMPORTERS, __doc__)()
    print(f"wrote {dataset.name} to {dataset.path}")


if __name__ == "__main__":
    sys.exit(run_job(main))
