"""DuckDB as the engine for tables: one connection, which spills beside the output.

It never fetches or loads an extension, so it reads nothing but this machine's files.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

import duckdb
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.func import ARROW

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.texts import fold, nearly
from ramen_ray.errors import UserError

SHARE_OF_MEMORY = 0.6
SECONDS_OF_SILENCE = 5.0
ROWS_PER_BATCH = 65_536

_INTERRUPTED = re.compile(r"^Query interrupted$|(^|: )KeyboardInterrupt(: )?$", re.MULTILINE)
"""What DuckDB makes of a signal's KeyboardInterrupt: in itself, and in a stream that it reads."""

logger = logging.getLogger(__name__)


@contextmanager
def engine(folder: Path, memory: str | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection whose tables are gone when the block ends.

    SQL has ``fold`` and ``nearly`` of :mod:`~ramen_ray.data.store.texts`, and ``trimmed``, which
    takes the white space of Unicode off both ends. What is beyond ``memory``, such as ``4GB``, goes
    into a subfolder of ``folder``; default 60 % of the machine's.

    Raises:
        UserError: ``memory`` is not a size.
    """
    limit = memory or f"{int(SHARE_OF_MEMORY * psutil.virtual_memory().total)}B"
    with TemporaryDirectory(prefix=".engine-", dir=folder) as aside:
        connection = duckdb.connect(
            config={
                "temp_directory": aside,
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
                "allow_community_extensions": False,
            }
        )
        try:
            _limit_memory(connection, limit)
            connection.execute(f"SET threads = {len(os.sched_getaffinity(0))}")
            connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
            for name, function in (
                ("fold", fold),
                ("nearly", nearly),
                ("trimmed", pc.utf8_trim_whitespace),
            ):
                connection.create_function(
                    name, _of_batches(function), ["VARCHAR"], "VARCHAR", type=ARROW
                )
            yield connection
        except (RuntimeError, duckdb.Error) as error:
            if _INTERRUPTED.search(str(error)):
                raise KeyboardInterrupt from None
            raise
        finally:
            connection.close()


def run(connection: duckdb.DuckDBPyConnection, what: str, sql: str) -> None:
    """Run a statement, whose rows can then be fetched; log how far ``what`` is from 5 s on.

    Raises:
        UserError: it needs more memory or disk than it may have.
    """
    with _watched(connection, what):
        try:
            connection.execute(sql)
        except duckdb.OutOfMemoryException as error:
            raise UserError(
                f"{what} needs more memory than it may have; give more with --memory, or free"
                f" disk space beside the output ({str(error).splitlines()[0]})"
            ) from error


def count(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    """Return the number that a query gives."""
    (number,) = connection.sql(sql).fetchall()[0]
    return int(number or 0)


def stream(
    connection: duckdb.DuckDBPyConnection, sql: str, rows_per_batch: int = ROWS_PER_BATCH
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query in batches, without holding all of them."""
    yield from connection.sql(sql).to_arrow_reader(rows_per_batch)


def files_of(dataset: Dataset, table: str) -> str:
    """Return the SQL that reads a table of a dataset directory."""
    return f"read_parquet([{', '.join(map(_quoted, dataset.files(table)))}])"


def _quoted(path: Path) -> str:
    """Write a path as a literal, with the marks of globs as themselves."""
    escaped = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in str(path))
    return text_literal(escaped)


def text_literal(text: str) -> str:
    """Write a text as a literal of SQL."""
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def name_literal(name: str) -> str:
    """Write a table's name as SQL does; names that differ in case only stay apart."""
    marked = re.sub("[A-Z^]", r"^\g<0>", name).replace('"', '""')
    return f'"{marked}"'


def _limit_memory(connection: duckdb.DuckDBPyConnection, limit: str) -> None:
    try:
        connection.execute(f"SET memory_limit = {text_literal(limit)}")
    except duckdb.Error as error:
        raise UserError(f"memory {limit!r} is not a size; write it as 4GB or 500MB") from error


def _of_batches(function: Callable[[pa.Array], pa.Array]) -> Callable[[pa.ChunkedArray], pa.Array]:
    return lambda texts: function(texts.combine_chunks())


@contextmanager
def _watched(connection: duckdb.DuckDBPyConnection, what: str) -> Iterator[None]:
    """Log the progress of the connection's query while the block runs."""
    done, start = Event(), time.monotonic()

    def watch() -> None:
        while not done.wait(SECONDS_OF_SILENCE):
            seconds = time.monotonic() - start
            share = max(connection.query_progress(), 0.0) / 100
            left = f", about {seconds / share - seconds:.0f} s left" if share > 0.05 else ""
            logger.info("%s: %.0f s%s", what, seconds, left)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
