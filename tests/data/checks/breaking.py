"""Ways to break a dataset directory: functions of its path."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ramen_ray.data.store.dataset import Dataset, write_metadata

Change = Callable[[Path], Any]


def edit(table: str, change: Callable[[pa.Table], pa.Table], recount: bool = True) -> Change:
    def of_path(path: Path) -> None:
        file = path / f"{table}.parquet"
        pq.write_table(change(pq.read_table(file)), file)
        if recount:
            write_metadata(path, Dataset(path).metadata)

    return of_path


def set_cells(table: str, column: str, row: int, *values) -> Change:
    """Set ``values`` from ``row`` on."""

    def change(rows: pa.Table) -> pa.Table:
        content = rows[column].to_pylist()
        content[row : row + len(values)] = values
        index = rows.column_names.index(column)
        return rows.set_column(index, column, pa.array(content, rows[column].type))

    return edit(table, change)


def set_bytes(table: str, row: int, content: bytes) -> Change:
    """Set a text to bytes that may not be UTF-8."""

    def change(rows: pa.Table) -> pa.Table:
        texts = rows["text"].cast(pa.binary()).to_pylist()
        texts[row] = content
        index = rows.column_names.index("text")
        return rows.set_column(index, "text", pa.array(texts, pa.binary()).view(pa.string()))

    return edit(table, change)


def cast(table: str, column: str, kind: pa.DataType) -> Change:
    def change(rows: pa.Table) -> pa.Table:
        return rows.set_column(rows.column_names.index(column), column, rows[column].cast(kind))

    return edit(table, change)


def append(table: str, **row) -> Change:
    def change(rows: pa.Table) -> pa.Table:
        return pa.concat_tables([rows, pa.Table.from_pylist([row], schema=rows.schema)])

    return edit(table, change)


def split(table: str, num_parts: int) -> Change:
    """Write a table as several files of as many rows each."""

    def of_path(path: Path) -> None:
        file = path / f"{table}.parquet"
        rows = pq.read_table(file)
        file.unlink()
        file.mkdir()
        size = len(rows) // num_parts
        for part in range(num_parts):
            pq.write_table(rows[part * size : (part + 1) * size], file / f"{part}.parquet")

    return of_path


def copy(table: str, other: str) -> Change:
    def of_path(path: Path) -> None:
        target = path / f"{other}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path / f"{table}.parquet", target)
        write_metadata(path, Dataset(path).metadata)

    return of_path


def remove(name: str, recount: bool = True) -> Change:
    """Remove a table, or a folder of them."""

    def of_path(path: Path) -> None:
        if (path / name).is_dir():
            shutil.rmtree(path / name)
        else:
            (path / f"{name}.parquet").unlink()
        if recount:
            write_metadata(path, Dataset(path).metadata)

    return of_path


def write(name: str, content: bytes) -> Change:
    return lambda path: (path / name).write_bytes(content)


def scribble(table: str) -> Change:
    """Damage the pages of a file and leave its footer whole."""

    def of_path(path: Path) -> None:
        file = path / f"{table}.parquet"
        content = file.read_bytes()
        file.write_bytes(content[:4] + b"\xff" * 56 + content[60:])

    return of_path


def change_json(**changes) -> Change:
    """Change keys of ``dataset.json``; None takes one out."""

    def of_path(path: Path) -> None:
        file = path / "dataset.json"
        content = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    return of_path


def in_turn(*changes: Change) -> Change:
    def of_path(path: Path) -> None:
        for change in changes:
            change(path)

    return of_path
