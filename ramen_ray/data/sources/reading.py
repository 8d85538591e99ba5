"""Read a piece batch by batch, whatever its format."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans
from ramen_ray.data.findings import Finding, error_at
from ramen_ray.data.sources.cells import cell_bytes, is_number
from ramen_ray.data.sources.lines import Chunk, bad_line, first_byte, read_chunks
from ramen_ray.data.sources.pieces import Piece, delimiter_of
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.limits import MAX_CELL_BYTES, TooLargeError, check_nesting
from ramen_ray.data.store.parquet_files import open_parquet
from ramen_ray.errors import first_line_of

BYTES_PER_JSON_SAMPLE = 1 << 20
ROWS_PER_BATCH = 65_536
MAX_EXAMPLES = 3

Converted = TypeVar("Converted")


@dataclass
class SourceBatch:
    """A batch of a piece's rows.

    Attributes:
        piece: where the rows come from.
        rows: the requested columns; cells are strings in CSV and TSV, and of JSON's types in JSON.
        row_numbers: (rows,) int64: in parquet the row of the file, from 0; in text files the line
            of the piece, from 1.
        findings: lines that could not be read, and damaged encoding.
    """

    piece: Piece
    rows: pa.Table
    row_numbers: NDArray[np.int64]
    findings: list[Finding] = field(default_factory=list)

    def cells(self, column: str, convert: Callable[[pa.ChunkedArray], Converted]) -> Converted:
        """Convert a column by :func:`as_strings`, :func:`as_numbers` or :func:`as_seconds`.

        Raises:
            DatasetError: cells of the column's type cannot be converted.
        """
        try:
            return convert(self.rows[column])
        except (pa.ArrowException, ValueError) as error:
            message = f"{self.rows[column].type} cannot be read: {first_line_of(error)}"
            raise error_at(self.piece.path, message, column=column) from error

    def finding(self, column: str, bad: Booleans, message: str, advice: str) -> Finding:
        """Describe the rows that ``bad`` (rows,) marks in ``column`` as one error.

        Its row is counted in the piece; see :func:`~ramen_ray.data.sources.located`.
        """
        rows = np.flatnonzero(bad)
        values = self.rows[column].take(pa.array(rows[:MAX_EXAMPLES])).to_pylist()
        shown = ", ".join("nothing" if value is None else repr(value) for value in values)
        more = f" and {len(rows) - MAX_EXAMPLES} more" if len(rows) > MAX_EXAMPLES else ""
        return Finding(
            "error",
            self.piece.path,
            f"{message}: {shown}{more}",
            advice,
            row=int(self.row_numbers[rows[0]]),
            column=column,
            start=first_byte(self.piece),
        )


def read_piece(piece: Piece) -> Iterator[SourceBatch]:
    """Read a piece batch by batch.

    Raises:
        DatasetError: the file cannot be parsed, or a line is too long or nested too deeply; lines
            with too many or too few cells, and rows with a huge one, are findings of their batch
            instead.
    """
    read = {"parquet": _read_parquet, "jsonl": _read_json}.get(piece.format, _read_csv)
    try:
        yield from map(_without_huge_cells, read(piece))
    except TooLargeError as error:
        raise bad_line(piece, 1 + error.line, str(error)) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, EOFError) as error:
        place = f"from byte {piece.start}" if piece.start else "from the start"
        raise DatasetError(
            f"{piece.path}: cannot be read as {piece.format} ({place}): {first_line_of(error)}"
        ) from error


def _without_huge_cells(batch: SourceBatch) -> SourceBatch:
    """Leave out the rows with a cell of more than ``MAX_CELL_BYTES``; each becomes a finding."""
    column_of: dict[int, str] = {}
    for name in batch.rows.column_names:
        huge = np.flatnonzero(cell_bytes(batch.rows[name]) > MAX_CELL_BYTES)
        column_of.update(dict.fromkeys(huge.tolist(), name))
    if not column_of:
        return batch
    findings = [
        Finding(
            "error",
            batch.piece.path,
            f"a cell has more than {MAX_CELL_BYTES >> 20} MiB",
            "shorten it, or leave the row out",
            row=int(batch.row_numbers[row]),
            column=name,
            start=first_byte(batch.piece),
        )
        for row, name in sorted(column_of.items())
    ]
    kept = np.delete(np.arange(len(batch.rows)), list(column_of))
    rows, numbers = batch.rows.take(pa.array(kept)), batch.row_numbers[kept]
    return SourceBatch(batch.piece, rows, numbers, batch.findings + findings)


def read_cell(piece: Piece, column: str, row_number: int) -> object:
    """Read a piece again to show one cell; ``row_number`` is as in its batch."""
    for batch in read_piece(piece):
        found = np.flatnonzero(batch.row_numbers == row_number)
        if len(found):
            return batch.rows[column][int(found[0])].as_py()
    raise ValueError(f"{piece.path} has no row {row_number} in this piece")


def _read_parquet(piece: Piece) -> Iterator[SourceBatch]:
    with open_parquet(piece.path, piece.filesystem) as parquet:
        first_row = sum(parquet.metadata.row_group(g).num_rows for g in range(piece.start))
        batches = parquet.iter_batches(
            ROWS_PER_BATCH, row_groups=[piece.start], columns=list(piece.columns)
        )
        for batch in batches:
            rows = pa.Table.from_batches([batch]).select(piece.columns)
            yield SourceBatch(piece, rows, first_row + np.arange(len(batch)))
            first_row += len(batch)


def _read_csv(piece: Piece) -> Iterator[SourceBatch]:
    for chunk in read_chunks(piece):
        names_columns = not piece.start and chunk.first_line == 1
        skipped: list[pa.csv.InvalidRow] = []
        rows = pa.csv.read_csv(
            pa.BufferReader(chunk.data),
            pa.csv.ReadOptions(
                use_threads=False,
                block_size=len(chunk.data),
                column_names=piece.header,
                skip_rows=int(names_columns),
            ),
            pa.csv.ParseOptions(
                delimiter=delimiter_of(piece.format),
                newlines_in_values=True,
                invalid_row_handler=partial(_skip, skipped),
                ignore_empty_lines=False,
            ),
            pa.csv.ConvertOptions(
                include_columns=piece.columns,
                column_types={name: pa.string() for name in piece.columns},
            ),
        )
        lines = chunk.first_line + names_columns + np.arange(len(rows) + len(skipped))
        lines = np.setdiff1d(lines, [chunk.first_line - 1 + row.number for row in skipped])
        findings = chunk.findings + [_skipped_line(piece, row, chunk.first_line) for row in skipped]
        filled = _filled(rows)
        if filled.any() or findings:
            yield SourceBatch(piece, rows.filter(pa.array(filled)), lines[filled], findings)


def _filled(rows: pa.Table) -> Booleans:
    """Mark the rows that are not blank lines."""
    cells = [pc.not_equal(column, "").to_numpy() for column in rows.columns]
    return np.any(cells, axis=0)


def _skip(skipped: list[pa.csv.InvalidRow], row: pa.csv.InvalidRow) -> str:
    skipped.append(row)
    return "skip"


def _skipped_line(piece: Piece, row: pa.csv.InvalidRow, first_line: int) -> Finding:
    return Finding(
        "error",
        piece.path,
        f"{row.actual_columns} cells instead of {row.expected_columns}: {row.text[:80]!r}",
        "quote cells that hold the delimiter",
        row=first_line - 1 + row.number,
        start=first_byte(piece),
    )


def _read_json(piece: Piece) -> Iterator[SourceBatch]:
    for chunk in read_chunks(piece):
        try:
            check_nesting(chunk.data)
        except TooLargeError as error:
            raise TooLargeError(str(error), chunk.first_line - 1 + error.line) from None
        if wrong := re.search(rb"^[^\S\n]*[^{\s].*$", chunk.data, re.MULTILINE):
            line = chunk.first_line + chunk.data[: wrong.start()].count(b"\n")
            raise bad_line(piece, line, "is not a JSON object; write one object per line")
        rows = _parse_json(piece, chunk)
        lines = chunk.first_line + np.arange(len(rows))
        yield SourceBatch(piece, rows.select(piece.columns), lines, chunk.findings)


def _parse_json(piece: Piece, chunk: "Chunk") -> pa.Table:
    """Parse with the column types of the first lines of ``chunk``, else with those of all lines."""
    whole = pa.json.ReadOptions(use_threads=False, block_size=len(chunk.data) + 1)
    start = chunk.data[: chunk.data.find(b"\n", BYTES_PER_JSON_SAMPLE) + 1] or chunk.data
    for sample in (start, chunk.data):
        try:
            found = pa.json.read_json(pa.BufferReader(sample), whole).schema
            parse = pa.json.ParseOptions(
                explicit_schema=_json_schema(piece, found), unexpected_field_behavior="ignore"
            )
            return pa.json.read_json(pa.BufferReader(chunk.data), whole, parse)
        except pa.ArrowInvalid as error:
            problem = error
    raise _bad_json(piece, chunk) or _refused_json(piece, chunk, problem)


def _json_schema(piece: Piece, found: pa.Schema) -> pa.Schema:
    """Read numbers as numbers and everything else as text."""
    missing = [name for name in piece.columns if name not in found.names]
    if missing:
        raise DatasetError(
            f"{piece.path}: the lines have no {', '.join(map(repr, missing))}; "
            f"they have {', '.join(found.names)}"
        )
    kinds = {name: found.field(name).type for name in piece.columns}
    return pa.schema(
        [(name, kind if is_number(kind) else pa.string()) for name, kind in kinds.items()]
    )


def _bad_json(piece: Piece, chunk: "Chunk") -> DatasetError | None:
    """Find the first line that is not JSON, or has a cell of another kind than earlier lines."""
    kinds: dict[str, str] = {}
    for line, content in enumerate(chunk.data.split(b"\n"), start=chunk.first_line):
        try:
            found = json.loads(content) if content.strip() else {}
        except (ValueError, RecursionError) as error:
            return bad_line(piece, line, f"is not a JSON object: {error}")
        for name in piece.columns:
            cell = found.get(name)
            kind = _KINDS.get(type(cell), "neither text nor a number")
            if cell is None or kind == kinds.setdefault(name, kind) in _KINDS.values():
                continue
            before = f"; above it is {kinds[name]}" if kind != kinds[name] else ""
            return bad_line(piece, line, f"{repr(cell)[:60]} is {kind}{before}", name)
    return None


def _refused_json(piece: Piece, chunk: "Chunk", problem: pa.ArrowInvalid) -> DatasetError:
    """Say what Arrow alone finds wrong: a key twice, half of a surrogate pair."""
    reason = first_line_of(problem).removeprefix("JSON parse error: ")
    message, _, row = reason.rpartition(" in row ")
    if not row.isdecimal():
        return bad_line(piece, chunk.first_line, f"or a line below: {reason}")
    filled = [line for line, text in enumerate(chunk.data.split(b"\n")) if text.strip()]
    return bad_line(piece, chunk.first_line + filled[int(row)], message)


_KINDS = {str: "text", int: "a number", float: "a number"}
