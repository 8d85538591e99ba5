"""Parse JSON lines: an object on each line."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.findings import error_at
from ramen_ray.data.store.text_lines import TooLargeError, check_nesting
from ramen_ray.data.tables.reading.lines import Block, Rows
from ramen_ray.errors import DatasetError, first_line_of

BYTES_PER_SAMPLE = 1 << 20
Types = Mapping[str, pa.DataType | None]
"""By field, the type that it must have; None for texts or numbers, whichever they are."""

_NO_OBJECT = re.compile(rb"^[^\S\n]*[^{\s].*$", re.MULTILINE)
_BLANK = re.compile(rb"^[^\S\n]*$", re.MULTILINE)
_KINDS = {str: "text", int: "a number", float: "a number"}


def fields_of(start: bytes) -> tuple[str, ...]:
    """Return the fields of the first object in the beginning of a file; none if it is not one."""
    try:
        first = json.loads(start.strip().partition(b"\n")[0])
    except (ValueError, RecursionError):
        return ()
    return tuple(first) if isinstance(first, dict) else ()


def parse_objects(block: Block, path: object, types: Types) -> Rows:
    """Return some fields of the objects of a block of lines.

    A field that an object lacks is null.

    Raises:
        DatasetError: a line is not an object, or has a cell of another type, or of another kind
            than those above it.
    """
    _refuse_what_is_no_object(block, path)
    lines = block.lines
    if _BLANK.search(block.data[:-1]):
        filled = [bool(line.strip()) for line in block.data[:-1].split(b"\n")]
        lines = lines[np.array(filled)]
    if not len(lines):
        schema = pa.schema([(name, kind or pa.string()) for name, kind in types.items()])
        return Rows(schema.empty_table(), lines, block.faults)
    rows = _parse(block, path, types, lines)
    if len(rows) != len(lines):
        raise _bad_object(block, path, types) or error_at(
            path, "or a line below: is not one object", row=int(lines[0])
        )
    if block.lines[0] == 1:
        _refuse_missing(block, path, rows.select([n for n, kind in types.items() if kind is None]))
    return Rows(rows.select(list(types)), lines, block.faults)


def _refuse_what_is_no_object(block: Block, path: object) -> None:
    """Refuse lines that Arrow's parser would not survive."""
    try:
        check_nesting(block.data)
    except TooLargeError as error:
        raise error_at(path, str(error), row=int(block.lines[error.line])) from None
    if wrong := _NO_OBJECT.search(block.data):
        line = block.lines[block.data[: wrong.start()].count(b"\n")]
        message = "is not a JSON object; write one object per line"
        raise error_at(path, message, row=int(line))


def _parse(block: Block, path: object, types: Types, lines: Int64s) -> pa.Table:
    """Parse with the column types of the first lines, else with those of all lines."""
    start = block.data[: block.data.find(b"\n", BYTES_PER_SAMPLE) + 1]
    for sample in filter(None, (start, block.data)):
        fields = [(name, kind or _kind_of(sample, name)) for name, kind in types.items()]
        try:
            return _read(block.data, pa.schema(fields))
        except pa.ArrowInvalid as error:
            problem = error
    raise _bad_object(block, path, types) or _refused(path, lines, problem)


def _kind_of(sample: bytes, name: str) -> pa.DataType:
    """Return whether a field is text, whole numbers or numbers; text if it is none of these."""
    for kind in (pa.string(), pa.int64(), pa.float64()):
        with suppress(pa.ArrowInvalid):
            _read(sample, pa.schema([(name, kind)]))
            return kind
    return pa.string()


def _read(data: bytes, schema: pa.Schema) -> pa.Table:
    return pa.json.read_json(
        pa.BufferReader(data),
        pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _refuse_missing(block: Block, path: object, rows: pa.Table) -> None:
    """Refuse a file if no line of its first block has a field."""
    empty = [name for name in rows.column_names if rows[name].null_count == len(rows)]
    if empty:
        objects = (json.loads(line) for line in block.data.split(b"\n") if line.strip())
        fields = dict.fromkeys(name for found in objects for name in found)
        missing = [name for name in empty if name not in fields]
        if missing:
            raise DatasetError(
                f"{path}: the lines have no {', '.join(map(repr, missing))}; "
                f"they have {', '.join(fields)}"
            )


def _bad_object(block: Block, path: object, types: Types) -> DatasetError | None:
    """Find the first line that is not JSON, or has a cell of another kind than it must."""
    above: dict[str, str] = {}
    for line, content in zip(block.lines.tolist(), block.data.split(b"\n"), strict=False):
        try:
            found = json.loads(content) if content.strip() else {}
        except (ValueError, RecursionError) as error:
            return error_at(path, f"is not a JSON object: {error}", row=line)
        for name, kind in types.items():
            cell = found.get(name)
            if cell is not None and (wrong := _wrong(cell, kind, above, name)):
                message = f"{repr(cell)[:60]} is {wrong}"
                return error_at(path, message, row=line, column=name)
    return None


def _wrong(cell: Any, kind: pa.DataType | None, above: dict[str, str], name: str) -> str:
    """Say what a cell is that it must not be; ``above`` has the kinds of the cells above it."""
    if kind is not None and pa.types.is_list(kind):
        whole = pa.types.is_integer(kind.value_type)
        numbers = (int,) if whole else (int, float)
        fits = isinstance(cell, list) and all(type(entry) in numbers for entry in cell)
        return "" if fits else f"not a list of {'whole ' * whole}numbers"
    is_of = _KINDS.get(type(cell), "neither text nor a number")
    before = "text" if kind is not None else above.setdefault(name, is_of)
    if is_of == before and is_of in _KINDS.values():
        return ""
    if is_of == before or is_of not in _KINDS.values():
        return is_of
    return f"{is_of}, not text" if kind is not None else f"{is_of}; above it is {before}"


def _refused(path: object, lines: Int64s, problem: pa.ArrowInvalid) -> DatasetError:
    """Say what Arrow alone finds wrong: a key twice, half of a surrogate pair."""
    reason = first_line_of(problem).removeprefix("JSON parse error: ")
    message, _, row = reason.rpartition(" in row ")
    if not row.isdecimal():
        return error_at(path, f"or a line below: {reason}", row=int(lines[0]))
    return error_at(path, message, row=int(lines[int(row)]))
