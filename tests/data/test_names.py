"""Names in texts, and the bad match rate, against plain loops."""

import re
import unicodedata
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from support import ROOT, query_table, text_table

from ramen_ray.data.names import NameList, read_names
from ramen_ray.data.store.dataset import DatasetError, write_dataset
from ramen_ray.method.metrics.ranking import bad_match_metrics


def _list_of(folder: Path, *lines: str, header: str = "kind,name,same_as") -> NameList:
    file = folder / "names.csv"
    file.write_text("\n".join((header, *lines)) + "\n", encoding="utf-8")
    return read_names(str(file))


def _named(names: NameList, text: str) -> list[int]:
    return names.find(pa.array([text]))[1].tolist()


def _words(text: str) -> list[str]:
    folded = unicodedata.normalize("NFKD", text).lower()
    letters = "".join(
        c if c in "+#" or unicodedata.category(c)[0] in "LMN" else " " for c in folded
    )
    return re.findall(r"[^\s+#]+[+#]*", letters)


def _named_by_loops(names: list[tuple[str, str]], text: str) -> set[tuple[str, str]]:
    """The entities that ``text`` names: all spans of names except those inside longer spans."""
    words = _words(text)
    spans = {
        (start, start + len(_words(name)), kind, " ".join(_words(name)))
        for kind, name in names
        for start in range(len(words))
        if words[start : start + len(_words(name))] == _words(name)
    }
    return {
        (kind, name)
        for start, stop, kind, name in spans
        if not any(a <= start and stop <= b and b - a > stop - start for a, b, _, _ in spans)
    }


word = st.sampled_from(["new", "York", "CITY", "c", "c++", "É", "e\u0301", "ﬁ", "a1", "的"])
space = st.sampled_from([" ", "  ", "-", "_", ", ", "\n", "'", "+", ""])
phrase = st.builds(
    lambda parts: "".join(part for pair in parts for part in pair),
    st.lists(st.tuples(word, space), max_size=6),
)
name = st.tuples(st.sampled_from(["brand", "place"]), phrase.filter(_words))


@given(st.lists(name, min_size=1, max_size=8), st.lists(phrase, max_size=5))
@example([("place", "new york"), ("place", "york city")], ["New York City", "", "york"])
@example([("place", "york"), ("place", "York"), ("brand", "york")], ["york"])
def test_names_are_found_as_plain_loops_find_them(names, texts):
    with TemporaryDirectory() as folder:
        file = Path(folder) / "names.parquet"
        columns = zip(("kind", "name"), zip(*names, strict=True), strict=True)
        pq.write_table(pa.table(dict(columns)), file)
        found = read_names(str(file))
    labels: dict[int, tuple[str, str]] = {}
    for kind, one in names:
        same = [n for n in _named(found, one) if found.kinds[found.kind_of[n]] == kind]
        assert len(same) == 1
        labels[same[0]] = (kind, " ".join(_words(one)))
    rows, named = found.find(pa.array(texts, pa.string()))
    for row, text in enumerate(texts):
        expected = _named_by_loops(names, text)
        assert sorted(labels[n] for n in named[rows == row].tolist()) == sorted(expected)


def test_words_names_and_aliases(tmp_path):
    names = _list_of(
        tmp_path,
        "place,New York,",
        "place,NYC,new york",
        "Place,york,",
        "brand,york,",
        "brand,New York Times,",
        "brand,C++,",
        "brand,at&t,",
    )
    assert names.kinds == ["place", "brand"]
    york, times = _named(names, "york"), _named(names, "the new-york times today")
    assert {names.kinds[names.kind_of[n]] for n in york} == {"brand", "place"}
    assert len(times) == 1
    assert _named(names, "hotels NEW  york") == _named(names, "nyc hotels")
    assert set(_named(names, "new york")).isdisjoint(york)
    assert _named(names, "yorkshire, newyork and C#") == []
    assert _named(names, "AT&T phone") == _named(names, "at t") != []
    assert len(_named(names, "C++ in york, new york")) == 4


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["place"], "row 2: 1 lines have 1 cells instead of 3"),
        ([], "names.csv holds no names"),
        ([",paris,"], "row 2, column 'kind': 1 cells are empty"),
        (["place,rome,", "place, ,"], "row 3, column 'name': 1 names need a letter or a digit"),
        (["place,&,"], "names need a letter or a digit: '&'"),
        (["place,nyc,new york"], "row 2, column 'same_as': 1 are not a name of the kind"),
        (["place,a,b", "place,b,c", "place,c,"], "row 2, column 'same_as': 1 are not a name"),
        (["place,a,", "brand,b,a"], "row 3, column 'same_as': 1 are not a name of the kind"),
        (
            ["place,a,", "place,b,", "place,x,a", "place,X,b"],
            "row 4, column 'name': 2 same names have another same_as: 'x', 'X'",
        ),
        (["place,a,", "place,b,", "place,a,b"], "same names have another same_as: 'a', 'a'"),
    ],
)
def test_what_is_wrong_with_a_list_of_names(lines, message, tmp_path):
    with pytest.raises(DatasetError, match=re.escape(message)) as raised:
        _list_of(tmp_path, *lines)
    assert "names.csv" in str(raised.value)


def test_a_list_of_names_that_cannot_be_read(tmp_path):
    with pytest.raises(DatasetError, match="has no column 'name'; it has kind, brand"):
        _list_of(tmp_path, "a,b", header="kind,brand")
    with pytest.raises(DatasetError, match=r"there is no file or folder .*/none.csv"):
        read_names(str(tmp_path / "none.csv"))
    lines = tmp_path / "names.jsonl"
    lines.write_text('{"kind": "place", "name": "rome"}\n')
    with pytest.raises(DatasetError, match=r"names\.jsonl: .* must be CSV, TSV or parquet"):
        read_names(str(lines))


def test_rows_of_a_table_come_by_id(tmp_path):
    names = _list_of(tmp_path, "place,rome,", "place,oslo,")
    ads = text_table("ad_id", ["rome", "no one", "oslo and rome", "oslo", "rome"])
    queries = query_table(["oslo"], [[0]])
    tables = {f"queries/{split}": queries for split in ("train", "validation", "test")}
    dataset = write_dataset(tmp_path / "data", {"ads": ads[::-1], **tables}, name="cities")
    rome, oslo = (_named(names, city)[0] for city in ("rome", "oslo"))
    every = names.find_in_table(dataset, "ads").toarray()
    assert every[:, rome].tolist() == [True, False, True, False, True]
    assert every[:, oslo].tolist() == [False, False, True, True, False]
    some = names.find_in_table(dataset, "ads", np.array([2, 4])).toarray()
    assert np.flatnonzero(some.any(axis=1)).tolist() == [2, 4]
    assert names.find_in_table(dataset, "ads", np.empty(0, np.int64)).nnz == 0


def _incidence(rows: list[set[int]], num_named: int) -> csr_array:
    dense = np.zeros((len(rows), num_named), dtype=np.bool_)
    for row, named in enumerate(rows):
        dense[row, list(named)] = True
    return csr_array(dense)


NUM_NAMED, NUM_ADS = 5, 6
named_sets = st.sets(st.integers(0, NUM_NAMED - 1), max_size=3)
predicted = st.lists(st.integers(0, NUM_ADS - 1), max_size=6, unique=True)


@given(
    st.lists(st.tuples(named_sets, predicted), min_size=1, max_size=6),
    st.lists(named_sets, min_size=NUM_ADS, max_size=NUM_ADS),
    st.lists(st.integers(0, 2), min_size=NUM_NAMED, max_size=NUM_NAMED),
)
def test_bad_match_rates_are_what_plain_loops_count(queries, ads, kind_of):
    kinds = ["brand", "place", "unused"]
    topk = np.full((len(queries), 6), -1)
    for row, (_, found) in enumerate(queries):
        topk[row, : len(found)] = found
    metrics = bad_match_metrics(
        topk,
        _incidence([named for named, _ in queries], NUM_NAMED),
        _incidence(ads, NUM_NAMED),
        np.array(kind_of),
        kinds,
    )

    def of(named: set[int], kind: int) -> set[int]:
        return {one for one in named if kind_of[one] == kind}

    def is_bad(query: set[int], ad: set[int], kind: int) -> bool:
        return bool(of(query, kind) and of(ad, kind)) and not of(query, kind) & of(ad, kind)

    for prefix, chosen in {"brand/": [0], "place/": [1], "unused/": [2], "": [0, 1, 2]}.items():
        named_rows = [row for row in queries if any(of(row[0], kind) for kind in chosen)]
        assert metrics[f"{prefix}named_queries"] == pytest.approx(len(named_rows) / len(queries))
        for k in (1, 3, 5):
            pairs = [(query, ads[ad]) for query, found in named_rows for ad in found[:k]]
            bad = sum(any(is_bad(*pair, kind) for kind in chosen) for pair in pairs)
            assert metrics[f"{prefix}BMR@{k}"] == pytest.approx(bad / max(len(pairs), 1))
    assert len(metrics) == 16


def test_the_built_in_list_can_be_read():
    names = read_names(str(ROOT / "datasets" / "debian" / "names.csv"))
    assert names.kinds == ["desktop", "language"]
    assert _named(names, "libghc-x: Haskell bindings") == _named(names, "ghc")
