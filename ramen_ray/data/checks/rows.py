"""Rules that a row breaks by itself, looked for batch by batch."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Int64s, list_entries
from ramen_ray.data.checks.reading import RowBatch, positions
from ramen_ray.data.findings import MAX_EXAMPLES, Finding, Kind, Severity, Tallies
from ramen_ray.data.store.schemas import FILTER, HELD_OUT_SIDES, MAY_BE_NULL, TRAIN

Hits = tuple[Int64s, pa.Array]
"""Row numbers within the batch (n,), and the bad values (n,) of these rows."""
Find = Callable[[RowBatch], Hits]
Severities = tuple[Severity, ...]

TEXTS = ("text", "source_id", "name", "of")
WEIGHTS = ("weight", "weights")
_INVISIBLE = r"^[\s\pZ\p{Cf}]*\p{Cf}[\s\pZ\p{Cf}]*$"  # zero-width and other formatting characters
_DAMAGE = (
    r"\x{FFFD}|\x{FEFF}"  # replacement character, byte order mark
    r"|[ÃÂ][\x{80}-\x{BF}ŒœŠšŸŽžƒ]|â€"  # UTF-8 that was read as Latin-1 or Windows-1252
    r"|[\x00-\x08\x0E-\x1F\x7F-\x{9F}]"  # control characters
)


@dataclass(frozen=True)
class RowRule:
    """What is wrong with some rows of a table, and how to find them in a batch."""

    kind: Kind
    find: Find


class RowChecks:
    """Applies the rules of one table to its batches as they pass.

    ``ascends`` says whether every row's key, of one id or two, was above the one before.
    """

    def __init__(
        self, table: str, columns: list[str], num_rows: dict[str, int], severities: Severities
    ) -> None:
        """Choose the rules of ``table`` by its columns, severities, and row counts of tables."""
        self.ascends = True
        rules = row_rules(table, columns, num_rows)
        self._rules = [rule for rule in rules if rule.kind.severity in severities]
        self._tallies = Tallies()
        self._num_rows = 0
        self._keys = columns[: 2 if table.startswith(("edges/", "filters/")) else 1]
        self._last = [np.empty(0, np.int64) for _ in self._keys]

    def apply(self, batches: Iterable[RowBatch]) -> Iterator[RowBatch]:
        """Yield the batches, each after a look at its rows."""
        for batch in batches:
            for rule in self._rules:
                rows, values = rule.find(batch)
                examples = values[:MAX_EXAMPLES].to_pylist()
                self._tallies.add(rule.kind, batch.file, batch.first_row + rows, examples)
            self._num_rows += len(batch.rows)
            self.ascends = self.ascends and self._follow(batch.rows)
            yield batch

    def findings(self) -> list[Finding]:
        """Return one finding for each broken rule; warnings show the share of such rows."""
        return [
            tally.share(self._num_rows if kind.severity == "warning" else None)
            for kind, tally in self._tallies.items()
        ]

    def _follow(self, rows: pa.RecordBatch) -> bool:
        """Say whether the keys of a batch ascend, and begin above the last one before it."""
        keys = [rows[name] for name in self._keys]
        if any(key.null_count or not pa.types.is_int64(key.type) for key in keys):
            return False
        columns = [np.concatenate(pair) for pair in zip(self._last, keys, strict=True)]
        self._last = [column[-1:] for column in columns]
        higher: Any = False
        for column in reversed(columns):
            before, after = column[:-1], column[1:]
            higher = (after > before) | ((after == before) & higher)
        return bool(np.all(higher))


def row_rules(table: str, columns: list[str], num_rows: dict[str, int]) -> list[RowRule]:
    """List the rules for rows of ``table``, which has ``columns``; ids are below ``num_rows``."""
    own_id = columns[0] if table.split("/")[0] in ("queries", "ads", "anchors") else None
    filters = [name for name in columns if name.startswith(FILTER)]
    rules = [
        _error(name, "no value", "give every row one, or leave the row out", _nulls(name))
        for name in columns
        if name not in (*MAY_BE_NULL, *filters)
    ]
    for name, limit in id_limits(table, num_rows).items():
        advice = "drop it, or add what it names"
        if name == own_id:
            advice = "number the rows from 0 without gaps"
        if name in columns:
            rules.append(_error(name, f"id outside 0..{limit - 1}", advice, _outside(name, limit)))
    rules += [
        _error(name, "bytes that are not UTF-8", "convert the source", _broken(name))
        for name in columns
        if name in (*TEXTS, *filters)
    ]
    if table.startswith("queries/"):
        rules.append(_UNCLICKED if table == TRAIN else _UNANSWERED)
    return rules + [rule for rule in _RULES if rule.kind.column in columns]


def _error(column: str, message: str, advice: str, find: Find) -> RowRule:
    return RowRule(Kind(message, advice, column), find)


def _warning(column: str, message: str, advice: str, find: Find) -> RowRule:
    return RowRule(Kind(message, advice, column, "warning"), find)


def id_limits(table: str, num_rows: dict[str, int]) -> dict[str, int]:
    """Return the limits that the ids in a table's columns must be below, where these are known."""
    numbered = {"ad_id": "ads", "ad_ids": "ads", "query_id": TRAIN}
    match table.split("/"):
        case ["queries" | "filters", split]:
            numbered["query_id"] = f"queries/{split}"
        case ["anchors" | "edges", name, *side]:
            numbered["anchor_id"] = f"anchors/{name}"
            for split, held_out in HELD_OUT_SIDES.items():
                if side == [held_out]:
                    numbered["query_id"] = f"queries/{split}"
    return {column: num_rows[name] for column, name in numbered.items() if num_rows.get(name)}


def _entries(values: pa.Array) -> tuple[Int64s, pa.Array]:
    """Return values, or those in lists (n,), and the row of each."""
    if pa.types.is_list(values.type):
        return list_entries(values)
    return np.arange(len(values)), values


def _nulls(column: str) -> Find:
    def find(batch: RowBatch) -> Hits:
        values = batch.rows[column]
        parents, entries = _entries(values)
        found = np.union1d(positions(values.is_null()), parents[positions(entries.is_null())])
        return found, values.take(pa.array(found))

    return find


def _outside(column: str, limit: int) -> Find:
    return _matching(column, lambda ids: pc.or_(pc.less(ids, 0), pc.greater_equal(ids, limit)))


def _broken(column: str) -> Find:
    def find(batch: RowBatch) -> Hits:
        found = positions(batch.not_utf8[column])
        return found, batch.rows[column].cast(pa.binary()).take(pa.array(found))

    return find


def _matching(column: str, is_bad: Callable[[pa.Array], pa.Array]) -> Find:
    """Find values, or those in lists, that are bad in themselves."""

    def find(batch: RowBatch) -> Hits:
        is_text = column in batch.not_utf8
        parents, values = _entries(batch.texts(column) if is_text else batch.rows[column])
        found = positions(is_bad(values))
        return parents[found], values.take(pa.array(found))

    return find


def _is_blank(texts: pa.Array) -> pa.Array:
    return pc.equal(pc.binary_length(pc.utf8_trim_whitespace(texts)), 0)


def _is_not_positive(weights: pa.Array) -> pa.Array:
    return pc.invert(pc.and_(pc.is_finite(weights), pc.greater(weights, 0)))


def _without_ads(batch: RowBatch) -> Hits:
    found = positions(pc.equal(pc.list_value_length(batch.rows["ad_ids"]), 0))
    return found, batch.rows["query_id"].take(pa.array(found))


def _ads_twice(batch: RowBatch) -> Hits:
    parents, entries = list_entries(batch.rows["ad_ids"])
    ad_ids = np.asarray(pc.fill_null(entries, -1))
    order = np.lexsort((ad_ids, parents))
    twice = (np.diff(parents[order]) == 0) & (np.diff(ad_ids[order]) == 0)
    found = order[1:][twice & (ad_ids[order][1:] >= 0)]
    return parents[found], pa.array(ad_ids[found])


def _unpaired_click_weights(batch: RowBatch) -> Hits:
    counts = pc.list_value_length(batch.rows["weights"])
    found = positions(pc.not_equal(counts, pc.list_value_length(batch.rows["ad_ids"])))
    return found, counts.take(pa.array(found))


_NOT_POSITIVE = "weight that is not a positive number", "give it a positive number, or leave it out"
_UNANSWERED = _error("ad_ids", "no ads for query_id", "leave these queries out", _without_ads)
_UNCLICKED = _warning(
    "ad_ids",
    "train query without a click",
    "batches leave it out; it takes part in the graph by its edges",
    _without_ads,
)
_RULES = [
    _error("text", "empty text", "give it a text, or leave it out", _matching("text", _is_blank)),
    _error("ad_ids", "one ad twice", "name each ad once", _ads_twice),
    *(_error(name, *_NOT_POSITIVE, _matching(name, _is_not_positive)) for name in WEIGHTS),
    _error(
        "weights",
        "other number of weights than of ad_ids",
        "give each ad one",
        _unpaired_click_weights,
    ),
    _warning(
        "text",
        "text that looks damaged by a wrong encoding",
        "look at how the source was decoded; it may be Latin-1, or UTF-8 decoded twice",
        _matching("text", partial(pc.match_substring_regex, pattern=_DAMAGE)),
    ),
    _warning(
        "text",
        "text without a visible character",
        "give it a text, or leave it out",
        _matching("text", partial(pc.match_substring_regex, pattern=_INVISIBLE)),
    ),
    _warning(
        "source_id",
        "no source_id",
        "predictions cannot name these rows; give each its own",
        _nulls("source_id"),
    ),
]
