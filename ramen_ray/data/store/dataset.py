"""The dataset directory: one on-disk form for queries, ads, anchors, edges and filters."""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock

from ramen_ray.data.arrays import click_pairs
from ramen_ray.data.store.made_folder import (
    FileContent,
    digest_of,
    file_contents,
    new_folder,
    not_in_use,
    whole_file,
)
from ramen_ray.data.store.parquet_files import (
    open_parquet,
    read_footer,
    row_groups,
    rows_of,
    sorted_rows,
)
from ramen_ray.data.store.schemas import (
    CHECKED,
    FORMAT_VERSION,
    PUBLISHED,
    SPLITS,
    UNFINISHED,
    ZERO_SHOT,
    checked_tables,
    conform,
    delta_versions,
    optional_fields,
    read_metadata,
    schema_of,
    table_files,
)
from ramen_ray.errors import DatasetError as DatasetError
from ramen_ray.long_work import prefetched
from ramen_ray.naming import naming_fault

if TYPE_CHECKING:
    from scipy.sparse import csr_array

WHILE_READ = "while it was read; run the same command again"
"""For :meth:`Dataset.unchanged`: when it has changed, and what to do."""

FileState = tuple[Path, int, int, int]
"""A file, its size, and when its content and its inode were changed last."""


class Dataset:
    """A dataset directory, opened for reading; tables stay on disk until they are read."""

    def __init__(self, path: str | Path, metadata: dict[str, Any] | None = None) -> None:
        """Open a directory; one that is still being written has its ``metadata`` given.

        Raises a DatasetError if it or its ``dataset.json`` is missing or of another format version.
        """
        self.path = Path(path).absolute()
        self.metadata = read_metadata(self.path) if metadata is None else metadata

    def __str__(self) -> str:
        return f"the dataset directory {self.path}"

    @property
    def name(self) -> str:
        """The dataset's name in ``dataset.json``."""
        return str(self.metadata["name"])

    @cached_property
    def tables(self) -> list[str]:
        """Names of the tables in the directory, sorted."""
        return sorted({name for name, _ in table_files(self.path)})

    @property
    def splits(self) -> list[str]:
        """Names of the query splits that exist, train first."""
        return [split for split in (*SPLITS, ZERO_SHOT) if self.has(f"queries/{split}")]

    @property
    def anchor_sets(self) -> list[str]:
        """Names of the anchor sets, sorted."""
        sets = (table for table in self.tables if table.startswith("anchors/"))
        return [table.removeprefix("anchors/") for table in sets]

    @property
    def strict_anchor_sets(self) -> list[str]:
        """The sets used by default: all but those as published with a strict one beside them."""
        published = {name + PUBLISHED for name in self.anchor_sets}
        return [name for name in self.anchor_sets if name not in published]

    def has(self, table: str) -> bool:
        """Return whether the directory has ``table``."""
        return table in self.tables

    def files(self, table: str) -> list[Path]:
        """Return the table's parquet files in row order; raises DatasetError if it has none."""
        path = self.path / f"{table}.parquet"
        # hidden parts may not be whole
        files = sorted(path.glob("[!.]*.parquet")) if path.is_dir() else [path]
        if not files or not files[0].exists():
            raise DatasetError(f"{self.path} has no table {table!r} (expected {path})")
        return files

    def num_rows(self, table: str) -> int:
        """Return the table's row count from the parquet footers."""
        return sum(read_footer(file).num_rows for file in self.files(table))

    def schema(self, table: str) -> pa.Schema:
        """Return the table's columns: the required ones, then the optional ones that it has."""
        with open_parquet(self.files(table)[0]) as first:
            present = first.schema_arrow.names
        return pa.schema([*schema_of(table), *optional_fields(table, present)])

    def read(self, table: str) -> pa.Table:
        """Read a whole table into memory; for small tables, reports and tests."""
        schema = self.schema(table)
        return pa.Table.from_batches((rows.cast(schema) for rows in self.batches(table)), schema)

    def batches(
        self, table: str, columns: list[str] | None = None, batch_size: int = 65_536
    ) -> Iterator[pa.RecordBatch]:
        """Stream a table in row order: ``columns``, by default all that the format defines."""
        names = self.schema(table).names if columns is None else columns
        for file in self.files(table):
            yield from rows_of(file, names, batch_size)

    def in_order(self, table: str) -> Iterator[pa.RecordBatch]:
        """Stream a table in the order of its ids, all from 0; if need be it is sorted in memory."""
        first = 0
        column = schema_of(table).names[0]
        for batch in self.batches(table, [column]):
            if not np.array_equal(batch[0], np.arange(first, first + len(batch))):
                yield from sorted_rows(self.read(table), column)
                return
            first += len(batch)
        yield from self.batches(table)

    def rows_with_ids(self, table: str, ids: Iterable[int]) -> pa.Table:
        """Read the rows with these ids as a stream; they come in the order of their ids."""
        wanted = pa.array(ids, pa.int64())
        parts = [batch.filter(pc.is_in(batch[0], wanted)) for batch in self.batches(table)]
        return pa.Table.from_batches(parts).sort_by(schema_of(table).names[0])

    def clicks(self, split: str) -> "csr_array":
        """Read a split's clicks as (queries, ads) float32 weights, 1 each if it has none."""
        from scipy.sparse import csr_array  # takes a third of a second

        table = f"queries/{split}"
        columns = [name for name in self.schema(table).names if name not in ("text", "source_id")]
        rows = pa.Table.from_batches(self.batches(table, columns))
        queries, ads = click_pairs(rows)
        weights = np.ones(len(ads), np.float32)
        if "weights" in columns:
            weights = pc.list_flatten(rows["weights"]).to_numpy()
        return csr_array((weights, (queries, ads)), (self.num_rows(table), self.num_rows("ads")))

    @property
    def fingerprint(self) -> str:
        """A hash of all tables' content and the Delta versions it is of, when first asked for."""
        return digest_of([*self._noted[1], *delta_versions(self.metadata)])

    @property
    def table_digests(self) -> dict[str, str]:
        """A hash of each table's content, as it was when the fingerprint was first asked for."""
        return {table: digest_of(part) for table, part in groupby(self._noted[1], itemgetter(0))}

    @property
    def is_checked(self) -> bool:
        """Whether all tables have the content that was checked as it was written."""
        checked = checked_tables(self.metadata)
        return bool(checked) and self.table_digests.items() <= checked.items()

    @cached_property
    def _noted(self) -> tuple[list[FileState], list[FileContent]]:
        """The state of all tables' files, and what they contained right after."""
        states = self._states()
        return states, list(self._contents_of(self.tables))

    def _states(self) -> list[FileState]:
        """Look at all tables' files without reading them; whoever writes one changes its state."""
        files = (file for table in self.tables for file in self.files(table))
        looked = ((file, file.stat()) for file in files)
        return [(file, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for file, stat in looked]

    def content_of(self, tables: Iterable[str]) -> str:
        """Hash the content of some tables as it is now."""
        return digest_of(self._contents_of(tables))

    def _contents_of(self, tables: Iterable[str]) -> Iterator[FileContent]:
        files = ((table, file) for table in tables for file in self.files(table))
        # checks refuse what is no regular file
        return file_contents((table, file) for table, file in files if file.is_file())

    @contextmanager
    def unchanged(self, since: str) -> Iterator[None]:
        """Let the block read tables; raise a DatasetError if they have another fingerprint then.

        Tables added since this directory was opened do not count. ``since`` ends the message.
        """
        _ = self._noted  # as it is before the block
        try:
            yield
        except Exception:  # which may be due to the change
            self._check_content(since)
            raise
        self._check_content(since)

    def _check_content(self, since: str) -> None:
        states, contents = self._noted
        with suppress(DatasetError, FileNotFoundError):
            if states == self._states() or contents == [*self._contents_of(self.tables)]:
                return
        raise DatasetError(f"{self.path} has changed {since}")


def open_unchanged(path: str | Path, fingerprint: str, since: str) -> Dataset:
    """Open a dataset; a DatasetError says that it is missing, or has changed ``since``."""
    dataset = Dataset(path)
    if dataset.fingerprint != fingerprint:
        raise DatasetError(f"{dataset.path} has changed {since}")
    return dataset


@dataclass(frozen=True)
class DatasetWriter:
    """Writes the tables of a dataset directory that is not whole yet."""

    folder: Path

    def write(self, table: str, rows: pa.Table | Iterable[pa.RecordBatch | pa.Table]) -> int:
        """Write a table as one file, and return its row count.

        Columns are cast to the table's schema; columns that the format does not define are dropped.
        The same rows give the same bytes, however they are cut into batches.
        """
        batches = [rows] if isinstance(rows, pa.Table) else rows
        file = self.folder / f"{table}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        # closed before the engine that it reads from is, also if the disk is full
        with closing(prefetched(row_groups(conform(table, batch) for batch in batches))) as groups:
            first = next(groups, schema_of(table).empty_table())
            options = {"compression": "zstd", "write_page_checksum": True}
            with pq.ParquetWriter(file, first.schema, **options) as writer:
                for group in chain([first], groups):
                    writer.write_table(group)
        return read_footer(file).num_rows


@contextmanager
def new_dataset(
    path: str | Path, /, *, is_checked: bool = False, **metadata: Any
) -> Iterator[DatasetWriter]:
    """Build a dataset directory that is whole or absent.

    ``metadata`` (at least ``name``) goes into ``dataset.json``, with all row counts. Who checks the
    rows before they are written says so by ``is_checked``. Raises a DatasetError if ``path`` exists
    already, or the name is not usable.
    """
    if fault := naming_fault(metadata["name"]):
        raise DatasetError(f"{path}: dataset name: {fault}")
    with new_folder(path) as aside:
        yield DatasetWriter(aside)
        metadata = with_checked(metadata, aside) if is_checked else metadata
        write_metadata(aside, {"format_version": FORMAT_VERSION, **metadata})


def write_dataset(path: str | Path, tables: Mapping[str, pa.Table], **metadata: Any) -> Dataset:
    """Write ``tables`` (name to rows) as a dataset directory; see :func:`new_dataset`."""
    with new_dataset(path, **metadata) as writer:
        for name, rows in tables.items():
            writer.write(name, rows)
    return Dataset(path)


def with_checked(metadata: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Add to ``metadata`` that the tables in ``folder`` were checked as they were written."""
    digests = Dataset(folder, {}).table_digests
    return {**metadata, CHECKED: checked_tables(metadata) | digests}


def write_metadata(
    folder: Path, metadata: Mapping[str, Any], unfinished: Mapping[str, int] = {}
) -> None:
    """Write ``dataset.json`` atomically, with all row counts; ``unfinished`` of hidden tables."""
    counts = Counter[str]()
    for name, file in table_files(folder):
        counts[name] += read_footer(file).num_rows
    content = {**metadata, "num_rows": dict(sorted({**counts, **unfinished}.items()))}
    with whole_file(folder / "dataset.json") as aside:
        aside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def to_change(dataset_path: Path) -> Iterator[Dataset]:
    """Keep a dataset directory for a change, as it is now; a DatasetError if a job holds it.

    A process waits for another that changes it.
    """
    with FileLock(dataset_path / ".lock"), not_in_use(dataset_path):
        yield Dataset(dataset_path)


def replace_tables(
    dataset: Dataset,
    places: Sequence[str],
    name: str,
    metadata: Mapping[str, Any],
    aside: Path | None = None,
) -> None:
    """Remove what is at ``places`` in a dataset directory, and move there what ``aside`` has.

    ``name`` is that of the anchor set whose tables these are, or of a folder, ``judged/``: they are
    hidden from readers until one unlink reveals them, and after an interrupted call stay hidden.
    ``metadata`` changes ``dataset.json``.
    """
    metadata = {**dataset.metadata, **metadata}
    counts = {}
    if aside is not None:
        metadata = with_checked(metadata, aside)
        for table, file in table_files(aside):
            if any(file.is_relative_to(aside / place) for place in places):
                counts[table] = read_footer(file).num_rows  # of one file each
    marker = dataset.path / f"{UNFINISHED}{name.replace('/', '.')}"
    marker.touch()
    for place in places:  # a file, or a folder of files
        old = dataset.path / place
        shutil.rmtree(old, ignore_errors=True)
        old.unlink(missing_ok=True)
        if aside is not None and (aside / place).exists():
            old.parent.mkdir(exist_ok=True)
            (aside / place).rename(old)
    write_metadata(dataset.path, metadata, counts)
    marker.unlink()
