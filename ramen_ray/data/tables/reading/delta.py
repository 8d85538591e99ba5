"""Delta tables, by the extra ``delta``: which of a version's files are alive."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from ramen_ray.errors import DatasetError, first_line_of, redacted_reason, shown_address


def version_now(folder: str) -> int:
    """Return the latest version of the Delta table at a path or URI; or a DatasetError."""
    with _reading(folder):
        return int(_opened(folder, None).version())


def live_files(folder: str, version: int) -> set[str]:
    """Return the paths, within its folder, of the files that a version of a Delta table has.

    Raises a DatasetError if it cannot be read, or not by its files alone.
    """
    shown = shown_address(folder)
    with _reading(folder):
        table = _opened(folder, version)
        settings = table.metadata().configuration
        may_have_vectors = "deletionVectors" in (table.protocol().reader_features or [])
        has_vectors = may_have_vectors and pa.table(table.deletion_vectors()).num_rows > 0
        paths = pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()
    if settings.get("delta.columnMapping.mode", "none") != "none":
        raise DatasetError(
            f"{shown} is a Delta table with column mapping, whose files have other names of "
            f"columns; write a copy without (delta.columnMapping.mode none)"
        )
    if has_vectors:
        raise DatasetError(
            f"{shown} is a Delta table with deletion vectors, whose files have rows that are "
            f"deleted; run REORG TABLE ... APPLY (PURGE) on it, or write a copy without"
        )
    return {unquote(path) for path in paths}


def _opened(folder: str, version: int | None) -> Any:
    try:
        from deltalake import DeltaTable
    except ImportError as error:
        raise DatasetError(
            f"{shown_address(folder)} is a Delta table, which takes a package to read: pip install "
            f"deltalake"
        ) from error
    return DeltaTable(folder, version)


@contextmanager
def _reading(folder: str) -> Iterator[None]:
    """Turn what the library raises, whatever it finds in a log or a store, into a DatasetError."""
    try:
        yield
    except DatasetError:
        raise
    except Exception as error:
        reason = redacted_reason(first_line_of(error), folder)
        shown = shown_address(folder)
        raise DatasetError(f"{shown} is a Delta table, and cannot be read: {reason}") from None
