"""Propagated clicks against plain loops, and training on them."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from random_datasets import random_dataset, rows_in
from support import errors_in
from written_out import plain

from experiments.auggt import PropagationSettings, propagate_clicks
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.schemas import SIDES


def _scores(parent, settings):
    """The score of every query and ad, by loops over pairs of edges."""
    scores = Counter()
    clicks = [
        (row["query_id"], ad) for row in rows_in(parent, "queries/train") for ad in row["ad_ids"]
    ]
    for name in settings.anchor_sets or parent.anchor_sets:
        query_edges, ad_edges = (rows_in(parent, f"edges/{name}/{side}") for side in SIDES)
        degrees = Counter(edge["anchor_id"] for edge in query_edges + ad_edges)
        for edge in query_edges:
            if degrees[edge["anchor_id"]] > settings.max_anchor_degree:
                continue
            for other in query_edges if settings.via == "clicks" else ad_edges:
                if other["anchor_id"] == edge["anchor_id"]:
                    clicked = [ad for query, ad in clicks if query == other.get("query_id")]
                    for ad in clicked if settings.via == "clicks" else [other["ad_id"]]:
                        scores[edge["query_id"], ad] += edge["weight"] * other["weight"]
    return scores


cases = st.builds(
    PropagationSettings,
    via=st.sampled_from(["ad-edges", "clicks"]),
    anchor_sets=st.sampled_from([(), ("both",), ("more", "both"), ("left", "more")]),
    max_anchor_degree=st.integers(5, 16),
    top_k=st.integers(1, 7),
    seed=st.integers(0, 3),
)


@settings(max_examples=3)
@given(st.integers(0, 10**6), st.booleans(), cases)
def test_clicks_are_added_as_plain_loops_add_them(dataset_seed, weighted, chosen):
    with TemporaryDirectory() as folder:
        parent = random_dataset(Path(folder) / "parent", dataset_seed, weighted=weighted)
        scores = _scores(parent, chosen)
        texts = {row["ad_id"]: plain(row["text"]) for row in rows_in(parent, "ads")}
        before = {row["query_id"]: row for row in rows_in(parent, "queries/train")}
        candidates = {
            query: {
                ad: scores[query, ad]
                for ad, text in texts.items()
                if scores[query, ad] and ad not in row["ad_ids"] and text != plain(row["text"])
            }
            for query, row in before.items()
        }
        output = Path(folder) / "output"
        if not any(candidates.values()):
            event("nothing to add")
            with pytest.raises(DatasetError):
                propagate_clicks(parent, output, chosen)
            assert [path.name for path in Path(folder).iterdir()] == ["parent"]
            return
        made = propagate_clicks(parent, output, chosen)
        after = rows_in(made, "queries/train")
        assert errors_in(made) == []
        assert [row["query_id"] for row in after] == sorted(before)
        assert made.tables == parent.tables
        for table in parent.tables:
            if table != "queries/train":
                assert rows_in(made, table) == rows_in(parent, table)
    for row in after:
        old, best = before[row["query_id"]], candidates[row["query_id"]]
        own = len(old["ad_ids"])
        added = row["ad_ids"][own:]
        assert [best[ad] for ad in added] == sorted(best.values(), reverse=True)[: chosen.top_k]
        assert len(set(added)) == len(added)
        assert row["ad_ids"][:own] == old["ad_ids"]
        if weighted:
            assert row["weights"] == old["weights"] + [min(old["weights"], default=1)] * len(added)
