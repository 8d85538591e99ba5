"""Checks of a dataset directory: what is there, and what its rows say."""

import re
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ramen_ray.data.dataset import Dataset, DatasetError, optional_tables, required_tables
from ramen_ray.data.schemas import ZERO_SHOT, schema_of

MAX_EXAMPLES = 3


def read_tables(dataset: Dataset) -> list[str]:
    """Name the dataset's tables that training and evaluation read."""
    optional = [name for name in optional_tables(dataset.anchor_sets) if dataset.has(name)]
    return required_tables(dataset.anchor_sets) + optional


def check_structure(dataset: Dataset) -> dict[str, int]:
    """Check that all needed tables exist with the right columns and are not empty.

    Only parquet footers are read. Returns each table's row count.

    Raises:
        DatasetError: names every table, file and column that is wrong.
    """
    problems: list[str] = []
    num_rows: dict[str, int] = {}
    for table in read_tables(dataset):
        try:
            files = dataset.files(table)
        except DatasetError as error:
            problems.append(str(error))
            continue
        num_rows[table] = 0
        for file in files:
            try:
                parquet = pq.ParquetFile(file)
            except (pa.ArrowInvalid, OSError) as error:
                problems.append(f"{file} is not a readable parquet file: {error}")
                continue
            num_rows[table] += parquet.metadata.num_rows
            problems += _schema_problems(str(file), schema_of(table), parquet.schema_arrow)
        if not num_rows[table] and not table.startswith("filters/"):
            hint = _EMPTY_HINTS.get(table.split("/")[0], "")
            problems.append(f"{dataset.path}: table {table!r} is empty{hint}")
    raise_if_any(dataset, problems + _anchor_set_problems(dataset) + _zero_shot_problems(dataset))
    return num_rows


def _zero_shot_problems(dataset: Dataset) -> list[str]:
    if dataset.has(f"queries/{ZERO_SHOT}") == dataset.has("novel_ads"):
        return []
    return [f"{dataset.path}: queries/{ZERO_SHOT} and novel_ads go together, but one is missing"]


def _anchor_set_problems(dataset: Dataset) -> list[str]:
    with_edges = {table.split("/")[1] for table in dataset.tables if table.startswith("edges/")}
    problems = [
        f"{dataset.path}: edges/{name} belongs to no anchor set (there is no anchors/{name})"
        for name in sorted(with_edges - set(dataset.anchor_sets))
    ]
    problems += [
        f"{dataset.path}: anchor set {name!r} has no edges (no edges/{name}/query or .../ad)"
        for name in dataset.anchor_sets
        if not any(dataset.has(f"edges/{name}/{side}") for side in ("query", "ad"))
    ]
    return problems + [
        f"{dataset.path}: anchor set {name!r} may hold letters, digits, '_' and '-' only"
        for name in dataset.anchor_sets
        if not re.fullmatch(r"[\w-]+", name)
    ]


_EMPTY_HINTS = {
    "edges": "; leave the table out or give it edges",
    "queries": "; every split needs queries (hold out a part of the train split)",
}


def row_problems(table: str, rows: pa.Table, num_rows: dict[str, int]) -> list[str]:
    """Check one batch of a table's rows; returns what is wrong, naming column and value.

    Args:
        table: the table's name in the dataset directory.
        rows: some of its rows.
        num_rows: the row count of every table; ids must lie below them.
    """
    problems: list[str] = []
    ids_below = _id_ranges(table, num_rows)
    key = rows.column_names[0]
    for column in rows.column_names:
        nulls = _num_nulls(rows[column])
        if nulls:
            problems.append(f"{table}: column {column!r} has {nulls} nulls")
    for column, limit in ids_below.items():
        values = rows[column].combine_chunks()
        if isinstance(values, pa.ListArray):
            values = values.flatten()
        outside = values.filter(pc.or_(pc.less(values, 0), pc.greater_equal(values, limit)))
        if len(outside):
            problems.append(
                f"{table}: column {column!r} has ids outside 0..{limit - 1}: {_examples(outside)}"
            )
    for column, flag, message in _ROW_RULES:
        if column in rows.column_names:
            problems += _flagged(table, rows, flag(rows[column]), key, message)
    return problems


def _num_nulls(values: pa.ChunkedArray) -> int:
    within = pc.list_flatten(values).null_count if pa.types.is_list(values.type) else 0
    return int(values.null_count + within)


_ROW_RULES: list[tuple[str, Callable[[pa.ChunkedArray], pa.Array], str]] = [
    (
        "text",
        lambda texts: pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0),
        "has an empty text",
    ),
    (
        "ad_ids",
        lambda ad_ids: pc.equal(pc.list_value_length(ad_ids), 0),
        "has no ads; leave such queries out",
    ),
    ("ad_ids", lambda ad_ids: _repeats(ad_ids), "names an ad twice in ad_ids"),
    (
        "weight",
        lambda weights: pc.invert(pc.and_(pc.is_finite(weights), pc.greater(weights, 0))),
        "has an edge whose weight is not a positive number",
    ),
]


def validate(dataset: Dataset) -> list[str]:
    """Check the whole dataset directory as a stream; returns all findings, none if it is sound.

    Raises:
        DatasetError: a table is missing, unreadable, empty or has the wrong columns.
    """
    num_rows = check_structure(dataset)
    problems: list[str] = []
    for table in read_tables(dataset):
        seen = np.zeros(num_rows[table], dtype=bool)
        for batch in _batches(dataset, table):
            found = row_problems(table, batch, num_rows)
            problems += found
            if "text" in batch.column_names and not found:
                problems += _repeated_ids(table, batch, seen)
        if table.startswith("edges/"):
            problems += _repeated_edges(dataset, table)
    return problems


def raise_if_any(dataset: Dataset, problems: list[str]) -> None:
    """Raise one DatasetError that lists ``problems``, if there are any."""
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise DatasetError(f"the dataset directory {dataset.path} is not usable:{listed}")


def _schema_problems(file: str, expected: pa.Schema, found: pa.Schema) -> list[str]:
    problems = []
    for field in expected:
        index = found.get_field_index(field.name)
        if index < 0:
            problems.append(f"{file}: column {field.name!r} is missing (it has {found.names})")
        elif not _same_type(found.field(index).type, field.type):
            problems.append(
                f"{file}: column {field.name!r} is {found.field(index).type}, not {field.type}"
            )
    return problems


def _same_type(found: pa.DataType, expected: pa.DataType) -> bool:
    if pa.types.is_list(found) and pa.types.is_list(expected):
        return bool(found.value_type == expected.value_type)  # the item's field name is free
    return bool(found == expected)


def _id_ranges(table: str, num_rows: dict[str, int]) -> dict[str, int]:
    match table.split("/"):
        case ["queries", _]:
            return {"query_id": num_rows[table], "ad_ids": num_rows["ads"]}
        case ["ads"]:
            return {"ad_id": num_rows["ads"]}
        case ["anchors", _]:
            return {"anchor_id": num_rows[table]}
        case ["edges", name, side]:
            node = {"query_id": num_rows["queries/train"]}
            if side == "ad":
                node = {"ad_id": num_rows["ads"]}
            return {**node, "anchor_id": num_rows[f"anchors/{name}"]}
        case ["filters", split]:
            return {"query_id": num_rows[f"queries/{split}"], "ad_id": num_rows["ads"]}
        case ["novel_ads"]:
            return {"ad_id": num_rows["ads"]}
    raise KeyError(table)


def _batches(dataset: Dataset, table: str) -> Iterator[pa.Table]:
    columns = schema_of(table).names
    for file in dataset.files(table):
        for batch in pq.ParquetFile(file).iter_batches(columns=columns):
            yield pa.Table.from_batches([batch])


def _repeated_ids(table: str, rows: pa.Table, seen: np.ndarray) -> list[str]:
    ids = rows[0].to_numpy()
    unique, counts = np.unique(ids, return_counts=True)
    repeated = unique[(counts > 1) | seen[unique]]
    seen[unique] = True
    if not len(repeated):
        return []
    return [
        f"{table}: column {rows.column_names[0]!r} repeats ids: {_examples(pa.array(repeated))}"
    ]


def _repeated_edges(dataset: Dataset, table: str) -> list[str]:
    node, anchor = schema_of(table).names[:2]
    pairs = pa.concat_tables(batch.select([node, anchor]) for batch in _batches(dataset, table))
    counts = pairs.group_by([node, anchor]).aggregate([([], "count_all")])
    repeated = counts.filter(pc.greater(counts["count_all"], 1)).sort_by(node)
    if not len(repeated):
        return []
    return [f"{table}: {node} {_examples(repeated[node])} has an edge twice to one {anchor}"]


def _repeats(lists: pa.ChunkedArray) -> pa.Array:
    """Flag the lists (rows,) that hold a value twice."""
    lists = lists.combine_chunks()
    rows, values = pc.list_parent_indices(lists).to_numpy(), pc.list_flatten(lists).to_numpy(False)
    order = np.lexsort((values, rows))
    twice = (np.diff(rows[order]) == 0) & (np.diff(values[order]) == 0)
    flags = np.zeros(len(lists), dtype=bool)
    flags[rows[order][1:][twice]] = True
    return pa.array(flags)


def _flagged(table: str, rows: pa.Table, flags: pa.Array, key: str, message: str) -> list[str]:
    ids = rows[key].filter(flags)
    if not len(ids):
        return []
    return [f"{table}: {key} {_examples(ids)} {message}"]


def _examples(values: pa.Array) -> str:
    shown = ", ".join(str(value) for value in values[:MAX_EXAMPLES].to_pylist())
    rest = len(values) - MAX_EXAMPLES
    return shown + (f" and {rest} more" if rest > 0 else "")
