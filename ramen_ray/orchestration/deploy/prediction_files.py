"""Partitions of a table of queries: each is read, answered and written as a whole.

A partition is a row group of a parquet file, or a piece of a large one. Its answers are a file that
is whole or absent.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ramen_ray.answering.requests import ANSWERS, COLUMNS
from ramen_ray.config import ConfigError
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.made_folder import folder_lock, owned_folder, whole_file
from ramen_ray.data.store.parquet_files import BoundedFile, open_parquet
from ramen_ray.errors import first_line_of

QUERIES_PER_BATCH = 4096
QUERIES_PER_PARTITION = 12 * QUERIES_PER_BATCH
FOOTER_END = 8  # bytes after a footer: its length and the magic
FILE = "part-{:06d}.parquet"
ERRORS, MADE_FROM = "ramen_ray.errors", "ramen_ray.made_from"  # keys of a file's metadata
QUERIES = "queries"  # in what a file is made from


@dataclass(frozen=True)
class QueryFile:
    """A parquet file of queries, as it was when the call began."""

    filesystem: FileSystem
    path: str
    footer: pq.FileMetaData
    identity: str  # of its size, time and footer

    @contextmanager
    def open(self) -> Iterator[BoundedFile]:
        """Open it; a DatasetError if it is gone, or is or becomes another within the block."""
        self._check()
        with self.filesystem.open_input_file(self.path) as stream:
            yield open_parquet(self.path, opened=stream)
        self._check()

    def _check(self) -> None:
        if query_file(self.filesystem, self.path).identity != self.identity:
            raise changed(self.path)


def changed(queries: str) -> DatasetError:
    """Return the exception that says that a file or table of queries has changed."""
    return DatasetError(
        f"{queries} has changed since this call began; run it again, with another folder for the"
        " answers"
    )


def query_file(filesystem: FileSystem, path: str) -> QueryFile:
    """Read the footer of a parquet file, or raise a DatasetError."""
    try:
        info = filesystem.get_file_info(path)
        with filesystem.open_input_file(path) as stream:
            footer = open_parquet(path, opened=stream).metadata
            stream.seek(info.size - footer.serialized_size - FOOTER_END)
            digest = hashlib.blake2b(stream.read(), digest_size=16)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {first_line_of(error)}") from error
    digest.update(f"{info.size} {info.mtime_ns}".encode())
    return QueryFile(filesystem, path, footer, digest.hexdigest())


@dataclass(frozen=True)
class Partition:
    """Rows ``start`` to ``stop`` of a row group."""

    file: QueryFile
    group: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """How errors name it."""
        return f"{self.file.path}, row group {self.group}, rows from {self.start}"

    @property
    def schema(self) -> pa.Schema:
        """The columns of the file."""
        return self.file.footer.schema.to_arrow_schema()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows batch by batch, or raise a DatasetError."""
        first = 0
        try:
            with self.file.open() as parquet:
                for rows in parquet.iter_batches(QUERIES_PER_BATCH, row_groups=[self.group]):
                    begin, end = max(self.start - first, 0), min(self.stop - first, len(rows))
                    if begin < end:
                        yield rows.slice(begin, end - begin)
                    first += len(rows)
                    if first >= self.stop:
                        break
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DatasetError(f"{self.name}: cannot be read: {first_line_of(error)}") from error


def partitions(files: Mapping[str, FileSystem]) -> list[Partition]:
    """Cut the row groups of parquet files, on their file systems, into partitions."""
    with ThreadPoolExecutor() as threads:
        opened = list(threads.map(query_file, files.values(), files))
    return [
        Partition(file, group, start, min(start + QUERIES_PER_PARTITION, num_rows))
        for file in opened
        for group in range(file.footer.num_row_groups)
        for num_rows in [file.footer.row_group(group).num_rows]
        for start in range(0, max(num_rows, 1), QUERIES_PER_PARTITION)
    ]


@dataclass(frozen=True)
class Answers:
    """The files of one call's answers, one for each partition.

    A file's metadata say what it was made from, and how many of its rows have no answer.
    """

    folder: Path
    aside: Path  # a folder for what is needed until all is answered
    partitions: list[Partition]  # of the queries
    made_from: Mapping[str, Any]  # by name, what else decides the answers; plain values
    columns: Sequence[str] = ()  # of the ads, to write beside them
    table: str | None = None  # the identity of the table that the file of queries was made of

    def write(self, number: int, batches: Iterable[pa.Table]) -> None:
        """Write a partition's file, whole or not at all: its columns, then ANSWERS."""
        partition, errors = self.partitions[number], 0
        with (
            whole_file(self.folder / FILE.format(number), self.aside) as aside,
            pq.ParquetWriter(aside, self.schema(partition), compression="zstd") as writer,
        ):
            for batch in batches:
                writer.write_table(batch)
                errors += len(batch) - batch[batch.num_columns - 1].null_count
            made_from = self._made_from(partition)
            writer.add_key_value_metadata({ERRORS: str(errors), MADE_FROM: made_from})

    def schema(self, partition: Partition) -> pa.Schema:
        """Return the columns of queries, and those of their answers beside them."""
        *lists, _, error = ANSWERS  # doubts are not told
        values = pa.struct([(name, pa.list_(pa.string())) for name in self.columns])
        beside = [pa.field(COLUMNS, values)] if self.columns else []
        return pa.schema([*partition.schema, *lists, *beside, error])

    def counts(self) -> list[tuple[int, int] | None]:
        """Return rows, and rows without an answer, by partition; None where there is no whole file.

        Raises a ConfigError if the folder has a file of another call.
        """
        files = [self.folder / FILE.format(number) for number in range(len(self.partitions))]
        if others := {*self.folder.glob("part-*.parquet")}.difference(files):
            raise _of_another_call(min(others), [QUERIES])
        with ThreadPoolExecutor() as threads:
            return list(threads.map(self._count, files, self.partitions))

    def _count(self, file: Path, partition: Partition) -> tuple[int, int] | None:
        try:
            footer = pq.read_metadata(file)
        except (OSError, pa.ArrowException):  # it is not there, or was cut short
            return None
        noted = footer.metadata or {}
        before = json.loads(noted.get(MADE_FROM.encode(), "{}"))
        now = json.loads(self._made_from(partition))
        if differ := [name for name in now if before.get(name) != now[name]]:
            raise _of_another_call(file, differ)
        return footer.num_rows, int(noted[ERRORS.encode()])

    def _made_from(self, partition: Partition) -> str:
        identity = self.table or partition.file.identity
        queries = [partition.file.path, partition.group, partition.start, identity]
        return json.dumps({**self.made_from, QUERIES: queries})


def _of_another_call(file: Path, differ: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"{file} is of another call ({', '.join(differ)} differ); choose another folder"
    )


@contextmanager
def locked(output: Path) -> Iterator[Path]:
    """Keep other calls from writing to ``output``; yields a folder in it that is removed again.

    Raises a ConfigError if another call writes to it, or it cannot be written.
    """
    with ExitStack() as stack:
        try:
            output.mkdir(parents=True, exist_ok=True)
            is_ours = stack.enter_context(folder_lock(output))
        except OSError as error:
            raise ConfigError(f"cannot write the folder {output}: {error.strerror}") from error
        if not is_ours:
            raise ConfigError(
                f"another call is writing to {output}; wait until it has ended, or choose another "
                f"folder"
            )
        yield stack.enter_context(owned_folder(output))
