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

from ramen_ray.answering.ads import ANSWERS
from ramen_ray.config import ConfigError
from ramen_ray.data.store.checksums import parse_object
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.parquet_files import BoundedFile, open_parquet
from ramen_ray.data.store.whole_files import folder_lock, scratch_folder, whole_file
from ramen_ray.errors import first_line_of

QUERIES_PER_BATCH = 4096
QUERIES_PER_PARTITION = 12 * QUERIES_PER_BATCH
FOOTER_END = 8  # bytes after a footer: its length and the magic
PLAN_FILE = "_predictions.json"  # readers of parquet folders ignore such names
FILE = "part-{:06d}.parquet"
ASIDE = ".attempts"  # a folder for what is needed until all is answered
ERRORS = "ramen_ray.errors"  # key of a file's metadata: how many of its rows have no answer


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
    """The files of one call's answers, a partition each; a file's footer counts its errors."""

    folder: Path

    @property
    def aside(self) -> Path:
        """A folder for what is needed until all is answered."""
        return self.folder / ASIDE

    def write(self, number: int, schema: pa.Schema, batches: Iterable[pa.Table]) -> None:
        """Write a partition's file, whole or not at all: columns of ``schema``, then ANSWERS."""
        errors = 0
        with (
            whole_file(self.folder / FILE.format(number), self.aside) as aside,
            pq.ParquetWriter(aside, with_answers(schema), compression="zstd") as writer,
        ):
            for batch in batches:
                writer.write_table(batch)
                errors += len(batch) - batch[batch.num_columns - 1].null_count
            writer.add_key_value_metadata({ERRORS: str(errors)})

    def counts(self, numbers: Sequence[int]) -> dict[int, tuple[int, int] | None]:
        """Return rows, and rows without an answer, by partition; None where there is no file."""
        with ThreadPoolExecutor() as threads:
            return dict(zip(numbers, threads.map(self._count, numbers), strict=True))

    def _count(self, number: int) -> tuple[int, int] | None:
        try:
            footer = pq.read_metadata(self.folder / FILE.format(number))
            return footer.num_rows, int(footer.metadata[ERRORS.encode()])
        except (OSError, pa.ArrowException, KeyError):
            return None


def with_answers(schema: pa.Schema) -> pa.Schema:
    """Return the columns of queries, and those of their answers beside them."""
    return pa.schema([*schema, *ANSWERS])


@contextmanager
def locked(output: Path) -> Iterator[Path]:
    """Keep other calls from writing to ``output``; yields a folder in it that is removed again.

    Raises a ConfigError if another call writes to it, it has others' files, or cannot be written.
    """
    with ExitStack() as stack:
        try:
            output.mkdir(parents=True, exist_ok=True)
            if not (output / PLAN_FILE).exists() and any(output.glob("part-*.parquet")):
                raise ConfigError(f"{output} has parts of another table; choose another folder")
            is_ours = stack.enter_context(folder_lock(output))
        except OSError as error:
            raise ConfigError(f"cannot write the folder {output}: {error.strerror}") from error
        if not is_ours:
            raise ConfigError(
                f"another call is writing to {output}; wait until it has ended, or choose another "
                f"folder"
            )
        yield stack.enter_context(scratch_folder(output / ASIDE))


def claim(output: Path, plan: Mapping[str, Any]) -> Answers:
    """Note in ``output``, locked, what will be written; a ConfigError if it has something else."""
    file = output / PLAN_FILE
    if not file.exists():
        with whole_file(file, output / ASIDE) as aside:
            aside.write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
    try:
        before = parse_object(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is damaged; choose another folder for the answers") from error
    differ = [key for key in plan if before.get(key) != plan[key]]
    if differ:
        raise ConfigError(
            f"{output} has predictions of a different call ({', '.join(differ)} "
            f"differ); choose another folder"
        )
    return Answers(output)
