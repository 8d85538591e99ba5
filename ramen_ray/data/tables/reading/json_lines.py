"""Parse JSON lines: an object on each line."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.json

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.findings import error_at
from ramen_ray.data.store.errors import DatasetError
from ramen_ray.data.store.limits import TooLargeError, check_nesting
from ramen_ray.data.tables.reading.cells import is_number
from ramen_ray.data.tables.reading.lines import Block
from ramen_ray.errors import first_line_of

BYTES_PER_SAMPLE = 1 << 20
_NO_OBJECT = re.compile(rb"^[^\S\n]*[^{\s].*$", re.MULTILINE)
_BLANK = re.compile(rb"^[^\S\n]*$", re.MULTILINE)
_KINDS = {str: "text", int: "a number", float: "a number"}


def parse_objects(path: str, columns: list[str], block: Block) -> tuple[pa.Table, Int64s]:
    """Return some columns of a block of lines, and the line of each row.

    Numbers stay numbers, and everything else is text; a field that an object lacks is null.

    Raises:
        DatasetError: a line is not an object, or has a cell of another kind than those above it.
    """
    try:
        check_nesting(block.data)
    except TooLargeError as error:
        raise error_at(path, str(error), row=int(block.lines[error.line])) from None
    if wrong := _NO_OBJECT.search(block.data):
        line = block.lines[block.data[: wrong.start()].count(b"\n")]
        message = "is not a JSON object; write one object per line"
        raise error_at(path, message, row=int(line))
    lines = block.lines
    if _BLANK.search(block.data[:-1]):
        filled = [bool(line.strip()) for line in block.data[:-1].split(b"\n")]
        lines = lines[np.array(filled)]
    if not len(lines):
        return pa.table({name: pa.array([], pa.string()) for name in columns}), lines
    rows = _parse(path, columns, block, lines)
    if len(rows) != len(lines):
        raise _bad_object(path, columns, block) or error_at(
            path, "or a line below: is not one object", row=int(lines[0])
        )
    return rows.select(columns), lines


def _parse(path: str, columns: list[str], block: Block, lines: Int64s) -> pa.Table:
    """Parse with the column types of the first lines, else with those of all lines."""
    whole = pa.json.ReadOptions(use_threads=False, block_size=len(block.data) + 1)
    start = block.data[: block.data.find(b"\n", BYTES_PER_SAMPLE) + 1]
    for sample in filter(None, (start, block.data)):
        try:
            found = pa.json.read_json(pa.BufferReader(sample), whole).schema
            if sample is not block.data and not set(columns) <= set(found.names):
                continue
            parse = pa.json.ParseOptions(
                explicit_schema=_schema(path, columns, found, is_first=block.lines[0] == 1),
                unexpected_field_behavior="ignore",
            )
            return pa.json.read_json(pa.BufferReader(block.data), whole, parse)
        except pa.ArrowInvalid as error:
            problem = error
    raise _bad_object(path, columns, block) or _refused(path, lines, problem)


def _schema(path: str, columns: list[str], found: pa.Schema, *, is_first: bool) -> pa.Schema:
    missing = [name for name in columns if name not in found.names]
    if missing and is_first:
        raise DatasetError(
            f"{path}: the lines have no {', '.join(map(repr, missing))}; "
            f"they have {', '.join(found.names)}"
        )
    kinds = {name: found.field(name).type for name in columns if name not in missing}
    return pa.schema(
        [
            (name, kinds[name] if name in kinds and is_number(kinds[name]) else pa.string())
            for name in columns
        ]
    )


def _bad_object(path: str, columns: list[str], block: Block) -> DatasetError | None:
    """Find the first line that is not JSON, or has a cell of another kind than earlier lines."""
    kinds: dict[str, str] = {}
    for line, content in zip(block.lines.tolist(), block.data.split(b"\n"), strict=False):
        try:
            found = json.loads(content) if content.strip() else {}
        except (ValueError, RecursionError) as error:
            return error_at(path, f"is not a JSON object: {error}", row=line)
        for name in columns:
            cell = found.get(name)
            kind = _KINDS.get(type(cell), "neither text nor a number")
            if cell is None or kind == kinds.setdefault(name, kind) in _KINDS.values():
                continue
            before = f"; above it is {kinds[name]}" if kind != kinds[name] else ""
            return error_at(path, f"{repr(cell)[:60]} is {kind}{before}", row=line, column=name)
    return None


def _refused(path: str, lines: Int64s, problem: pa.ArrowInvalid) -> DatasetError:
    """Say what Arrow alone finds wrong: a key twice, half of a surrogate pair."""
    reason = first_line_of(problem).removeprefix("JSON parse error: ")
    message, _, row = reason.rpartition(" in row ")
    if not row.isdecimal():
        return error_at(path, f"or a line below: {reason}", row=int(lines[0]))
    return error_at(path, message, row=int(lines[int(row)]))
