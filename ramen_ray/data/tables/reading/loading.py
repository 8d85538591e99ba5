"""Load a user's table: check its cells, and hand its good rows to the engine as a stream."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans
from ramen_ray.data.engine import run
from ramen_ray.data.findings import Finding, error_at, raise_errors
from ramen_ray.data.store.errors import DatasetError
from ramen_ray.data.tables.reading.batches import Rows, read_file
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.faults import ADVICE, EXAMPLES, Faults, Kind
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.errors import first_line_of, redacted

ROWS_PER_FILE = 1 << 40
HEADER_AGAIN = Kind(
    "rows repeat the header, and are left out",
    "were files with headers joined? Leave the headers out",
    severity="warning",
)
OTHER_HEADER = Kind(
    "rows name the columns in another order, in which the rows below them may be too",
    "were files joined? Give them as files of a folder",
    always=True,
)

logger = logging.getLogger(__name__)


class UserTable:
    """A user's table, whose rows are read once, in order.

    A row's ``place`` is a number that ascends and tells its file and row.

    Attributes:
        rows_read: rows read so far.
        left_out: rows left out so far, by reason.
    """

    def __init__(
        self,
        source: str,
        columns: Mapping[str, Column],
        skip_bad_rows: bool,
        advice: str = ADVICE,
    ) -> None:
        """Find the files of ``source``.

        Args:
            source: a file, a folder or a glob; a path, or a URI that pyarrow knows.
            columns: the columns to read, by role.
            skip_bad_rows: whether rows with bad cells are left out; else :meth:`check` refuses
                them.
            advice: what to do about bad cells.

        Raises:
            DatasetError: there are no files, or one cannot be opened or lacks a column.
        """
        self.source = redacted(source)
        self.columns = dict(columns)
        self.skip_bad_rows = skip_bad_rows
        self._advice = advice
        self.rows_read = 0
        self.left_out: Counter[str] = Counter()
        names = [name for column in columns.values() for name in column.names]
        self._files = find_files(source, list(dict.fromkeys(names)))
        self._faults = Faults()
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
        rows = pa.RecordBatchReader.from_batches(self._schema, self._batches())
        connection.register("source", rows)
        # a stream has no size: else DuckDB might gather all of it before it joins it to anything
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

    def read(self) -> pa.Table:
        """Read all rows into memory: ``place`` and a column for each role."""
        return pa.Table.from_batches(self._batches(), self._schema).combine_chunks()

    def report_rows(self, role: str, message: str, advice: str, rows: pa.Table) -> None:
        """Note rows of :meth:`read` that are wrong; arguments as those of :meth:`report`."""
        if len(rows):
            first = rows[:EXAMPLES].select(["place", role]).to_pylist()
            found = [(row["place"], row[role]) for row in first]
            self.report(role, message, advice, found, len(rows))

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
        kind = Kind(message, advice, self.columns[role].shown)
        for place, cell in found:
            file, row = divmod(place, ROWS_PER_FILE)
            self._faults.add(kind, self._files[file].path, np.array([row]), [cell])
        self._faults.add_uncounted(kind, count - len(found))
        self.left_out[message] += count

    def findings(self) -> list[Finding]:
        """Return what is wrong with the rows so far, one finding of each kind."""
        return self._faults.findings()

    def check(self) -> None:
        """Refuse the table if rows are bad and are not to be skipped; log what else was found.

        What was found is forgotten, so that a later call tells only what is new.

        Raises:
            DatasetError: names every kind of fault, with the first row of each.
        """
        raise_errors(f"the table {self.source}", self._faults.findings(self.skip_bad_rows))
        findings = self.findings()
        self._faults.clear()
        for finding in findings:
            is_left_out = finding.severity == "error"
            logger.warning("%s", replace(finding, advice="left out") if is_left_out else finding)

    @property
    def _schema(self) -> pa.Schema:
        of_roles = ((role, column.type) for role, column in self.columns.items())
        return pa.schema([("place", pa.int64()), *of_roles])

    def _batches(self) -> Iterator[pa.RecordBatch]:
        schema = self._schema
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
        self.rows_read += len(rows.numbers)
        unreadable = self._unreadable(rows, path)
        values: dict[str, Any] = {"place": number * ROWS_PER_FILE + rows.numbers}
        is_header, is_other_header = _are_headers(rows.cells)
        self._faults.add(HEADER_AGAIN, path, rows.numbers[is_header])
        self._faults.add(OTHER_HEADER, path, rows.numbers[is_other_header])
        self.left_out["headers"] += int((is_header & ~unreadable).sum())
        good = ~is_header & ~unreadable
        for role, column in self.columns.items():
            cells = column.cells(rows.cells)
            found, bad = _converted(path, column, cells)
            values[role] = pa.array(found)
            if column.optional:
                bad |= self._doubtful(column, path, rows, values[role], ~bad)
                values[role] = pc.if_else(pa.array(~bad), values[role], None)
                continue
            good &= ~self._bad(column, path, rows, cells, good & bad)
            good &= ~self._doubtful(column, path, rows, values[role], good)
            for unwanted in column.filters:
                flags = good & unwanted.flags(values[role])
                self.left_out[unwanted.reason] += int(flags.sum())
                good &= ~flags
        return pa.table(values).filter(pa.array(good))

    def _unreadable(self, rows: Rows, path: str) -> Booleans:
        """Note and count lines that could not be read; returns which rows (n,) are of them.

        A line that was read in spite of its fault counts as read, unless bad rows are skipped.
        """
        wrong = [np.zeros(0, dtype=np.int64)]
        for kind, lines, cells in rows.faults:
            self._faults.add(kind, path, lines, cells)
            if kind.severity == "error":
                wrong.append(lines)
        lines = np.unique(np.concatenate(wrong))
        lost = lines[~np.isin(lines, rows.numbers)]
        self.rows_read += len(lost)
        out = lines if self.skip_bad_rows else lost
        self.left_out["unreadable lines"] += len(out)
        return np.isin(rows.numbers, out)

    def _bad(
        self, column: Column, path: str, rows: Rows, cells: pa.ChunkedArray, bad: Booleans
    ) -> Booleans:
        """Note the cells (rows,) that could not be converted; returns their rows."""
        if bad.any():
            examples = cells.filter(pa.array(bad))[:EXAMPLES].to_pylist()
            kind = Kind(f"cells {column.fault}", self._advice, column.shown)
            self._faults.add(kind, path, rows.numbers[bad], examples)
            self.left_out[kind.message] += int(bad.sum())
        return bad

    def _doubtful(
        self, column: Column, path: str, rows: Rows, values: pa.Array, good: Booleans
    ) -> Booleans:
        """Note values (rows,) that are likely wrong; returns the rows to leave out."""
        out = np.zeros(len(good), dtype=bool)
        for doubt in column.doubts:
            flags = good & ~out & doubt.flags(values)
            if not flags.any():
                continue
            wrong = pa.array(flags)
            kind = replace(doubt.kind(values.filter(wrong)), column=column.shown)
            if doubt.leave_out and not kind.always:
                kind = replace(kind, severity="warning")
            examples = column.cells(rows.cells).filter(wrong)[:EXAMPLES].to_pylist()
            self._faults.add(kind, path, rows.numbers[flags], examples)
            if doubt.leave_out:
                self.left_out[kind.message] += int(flags.sum())
                out |= flags
        return out


def _are_headers(cells: pa.Table) -> tuple[Booleans, Booleans]:
    """Flag the rows whose cells are the names of their columns, and those in another order."""
    same, any_order = np.ones((2, len(cells)), dtype=bool)
    if not all(pa.types.is_string(column.type) for column in cells.columns):
        return ~same, ~same
    texts = [pc.utf8_lower(pc.utf8_trim_whitespace(column)) for column in cells.columns]
    for own, name in zip(texts, cells.column_names, strict=True):
        word = name.strip().lower()
        same &= _equal(own, word)
        any_order &= np.any([_equal(text, word) for text in texts], axis=0)
    return same, any_order & ~same


def _equal(texts: pa.ChunkedArray, word: str) -> Booleans:
    return np.asarray(pc.fill_null(pc.equal(texts, word), False))


def _converted(path: str, column: Column, cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
    try:
        return column.convert(cells)
    except (pa.ArrowException, ValueError) as error:
        message = f"{cells.type} cannot be read: {first_line_of(error)}"
        raise error_at(path, message, column=column.shown) from error


def refuse_no_rows(table: UserTable) -> None:
    """Refuse a table of which no row can be used.

    Raises:
        DatasetError: all of its rows were left out, or it has none.
    """
    if table.rows_read == sum(table.left_out.values()):
        raise DatasetError(f"{table.source} has no rows that can be used")
