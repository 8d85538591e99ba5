"""Read a file of a user's table batch by batch, whatever its format."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from ramen_ray.data.findings import Kind
from ramen_ray.data.store.parquet_files import open_parquet
from ramen_ray.data.store.text_lines import MAX_CELL_BYTES
from ramen_ray.data.tables.reading.cells import cell_bytes
from ramen_ray.data.tables.reading.delimited import CHANGED, parse_records, split_records
from ramen_ray.data.tables.reading.files import TableFile, as_asked
from ramen_ray.data.tables.reading.json_lines import parse_objects
from ramen_ray.data.tables.reading.lines import Rows, lines_as_records, read_blocks
from ramen_ray.errors import DatasetError, first_line_of

ROWS_PER_BATCH = 65_536


def read_file(file: TableFile) -> Iterator[Rows]:
    """Read a file's rows, in their order.

    Raises:
        DatasetError: the file cannot be read; names the line.
    """
    read = _read_parquet if file.format == "parquet" else _read_text
    try:
        for rows in read(file):
            yield _without_huge_cells(_with_partitions(file, rows))
    except DatasetError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{file.path} cannot be read: {first_line_of(error)}") from error


def _read_parquet(file: TableFile) -> Iterator[Rows]:
    first = 0
    with open_parquet(file.path, file.filesystem) as parquet:
        stored = parquet.schema_arrow.names
        if as_asked(stored, file.columns) != file.header:
            raise DatasetError(CHANGED.format(file.path))
        names = dict(zip(file.header, stored, strict=True))
        wanted = {names[name]: name for name in file.own_columns}
        for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=list(wanted)):
            own = [wanted[name] for name in batch.schema.names]
            yield Rows(
                pa.Table.from_batches([batch]).rename_columns(own), first + np.arange(len(batch))
            )
            first += len(batch)


def _read_text(file: TableFile) -> Iterator[Rows]:
    columns = file.own_columns
    if file.format == "jsonl":
        parse = partial(parse_objects, types=dict.fromkeys(columns))
    else:
        parse = partial(parse_records, kind=file.format, header=file.header, columns=columns)
    with file.open() as stream:
        split = split_records if file.format == "csv" else lines_as_records
        for block in read_blocks(stream, file.path, split):
            yield parse(block, file.path)


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
