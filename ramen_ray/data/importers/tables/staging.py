"""First stage: read a piece of a source, check its rows, hash its ids, write it to a file."""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans
from ramen_ray.data.findings import Finding, FirstFindings
from ramen_ray.data.importers.tables.settings import UserTables
from ramen_ray.data.prepared.hashing import hash_strings
from ramen_ray.data.sources import (
    Piece,
    SourceBatch,
    as_numbers,
    as_seconds,
    as_strings,
    read_piece,
)
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.data.store.texts import fold, normalized

MIN_WEIGHT, MAX_WEIGHT = 1e-30, 1e30  # so that their sums fit in float32
NODES = pa.schema(
    [
        ("source_id", pa.string()),
        ("text", pa.string()),
        ("id_hash", pa.uint64()),
        ("text_hash", pa.uint64()),
        ("folded_hash", pa.uint64()),
    ]
)
CLICKS = pa.schema(
    [
        ("query_hash", pa.uint64()),
        ("ad_hash", pa.uint64()),
        ("weight", pa.float32()),
        ("period", pa.int8()),
        ("row", pa.int64()),
    ]
)


def stage_nodes(
    piece: Piece, kind: str, number: int, tables: UserTables, folder: Path
) -> dict[str, int]:
    """Stage a piece of the table of ``queries`` or ``ads`` as part ``number``.

    Returns:
        how many rows are ``kept`` and how many are ``left_out``.
    """
    names = tables.node_columns(kind)
    findings: list[Finding] = []
    kept = left_out = 0
    with new_part(folder, kind, number, NODES) as part:
        for batch in read_piece(piece):
            ids, no_id = batch.cells(names["id"], as_strings)
            texts, no_text = batch.cells(names["text"], as_strings)
            findings += batch.findings + bad_cells(batch, names, {"id": no_id, "text": no_text})
            good = pa.array(~(no_id | no_text))
            texts = texts.filter(good)
            kept += len(texts)
            left_out += len(good) - len(texts) + _unreadable(batch)
            part.write_table(
                _nodes(ids.filter(good), normalized(texts) if tables.normalize_texts else texts)
            )
    write_findings(folder, f"{kind}-{number:06d}", findings)
    return {"kept": kept, "left_out": left_out}


def stage_clicks(piece: Piece, number: int, tables: UserTables, folder: Path) -> dict[str, int]:
    """Stage a piece of the table of clicks as part ``number``.

    If there is no table of queries (or ads), the texts that the clicks name become one.

    Returns:
        how many rows are ``kept`` and how many are ``left_out``.
    """
    names = tables.click_columns
    findings: list[Finding] = []
    kept = left_out = 0
    with ExitStack() as stack:
        part = stack.enter_context(new_part(folder, "clicks", number, CLICKS))
        unlisted = {
            role: stack.enter_context(new_part(folder, kind, number, NODES))
            for role, kind in (("query", "queries"), ("ad", "ads"))
            if getattr(tables, kind) is None
        }
        for batch in read_piece(piece):
            columns, bad = _click_columns(batch, names)
            findings += batch.findings + bad_cells(batch, names, bad)
            good = ~np.any(list(bad.values()), axis=0)
            kept += int(good.sum())
            left_out += int((~good).sum()) + _unreadable(batch)
            for role in ("query", "ad"):
                columns[role] = columns[role].filter(pa.array(good))
            for role, nodes in unlisted.items():
                if tables.normalize_texts:
                    columns[role] = normalized(columns[role])
                nodes.write_table(_nodes(None, columns[role].unique()))
            part.write_table(_clicks(columns, good, batch.row_numbers, tables.period_bounds or ()))
    write_findings(folder, f"clicks-{number:06d}", findings)
    return {"kept": kept, "left_out": left_out}


def _unreadable(batch: SourceBatch) -> int:
    """Count the lines that could not be split into cells; each is one finding."""
    return sum(finding.severity == "error" for finding in batch.findings)


def _click_columns(
    batch: SourceBatch, names: dict[str, str]
) -> tuple[dict[str, Any], dict[str, Booleans]]:
    """Convert the columns of a batch of clicks; returns them and their bad cells, by role."""
    convert = {"query": as_strings, "ad": as_strings, "weight": as_numbers, "time": as_seconds}
    columns, bad = {}, {}
    for role, name in names.items():
        columns[role], bad[role] = batch.cells(name, convert[role])
    if "weight" in names:
        weight = columns["weight"]
        bad["weight"] = bad["weight"] | (weight < MIN_WEIGHT) | (weight > MAX_WEIGHT)
    return columns, bad


def _clicks(
    columns: dict[str, Any], good: Booleans, row_numbers: NDArray[np.int64], bounds: Sequence[float]
) -> pa.Table:
    ones = np.ones(len(good), dtype=np.float32)
    times = columns.get("time", np.zeros(len(good)))
    period = np.searchsorted(bounds, times[good], side="right")
    return pa.table(
        {
            "query_hash": hash_strings(columns["query"]),
            "ad_hash": hash_strings(columns["ad"]),
            "weight": columns.get("weight", ones)[good].astype(np.float32),
            "period": period.astype(np.int8),
            "row": row_numbers[good],
        },
        schema=CLICKS,
    )


def _nodes(ids: pa.Array | None, texts: pa.Array) -> pa.Table:
    """List nodes; without ``ids`` their texts are their ids."""
    text_hash = hash_strings(texts)
    columns = {
        "source_id": pa.nulls(len(texts), pa.string()) if ids is None else ids,
        "text": texts,
        "id_hash": text_hash if ids is None else hash_strings(ids),
        "text_hash": text_hash,
        "folded_hash": hash_strings(fold(texts)),
    }
    return pa.table(columns, schema=NODES)


_BAD_CELLS = {
    "weight": f"are not positive numbers up to {MAX_WEIGHT:g}",
    "time": "are not times (ISO 8601 or seconds since 1970)",
    "split": f"are not one of {', '.join(SPLITS)}",
}


def bad_cells(batch: SourceBatch, names: dict[str, str], bad: dict[str, Booleans]) -> list[Finding]:
    """Describe the bad cells of each role; ``names`` are the roles' columns."""
    return [
        batch.finding(
            names[role],
            rows,
            f"{int(rows.sum())} cells {_BAD_CELLS.get(role, 'are empty')}",
            "correct them, or leave these rows out with skip_bad_rows",
        )
        for role, rows in bad.items()
        if rows.any()
    ]


def read_part(folder: Path, kind: str, number: int) -> pa.Table:
    """Map a staged part into memory."""
    return pa.ipc.open_file(pa.memory_map(str(part_file(folder, kind, number)))).read_all()


def read_parts(folder: Path, kind: str) -> Iterator[pa.Table]:
    """Map all staged parts of a kind, in their order."""
    for file in sorted(folder.glob(f"{kind}-??????.arrow")):
        yield pa.ipc.open_file(pa.memory_map(str(file))).read_all()


def part_file(folder: Path, kind: str, number: int) -> Path:
    """Name the file of a staged part."""
    return folder / f"{kind}-{number:06d}.arrow"


def write_findings(folder: Path, name: str, findings: list[Finding]) -> None:
    """Write the first of a task's findings, and their number, for :func:`read_findings`."""
    if findings:
        content = asdict(FirstFindings.of(findings))
        (folder / f"{name}.findings.json").write_text(json.dumps(content))


def read_findings(folder: Path, names: str = "*") -> FirstFindings:
    """Collect the findings of the tasks whose names match the glob, in the order of their parts."""
    files = sorted(folder.glob(f"{names}.findings.json"))
    parts = (json.loads(file.read_text()) for file in files)
    return FirstFindings.of_all(
        FirstFindings(**{**part, "shown": [Finding(**shown) for shown in part["shown"]]})
        for part in parts
    )


def new_part(
    folder: Path, kind: str, number: int, schema: pa.Schema
) -> AbstractContextManager[pa.ipc.RecordBatchFileWriter]:
    """Open the file of a staged part for writing."""
    return pa.ipc.new_file(str(part_file(folder, kind, number)), schema)
