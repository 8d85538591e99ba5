"""Partitions of a table of queries: what is read, answered and written as a whole.

A partition is a row group of a parquet file, or a piece of a large one.
"""

import hashlib
import io
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.parquet_files import BoundedFile, open_parquet
from ramen_ray.errors import first_line_of

QUERIES_PER_BATCH = 4096
QUERIES_PER_PARTITION = 12 * QUERIES_PER_BATCH
BYTES_PER_READ = 16 << 20
BYTES_BEYOND = 100
"""How far beyond a column Arrow may read, for files of old writers that give its size too small."""


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
        """Read its bytes, all at once, and return a file that has this row group alone.

        Raises:
            DatasetError: the file cannot be read, or has changed.
        """
        try:
            with self.filesystem.open_input_file(self.path) as stream:
                content, start, data = _read(stream, self.footer, self.number, keep=True)
        except OSError as error:
            raise DatasetError(f"{self.path} cannot be read: {first_line_of(error)}") from error
        if content != self.content:
            raise DatasetError(
                f"{self.path} has changed since this call began; run it again, with another folder "
                f"for the answers"
            )
        return BoundedFile(_Excerpt(data, start), metadata=self.footer)


def row_groups(filesystem: FileSystem, path: str) -> list[RowGroup]:
    """Read a parquet file once, and note what its row groups hold; DatasetError if it cannot be."""
    try:
        with filesystem.open_input_file(path) as stream:
            footer = open_parquet(path, opened=stream).metadata
            numbers = range(footer.num_row_groups)
            contents = [_read(stream, footer, number, keep=False)[0] for number in numbers]
            return [
                RowGroup(filesystem, path, footer, number, content)
                for number, content in zip(numbers, contents, strict=True)
            ]
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {first_line_of(error)}") from error


def _read(
    stream: BinaryIO, footer: pq.FileMetaData, number: int, keep: bool
) -> tuple[str, int, bytearray]:
    """Return a hash of a row group and the footer, its first byte, and, to ``keep``, its bytes."""
    group = footer.row_group(number)
    columns = [group.column(column) for column in range(group.num_columns)]
    pages = ((column.dictionary_page_offset, column.data_page_offset) for column in columns)
    starts = [min(filter(None, offsets), default=0) for offsets in pages]
    ends = [at + column.total_compressed_size for at, column in zip(starts, columns, strict=True)]
    size, start = stream.seek(0, io.SEEK_END), max(min(starts), 0)
    stream.seek(size - footer.serialized_size - 8)  # after it are its length and the magic
    digest, kept = hashlib.blake2b(stream.read(), digest_size=16), bytearray()
    stream.seek(start)
    left = min(max(ends) + BYTES_BEYOND, size) - start
    while left > 0 and (block := stream.read(min(left, BYTES_PER_READ))):
        digest.update(block)
        left -= len(block)
        if keep:
            kept += block
    return digest.hexdigest(), start, kept


class _Excerpt(io.RawIOBase):
    """A file of which only the bytes ``data`` from ``start`` on are at hand; none are after it."""

    def __init__(self, data: bytearray, start: int) -> None:
        self._data, self._start, self._at = memoryview(data), start, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origins = (0, self._at, self._start + len(self._data))
        self._at = origins[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin = self._at - self._start
        if begin < 0:
            raise ValueError("these bytes are not at hand")
        found = bytes(self._data[begin : len(self._data) if size < 0 else begin + size])
        self._at += len(found)
        return found


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
