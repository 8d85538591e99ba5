"""DuckDB as the engine for tables: one connection, which spills beside the output.

It never fetches or loads an extension, so it reads nothing but this machine's files.
"""

import glob
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.func import ARROW

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.data.store.same_texts import fold
from ramen_ray.data.store.schemas import FILTER, is_known
from ramen_ray.errors import UserError
from ramen_ray.long_work import logged_progress

Connection = duckdb.DuckDBPyConnection
SHARE_OF_MEMORY = "60%"
ROWS_PER_BATCH = 65_536
TEXTS_PER_BATCH = 2048  # an Arrow array of texts cannot have more than 2 GiB

_INTERRUPTED = re.compile(r"^Query interrupted$|(^|: )KeyboardInterrupt(: )?$", re.MULTILINE)
"""What DuckDB makes of a signal's KeyboardInterrupt: in itself, and in a stream that it reads."""


@contextmanager
def engine(
    folder: Path, memory: str | None = None, dataset: Dataset | None = None
) -> Iterator[Connection]:
    """Open a connection whose tables are gone when the block ends.

    SQL has ``fold`` of :mod:`~ramen_ray.data.store.same_texts`, and ``trimmed``, for any white
    space. It has the tables of a ``dataset`` under their names (:func:`name_literal`),
    with texts also ``folded``. What is beyond ``memory``, as ``4GB`` or by default 60 % of the
    machine's, goes into a subfolder of ``folder``. Raises a UserError if ``memory`` is not a size,
    or it or the disk is too small for what is done.
    """
    limit = memory or SHARE_OF_MEMORY
    with owned_folder(folder) as aside:
        config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": limit,
            "threads": len(os.sched_getaffinity(0)),  # DuckDB counts those of the machine
            "temp_directory": str(aside),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
        }
        try:
            connection = duckdb.connect(config=config)
        except duckdb.Error as error:
            raise UserError(f"memory {limit!r} is not a size; write it as 4GB or 500MB") from error
        try:
            # times without a zone are UTC wherever the process runs
            connection.execute("SET TimeZone = 'UTC'")
            # in a notebook without ipywidgets there is no bar, and turning it off is an error
            if count(connection, "SELECT current_setting('enable_progress_bar')"):
                connection.execute("SET enable_progress_bar = false")
            add_function(connection, "fold", fold)
            add_function(connection, "trimmed", pc.utf8_trim_whitespace)
            if dataset is not None:
                _create_views(connection, dataset)
            yield connection
        except duckdb.OutOfMemoryException as error:
            raise UserError(
                f"this needs more memory than {limit}; give more with --memory, or free disk space"
                f" beside the output ({str(error).splitlines()[0]})"
            ) from error
        except (RuntimeError, duckdb.Error) as error:
            if _INTERRUPTED.search(str(error)):
                raise KeyboardInterrupt from None
            raise
        finally:
            connection.close()


def add_function(
    connection: Connection,
    name: str,
    function: Callable[[pa.Array], Any],
    takes: str = "VARCHAR",
    gives: str = "VARCHAR",
) -> None:
    """Give SQL a ``function`` of values (n,), which returns as many, by Arrow or NumPy."""

    def of_batches(values: pa.ChunkedArray) -> pa.Array:
        return pa.array(function(values.combine_chunks()))

    connection.create_function(name, of_batches, [takes], gives, type=ARROW)


def run(connection: Connection, what: str, sql: str) -> None:
    """Run a statement, whose rows can then be fetched; log how far ``what`` is from 5 s on."""
    with logged_progress(what, lambda: max(connection.query_progress(), 0.0) / 100):
        connection.execute(sql)


def count(connection: Connection, sql: str) -> int:
    """Return the number that a query gives; 0 for null."""
    (number,) = connection.execute(sql).fetchall()[0]
    return int(number or 0)


def stream(
    connection: Connection, sql: str, rows_per_batch: int = ROWS_PER_BATCH
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query in batches, without holding all of them."""
    yield from connection.sql(sql).to_arrow_reader(rows_per_batch)


def _create_views(connection: Connection, dataset: Dataset) -> None:
    for table in filter(is_known, dataset.tables):
        files = ", ".join(text_literal(glob.escape(str(file))) for file in dataset.files(table))
        # the format's columns alone, as a user's own may be called "folded"
        columns = [name for name in dataset.schema(table).names if not name.startswith(FILTER)]
        columns += ["fold(text) AS folded"] if "text" in columns else []
        # a folder above may be called "a=b", which is no column
        source = f"read_parquet([{files}], hive_partitioning = false)"
        rows = f"SELECT {', '.join(columns)} FROM {source}"
        connection.execute(f"CREATE VIEW {name_literal(table)} AS {rows}")


def text_literal(text: str) -> str:
    """Write a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def name_literal(name: str) -> str:
    """Write a table's name as SQL does; names that differ in case only stay apart."""
    return column_literal(re.sub("[A-Z^]", r"^\g<0>", name))


def column_literal(name: str) -> str:
    """Write a column's name as SQL does."""
    return '"' + name.replace('"', '""') + '"'
