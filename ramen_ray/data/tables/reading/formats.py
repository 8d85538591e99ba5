"""The formats of users' tables, told by the suffixes of files."""

from dataclasses import dataclass, field

from pyarrow.fs import FileSystem

FORMATS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
DELIMITERS = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True)
class TableFile:
    """A file of a user's table.

    Attributes:
        filesystem: what it is on.
        path: its path there.
        format: ``csv``, ``tsv``, ``jsonl`` or ``parquet``.
        compression: ``gzip``, ``bz2``, ``zstd``; None if it is not compressed.
        header: all its columns, without those of folders; none of JSON lines, which have their own.
        columns: the columns to read.
        partitions: values of the columns that folders' names give, as in ``day=2026-10-01``.
    """

    filesystem: FileSystem
    path: str
    format: str
    compression: str | None
    header: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    partitions: dict[str, str | None] = field(default_factory=dict)
