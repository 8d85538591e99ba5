"""Load a user's table: check its cells, and hand its good rows to the engine as a stream."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.engine import Connection, count, run
from ramen_ray.data.findings import (
    MAX_EXAMPLES,
    FaultKind,
    Finding,
    Tallies,
    error_at,
    raise_errors,
)
from ramen_ray.data.tables.reading.cells import is_text, plain_values
from ramen_ray.data.tables.reading.columns import ADVICE, NULL_PARTS, Column
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.records import Rows
from ramen_ray.data.tables.reading.table_file import TableFile, read_file
from ramen_ray.errors import DatasetError, first_line_of, shown_address, shown_path
from ramen_ray.long_work import prefetched

CORRECT = "correct these rows"
NAMED_BY = "; flags --columns.* say what yours are called (--help lists them)"

ROWS_PER_FILE = 1 << 40
HEADER_AGAIN = FaultKind(
    "rows repeat the header, and are left out",
    "were files with headers joined? Leave the headers out",
    severity="warning",
)
SPREADSHEET_ROWS = (65_536, 1_048_576)
CUT = FaultKind(
    "files end at the last row that a spreadsheet can hold",
    "was the table cut? Export it without a spreadsheet",
    severity="warning",
)

logger = logging.getLogger(__name__)


class UserTable:
    """A user's table, whose rows are read once, in order; ``place`` numbers them, with gaps."""

    def __init__(
        self,
        source: str,
        columns: Mapping[str, Column],
        skip_bad_rows: bool | None = None,
        encoding: str = "utf-8",
    ) -> None:
        """Find the files of ``source``, as :func:`find_files` does; ``columns`` are by role.

        Bad rows are left out, or :meth:`check` refuses them; if it is None, no flag is advised.
        """
        self.source = shown_address(source)
        self.columns = dict(columns)
        self.skip_bad_rows = bool(skip_bad_rows)
        self._advice = CORRECT if skip_bad_rows is None else ADVICE
        self.rows_read = 0
        self.left_out: Counter[str] = Counter()  # rows, by reason
        names = [name for column in columns.values() for name in column.names]
        self._files = find_files(source, list(dict.fromkeys(names)), NAMED_BY, encoding)
        self._faults = Tallies()
        self._stopped: Exception | None = None

    def load(self, connection: Connection, table: str, query: str) -> None:
        """Create ``table`` from the rows; raises a DatasetError if they cannot be read.

        ``query`` reads ``source`` once, which has ``place`` and a column for each role.
        """
        rows = pa.RecordBatchReader.from_batches(self._schema, self.batches())
        connection.register("source", rows)
        # a stream has no size: else DuckDB might gather all of it before it joins it to anything
        connection.execute("SET disabled_optimizers = 'build_side_probe_side'")
        try:
            create = f"CREATE OR REPLACE TABLE {table} AS {query}"
            run(connection, f"reading {self.source}", create)
        except duckdb.Error:
            if self._stopped is None:
                raise
            raise self._stopped from None
        finally:
            connection.execute("RESET disabled_optimizers")
            connection.unregister("source")

    def read(self) -> pa.Table:
        """Read all rows into memory: ``place`` and a column for each role."""
        return pa.Table.from_batches(self.batches(), self._schema).combine_chunks()

    def report(
        self,
        connection: Connection,
        role: str,
        kind: FaultKind,
        rows: str,
    ) -> None:
        """Note rows that are wrong in a way that shows later, such as an unknown id.

        ``rows`` is SQL that selects their places and cells of the column of ``role``.
        """
        if number := count(connection, f"SELECT count(*) FROM ({rows})"):
            named = f"({rows}) AS rows(place, name)"
            distinct = f"SELECT min(place), name FROM {named} GROUP BY name ORDER BY 1"
            first = connection.sql(f"{distinct} LIMIT {MAX_EXAMPLES}").fetchall()
            in_column = replace(kind, column=self.columns[role].shown)
            for place, cell in first:
                file, row = divmod(place, ROWS_PER_FILE)
                self._faults.add(in_column, shown_path(self._files[file].path), [row], [cell])
            self._faults[in_column].count += number - len(first)
            if self.skip_bad_rows and kind.skipped == FaultKind.skipped:
                self.left_out[kind.message] += number

    def refused(self) -> list[Finding]:
        """Return the kinds of rows for which :meth:`check` would refuse the table."""
        skips = self.skip_bad_rows
        tallies = [tally for kind, tally in self._faults.items() if kind.always or not skips]
        findings = [tally.finding() for tally in tallies]
        return [finding for finding in findings if finding.severity == "error"]

    def check(self) -> None:
        """Raise a DatasetError that names every kind of bad row, unless these are to be skipped.

        What else was found is logged. A later call tells only what is new.
        """
        raise_errors(f"the table {self.source}", self.refused())
        for kind, tally in self._faults.items():
            finding = tally.finding()
            is_skipped = self.skip_bad_rows and kind.severity == "error"
            logger.warning("%s", replace(finding, advice=kind.skipped) if is_skipped else finding)
        self._faults.clear()

    def refuse_no_rows(self) -> None:
        """Raise a DatasetError if there are no rows, or all of them were left out."""
        if self.rows_read == sum(self.left_out.values()):
            raise DatasetError(f"{self.source} has no rows that can be used")

    @property
    def _schema(self) -> pa.Schema:
        of_roles = ((role, column.type) for role, column in self.columns.items())
        return pa.schema([("place", pa.int64()), *of_roles])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the good rows: ``place`` and a column for each role."""
        schema = self._schema
        try:
            for number, file in enumerate(self._files):
                before = self.rows_read
                with closing(prefetched(read_file(file))) as batches:
                    for rows in batches:
                        yield from self._good_rows(rows, number).cast(schema).to_batches()
                if self.rows_read - before + 1 in SPREADSHEET_ROWS:
                    self._faults.add(CUT, file.path, [self.rows_read - before + 1])
        except Exception as error:  # else the engine's error would hide it
            self._stopped = error
            raise

    def _good_rows(self, rows: Rows, number: int) -> pa.Table:
        """Convert a batch of the file ``number``, and leave bad rows out."""
        file = self._files[number]
        self.rows_read += len(rows.numbers)
        good = self._readable(rows, file)
        values: dict[str, Any] = {"place": number * ROWS_PER_FILE + rows.numbers}
        for role, column in self.columns.items():
            values[role], fine = self._converted(column, rows, good, file.path)
            if column.optional:
                values[role] = pc.if_else(pa.array(fine), values[role], None)
            else:
                good = fine
        return pa.table(values).filter(pa.array(good))

    def _converted(
        self, column: Column, rows: Rows, good: Booleans, path: str
    ) -> tuple[pa.Array, Booleans]:
        """Return a column's values (rows,), and which of the good rows it leaves good."""
        cells, left_out = column.cells(rows.cells)
        try:
            values, bad = column.convert(cells)
        except (pa.ArrowException, ValueError) as error:
            message = f"{cells.type} cannot be read: {first_line_of(error)}"
            raise error_at(path, message, column=column.shown) from error
        fine = good & ~bad
        for name, flags in left_out.items():
            kind = replace(NULL_PARTS, column=name)
            self._note(path, rows.numbers, rows.cells[name], kind, flags)
        if not column.optional:
            kind = FaultKind(f"cells {column.fault}", self._advice, column.shown)
            self._note(path, rows.numbers, cells, kind, good & bad)
            self.left_out[kind.message] += int((good & bad).sum())
        doubted = ~fine
        for doubt in column.doubts:
            flags = ~doubted & doubt.flags(values)
            doubted |= flags
            if not doubt.unwanted:
                kind = replace(doubt, column=column.shown)
                self._note(path, rows.numbers, cells, kind, flags)
            if doubt.unwanted or (self.skip_bad_rows and doubt.severity == "error"):
                self.left_out[doubt.message] += int(flags.sum())
                fine &= ~flags
        return pa.array(values), fine

    def _readable(self, rows: Rows, file: TableFile) -> Booleans:
        """Note lines that could not be read, and headers; flags the rows (n,) that are neither."""
        unreadable: set[int] = set()
        for kind, lines, excerpts in rows.faults:
            self._faults.add(kind, file.path, lines, excerpts)
            if kind.severity == "error":
                unreadable.update(lines.tolist())
        self.rows_read += len(unreadable)
        self.left_out["unreadable lines"] += len(unreadable)
        is_header = _are_headers(rows.cells.select(file.own_columns))
        self._faults.add(HEADER_AGAIN, file.path, rows.numbers[is_header])
        self.left_out["headers"] += int(is_header.sum())
        return ~is_header

    def _note(
        self, path: str, numbers: Int64s, cells: pa.ChunkedArray, kind: FaultKind, flags: Booleans
    ) -> None:
        """Count the rows (n,) of a file that are flagged, and show the first of their cells."""
        if flags.any():  # to filter takes time
            examples = cells.filter(pa.array(flags))[:MAX_EXAMPLES].to_pylist()
            self._faults.add(kind, path, numbers[flags], examples)


def _are_headers(cells: pa.Table) -> Booleans:
    """Flag the rows (n,) whose cells are the names of their columns."""
    flags = np.full(len(cells), bool(cells.column_names))
    for name, column in zip(cells.column_names, cells.columns, strict=True):
        if not is_text(column.type):
            return np.zeros(len(cells), dtype=bool)
        if flags.any():  # to look at all cells takes long
            flags &= np.asarray(pc.fill_null(pc.equal(_lower(column), name.strip().lower()), False))
    return flags


def _lower(texts: pa.ChunkedArray) -> pa.Array:
    return pc.utf8_lower(pc.utf8_trim_whitespace(plain_values(texts).cast(pa.string())))
