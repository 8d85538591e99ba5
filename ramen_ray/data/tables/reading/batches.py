"""Read a file of a user's table batch by batch, whatever its format."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.findings import error_at
from ramen_ray.data.store.errors import DatasetError
from ramen_ray.data.store.limits import MAX_CELL_BYTES
from ramen_ray.data.store.parquet_files import open_parquet
from ramen_ray.data.tables.reading.cells import cell_bytes
from ramen_ray.data.tables.reading.faults import EXAMPLES, FEW, Kind
from ramen_ray.data.tables.reading.formats import TableFile
from ramen_ray.data.tables.reading.json_lines import parse_objects
from ramen_ray.data.tables.reading.lines import Block, Found, parse_options, read_blocks
from ramen_ray.errors import first_line_of

ROWS_PER_BATCH = 65_536
MANY_QUOTED = 0.9
CELLS_ADVICE = {
    "csv": "quote cells that hold the delimiter",
    "tsv": "TSV has no quoting: write cells without tabs and line breaks, or the table as CSV",
}
QUOTED = r'^".*"$'
QUOTED_AS_CSV = r'^".*"".*"$'
KEPT_QUOTES = Kind(
    "lines have cells in quotes, which are kept: TSV has no quoting",
    "leave the quotes out if they are not part of the texts",
    severity="warning",
)
ALL_QUOTED = Kind(
    "lines have cells in quotes, as nearly all of this column: TSV has no quoting",
    "write the cells as they are, or the table as CSV",
)
CSV_IN_TSV = Kind(
    "lines have cells in quotes with doubled quotes, as in CSV: TSV has no quoting",
    "write the cells as they are, or the table as CSV",
)


@dataclass(frozen=True)
class Rows:
    """A batch of a file's rows.

    Attributes:
        cells: the columns that were asked for; in CSV and TSV strings, in JSON of its types.
        numbers: (rows,) int64: in parquet the row of the file, from 0; in text files the line that
            it begins on, from 1.
        faults: other lines that could not be read, and doubts about these.
    """

    cells: pa.Table
    numbers: Int64s
    faults: Sequence[Found] = ()


def read_file(file: TableFile) -> Iterator[Rows]:
    """Read a file's rows, in their order.

    Raises:
        DatasetError: the file cannot be read; names the line.
    """
    readers = {"parquet": _read_parquet, "jsonl": _read_json}
    try:
        for rows in readers.get(file.format, _read_csv)(file):
            yield _without_huge_cells(_with_partitions(file, rows))
    except DatasetError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{file.path} cannot be read: {first_line_of(error)}") from error


def _with_partitions(file: TableFile, rows: Rows) -> Rows:
    """Add the columns that folders' names give; returns the columns that were asked for."""
    cells, num_rows = rows.cells, len(rows.numbers)
    for name, value in file.partitions.items():
        if name in file.columns:
            cells = cells.append_column(name, pa.repeat(pa.scalar(value, pa.string()), num_rows))
    return Rows(cells.select(list(file.columns)), rows.numbers, rows.faults)


def _without_huge_cells(rows: Rows) -> Rows:
    """Leave out the rows with a cell of more than ``MAX_CELL_BYTES``."""
    huge = np.zeros(len(rows.numbers), dtype=bool)
    faults = list(rows.faults)
    for name, column in zip(rows.cells.column_names, rows.cells.columns, strict=True):
        here = (cell_bytes(column) > MAX_CELL_BYTES) & ~huge
        if here.any():
            message = f"cells have more than {MAX_CELL_BYTES >> 20} MiB"
            kind = Kind(message, "shorten them, or leave the rows out", name)
            faults.append((kind, rows.numbers[here], []))
            huge |= here
    if not huge.any():
        return rows
    return Rows(rows.cells.filter(pa.array(~huge)), rows.numbers[~huge], faults)


def _read_parquet(file: TableFile) -> Iterator[Rows]:
    first = 0
    columns = [name for name in file.columns if name not in file.partitions]
    names = {" ".join(name.split()): name for name in columns}
    with open_parquet(file.path, file.filesystem) as parquet:
        stored = [names.get(" ".join(name.split()), name) for name in parquet.schema_arrow.names]
        wanted = [
            of_file
            for of_file, name in zip(parquet.schema_arrow.names, stored, strict=True)
            if name in columns
        ]
        for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=wanted):
            cells = pa.Table.from_batches([batch]).rename_columns(
                [names[" ".join(name.split())] for name in batch.schema.names]
            )
            yield Rows(cells, first + np.arange(len(batch)))
            first += len(batch)


def _read_json(file: TableFile) -> Iterator[Rows]:
    columns = [name for name in file.columns if name not in file.partitions]
    for block in read_blocks(file):
        cells, lines = parse_objects(file.path, columns, block)
        yield Rows(cells, lines, block.faults)


def _read_csv(file: TableFile) -> Iterator[Rows]:
    is_first = True
    columns = [name for name in file.columns if name not in file.partitions]
    for block in read_blocks(file):
        yield _csv_rows(file, columns, block, is_first)
        is_first = is_first and not len(block.lines)


def _csv_rows(file: TableFile, columns: list[str], block: Block, is_first: bool) -> Rows:
    skipped: list[pa.csv.InvalidRow] = []
    lines = block.lines[int(is_first) :]
    if not len(lines):
        empty = pa.table({name: pa.array([], pa.string()) for name in columns})
        return Rows(empty, lines, block.faults)
    rows = pa.csv.read_csv(
        pa.BufferReader(block.data),
        pa.csv.ReadOptions(
            use_threads=False,
            block_size=len(block.data),
            column_names=file.header,
        ),
        parse_options(file.format, partial(_skip, skipped)),
        pa.csv.ConvertOptions(
            include_columns=columns, column_types={name: pa.string() for name in columns}
        ),
    )
    if is_first:
        _check_header(file, rows[:1])
        rows = rows.slice(1)
    bad = np.array([row.number - 1 - int(is_first) for row in skipped], dtype=np.int64)
    numbers = np.delete(lines, bad)
    if len(numbers) != len(rows):
        raise error_at(file.path, "its lines cannot be told apart", row=int(lines[0]))
    faults = [*block.faults, *_other_cells(lines[bad], skipped, CELLS_ADVICE[file.format])]
    if file.format == "tsv":
        faults += _quotes_in_tsv(rows, numbers)
    filled = _filled(rows)
    return Rows(rows.filter(pa.array(filled)), numbers[filled], faults)


def _check_header(file: TableFile, first: pa.Table) -> None:
    """Check that the file still begins with the columns that it was opened with."""
    found = [" ".join(str(column[0]).split()) for column in first.columns if len(column)]
    if found != [" ".join(name.split()) for name in first.column_names]:
        raise DatasetError(f"{file.path} has changed while it was read; run the same command again")


def _skip(skipped: list[pa.csv.InvalidRow], row: pa.csv.InvalidRow) -> str:
    skipped.append(row)
    return "skip"


def _other_cells(lines: Int64s, skipped: list[pa.csv.InvalidRow], advice: str) -> Iterator[Found]:
    """Say which lines have more or fewer cells than the header, by how many they have."""
    counts = np.array([row.actual_columns for row in skipped])
    for count in np.unique(counts).tolist():
        rows = np.flatnonzero(counts == count)
        cells = [skipped[row].text[:80] for row in rows[:EXAMPLES]]
        message = f"lines have {count} cells instead of {skipped[0].expected_columns}"
        yield Kind(message, advice), lines[rows], cells


def _quotes_in_tsv(rows: pa.Table, numbers: Int64s) -> Iterator[Found]:
    """Find lines whose cells are in quotes, each line once."""
    seen = np.zeros(len(rows), dtype=bool)
    for column in rows.columns:
        quoted = pc.match_substring_regex(column, QUOTED).to_numpy()
        as_csv = pc.match_substring_regex(column, QUOTED_AS_CSV).to_numpy() & ~seen
        many = quoted.sum() > max(FEW, MANY_QUOTED * len(rows))
        for kind, chosen in (
            (CSV_IN_TSV, as_csv),
            (ALL_QUOTED if many else KEPT_QUOTES, quoted & ~as_csv & ~seen),
        ):
            if chosen.any():
                cells = column.filter(pa.array(chosen))[:EXAMPLES].to_pylist()
                yield kind, numbers[chosen], cells
        seen |= quoted


def _filled(rows: pa.Table) -> Booleans:
    """Mark the rows that are not blank lines."""
    cells = [pc.not_equal(column, "").to_numpy() for column in rows.columns]
    return np.any(cells, axis=0)
