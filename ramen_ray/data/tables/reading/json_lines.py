"""Parse JSON lines: an object on each line.

Python's parser, given a block of lines as one list, takes less time than Arrow's.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.findings import error_at
from ramen_ray.data.tables.reading.lines import Block, Rows
from ramen_ray.errors import DatasetError, first_line_of

Types = Mapping[str, pa.DataType | None]
"""By field, the type that it must have; None for texts or numbers, whichever they are."""

_BLANK = re.compile(rb"^[^\S\n]*$", re.MULTILINE)
_PLAIN = (pa.null(), pa.string(), pa.int64(), pa.float64())
_LISTS = (pa.null(), pa.list_(pa.null()), pa.list_(pa.int64()), pa.list_(pa.float64()))
_FITTING = {
    None: _PLAIN,
    pa.string(): _PLAIN[:2],
    pa.list_(pa.int64()): _LISTS[:3],
    pa.list_(pa.float32()): _LISTS,
}
"""By type, what Arrow makes of cells that fit it."""
_LISTED = {pa.list_(pa.int64()): "whole numbers", pa.list_(pa.float32()): "numbers"}
_KINDS = {str: "text", int: "a number", float: "a number"}
_ERRORS = (ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException)


def fields_of(start: bytes) -> tuple[str, ...]:
    """Return the fields of the first object in the beginning of a file; none if it is not one."""
    try:
        first = json.loads(start.strip().partition(b"\n")[0])
    except (ValueError, RecursionError):
        return ()
    return tuple(first) if isinstance(first, dict) else ()


def parse_objects(block: Block, path: object, types: Types) -> Rows:
    """Return some fields of the objects of a block of lines; what an object lacks is null.

    Raises a DatasetError if a line is no object, or a cell of another type, or kind than above it.
    """
    lines, contents = block.lines, block.data[:-1].split(b"\n")
    if _BLANK.search(block.data[:-1]):
        filled = [bool(content.strip()) for content in contents]
        lines, contents = lines[np.array(filled)], [one for one in contents if one.strip()]
    try:
        objects = _parse(b"[%s]" % b",".join(contents))
        if len(objects) != len(lines) or not all(type(one) is dict for one in objects):
            raise ValueError("is not one object")
        rows = {n: _column([one.get(n) for one in objects], kind) for n, kind in types.items()}
    except _ERRORS as error:
        first = error_at(path, f"or a line below: {first_line_of(error)}", row=int(lines[0]))
        raise _fault(contents, lines, path, types) or first from None
    if len(lines) and block.lines[0] == 1:
        _refuse_missing(objects, path, types)
    return Rows(pa.table(rows), lines, block.faults)


def _parse(text: bytes) -> Any:
    # pandas' cells of nothing, which Python writes as NaN
    return json.loads(text, object_pairs_hook=_object, parse_constant=lambda _: None)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice")
    return found


def _column(cells: list[Any], kind: pa.DataType | None) -> pa.Array:
    try:
        found = pa.array(cells)
    except OverflowError:  # whole numbers of more than 64 bits keep their digits as texts
        if kind is not None or not {*map(type, cells)} <= {int, type(None)}:
            raise
        found = pa.array([None if cell is None else str(cell) for cell in cells])
    if found.type not in _FITTING[kind]:
        raise ValueError(f"{found.type} cells")
    return found.cast(kind or (pa.string() if found.type == pa.null() else found.type))


def _refuse_missing(objects: list[dict[str, Any]], path: object, types: Types) -> None:
    """Refuse a file if no line of its first block has a field."""
    fields = dict.fromkeys(name for one in objects for name in one)
    missing = [repr(name) for name, kind in types.items() if kind is None and name not in fields]
    if missing:
        they_have = f"they have {', '.join(fields)}"
        raise DatasetError(f"{path}: the lines have no {', '.join(missing)}; {they_have}")


def _fault(
    contents: Iterable[bytes], lines: Int64s, path: object, types: Types
) -> DatasetError | None:
    """Find the first line that is not JSON, or has a cell of another kind than it must."""
    above: dict[str, str] = {}
    for line, content in zip(lines.tolist(), contents, strict=True):
        try:
            found = _parse(content)
            if not isinstance(found, dict):
                raise ValueError("it is another value")
        except (ValueError, RecursionError) as error:
            why = "it is nested too deep" if isinstance(error, RecursionError) else error
            message = f"is not a JSON object ({why}); write one object per line"
            return error_at(path, message, row=line)
        for name, kind in types.items():
            cell = found.get(name)
            if cell is not None and (wrong := _wrong(cell, kind, above, name)):
                return error_at(path, f"{repr(cell)[:60]} is {wrong}", row=line, column=name)
    return None


def _wrong(cell: Any, kind: pa.DataType | None, above: dict[str, str], name: str) -> str:
    """Say what a cell is that it must not be; ``above`` has the kinds of the cells above it."""
    try:
        _column([cell], kind)
        problem = ""
    except _ERRORS as error:
        problem = f"wrong: {first_line_of(error)}"
    if kind in _LISTED:
        return problem and f"not a list of {_LISTED[kind]}"
    if type(cell) not in _KINDS:
        return "neither text nor a number"
    is_of = _KINDS[type(cell)]
    must = above.setdefault(name, is_of) if kind is None else "text"
    if is_of == must:
        return problem
    return f"{is_of}; above it is {must}" if kind is None else f"{is_of}, not text"
