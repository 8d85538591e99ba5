"""Partitions of a table of queries: each is read, answered and written as a whole.

A partition is a row group of a parquet file, or a piece of a large one. Its answers are a file,
with a note by which a later call sees whether it is intact.
"""

import hashlib
import io
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ramen_ray.config import ConfigError
from ramen_ray.data.store.checksums import (
    find_difference,
    parse_checked,
    size_and_checksum,
    with_checksum,
)
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.parquet_files import BoundedFile, open_parquet
from ramen_ray.data.store.whole_files import folder_lock, scratch_folder, whole_file
from ramen_ray.errors import first_line_of

QUERIES_PER_BATCH = 4096
QUERIES_PER_PARTITION = 12 * QUERIES_PER_BATCH
BYTES_PER_READ = 16 << 20
BYTES_BEYOND = 100
"""How far beyond a column Arrow may read, for files of old writers that give its size too small."""
PLAN_FILE = "_predictions.json"  # readers of parquet folders ignore such names
FILE = "part-{:06d}.parquet"
ASIDE, NOTES = ".attempts", ".notes"
"""Folders for what is needed until all is answered, and for a note of each file."""
ANSWERS = pa.schema(
    [
        ("ad_ids", pa.list_(pa.string())),
        ("ads", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("error", pa.string()),
    ]
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowGroup:
    """A row group of a parquet file, as it was when the call began."""

    filesystem: FileSystem
    path: str
    footer: pq.FileMetaData
    number: int
    content: str  # a hash of its bytes and the footer's

    @property
    def num_rows(self) -> int:
        """Rows of the group."""
        return int(self.footer.row_group(self.number).num_rows)

    def open(self) -> BoundedFile:
        """Copy its bytes into a file in memory; a DatasetError if they changed or are gone."""
        file = os.fdopen(os.memfd_create("row group"), "w+b")  # in memory; holes take none
        try:
            with self.filesystem.open_input_file(self.path) as stream:
                content = _hash(stream, self.footer, self.number, file)
        except OSError as error:
            raise DatasetError(f"{self.path} cannot be read: {first_line_of(error)}") from error
        if content != self.content:
            raise DatasetError(
                f"{self.path} has changed since this call began; run it again, with another folder "
                f"for the answers"
            )
        return BoundedFile(file, metadata=self.footer)


def row_groups(filesystem: FileSystem, path: str) -> list[RowGroup]:
    """Read a parquet file once, and note what its row groups hold; DatasetError if it cannot be."""
    try:
        with filesystem.open_input_file(path) as stream:
            footer = open_parquet(path, opened=stream).metadata
            return [
                RowGroup(filesystem, path, footer, number, _hash(stream, footer, number))
                for number in range(footer.num_row_groups)
            ]
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {first_line_of(error)}") from error


def _hash(
    stream: BinaryIO, footer: pq.FileMetaData, number: int, copy: BinaryIO | None = None
) -> str:
    """Hash a row group and the footer; the row group's bytes go to their places in ``copy``."""
    group = footer.row_group(number)
    columns = [group.column(column) for column in range(group.num_columns)]
    pages = ((column.dictionary_page_offset, column.data_page_offset) for column in columns)
    starts = [min(filter(None, offsets), default=0) for offsets in pages]
    ends = [at + column.total_compressed_size for at, column in zip(starts, columns, strict=True)]
    size, start = stream.seek(0, io.SEEK_END), max(min(starts), 0)
    stream.seek(size - footer.serialized_size - 8)  # after it are its length and the magic
    digest = hashlib.blake2b(stream.read(), digest_size=16)
    for file in (stream, copy):
        if file is not None:
            file.seek(start)
    left = min(max(ends) + BYTES_BEYOND, size) - start
    while left > 0 and (block := stream.read(min(left, BYTES_PER_READ))):
        digest.update(block)
        left -= len(block)
        if copy is not None:
            copy.write(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class Partition:
    """Rows ``start`` to ``stop`` of a row group."""

    group: RowGroup
    start: int
    stop: int

    @property
    def name(self) -> str:
        """How errors name it."""
        return f"{self.group.path}, row group {self.group.number}, rows from {self.start}"

    def batches(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Open the row group; returns its schema and the rows batch by batch, or a DatasetError."""
        parquet = self.group.open()
        return parquet.schema_arrow, self._read(parquet)

    def _read(self, parquet: BoundedFile) -> Iterator[pa.RecordBatch]:
        first = 0
        try:
            for rows in parquet.iter_batches(QUERIES_PER_BATCH, row_groups=[self.group.number]):
                begin, end = max(self.start - first, 0), min(self.stop - first, len(rows))
                if begin < end:
                    yield rows.slice(begin, end - begin)
                first += len(rows)
                if first >= self.stop:
                    return
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DatasetError(f"{self.name}: cannot be read: {first_line_of(error)}") from error


def partitions(files: Mapping[str, FileSystem]) -> list[Partition]:
    """Cut the row groups of parquet files, on their file systems, into partitions."""
    with ThreadPoolExecutor() as threads:
        groups = list(chain.from_iterable(threads.map(row_groups, files.values(), files)))
    return [
        Partition(group, start, min(start + QUERIES_PER_PARTITION, group.num_rows))
        for group in groups
        for start in range(0, max(group.num_rows, 1), QUERIES_PER_PARTITION)
    ]


@dataclass(frozen=True)
class Answers:
    """The files of one call's answers, a partition each; ``call`` identifies what is answered."""

    folder: Path
    call: str

    @property
    def aside(self) -> Path:
        """A folder for what is needed until all is answered."""
        return self.folder / ASIDE

    def write(self, number: int, schema: pa.Schema, batches: Iterable[pa.Table]) -> None:
        """Write a partition's file, whole or not at all: columns of ``schema``, then ANSWERS."""
        file, rows, errors = self.folder / FILE.format(number), 0, 0
        with whole_file(file, self.aside) as aside:
            with pq.ParquetWriter(aside, with_answers(schema), compression="zstd") as writer:
                for batch in batches:
                    writer.write_table(batch)
                    rows += len(batch)
                    errors += len(batch) - batch[batch.num_columns - 1].null_count
            content = {"call": self.call, "rows": rows, "errors": errors}
            content["file"] = size_and_checksum(aside)
        note = self._note(number)
        note.parent.mkdir(exist_ok=True)
        with whole_file(note, self.aside) as aside:
            aside.write_text(with_checksum(content), encoding="utf-8")

    def counts(self, numbers: Sequence[int]) -> dict[int, tuple[int, int] | None]:
        """Return rows, and rows without an answer, by partition; None where a file is not intact.

        Of files that are there but not as they were written, one is named in a warning.
        """
        with ThreadPoolExecutor() as threads:
            counts = dict(zip(numbers, threads.map(self._count, numbers), strict=True))
        names = (FILE.format(number) for number, found in counts.items() if found is None)
        damaged = [name for name in names if (self.folder / name).exists()]
        if damaged:
            rest = f" and {len(damaged) - 1} more parts" if damaged[1:] else ""
            logger.warning("warning: %s%s: damaged, and made again", self.folder / damaged[0], rest)
        return counts

    def _count(self, number: int) -> tuple[int, int] | None:
        try:
            note = parse_checked(self._note(number).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        file = self.folder / FILE.format(number)
        if note.get("call") != self.call or find_difference(file, note["file"]) is not None:
            return None
        return note["rows"], note["errors"]

    def _note(self, number: int) -> Path:
        return self.folder / NOTES / f"{FILE.format(number)}.json"


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
            aside.write_text(with_checksum(plan), encoding="utf-8")
    try:
        before = parse_checked(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is damaged; choose another folder for the answers") from error
    differ = [key for key in plan if before.get(key) != plan[key]]
    if differ:
        raise ConfigError(
            f"{output} has predictions of a different call ({', '.join(differ)} "
            f"differ); choose another folder"
        )
    content = json.dumps(plan, sort_keys=True).encode()
    return Answers(output, hashlib.blake2b(content, digest_size=16).hexdigest())
