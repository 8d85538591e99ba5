"""Findings of any dataset against plain loops; and any damage gives findings."""

import json
import shutil
import tempfile
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from breaking import Change, cast, change_json, cut, edit, set_bytes, set_cells, write
from hypothesis import given, settings
from hypothesis import strategies as st
from random_datasets import JSON
from support import MAX_LENGTH, prepare_in_process, query_table, text_table
from written_out import plain

from ramen_ray.data.checks import validation
from ramen_ray.data.checks.validation import validate
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset
from ramen_ray.data.store.schemas import AD_EDGES, FILTERS, schema_of


def _expected(what: str, hits: list[tuple[int, Any]], out_of: int | None = None) -> list[str]:
    """Write out the finding for ``hits``, which are (row, what is shown)."""
    if not hits:
        return []
    share = f" ({len(hits)} of {out_of}, {100 * len(hits) / out_of:.1f}%)" if out_of else ""
    first = hits[0][0]
    shown = [f"{value} (row {row})" if row != first else str(value) for row, value in hits[:3]]
    more = f" and {len(hits) - 3} more" if len(hits) > 3 else ""
    return [f"{what}{share}: {', '.join(shown)}{more}"]


TEXTS = st.sampled_from(
    ["a b", "A  b", " a\tB ", "c", "C", "d e", "D\u3000E", "\u00c9t\u00e9", "\u00e9T\u00c9", "f"]
)
QUERIES = st.lists(
    st.tuples(TEXTS, st.sets(st.integers(0, 11), max_size=3)), min_size=1, max_size=12
)
PAIRS = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), min_size=1, max_size=30)


def _again(values):
    return [(row, value) for row, value in enumerate(values) if value in values[:row]]


def _in_another_spelling(values):
    rows = []
    for row, value in enumerate(values):
        earlier = {one for one in values[:row] if plain(one) == plain(value)}
        if earlier and value not in earlier:
            rows.append((row, value))
    return rows


@settings(max_examples=15)
@given(
    QUERIES,
    QUERIES,
    st.lists(TEXTS, min_size=12, max_size=12),
    st.lists(TEXTS, min_size=15, max_size=15),
    PAIRS,
    PAIRS,
    st.integers(1, 9),
)
def test_cross_table_findings_are_those_of_loops(train, test, ads, anchors, edges, filters, batch):
    def queries(rows):
        return query_table([text for text, _ in rows], [sorted(ad_ids) for _, ad_ids in rows])

    tables = {
        "queries/train": queries(train),
        "queries/validation": queries([("unseen", {0})]),
        "queries/test": queries(test),
        "ads": text_table("ad_id", ads),
        "anchors/links": text_table("anchor_id", anchors),
        "edges/links/ad": pa.table([*zip(*edges, strict=True), [1.0] * len(edges)], AD_EDGES.names),
        "filters/test": pa.table([*zip(*filters, strict=True)], FILTERS.names),
    }
    with tempfile.TemporaryDirectory() as folder, patch.object(validation, "ROWS_PER_BATCH", batch):
        dataset = write_dataset(Path(folder) / "made", tables, name="made")
        of_rows = ("id outside", "no ads for query_id")
        found = [f.message for f in validate(dataset) if not f.message.startswith(of_rows)]

    clicked = {ad for _, ad_ids in train for ad in ad_ids}
    trained = {plain(text) for text, _ in train}
    answers = {(query, ad) for query, (_, ad_ids) in enumerate(test) for ad in ad_ids}
    asked = {(plain(test[query][0]), plain(ads[ad])) for query, ad in answers}
    asked.add(("unseen", plain(ads[0])))
    either = asked | {(answer, query) for query, answer in asked}
    led_to = {(ad, plain(text)) for text, ad_ids in train for ad in ad_ids}
    unclicked = [(query, query) for query, (_, ad_ids) in enumerate(train) if not ad_ids]
    clicks = [
        (row, text, ad)
        for row, (text, ad_ids) in enumerate(train)
        for ad in sorted(ad_ids, key=ads.__getitem__)
    ]

    def edges_where(is_found):
        return [
            (row, f"ad {ads[ad]!r} anchor {anchors[anchor]!r}")
            for row, (ad, anchor) in enumerate(edges)
            if ad < 12 and anchor < 15 and is_found(ad, plain(anchors[anchor]))
        ]

    def filters_where(hits):
        return [(row, f"query_id {query} ad_id {ad}") for row, (query, ad) in hits]

    leaks = edges_where(lambda ad, anchor: (plain(ads[ad]), anchor) in either)
    repeats = edges_where(lambda ad, anchor: (ad, anchor) in led_to)
    repeats = repeats if 10 * len(repeats) >= len(edges) else []
    turned = [
        (row, f"query {text!r} ad {ads[ad]!r}")
        for row, text, ad in clicks
        if (plain(ads[ad]), plain(text)) in asked
    ]
    respelt = [(row, repr(text)) for row, text in _in_another_spelling(ads)]
    seen = [(row, repr(text)) for row, (text, _) in enumerate(test) if plain(text) in trained]
    right = [(row, pair) for row, pair in enumerate(filters) if pair in answers]
    twice = [(row, f"ad_id {ad} anchor_id {to}") for row, (ad, to) in _again(edges)]
    hits = [
        ("pair that an earlier row has", twice, None),
        ("pair that an earlier row has", filters_where(_again(filters)), len(filters)),
        ("text that an earlier ad has", [(r, repr(text)) for r, text in _again(ads)], 12),
        ("text that an earlier ad has, up to case and white space", respelt, 12),
        ("query that queries/train has too, up to case and white space", seen, len(test)),
        ("train query without a click", unclicked, len(train)),
        ("train query without a click or an edge", unclicked, len(train)),
        ("ad without a train click", [(ad, ad) for ad in range(12) if ad not in clicked], 12),
        ("pair that is a right answer in queries/test", filters_where(right), len(filters)),
        ("edge that joins a held-out query to its answer", leaks, len(edges)),
        ("edge that repeats a train click", repeats, len(edges)),
        ("train click that is a held-out click reversed", turned, len(clicks)),
    ]
    expected = [line for what, rows, whole in hits for line in _expected(what, rows, whole)]
    expected += [] if clicked else ["no train query has a click"]
    assert Counter(found) == Counter(expected)


TABLES = st.sampled_from(
    ["ads", "queries/train", "queries/test", "anchors/links", "edges/links/ad", "filters/test"]
)
IDS = st.one_of(st.none(), st.integers(-2, 70), st.integers(-(2**63), 2**63 - 1))
TYPES = [
    *(pa.int8(), pa.int32(), pa.uint64(), pa.float64(), pa.large_string(), pa.bool_()),
    *(pa.list_(pa.int64()), pa.null()),
]


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """A change to a dataset directory, harmless or not."""
    table, row, column = draw(TABLES), draw(st.integers(0, 8)), draw(st.integers(0, 2))
    columns = schema_of(table).names
    name = columns[column % len(columns)]
    match draw(st.sampled_from(["drop", "cast", "ids", "lists", "bytes", "cut", "json", "raw"])):
        case "drop":
            return edit(table, lambda rows: rows.drop_columns([name]))
        case "cast":
            return cast(table, name, draw(st.sampled_from(TYPES)))
        case "ids":
            return set_cells(table, columns[0], row, *draw(st.lists(IDS, min_size=1, max_size=3)))
        case "lists":
            lists = draw(st.lists(st.none() | st.lists(IDS, max_size=3), min_size=1, max_size=3))
            return set_cells("queries/train", "ad_ids", row, *lists)
        case "bytes":
            texts = "anchors/links" if "text" not in columns else table
            return set_bytes(texts, row, draw(st.binary(max_size=6)))
        case "cut":
            return cut(table, draw(st.integers(0, 3000)))
        case "json":
            value = draw(JSON)
            whole = write("dataset.json", json.dumps(value).encode())
            return draw(st.sampled_from([change_json(num_rows=value), whole]))
    return write("dataset.json", draw(st.binary(max_size=40)))


@settings(max_examples=12)
@given(made=st.lists(changes(), min_size=1, max_size=3))
def test_damage_gives_findings_or_data_that_can_be_prepared(dataset_path, encoder_path, made):
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copytree(dataset_path, Path(folder) / "changed")
        for change in made:
            # a change may not apply any more after those before it
            with suppress(pa.ArrowException, OSError, KeyError, ValueError, TypeError):
                change(path)
        try:
            findings = validate(Dataset(path))
        except DatasetError:
            return
        assert json.dumps([asdict(finding) for finding in findings])
        usable = not any(finding.severity == "error" for finding in findings)
        prepared = Path(folder) / "prepared"
        prepared.mkdir()
        with nullcontext() if usable else pytest.raises(DatasetError):
            prepare_in_process(Dataset(path), prepared, str(encoder_path), MAX_LENGTH, True)
