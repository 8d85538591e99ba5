"""Parse JSON lines: an object on each line.

Python's parser, given a block of lines as one list, takes less time than Arrow's.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.findings import error_at
from ramen_ray.data.tables.reading.lines import Block, Rows
from ramen_ray.errors import DatasetError, first_line_of

_PLAIN = (pa.null(), pa.string(), pa.int64(), pa.float64())
_KINDS = {str: "text", int: "a number", float: "a number"}
_ERRORS = (ValueError, TypeError, RecursionError, pa.ArrowException)


def fields_of(start: str) -> tuple[str, ...]:
    """Return the fields of texts and numbers of the first object in the beginning of a file."""
    try:
        first = json.loads(start.strip().partition("\n")[0])
    except (ValueError, RecursionError):
        return ()
    cells = first.items() if isinstance(first, dict) else ()
    return tuple(name for name, cell in cells if cell is None or type(cell) in _KINDS)


def parse_objects(block: Block, path: object, columns: Sequence[str]) -> Rows:
    """Return some fields of the objects of a block of lines; what an object lacks is null.

    Raises a DatasetError if a line is no object, or a cell of another kind than above it.
    """
    contents = block.data.split(b"\n")
    filled = [place for place, content in enumerate(contents) if content.strip()]
    contents = [contents[place] for place in filled]
    lines = block.line + np.array(filled, dtype=np.int64)
    try:
        objects = _parse(b"[%s]" % b",".join(contents))
        if len(objects) != len(lines) or not all(type(item) is dict for item in objects):
            raise ValueError("is not one object")
        rows = {name: _column([item.get(name) for item in objects]) for name in columns}
    except _ERRORS as error:
        for fault in _faults(contents, lines, path, columns):
            raise fault from None
        raise error_at(path, first_line_of(error), row=int(lines[0])) from None
    if block.line == 1 and objects:
        _refuse_missing(objects, path, columns)
    return Rows(pa.table(rows), lines, block.faults)


def _parse(text: bytes) -> Any:
    # pandas' cells of nothing, which Python writes as NaN
    return json.loads(text, parse_constant=lambda _: None)


def _column(cells: list[Any]) -> pa.Array:
    try:
        column = pa.array(cells)
    except OverflowError:  # whole numbers of more than 64 bits keep their digits as texts
        if not {*map(type, cells)} <= {int, type(None)}:
            raise ValueError("cells of two kinds") from None
        column = pa.array([None if cell is None else str(cell) for cell in cells])
    if column.type not in _PLAIN:
        raise ValueError(f"{column.type} cells")
    return column.cast(pa.string()) if column.type == pa.null() else column


def _refuse_missing(
    objects: Sequence[dict[str, Any]], path: object, columns: Sequence[str]
) -> None:
    """Refuse a file if no line of its first block has a field."""
    fields = dict.fromkeys(name for item in objects for name in item)
    if missing := [repr(name) for name in columns if name not in fields]:
        they_have = f"they have {', '.join(fields)}"
        raise DatasetError(f"{path}: the lines have no {', '.join(missing)}; {they_have}")


def _faults(
    contents: Sequence[bytes], lines: Int64s, path: object, columns: Sequence[str]
) -> Iterator[DatasetError]:
    """Yield an error for each line that is not JSON, and cell of another kind than above it."""
    above: dict[str, str] = {}
    for line, content in zip(lines.tolist(), contents, strict=True):
        try:
            fields = _parse(content)
            if not isinstance(fields, dict):
                raise ValueError("it is another value")
        except (ValueError, RecursionError) as error:
            why = "it is nested too deep" if isinstance(error, RecursionError) else error
            message = f"is not a JSON object ({why}); write one object per line"
            yield error_at(path, message, row=line)
            continue
        for name in columns:
            cell = fields.get(name)
            if cell is not None and (wrong := _wrong(cell, name, above)):
                yield error_at(path, f"{repr(cell)[:60]} is {wrong}", row=line, column=name)


def _wrong(cell: Any, name: str, above: dict[str, str]) -> str:
    """Say what a cell is that it must not be; ``above`` has the kinds of the cells above it."""
    if type(cell) not in _KINDS:
        return "neither text nor a number"
    kind = _KINDS[type(cell)]
    if kind != above.setdefault(name, kind):
        return f"{kind}; above it is {above[name]}"
    try:
        _column([cell])
    except _ERRORS as error:
        return f"wrong: {first_line_of(error)}"
    return ""
