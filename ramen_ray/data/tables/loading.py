"""Load a user's table: check its cells, and hand its good rows to the engine as a stream."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.engine import run
from ramen_ray.data.findings import Finding, Severity, error_at, raise_errors
from ramen_ray.data.sources import as_numbers, as_seconds, as_strings
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.tables.reading import Rows, find_files, read_file
from ramen_ray.errors import first_line_of

ROWS_PER_FILE = 1 << 40
EXAMPLES = 3
ADVICE = "correct them, or leave these rows out with skip_bad_rows"

logger = logging.getLogger(__name__)

Convert = Callable[[pa.ChunkedArray], tuple[Any, Booleans]]


@dataclass(frozen=True)
class Column:
    """A column to read.

    Attributes:
        name: what the user calls it.
        convert: turns its cells (rows,) into values (rows,), and flags (rows,) the bad ones.
        fault: what is wrong with a bad cell, as in "3 cells are empty".
        type: the values' type.
        optional: whether a bad cell is null, and its row is kept.
    """

    name: str
    convert: Convert = as_strings
    fault: str = "are empty"
    type: pa.DataType = field(default_factory=pa.string)
    optional: bool = False


def weights(name: str, low: float, high: float = np.inf) -> Column:
    """Read a column of finite numbers from ``low`` to ``high``."""

    def convert(cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
        numbers, bad = as_numbers(cells)
        return numbers, bad | (numbers < low) | (numbers > high)

    limit = f" up to {high:g}" if np.isfinite(high) else ""
    return Column(name, convert, f"are not positive numbers{limit}", pa.float64())


def times(name: str) -> Column:
    """Read a column of times, as float64 seconds since 1970."""
    return Column(name, as_seconds, "are not times (ISO 8601 or seconds since 1970)", pa.float64())


@dataclass
class Fault:
    """Rows of one table that have the same thing wrong.

    Attributes:
        message: follows the number of rows, as in "3 cells are empty".
        advice, column, severity: see :class:`~ramen_ray.data.findings.Finding`.
        count: number of such rows.
        files: the files that have any.
        first: file and row of the first.
        examples: the first few cells.
    """

    message: str
    advice: str
    column: str | None = None
    severity: Severity = "error"
    count: int = 0
    files: set[str] = field(default_factory=set)
    first: tuple[str, int] | None = None
    examples: list[Any] = field(default_factory=list)

    def add(self, file: str, rows: Int64s, cells: Sequence[Any]) -> None:
        """Count the rows (n,) of a file; ``cells`` are those of the first few."""
        self.first = self.first or (file, int(rows[0]))
        self.count += len(rows)
        self.files.add(file)
        self.examples += cells[: EXAMPLES - len(self.examples)]

    def finding(self) -> Finding:
        """Say it in one line, however many files have it."""
        assert self.first
        shown = ", ".join("nothing" if cell is None else repr(cell) for cell in self.examples)
        rest = self.count - len(self.examples)
        more = f" and {rest} more" if rest and shown else ""
        over = f" (in {len(self.files)} files)" if len(self.files) > 1 else ""
        message = f"{self.count} {self.message}{over}" + (f": {shown}{more}" if shown else "")
        file, row = self.first
        return Finding(self.severity, file, message, self.advice, row, self.column)


class UserTable:
    """A user's table, whose rows are read once, in order.

    A row's ``place`` is a number that ascends and tells its file and row.

    Attributes:
        rows_read: rows read so far, with the unreadable ones.
        left_out: rows left out so far, by reason.
    """

    def __init__(self, source: str, columns: Mapping[str, Column], skip_bad_rows: bool) -> None:
        """Find the files of ``source``.

        Args:
            source: a file, a folder or a glob; a path, or a URI that pyarrow knows.
            columns: the columns to read, by role.
            skip_bad_rows: whether rows with bad cells are left out; else :meth:`check` refuses
                them.

        Raises:
            DatasetError: there are no files, or one cannot be opened or lacks a column.
        """
        self.source = source
        self.columns = dict(columns)
        self.skip_bad_rows = skip_bad_rows
        self.rows_read = 0
        self.left_out: Counter[str] = Counter()
        self._files = find_files(source, [column.name for column in columns.values()])
        self._faults: dict[tuple[str, str | None], Fault] = {}
        self._others: list[Finding] = []
        self._stopped: Exception | None = None

    def load(self, connection: duckdb.DuckDBPyConnection, table: str, query: str) -> None:
        """Read the rows and create ``table`` from them.

        Args:
            connection: the engine.
            table: the new table.
            query: selects from ``source``, which has the good rows: ``place`` BIGINT and a column
                for each role. It must read ``source`` once.

        Raises:
            DatasetError: the table cannot be read.
        """
        schema = pa.schema(
            [("place", pa.int64()), *((role, of.type) for role, of in self.columns.items())]
        )
        connection.register(
            "source", pa.RecordBatchReader.from_batches(schema, self._batches(schema))
        )
        # a stream has no size, so DuckDB would gather all of it before it joins it to anything
        connection.execute("SET disabled_optimizers = 'build_side_probe_side'")
        try:
            run(connection, f"reading {self.source}", f"CREATE TABLE {table} AS {query}")
        except duckdb.Error:
            if self._stopped is None:
                raise
            raise self._stopped from None
        finally:
            connection.execute("RESET disabled_optimizers")
            connection.unregister("source")

    def report(
        self, role: str, message: str, advice: str, found: Sequence[tuple[int, Any]], count: int
    ) -> None:
        """Note rows that are wrong in a way that shows later, such as an unknown id.

        Args:
            role: the column that is wrong.
            message: follows the number of rows, as in "2 rows name an ad that is not in ads.csv".
            advice: what to do.
            found: places and cells of the first few, by ascending place.
            count: number of all such rows.
        """
        fault = self._fault(message, advice, self.columns[role].name)
        for place, cell in found:
            file, row = divmod(place, ROWS_PER_FILE)
            fault.add(self._files[file].path, np.array([row]), [cell])
        fault.count += count - len(found)
        self.left_out[message] += count

    def findings(self) -> list[Finding]:
        """Return what is wrong with the rows so far, one finding of each kind."""
        return [fault.finding() for fault in self._faults.values()] + self._others

    def check(self) -> None:
        """Refuse the table if rows are bad and are not to be skipped; log what else was found.

        Raises:
            DatasetError: names every kind of fault, with the first row of each.
        """
        findings = self.findings()
        if not self.skip_bad_rows:
            raise_errors(f"the table {self.source}", findings)
        for finding in findings:
            is_left_out = finding.severity == "error"
            logger.warning("%s", replace(finding, advice="left out") if is_left_out else finding)

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        try:
            for number, file in enumerate(self._files):
                for rows in read_file(file):
                    yield from self._good_rows(rows, number).cast(schema).to_batches()
        except Exception as error:  # else the engine's error would hide it
            self._stopped = error
            raise

    def _good_rows(self, rows: Rows, number: int) -> pa.Table:
        """Convert a batch of the file ``number``, and leave bad rows out."""
        path = self._files[number].path
        self._others += rows.findings
        unreadable = sum(finding.severity == "error" for finding in rows.findings)
        self.left_out["unreadable lines"] += unreadable
        self.rows_read += len(rows.numbers) + unreadable
        columns: dict[str, Any] = {"place": number * ROWS_PER_FILE + rows.numbers}
        good = np.ones(len(rows.numbers), dtype=bool)
        for role, column in self.columns.items():
            cells = rows.cells[column.name]
            columns[role], bad = _converted(path, column, cells)
            if column.optional:
                columns[role] = pc.if_else(pa.array(bad), None, pa.array(columns[role]))
            elif bad.any():
                self._fault(f"cells {column.fault}", ADVICE, column.name).add(
                    path, rows.numbers[bad], cells.filter(pa.array(bad))[:EXAMPLES].to_pylist()
                )
                self.left_out[f"cells {column.fault}"] += int((good & bad).sum())
                good &= ~bad
        return pa.table(columns).filter(pa.array(good))

    def _fault(self, message: str, advice: str, column: str | None) -> Fault:
        return self._faults.setdefault((message, column), Fault(message, advice, column))


def _converted(path: str, column: Column, cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
    try:
        return column.convert(cells)
    except (pa.ArrowException, ValueError) as error:
        message = f"{cells.type} cannot be read: {first_line_of(error)}"
        raise error_at(path, message, column=column.name) from error


def refuse_no_rows(table: UserTable) -> None:
    """Refuse a table of which no row can be used.

    Raises:
        DatasetError: no row was left.
    """
    if table.rows_read == sum(table.left_out.values()):
        raise DatasetError(f"{table.source} has no rows that can be used")
