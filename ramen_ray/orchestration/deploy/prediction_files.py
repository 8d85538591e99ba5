"""What is asked of a retriever: a table of queries, whose partitions are answered one by one.

A partition is a row group of a parquet file, or a piece of a large one. Its answers are a file that
is whole or absent.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem

from ramen_ray.answering.requests import ANSWERS, COLUMNS
from ramen_ray.config import GB_PER_SHARD, ConfigError
from ramen_ray.data.store.made_folder import folder_lock, owned_folder, whole_file
from ramen_ray.data.store.parquet_files import BoundedFile, open_parquet
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.loading import UserTable
from ramen_ray.data.tables.reading.table_file import TableFile
from ramen_ray.errors import DatasetError, first_line_of

QUERIES_PER_BATCH = 4096
QUERIES_PER_PARTITION = 12 * QUERIES_PER_BATCH
FOOTER_END = 8  # bytes after a footer: its length and the magic
FILE = "part-{:06d}.parquet"
ERRORS, MADE_FROM = "ramen_ray.errors", "ramen_ray.made_from"  # keys of a file's metadata
QUERIES = "queries"  # in what a file is made from
MADE_OF = "ramen_ray.made_of"  # the same, of a file that was made of a table: its identity


@dataclass(frozen=True)
class Asked:
    """What is asked of a retriever, and by how large processes it is answered."""

    queries: str  # a file, a folder or a glob
    top_k: int  # most ads of a query
    column: str = "text"  # with the queries' texts
    encoding: str = "utf-8"  # of text files
    # by column, the values that ads may have
    filter: Mapping[str, Sequence[str]] = field(default_factory=dict)
    min_score: float | None = None  # the lowest score of an ad
    # by column, how many of a query's ads may have one value of it
    at_most: Mapping[str, int] = field(default_factory=dict)
    columns: Sequence[str] = ()  # those whose values are written with each ad
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


def is_made_of(made: Path, files: Sequence[TableFile]) -> bool:
    """Return whether a file of :func:`as_parquet` was made of these, as they are now."""
    return query_file(LocalFileSystem(), str(made)).identity == _identity_of(files)


def _identity_of(files: Sequence[TableFile]) -> str:
    """Hash the files' places, encodings, sizes, times and content."""
    facts = [
        [file.path, file.encoding, file.info.size, file.info.mtime_ns, file.digest()]
        for file in files
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def as_parquet(
    asked: Asked, files: Sequence[TableFile], target: Path, aside: Path
) -> dict[str, FileSystem]:
    """Return the ``files`` of the queries, or, if they are not parquet, ``target`` made of them.

    It is made unless it was made of the same. It has all columns, as texts; what shows nothing is
    null. ``aside`` is a folder for what is not whole. Raises a DatasetError that names the rows
    that cannot be read.
    """
    if all(file.format == "parquet" for file in files):
        return {file.path: file.filesystem for file in files}
    made: dict[str, FileSystem] = {str(target): LocalFileSystem()}
    identity = _identity_of(files)
    if target.exists() and query_file(made[str(target)], str(target)).identity == identity:
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
        writer.add_key_value_metadata({MADE_OF: identity})
        table.check()
    return made


@dataclass(frozen=True)
class QueryFile:
    """A parquet file of queries, as it was when the call began."""

    filesystem: FileSystem
    path: str
    footer: pq.FileMetaData
    identity: str  # of its size, time and footer, or of the table that it was made of

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
    made_of = (footer.metadata or {}).get(MADE_OF.encode())
    identity = digest.hexdigest() if made_of is None else made_of.decode()
    return QueryFile(filesystem, path, footer, identity)


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

    def write(self, number: int, batches: Iterable[pa.Table]) -> None:
        """Write a partition's file, whole or not at all: its columns, then ANSWERS."""
        partition = self.partitions[number]
        errors = 0
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
        file = partition.file
        queries = [file.path, partition.group, partition.start, file.identity]
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
