"""Names in texts, and the bad match rate, against plain loops."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import write_rows

from experiments.names import bad_match_rates, read_names
from ramen_ray.data.store.dataset import DatasetError


def _read(folder, columns, *names):
    return read_names(write_rows(folder / "names.csv", columns, names))


def test_names_are_whole_words_in_any_spelling_and_none_within_a_longer_one(tmp_path):
    listed = [("place", "new york"), ("place", "york"), ("brand", "C++"), ("brand", "\u00e9")]
    texts = ["New-York times", "york, c, +", "c++ E\u0301", "yorkshire"]
    found = _read(tmp_path, "kind name", *listed).find(pa.array(texts))
    pairs = zip(*map(np.ndarray.tolist, found), strict=True)
    assert [*pairs] == [(0, 0), (1, 1), (2, 2), (2, 3)]


def test_an_alias_of_no_name_is_refused_by_its_row(tmp_path):
    with pytest.raises(DatasetError, match=r"names\.csv.* row 2, column 'same_as'"):
        _read(tmp_path, "kind name same_as", ("place", "nyc", "new york"))


texts = st.lists(st.sampled_from(["sony", "acer", "york", "oslo", "tv"]), max_size=3).map(" ".join)
predictions = st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=6)), min_size=1)
KIND_OF = {"sony": "brand", "acer": "brand", "york": "place", "oslo": "place"}


@given(predictions)
def test_bad_match_rates_are_what_plain_loops_count(tmp_path_factory, predictions):
    folder = tmp_path_factory.mktemp("names")
    names = _read(folder, "kind name", *((kind, name) for name, kind in KIND_OF.items()))
    rows = [(query, ad, rank) for query, ads in predictions for rank, ad in enumerate(ads, start=1)]
    columns = dict(zip(("query", "ad", "rank"), zip(*rows, strict=True), strict=True))
    rates = bad_match_rates(names, pa.table({name: list(cells) for name, cells in columns.items()}))

    def of_kinds(text, kinds):
        return {word for word in text.split() if KIND_OF.get(word) in kinds}

    def is_bad(query, ad, kind):
        in_query, in_ad = of_kinds(query, [kind]), of_kinds(ad, [kind])
        return bool(in_query and in_ad) and not in_query & in_ad

    for prefix, kinds in {"brand/": ["brand"], "place/": ["place"], "": ["brand", "place"]}.items():
        named = [row for row in rows if of_kinds(row[0], kinds)]
        share = sum(rank == 1 for _, _, rank in named) / len(predictions)
        assert rates[f"{prefix}named_queries"] == pytest.approx(share)
        for k in (1, 3, 5):
            pairs = [(query, ad) for query, ad, rank in named if rank <= k]
            bad = sum(any(is_bad(*pair, kind) for kind in kinds) for pair in pairs)
            assert rates[f"{prefix}BMR@{k}"] == pytest.approx(bad / max(len(pairs), 1))
    assert len(rates) == 12
