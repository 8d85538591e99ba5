"""Checks across rows and tables, and checks for doubtful things: leaks, repeats, damaged texts.

Tables are streamed column by column. A check holds a bit or eight bytes for each row of a table
of texts (64 for ads in several spellings), and no more for edges than what is said of repeats.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.data.findings import Finding, Severity, Tally
from ramen_ray.data.prepared.hashing import find, hash_strings
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.lists import list_entries
from ramen_ray.data.store.schemas import ZERO_SHOT, schema_of
from ramen_ray.data.store.texts import fold
from ramen_ray.data.tasks import RunTasks, Task, one_after_another
from ramen_ray.data.validation.batches import RowBatch, ids, positions, readable, table_batches
from ramen_ray.data.validation.leaks import leak_findings
from ramen_ray.data.validation.repeats import (
    id_keys,
    number_pairs,
    pair_keys,
    tally_repeats,
    text_keys,
)
from ramen_ray.data.validation.row_checks import id_limits
from ramen_ray.data.validation.spellings import ads_in_several_spellings, invisible_texts

TRAIN = "queries/train"
_DAMAGE = (
    r"\x{FFFD}|\x{FEFF}"  # replacement character, byte order mark
    r"|[ÃÂ][\x{80}-\x{BF}ŒœŠšŸŽžƒ]|â€"  # UTF-8 that was read as Latin-1 or Windows-1252
    r"|[\x00-\x08\x0E-\x1F\x7F-\x{9F}]"  # control characters
)


def cross_findings(
    dataset: Dataset, num_rows: dict[str, int], run: RunTasks = one_after_another
) -> list[Finding]:
    """Check tables as a whole and against each other.

    Args:
        dataset: the dataset directory; rows that :mod:`~ramen_ray.data.validation.row_checks` finds
            wrong are skipped.
        num_rows: row counts of the tables to check, which must be readable.
        run: runs the checks.

    Raises:
        UnreadableFileError: a file is damaged.
    """
    checks = [_task(leak_findings, dataset, num_rows)]  # takes longest, so begins first
    for table in num_rows:
        checks.append(_task(_repeats, dataset, table, num_rows))
        if "text" in schema_of(table).names:
            checks.append(_task(_damaged_texts, dataset, table))
            checks.append(_task(invisible_texts, dataset, table))
        if "source_id" in dataset.schema(table).names:
            checks.append(_task(_missing_source_ids, dataset, table))
    if TRAIN in num_rows:
        checks.append(_task(_queries_seen_in_training, dataset, num_rows))
        checks.append(_task(_queries_without_click, dataset, num_rows))
    if "ads" in num_rows:
        checks.append(_task(ads_in_several_spellings, dataset, num_rows["ads"]))
        checks.append(_task(_click_findings, dataset, num_rows))
    leaks, *others = run(checks)
    return [finding for found in (*others, leaks) for finding in found]


def _task(check: Callable[..., Iterable[Finding]], *arguments: Any) -> Task:
    return partial(_listed, check, *arguments)


def _listed(check: Callable[..., Iterable[Finding]], *arguments: Any) -> list[Finding]:
    return list(check(*arguments))


def _repeats(dataset: Dataset, table: str, num_rows: dict[str, int]) -> Iterator[Finding]:
    kind = table.split("/")[0]
    names = schema_of(table).names
    if kind == "aliases":
        return
    if kind in ("edges", "filters"):
        limits = id_limits(table, num_rows)
        if limits.keys() >= set(names[:2]):
            severity: Severity = "error" if kind == "edges" else "warning"
            tally = Tally(severity, "pair that an earlier row has", "leave one", names[1])
            keys = partial(pair_keys, limits=(limits[names[0]], limits[names[1]]))
            tally_repeats(dataset, table, names[:2], keys, tally)
            yield from tally.findings()
        return
    tally = Tally("error", "id that an earlier row has", "give every row its own", names[0])
    tally_repeats(dataset, table, names[:1], id_keys, tally)
    yield from tally.findings()
    if "source_id" in dataset.schema(table).names:
        advice = "predictions cannot tell these rows apart; give each its own"
        tally = Tally("warning", "source_id that an earlier row has", advice, "source_id")
        tally_repeats(dataset, table, ["source_id"], text_keys, tally)
        yield from tally.findings(out_of=num_rows[table])
    if table == "ads":
        advice = "ads of equal text cannot be told apart; merge them, or make their texts differ"
        tally = Tally("warning", "text that an earlier ad has", advice, "text")
        tally_repeats(dataset, table, ["text"], text_keys, tally)
        yield from tally.findings(out_of=num_rows[table])


def _damaged_texts(dataset: Dataset, table: str) -> list[Finding]:
    advice = "look at how the source was decoded; it may be Latin-1, or UTF-8 decoded twice"
    tally = Tally("warning", "text that looks damaged by a wrong encoding", advice, "text")
    for batch in table_batches(dataset, table, ["text"]):
        texts = readable(batch.rows.column(0))
        found = positions(pc.match_substring_regex(texts, _DAMAGE))
        tally.add(batch.file, batch.first_row + found, texts.take(pa.array(found)))
    return tally.findings(out_of=dataset.num_rows(table))


def _missing_source_ids(dataset: Dataset, table: str) -> list[Finding]:
    advice = "predictions cannot name these rows; give each its own"
    tally = Tally("warning", "no source_id", advice, "source_id")
    for batch in table_batches(dataset, table, ["source_id"]):
        found = positions(batch.rows.column(0).is_null())
        tally.add(batch.file, batch.first_row + found, pa.nulls(len(found)))
    return tally.findings(out_of=dataset.num_rows(table))


def _queries_seen_in_training(dataset: Dataset, num_rows: dict[str, int]) -> Iterator[Finding]:
    trained = np.empty(num_rows[TRAIN], dtype=np.uint64)
    filled = 0
    for batch in table_batches(dataset, TRAIN, ["text"]):
        trained[filled : filled + len(batch.rows)] = hash_strings(fold(readable(batch.rows[0])))
        filled += len(batch.rows)
    trained.sort()
    for table in _held_out(num_rows):
        advice = "metrics on it are too good; leave it out of one of the two"
        message = f"query that {TRAIN} has too, up to case and white space"
        tally = Tally("warning", message, advice, "text")
        for batch in table_batches(dataset, table, ["text"]):
            hashes = hash_strings(fold(readable(batch.rows[0])))
            found = positions(find(hashes, trained) >= 0)
            tally.add(batch.file, batch.first_row + found, batch.rows.column(0).take(found))
        yield from tally.findings(out_of=num_rows[table])


def _queries_without_click(dataset: Dataset, num_rows: dict[str, int]) -> Iterator[Finding]:
    """Count train queries without clicks, and those of them that have no edges either."""
    advice = "batches leave it out; it takes part in the graph by its edges"
    without_click = Tally("warning", "train query without a click", advice, "ad_ids")
    for batch, found in _unclicked(dataset):
        without_click.add(batch.file, batch.first_row + found, batch.rows["query_id"].take(found))
    if without_click.count == num_rows[TRAIN]:
        advice = "training needs queries with clicks"
        yield Finding("error", f"{TRAIN}.parquet", "no train query has a click", advice)
    if not without_click.count:
        return
    yield from without_click.findings(out_of=num_rows[TRAIN])
    linked = np.zeros(num_rows[TRAIN], dtype=np.bool_)
    for table in num_rows:
        if table.startswith("edges/") and table.endswith("/query"):
            for batch in table_batches(dataset, table, ["query_id"]):
                _mark(linked, ids(batch.rows.column(0)))
    advice = "nothing is learnt from it; add edges for it, or leave it out"
    unlinked = Tally("warning", "train query without a click or an edge", advice, "query_id")
    for batch, found in _unclicked(dataset):
        query_ids = ids(batch.rows["query_id"])
        found = found[_unmarked(linked, query_ids[found])]
        unlinked.add(batch.file, batch.first_row + found, pa.array(query_ids[found]))
    yield from unlinked.findings(out_of=num_rows[TRAIN])


def _unclicked(dataset: Dataset) -> Iterator[tuple[RowBatch, NDArray[np.int64]]]:
    """Stream the train queries in batches, with the rows of each that have no clicks."""
    for batch in table_batches(dataset, TRAIN, ["query_id", "ad_ids"]):
        yield batch, positions(pc.equal(pc.list_value_length(batch.rows["ad_ids"]), 0))


def _held_out(num_rows: dict[str, int]) -> list[str]:
    return [table for table in num_rows if table.startswith("queries/") and table != TRAIN]


def _click_findings(dataset: Dataset, num_rows: dict[str, int]) -> Iterator[Finding]:
    """Check clicks against ads, filters and novel ads."""
    novel = np.zeros(num_rows["ads"], dtype=np.bool_)
    if "novel_ads" in num_rows:
        for batch in table_batches(dataset, "novel_ads", ["ad_id"]):
            _mark(novel, ids(batch.rows.column(0)))
        if f"queries/{ZERO_SHOT}" in num_rows:
            yield from _seen_ads_in_zero_shot(dataset, novel)
    if TRAIN in num_rows:
        yield from _ads_without_click(dataset, novel)
    for queries in _held_out(num_rows):
        filters = queries.replace("queries/", "filters/")
        if filters in num_rows:
            yield from _filtered_answers(dataset, queries, filters, num_rows)


def _ads_without_click(dataset: Dataset, novel: NDArray[np.bool_]) -> list[Finding]:
    known = novel.copy()  # novel ads have no clicks by design
    for batch in table_batches(dataset, TRAIN, ["ad_ids"]):
        _mark(known, ids(list_entries(batch.rows.column(0))[1]))
    advice = "this ad is found by its text alone; leave it out if it should not be"
    tally = Tally("warning", "ad without a train click", advice, "ad_id")
    for batch in table_batches(dataset, "ads", ["ad_id"]):
        ad_ids = ids(batch.rows.column(0))
        found = _unmarked(known, ad_ids)
        tally.add(batch.file, batch.first_row + found, pa.array(ad_ids[found]))
    return tally.findings(out_of=len(known))


def _filtered_answers(
    dataset: Dataset, queries: str, filters: str, num_rows: dict[str, int]
) -> list[Finding]:
    limits = num_rows[queries], num_rows["ads"]
    answers = [np.empty(0, dtype=np.uint64)]
    for batch in table_batches(dataset, queries, ["query_id", "ad_ids"]):
        parents, ad_ids = list_entries(batch.rows.column(1))
        answers.append(number_pairs(ids(batch.rows.column(0))[parents], ids(ad_ids), limits)[1])
    right_answers = np.sort(np.concatenate(answers))
    advice = "a right answer would be dropped from the predictions; take the pair out of the filter"
    tally = Tally("warning", f"pair that is a right answer in {queries}", advice, "ad_id")
    for batch in table_batches(dataset, filters, ["query_id", "ad_id"]):
        rows, keys = pair_keys(batch.rows, limits)
        found = rows[find(keys, right_answers) >= 0]
        values = batch.rows.take(pa.array(found)).to_struct_array()
        tally.add(batch.file, batch.first_row + found, values)
    return tally.findings(out_of=dataset.num_rows(filters))


def _seen_ads_in_zero_shot(dataset: Dataset, novel: NDArray[np.bool_]) -> list[Finding]:
    advice = "zero-shot queries are answered from the novel ads only; drop the ad, or list it there"
    tally = Tally("error", "ad that is not in novel_ads", advice, "ad_ids")
    for batch in table_batches(dataset, f"queries/{ZERO_SHOT}", ["ad_ids"]):
        parents, entries = list_entries(batch.rows.column(0))
        ad_ids = ids(entries)
        found = _unmarked(novel, ad_ids)
        tally.add(batch.file, batch.first_row + parents[found], pa.array(ad_ids[found]))
    return tally.findings()


def _mark(flags: NDArray[np.bool_], ad_ids: NDArray[np.int64]) -> None:
    flags[ad_ids[(ad_ids >= 0) & (ad_ids < len(flags))]] = True


def _unmarked(flags: NDArray[np.bool_], ad_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where ``ad_ids`` (n,) names an ad that is not flagged."""
    inside = np.flatnonzero((ad_ids >= 0) & (ad_ids < len(flags)))
    return inside[~flags[ad_ids[inside]]]
