"""The dataset directory: one on-disk form for queries, ads, anchors, edges and filters."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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

from ramen_ray.data.arrays import click_pairs
from ramen_ray.data.store.made_folder import (
    FileContent,
    digest_of,
    file_contents,
    new_folder,
    whole_file,
)
from ramen_ray.data.store.metadata import (
    CHECKED,
    FORMAT_VERSION,
    checked_tables,
    delta_versions,
    read_metadata,
)
from ramen_ray.data.store.parquet_files import open_parquet, read_footer, row_groups, sorted_rows
from ramen_ray.data.store.schemas import PUBLISHED, SPLITS, ZERO_SHOT, optional_fields, schema_of
from ramen_ray.errors import DatasetError as DatasetError
from ramen_ray.long_work import prefetched
from ramen_ray.naming import naming_fault

if TYPE_CHECKING:
    from scipy.sparse import csr_array

WHILE_READ = "while it was read; run the same command again"
"""For :meth:`Dataset.unchanged`: when it has changed, and what to do."""
MIN_EXPANDED = 1 << 30
MAX_EXPANSION = 100
"""How many times its size on disk a table may take in memory, from MIN_EXPANDED bytes on."""
DEEPEST = 4
"""Levels at which files of tables lie: edges/SET/query.parquet, a folder of parts, has the most."""
UNFINISHED = ".unfinished-"
"""With an anchor set's name, or a folder's and a dot: the file that hides its tables until all are
in place."""

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
        return sorted({name for name, _ in _table_files(self.path)})

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
            yield from self.rows_of(file, names, batch_size)

    def rows_of(self, file: Path, columns: list[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Stream a table's file; raises a DatasetError where it takes far more than on disk."""
        num_bytes = 0
        most = max(MIN_EXPANDED, MAX_EXPANSION * file.stat().st_size)
        with open_parquet(file) as parquet:
            for batch in parquet.iter_batches(batch_size, columns=columns):
                num_bytes += batch.nbytes
                if num_bytes > most:
                    raise DatasetError(
                        f"{file} takes over {most / 1e9:.3g} GB in memory, a hundred times what it"
                        " takes on disk, as no table of ids and texts does"
                    )
                yield batch.select(columns)

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
            if self._states() == states or [*self._contents_of(self.tables)] == contents:
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
        with closing(prefetched(row_groups(_conform(table, batch) for batch in batches))) as groups:
            first = next(groups, None)
            if first is None:
                pq.write_table(schema_of(table).empty_table(), file)
                return 0
            num_rows = 0
            options = {"compression": "zstd", "write_page_checksum": True}
            with pq.ParquetWriter(file, first.schema, **options) as writer:
                for group in chain([first], groups):
                    writer.write_table(group)
                    num_rows += len(group)
        return num_rows


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


def _conform(table: str, rows: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return the columns that the format defines, in their types."""
    rows = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    schema = pa.schema([*schema_of(table), *optional_fields(table, rows.column_names)])
    return rows.select(schema.names).cast(schema)


def with_checked(metadata: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Add to ``metadata`` that the tables in ``folder`` were checked as they were written."""
    digests = Dataset(folder, {}).table_digests
    return {**metadata, CHECKED: checked_tables(metadata) | digests}


def write_metadata(
    folder: Path, metadata: Mapping[str, Any], unfinished: Mapping[str, int] | None = None
) -> None:
    """Write ``dataset.json`` atomically, with all row counts; ``unfinished`` of hidden tables."""
    counts = Counter[str]()
    for name, file in _table_files(folder):
        counts[name] += read_footer(file).num_rows
    content = {**metadata, "num_rows": dict(sorted({**counts, **(unfinished or {})}.items()))}
    with whole_file(folder / "dataset.json") as aside:
        aside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _table_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (table, parquet file), also in linked folders, but nothing hidden or unfinished."""
    unfinished = {file.name.removeprefix(UNFINISHED) for file in folder.glob(f"{UNFINISHED}*")}
    for depth in range(DEEPEST):
        for file in folder.glob("*/" * depth + "*.parquet"):
            part_of = file.parent if file.parent.suffix == ".parquet" else file
            name = part_of.relative_to(folder).with_suffix("")
            group, *below = name.parts
            hides = below[0] if group in ("anchors", "edges") and below else f"{group}."
            is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
            if file.is_file() and not is_hidden and hides not in unfinished:
                yield str(name), file
