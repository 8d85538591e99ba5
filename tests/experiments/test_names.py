"""Names in texts, and the bad match rate, against plain loops."""

import re
import unicodedata
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.names import NameList, bad_match_rates, read_names
from ramen_ray.data.store.dataset import DatasetError


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


def test_an_alias_of_no_name_is_refused_by_its_row(tmp_path):
    with pytest.raises(DatasetError, match=r"names\.csv.* row 2, column 'same_as'"):
        _list_of(tmp_path, "place,nyc,new york")


texts = st.lists(st.sampled_from(["sony", "acer", "york", "oslo", "tv"]), max_size=3).map(" ".join)
predictions = st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=6)), min_size=1)
KIND_OF = {"sony": "brand", "acer": "brand", "york": "place", "oslo": "place"}


@given(predictions)
def test_bad_match_rates_are_what_plain_loops_count(tmp_path_factory, predictions):
    folder = tmp_path_factory.mktemp("names")
    lines = [f"{kind},{name}" for name, kind in KIND_OF.items()]
    names = _list_of(folder, *lines, header="kind,name")
    rows = [(query, ad, rank) for query, ads in predictions for rank, ad in enumerate(ads, start=1)]
    columns = dict(zip(("query", "ad", "rank"), zip(*rows, strict=True), strict=True))
    rates = bad_match_rates(names, pa.table({name: list(cells) for name, cells in columns.items()}))

    def of_kinds(text: str, kinds: list[str]) -> set[str]:
        return {word for word in text.split() if KIND_OF.get(word) in kinds}

    def is_bad(query: str, ad: str, kind: str) -> bool:
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
