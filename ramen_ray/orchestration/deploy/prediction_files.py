"""What is asked of a retriever: a table of queries, whose partitions are answered one by one.

A partition is a row group of a parquet file, or a piece of a large one. Its answers are a file that
is whole or absent.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem

from ramen_ray.answering.requests import ANSWERS, COLUMNS
from ramen_ray.config import GB_PER_SHARD
from ramen_ray.data.store.made_folder import whole_file
from ramen_ray.data.store.parquet_files import open_parquet
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.loading import UserTable
from ramen_ray.data.tables.reading.table_file import TableFile
from ramen_ray.errors import DatasetError, first_line_of

QUERIES_PER_BATCH = 4096
QUERIES_PER_PARTITION = 12 * QUERIES_PER_BATCH
FILE = "part-{:06d}.parquet"


@dataclass(frozen=True)
class Asked:
    """What is asked of a retriever, and by how large processes it is answered."""

    queries: str  # a file, a folder or a glob
    top_k: int  # most ads of a query
    column: str = "text"  # with the queries' texts
    encoding: str = "utf-8"  # of text files
    # what else each request sets of its answers; see :meth:`Retriever.answer`
    params: Mapping[str, Any] = field(default_factory=dict)
    # wait for a machine with GPUs; else GPUs are used only if the cluster has some now
    use_gpu: bool = False
    # GB of a retriever that one process holds; a larger one is cut into shards
    gb_per_shard: float = GB_PER_SHARD


def query_files(asked: Asked) -> list[TableFile]:
    """Find the files of the queries by their headers; a DatasetError if they cannot be answered."""
    advice = "; --columns.query-text names another"
    files = find_files(asked.queries, [asked.column], advice, asked.encoding)
    for file in files:
        if asked.column in file.partitions:
            raise DatasetError(f"{file.path} has no column {asked.column!r} in itself")
        if taken := sorted({*ANSWERS.names, COLUMNS} & set(file.header)):
            raise DatasetError(
                f"{file.path} has a column {', '.join(map(repr, taken))}, as the answers do"
                f"; rename it"
            )
    return files


def identity_of(files: Sequence[TableFile]) -> str:
    """Hash where files are, how they are read, and when they were changed last."""
    facts = [[file.path, file.encoding, file.info.size, file.info.mtime_ns] for file in files]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def as_parquet(
    asked: Asked, files: Sequence[TableFile], target: Path, aside: Path
) -> dict[str, FileSystem]:
    """Return the ``files`` of the queries, or, if they are not parquet, ``target`` made of them.

    It has all columns, as texts; what shows nothing is null. If it is there, an earlier call has
    made it. ``aside`` is a folder for what is not whole. Raises a DatasetError that names the rows
    that cannot be read.
    """
    if all(file.format == "parquet" for file in files):
        return {file.path: file.filesystem for file in files}
    made: dict[str, FileSystem] = {str(target): LocalFileSystem()}
    if target.exists():
        return made
    names = list(dict.fromkeys(name for file in files for name in file.header))
    columns = {str(place): Column(name, optional=True) for place, name in enumerate(names)}
    table = UserTable(asked.queries, columns, encoding=asked.encoding)
    schema = pa.schema([(name, pa.string()) for name in names])
    with (
        whole_file(target, aside) as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for rows in table.batches():
            writer.write_table(pa.Table.from_arrays(rows.columns[1:], schema=schema))
        table.check()
    return made


@dataclass(frozen=True)
class Partition:
    """Rows ``start`` to ``stop`` of a row group of a parquet file."""

    filesystem: FileSystem
    path: str
    schema: pa.Schema
    group: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """How errors name it."""
        return f"{self.path}, row group {self.group}, rows from {self.start}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows batch by batch; a DatasetError if they cannot be read."""
        first = 0
        try:
            with open_parquet(self.path, self.filesystem) as parquet:
                for rows in parquet.iter_batches(QUERIES_PER_BATCH, row_groups=[self.group]):
                    begin = max(self.start - first, 0)
                    end = min(self.stop - first, len(rows))
                    if begin < end:
                        yield rows.slice(begin, end - begin)
                    first += len(rows)
                    if first >= self.stop:
                        break
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DatasetError(f"{self.name}: cannot be read: {first_line_of(error)}") from error


def partitions(files: Mapping[str, FileSystem]) -> list[Partition]:
    """Cut the row groups of parquet files, on their file systems, into partitions."""

    def footer_of(path: str) -> pq.FileMetaData:
        with open_parquet(path, files[path]) as parquet:
            return parquet.metadata

    with ThreadPoolExecutor() as threads:
        footers = dict(zip(files, threads.map(footer_of, files), strict=True))
    return [
        Partition(files[path], path, schema, group, start, min(stop, num_rows))
        for path, footer in footers.items()
        for schema in [footer.schema.to_arrow_schema()]
        for group in range(footer.num_row_groups)
        for num_rows in [footer.row_group(group).num_rows]
        for start in range(0, max(num_rows, 1), QUERIES_PER_PARTITION)
        for stop in [start + QUERIES_PER_PARTITION]
    ]


@dataclass(frozen=True)
class Answers:
    """The files of one call's answers, one for each partition."""

    folder: Path
    aside: Path  # a folder for what is needed until all is answered
    partitions: list[Partition]  # of the queries
    columns: Sequence[str] = ()  # of the ads, to write beside them

    def write(self, number: int, batches: Iterable[pa.Table]) -> None:
        """Write a partition's file, whole or not at all: its columns, then ANSWERS."""
        with (
            whole_file(self.folder / FILE.format(number), self.aside) as aside,
            pq.ParquetWriter(
                aside, self.schema(self.partitions[number]), compression="zstd"
            ) as writer,
        ):
            for batch in batches:
                writer.write_table(batch)

    def schema(self, partition: Partition) -> pa.Schema:
        """Return the columns of queries, and those of their answers beside them."""
        *lists, _, error = ANSWERS  # doubts are not told
        values = pa.struct([(name, pa.list_(pa.string())) for name in self.columns])
        beside = [pa.field(COLUMNS, values)] if self.columns else []
        return pa.schema([*partition.schema, *lists, *beside, error])

    def counts(self) -> list[tuple[int, int] | None]:
        """Return rows, and those without an answer, by partition; None without a whole file."""
        files = [self.folder / FILE.format(number) for number in range(len(self.partitions))]
        with ThreadPoolExecutor() as threads:
            return list(threads.map(_count, files))


def _count(file: Path) -> tuple[int, int] | None:
    try:
        footer = pq.read_metadata(file)
    except (OSError, pa.ArrowException):  # it is not there, or was cut short
        return None
    groups = map(footer.row_group, range(footer.num_row_groups))
    errors = (group.column(group.num_columns - 1) for group in groups)  # the last column
    num_answered = sum(column.statistics.null_count for column in errors)
    return footer.num_rows, footer.num_rows - num_answered
