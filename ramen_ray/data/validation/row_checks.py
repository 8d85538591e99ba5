"""Checks of single rows, batch by batch; all findings are errors."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.data.findings import Finding, Tally
from ramen_ray.data.store.lists import list_entries
from ramen_ray.data.store.schemas import HELD_OUT_SIDES, MAY_BE_NULL
from ramen_ray.data.validation.batches import (
    RowBatch,
    ids,
    positions,
    readable,
    undecodable,
)

Hits = tuple[NDArray[np.int64], pa.Array]
"""Row numbers within the batch (n,), and the bad values (n,) of these rows."""


@dataclass(frozen=True)
class Rule:
    """What is wrong with some rows of a table, and how to find them."""

    column: str
    message: str
    advice: str
    hits: Callable[[pa.RecordBatch], Hits]


def row_findings(
    table: str, batches: Iterable[RowBatch], num_rows: dict[str, int]
) -> list[Finding]:
    """Check rows of a table; each broken rule gives one finding with the number of its rows.

    Args:
        table: the table's name in the dataset directory.
        batches: some or all of its rows.
        num_rows: row counts of tables; ids must be below them.

    Raises:
        UnreadableFileError: a file is damaged.
    """
    tallies: dict[Rule, Tally] = {}
    rules: list[Rule] = []
    for batch in batches:
        rules = rules or _rules(table, batch.rows.schema, num_rows)
        for rule in rules:
            rows, values = rule.hits(batch.rows)
            if len(rows):
                empty = Tally("error", rule.message, rule.advice, rule.column)
                tally = tallies.setdefault(rule, empty)
                tally.add(batch.file, batch.first_row + rows, values)
    return [finding for tally in tallies.values() for finding in tally.findings()]


def id_limits(table: str, num_rows: dict[str, int]) -> dict[str, int]:
    """Return the limits that the ids in a table's columns must be below, where these are known."""
    numbered = {"ad_id": "ads", "ad_ids": "ads", "query_id": "queries/train"}
    match table.split("/"):
        case ["queries" | "filters", split]:
            numbered["query_id"] = f"queries/{split}"
        case ["anchors" | "edges", name, *side]:
            numbered["anchor_id"] = f"anchors/{name}"
            for split, held_out in HELD_OUT_SIDES.items():
                if side == [held_out]:
                    numbered["query_id"] = f"queries/{split}"
    return {column: num_rows[name] for column, name in numbered.items() if num_rows.get(name)}


def _rules(table: str, schema: pa.Schema, num_rows: dict[str, int]) -> list[Rule]:
    own_id = schema.names[0] if table.split("/")[0] in ("queries", "ads", "anchors") else None
    rules = [
        Rule(name, "no value", "give every row one, or leave the row out", _nulls(name))
        for name in schema.names
        if name not in MAY_BE_NULL
    ]
    for column, limit in id_limits(table, num_rows).items():
        if column in schema.names:
            advice = "drop it, or add what it names"
            if column == own_id:
                advice = "number the rows from 0 without gaps"
            rules.append(
                Rule(column, f"id outside 0..{limit - 1}", advice, _outside(column, limit))
            )
    if table.startswith("queries/") and table != "queries/train":
        rules.append(_ANSWERED)
    return rules + [rule for rule in _RULES if rule.column in schema.names]


def _nulls(column: str) -> Callable[[pa.RecordBatch], Hits]:
    def hits(rows: pa.RecordBatch) -> Hits:
        values = rows.column(column)
        found = positions(values.is_null())
        if pa.types.is_list(values.type):
            parents, entries = list_entries(values)
            found = np.union1d(found, parents[positions(entries.is_null())])
        return found, values.take(pa.array(found))

    return hits


def _outside(column: str, limit: int) -> Callable[[pa.RecordBatch], Hits]:
    def hits(rows: pa.RecordBatch) -> Hits:
        values = rows.column(column)
        parents = np.arange(len(values))
        if pa.types.is_list(values.type):
            parents, values = list_entries(values)
        found = positions(pc.or_(pc.less(values, 0), pc.greater_equal(values, limit)))
        return parents[found], values.take(pa.array(found))

    return hits


def _broken_texts(rows: pa.RecordBatch) -> Hits:
    texts = rows.column("text")
    found = positions(undecodable(texts))
    return found, texts.cast(pa.binary()).take(pa.array(found))


def _empty_texts(rows: pa.RecordBatch) -> Hits:
    texts = readable(rows.column("text"))
    found = positions(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0))
    return found, texts.take(pa.array(found))


def _without_ads(rows: pa.RecordBatch) -> Hits:
    found = positions(pc.equal(pc.list_value_length(rows.column("ad_ids")), 0))
    return found, rows.column("query_id").take(pa.array(found))


def _ads_twice(rows: pa.RecordBatch) -> Hits:
    parents, entries = list_entries(rows.column("ad_ids"))
    ad_ids = ids(entries)
    order = np.lexsort((ad_ids, parents))
    twice = (np.diff(parents[order]) == 0) & (np.diff(ad_ids[order]) == 0)
    found = order[1:][twice & (ad_ids[order][1:] >= 0)]
    return parents[found], pa.array(ad_ids[found])


def _bad_edge_weights(rows: pa.RecordBatch) -> Hits:
    weights = rows.column("weight")
    found = positions(_not_positive(weights))
    return found, weights.take(pa.array(found))


def _bad_click_weights(rows: pa.RecordBatch) -> Hits:
    parents, weights = list_entries(rows.column("weights"))
    found = positions(_not_positive(weights))
    return parents[found], weights.take(pa.array(found))


def _unpaired_click_weights(rows: pa.RecordBatch) -> Hits:
    counts = pc.list_value_length(rows.column("weights"))
    found = positions(pc.not_equal(counts, pc.list_value_length(rows.column("ad_ids"))))
    return found, counts.take(pa.array(found))


def _not_positive(weights: pa.Array) -> pa.Array:
    return pc.invert(pc.and_(pc.is_finite(weights), pc.greater(weights, 0)))


_POSITIVE = "give it a positive number, or leave it out"
_ANSWERED = Rule("ad_ids", "no ads for query_id", "leave these queries out", _without_ads)
_RULES = [
    Rule("text", "bytes that are not UTF-8", "convert the source to UTF-8", _broken_texts),
    Rule("text", "empty text", "give it a text, or leave it out", _empty_texts),
    Rule("ad_ids", "one ad twice", "name each ad once", _ads_twice),
    Rule("weight", "weight that is not a positive number", _POSITIVE, _bad_edge_weights),
    Rule("weights", "weight that is not a positive number", _POSITIVE, _bad_click_weights),
    Rule(
        "weights",
        "other number of weights than of ad_ids",
        "give each ad one",
        _unpaired_click_weights,
    ),
]
