r"""Import data into a dataset directory.

Examples:
    python jobs/ingest.py tables --clicks clicks.csv --output datasets/mine
    python jobs/ingest.py tables --clicks 'clicks/*.parquet' --columns.clicks-weight count \
        --queries queries.jsonl --ads ads.csv --columns.ad-text title description \
        --output datasets/mine
    python jobs/ingest.py tables --clicks s3://bucket/clicks --columns.clicks-time day \
        --splits.validation-from 2026-09-01 --splits.test-from 2026-09-08 --output datasets/mine
    python jobs/ingest.py tables --clicks clicks.csv --query-edges links links.csv \
        --ad-edges links ad_links.csv --anchors links anchors.csv --output datasets/mine
    python jobs/ingest.py tables --clicks clicks.csv --query-splits splits.csv \
        --filters filters.csv --drop-own-text --output datasets/mine
    python jobs/ingest.py novel --dataset datasets/foldoc --output foldoc-zero-shot
    python jobs/ingest.py novel --dataset datasets/foldoc --output foldoc-one-shot --one-shot
    python jobs/ingest.py judged --dataset mine --judged judgements/judgements.parquet \
        --judged-highest 3
"""

import shlex
from pathlib import Path
from typing import Annotated

import tyro

from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.config import Section
from ramen_ray.data.splits.judged import JudgedTable, add_judgements
from ramen_ray.data.splits.novel import NovelSettings, make_novel_split
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import UserTables
from ramen_ray.errors import shown_path


class Tables(Section):
    """Import your own tables: clicks and, if you have them, queries and ads."""

    output: Path
    """Dataset directory to write; must not exist."""
    tables: Annotated[UserTables, tyro.conf.arg(name="")]
    name: str | None = None
    """Name of the dataset; by default that of the folder."""
    memory: str | None = None
    """Memory that tables may take, such as 4GB; what needs more goes to files beside the output.
    Default 60 % of the machine's."""

    def run(self) -> Dataset:
        """Import the tables."""
        return import_tables(self.tables, self.output.absolute(), self.name, self.memory)


class Novel(Section):
    """Make some ads of a dataset novel: they have no clicks in training, only in the test."""

    output: Path
    """Dataset directory to write; must not exist."""
    dataset: Path
    """Dataset directory to split."""
    settings: Annotated[NovelSettings, tyro.conf.arg(name="")]

    def run(self) -> Dataset:
        """Split the dataset."""
        return make_novel_split(self.dataset, self.output, self.settings)


class Judged(Section):
    """Add judgements to a dataset, such as those of jobs/judge.py.

    They replace those of the same query, ad and source.
    """

    dataset: Path
    """Dataset directory that they are added to, unless there is an output."""
    output: Path | None = None
    """Dataset directory to write in place of changing the other; must not exist."""
    table: Annotated[JudgedTable, tyro.conf.arg(name="")]

    def run(self) -> Dataset:
        """Add them."""
        return add_judgements(Dataset(self.dataset), self.table, self.output)


Importer = type[Tables | Novel | Judged]
IMPORTS: dict[str, Importer] = {"tables": Tables, "novel": Novel, "judged": Judged}


def main() -> None:
    """Run the importer that the command line names."""
    dataset = parse_settings(IMPORTS, __doc__).run()
    path = shown_path(dataset.path)
    print(f"wrote {dataset.name} to {path}")
    print(f"next: {shlex.join(['python', 'jobs/validate.py', path])}")


if __name__ == "__main__":
    run_job(main)
