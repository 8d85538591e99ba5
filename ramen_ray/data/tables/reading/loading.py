"""Load a user's table: check its cells, and hand its good rows to the engine as a stream."""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.engine import count, run
from ramen_ray.data.findings import MAX_EXAMPLES, Finding, Kind, Tallies, error_at, raise_errors
from ramen_ray.data.tables.reading.batches import read_file
from ramen_ray.data.tables.reading.columns import ADVICE, Column
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.lines import Rows
from ramen_ray.errors import DatasetError, first_line_of, redacted

ROWS_PER_FILE = 1 << 40
FLOAT = re.compile(r"^\d+\.0$")
FLOAT_ADVICE = (
    "pandas writes the id 12 as 12.0 in a column with empty cells: write ids as integers (Int64)"
)
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

    A row's ``place`` is a number that ascends and tells its file and row. So far, ``rows_read``
    were read, and those of ``left_out``, by reason, left out.
    """

    def __init__(
        self,
        source: str,
        columns: Mapping[str, Column],
        skip_bad_rows: bool,
        advice: str = ADVICE,
    ) -> None:
        """Find the files of ``source``, as :func:`find_files` does.

        Args:
            source: a file, a folder or a glob.
            columns: the columns to read, by role.
            skip_bad_rows: whether bad rows are left out; else :meth:`check` refuses them.
            advice: what to do about bad cells.
        """
        self.source = redacted(source)
        self.columns = dict(columns)
        self.skip_bad_rows = skip_bad_rows
        self._advice = advice
        self.rows_read = 0
        self.left_out: Counter[str] = Counter()
        names = [name for column in columns.values() for name in column.names]
        self._files = find_files(source, list(dict.fromkeys(names)))
        self._faults = Tallies()
        self._stopped: Exception | None = None

    def load(self, connection: duckdb.DuckDBPyConnection, table: str, query: str) -> None:
        """Read the rows and create ``table`` from them.

        ``query`` selects from ``source``, which has ``place`` and a column for each role, and must
        read it once.

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
            first = rows[:MAX_EXAMPLES].select(["place", role]).to_pylist()
            self._report(role, message, advice, [tuple(row.values()) for row in first], len(rows))

    def report(
        self,
        connection: duckdb.DuckDBPyConnection,
        role: str,
        message: str,
        rows: str,
        advice: str = ADVICE,
    ) -> int:
        """Note rows that are wrong in a way that shows later, such as an unknown id.

        ``rows`` is SQL that selects their places and cells of the column of ``role``; the message
        follows their number, which is returned.
        """
        number = count(connection, f"SELECT count(*) FROM ({rows})")
        if number:
            first = connection.sql(f"FROM ({rows}) ORDER BY 1 LIMIT {MAX_EXAMPLES}").fetchall()
            self._report(role, message, advice, first, number)
        return number

    def _report(
        self, role: str, message: str, advice: str, found: Sequence[tuple[Any, ...]], number: int
    ) -> None:
        if any(FLOAT.match(str(cell)) for _, cell in found):
            advice = f"{FLOAT_ADVICE}; {advice}"
        kind = Kind(message, advice, self.columns[role].shown)
        for place, cell in found:
            file, row = divmod(place, ROWS_PER_FILE)
            self._faults.add(kind, self._files[file].path, [row], [cell])
        self._faults[kind].count += number - len(found)
        self.left_out[message] += number

    def findings(self) -> list[Finding]:
        """Return what is wrong with the rows so far, one finding of each kind."""
        return [tally.finding() for tally in self._faults.values()]

    def check(self) -> None:
        """Refuse the table if rows are bad and are not to be skipped; log what else was found.

        A later call tells only what is new.

        Raises:
            DatasetError: names every kind of fault, with the first row of each.
        """
        refused = [
            tally.finding()
            for kind, tally in self._faults.items()
            if kind.always or not self.skip_bad_rows
        ]
        raise_errors(f"the table {self.source}", refused)
        for finding in self.findings():
            if finding.severity == "error":
                hint = f"; {FLOAT_ADVICE}" if finding.advice.startswith(FLOAT_ADVICE) else ""
                finding = replace(finding, advice=f"left out{hint}")
            logger.warning("%s", finding)
        self._faults.clear()

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
        good = self._readable(rows, path)
        values: dict[str, Any] = {"place": number * ROWS_PER_FILE + rows.numbers}
        for role, column in self.columns.items():
            cells = column.cells(rows.cells)
            found, bad = _converted(path, column, cells)
            values[role] = pa.array(found)
            here = _Cells(path, rows.numbers, cells, column)
            if not column.optional:
                kind = Kind(f"cells {column.fault}", self._advice)
                self._note(here, kind, good & bad, leave_out=True)
            fine = self._without_doubtful(here, values[role], good & ~bad)
            if column.optional:
                values[role] = pc.if_else(pa.array(fine), values[role], None)
            else:
                good = fine
        return pa.table(values).filter(pa.array(good))

    def _readable(self, rows: Rows, path: str) -> Booleans:
        """Note lines that could not be read, and headers; returns which rows (n,) are neither.

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
        is_header, is_other_header = _are_headers(rows.cells)
        self._faults.add(HEADER_AGAIN, path, rows.numbers[is_header])
        self._faults.add(OTHER_HEADER, path, rows.numbers[is_other_header])
        readable = ~np.isin(rows.numbers, out)
        self.left_out["headers"] += int((is_header & readable).sum())
        return readable & ~is_header

    def _without_doubtful(self, here: "_Cells", values: pa.Array, good: Booleans) -> Booleans:
        """Note values (rows,) that are likely wrong; returns the good rows that stay."""
        for doubt in here.column.doubts:
            flags = good & doubt.flags(values)
            if not flags.any():
                continue
            kind = doubt.kind(values.filter(pa.array(flags)))
            leave_out = doubt.leave_out or self.skip_bad_rows
            if leave_out and not kind.always:
                kind = replace(kind, severity="warning")
            self._note(here, kind, flags, leave_out=leave_out, told=doubt.told)
            good = good & ~flags if leave_out else good
        return good

    def _note(
        self, here: "_Cells", kind: Kind, flags: Booleans, *, leave_out: bool, told: bool = True
    ) -> None:
        """Count the rows (n,) that are flagged, and those left out; show the first if ``told``."""
        if told and flags.any():
            examples = here.cells.filter(pa.array(flags))[:MAX_EXAMPLES].to_pylist()
            of_column = replace(kind, column=here.column.shown)
            self._faults.add(of_column, here.path, here.numbers[flags], examples)
        if leave_out:
            self.left_out[kind.message] += int(flags.sum())


@dataclass(frozen=True)
class _Cells:
    """The cells (rows,) of one column of a file's batch, and the rows' numbers (rows,)."""

    path: str
    numbers: Int64s
    cells: pa.ChunkedArray
    column: Column


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
    """Raise a DatasetError if a table has no rows, or all of them were left out."""
    if table.rows_read == sum(table.left_out.values()):
        raise DatasetError(f"{table.source} has no rows that can be used")
