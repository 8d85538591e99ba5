"""Findings of any dataset against plain loops; and any damage gives findings."""

import re
import tempfile
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support import query_table, text_table
from written_out import plain

from ramen_ray.data.checks import validation
from ramen_ray.data.checks.validation import validate
from ramen_ray.data.store.dataset import write_dataset
from ramen_ray.data.store.schemas import AD_EDGES, FILTERS

EXAMPLES = re.compile(r"( \([^()]*%\))?: .*|$")


def _places(findings):
    """Write out where findings are, and the rows that they show."""
    places = []
    for finding in findings:
        shown = EXAMPLES.search(finding.message)[0]
        file = finding.file.removesuffix(".parquet")
        places.append((finding.severity, file, finding.column, finding.row, shown))
    return Counter(places)


def _expected(table, column, hits, out_of=None):
    """Write out the finding for ``hits``, which are (row, what is shown)."""
    share = f" ({len(hits)} of {out_of}, {100 * len(hits) / out_of:.1f}%)" if out_of else ""
    first = hits[0][0]
    shown = [f"{value} (row {row})" if row != first else str(value) for row, value in hits[:3]]
    more = f" and {len(hits) - 3} more" if len(hits) > 3 else ""
    severity = "warning" if out_of else "error"
    return severity, table, column, first, f"{share}: {', '.join(shown)}{more}"


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
        found = _places(validate(dataset))

    clicked = {ad for _, ad_ids in train for ad in ad_ids}
    trained = {plain(text) for text, _ in train}
    answers = {(query, ad) for query, (_, ad_ids) in enumerate(test) for ad in ad_ids}
    asked = {(plain(test[query][0]), plain(ads[ad])) for query, ad in answers}
    asked.add(("unseen", plain(ads[0])))
    either = asked | {(answer, query) for query, answer in asked}
    unclicked = [(query, query) for query, (_, ad_ids) in enumerate(train) if not ad_ids]
    unanswered = [(query, query) for query, (_, ad_ids) in enumerate(test) if not ad_ids]
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

    def outside(pairs, place, limit):
        return [(row, pair[place]) for row, pair in enumerate(pairs) if pair[place] >= limit]

    leaks = edges_where(lambda ad, anchor: (plain(ads[ad]), anchor) in either)
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
        ("edges/links/ad", "anchor_id", twice, None),
        ("edges/links/ad", "ad_id", outside(edges, 0, 12), None),
        ("edges/links/ad", "anchor_id", leaks, len(edges)),
        ("filters/test", "ad_id", filters_where(_again(filters)), len(filters)),
        ("filters/test", "ad_id", filters_where(right), len(filters)),
        ("filters/test", "query_id", outside(filters, 0, len(test)), None),
        ("filters/test", "ad_id", outside(filters, 1, 12), None),
        ("ads", "text", [(row, repr(text)) for row, text in _again(ads)], 12),
        ("ads", "text", respelt, 12),
        ("ads", "ad_id", [(ad, ad) for ad in range(12) if ad not in clicked], 12),
        ("queries/test", "text", seen, len(test)),
        ("queries/test", "ad_ids", unanswered, None),
        ("queries/train", "query_id", unclicked, len(train)),
        ("queries/train", "ad_ids", turned, len(clicks)),
    ]
    expected = [_expected(*hit) for hit in hits if hit[2]]
    if not clicked:
        expected.append(("error", "queries/train", None, None, ""))
    assert found == Counter(expected)
