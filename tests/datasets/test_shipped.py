"""Properties of the data sets that the repository ships."""

import re

import pytest
from support import ROOT, errors_in
from written_out import clicked_pairs, column_of, edges_of, pairs_of

from ramen_ray.data.prepared.folder import dataset_statistics
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import HELD_OUT_SIDES, SPLITS

HELD_OUT = ("validation", "test")


@pytest.fixture(params=["foldoc", "debian", "rdocs"])
def shipped(request):
    """A data set of the repository."""
    return Dataset(ROOT / "datasets" / request.param)


def test_shipped_edges_do_not_leak(shipped):
    """No strict edge joins the two texts of a test or validation click, in any direction or case.

    As published, a set has its strict edges and such ones, and on the query side no such click.
    """
    held_out = {
        (query.casefold(), ad.casefold()) for query, ad in clicked_pairs(shipped, *HELD_OUT)
    }
    assert len(held_out) > 1000

    def leaks(edges):
        folded = {edge: (edge[0].casefold(), edge[1].casefold()) for edge in edges}
        return {edge for edge, pair in folded.items() if {pair, pair[::-1]} & held_out}

    for name in shipped.strict_anchor_sets:
        for side in ("query", "ad"):
            edges = edges_of(shipped, name, side)
            assert len(edges) > 1000
            assert not leaks(edges)
            if f"{name}_published" in shipped.anchor_sets:
                published = edges_of(shipped, f"{name}_published", side)
                assert published - leaks(published) == edges
                assert side == "ad" or not published & held_out


def test_shipped_edges_of_held_out_queries_do_not_leak(shipped):
    """An oracle is told neither an answer nor whose answer a query is, under either protocol."""
    clicks = clicked_pairs(shipped, *HELD_OUT)
    held_out = {frozenset(map(str.casefold, click)) for click in clicks}
    for name in set(shipped.anchor_sets) - {"similar"}:
        for split in HELD_OUT:
            edges = edges_of(shipped, name, HELD_OUT_SIDES[split])
            assert len({query for query, _ in edges}) > 0.2 * shipped.num_rows(f"queries/{split}")
            assert not {frozenset(map(str.casefold, edge)) for edge in edges} & held_out


def test_shipped_queries_are_in_one_split_whatever_their_case(shipped):
    texts = [text.casefold() for split in SPLITS for text in column_of(shipped, f"queries/{split}")]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize("split", HELD_OUT)
def test_shipped_filters_pair_each_held_out_query_that_is_an_ad_with_itself(shipped, split):
    own = set(column_of(shipped, f"queries/{split}")) & set(column_of(shipped, "ads"))
    pairs = pairs_of(shipped, f"filters/{split}", f"queries/{split}", "ads")
    assert pairs == {(text, text) for text in own}
    assert pairs


def test_data_cards_give_the_statistics(shipped):
    card = (shipped.path / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| `(\w+)` \| ([\d,.]+) \|", card)
    statistics = dataset_statistics(shipped)
    assert len(rows) >= 8
    for key, value in rows:
        assert float(value.replace(",", "")) == pytest.approx(statistics[key], abs=0.005)


def test_shipped_tables_are_sound_and_small(shipped):
    assert errors_in(shipped) == []
    assert sum(file.stat().st_size for file in shipped.path.rglob("*") if file.is_file()) < 4e6
    assert all((shipped.path / name).is_file() for name in ("README.md", "LICENCE.txt"))
