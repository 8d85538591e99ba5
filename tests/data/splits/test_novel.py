"""Novel splits against plain loops, and what is measured on them."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from random_datasets import random_dataset, rows_in
from support import MAX_LENGTH, errors_in, prepare_in_process
from written_out import plain

from jobs import ingest
from ramen_ray.data.splits.novel import NovelSettings, make_novel_split
from ramen_ray.data.store.dataset import Dataset, DatasetError


def _clicks(dataset, split):
    """Weights of all clicks by the query's text and id of the user's, and the ad."""
    return {
        (row["text"], row.get("source_id", ""), ad): weight
        for row in dataset.read(f"queries/{split}").to_pylist()
        for ad, weight in zip(row["ad_ids"], row.get("weights", row["ad_ids"]), strict=True)
    }


def _query_texts(dataset, split):
    rows = dataset.read(f"queries/{split}").to_pylist()
    assert sorted(row["query_id"] for row in rows) == list(range(len(rows)))
    assert all(row["ad_ids"] for row in rows) or split == "train"
    return {row["query_id"]: row["text"] for row in rows}


def _pairs(dataset, table, split, queries=None, others=None):
    """The rows of filters or query edges, by the query's text; of some queries and other ends."""
    texts = _query_texts(dataset, split)
    rows = [(texts[row.pop("query_id")], *row.values()) for row in rows_in(dataset, table)]
    return Counter(
        row
        for row in rows
        if (queries is None or row[0] in queries) and (others is None or row[1] in others)
    )


cases = st.builds(
    NovelSettings,
    novel_fraction=st.floats(0.15, 0.7),
    one_shot=st.booleans(),
    seed=st.integers(0, 2**31 - 1),
    keep_ad_edges=st.booleans(),
    unseen_texts=st.booleans(),
)


@settings(max_examples=4)
@given(st.integers(0, 10**6), st.integers(4, 14), cases)
def test_a_split_is_what_plain_loops_make_of_the_rule(dataset_seed, num_ads, case):
    with TemporaryDirectory() as folder:
        parent = random_dataset(Path(folder) / "parent", dataset_seed, num_ads, last_ad="AD 0")
        try:
            split = make_novel_split(parent.path, Path(folder) / "split", case)
        except DatasetError as error:
            event("a split would be empty")
            assert str(parent.path) in str(error)
            assert [path.name for path in Path(folder).iterdir()] == ["parent"]
            return
        assert errors_in(split) == []
        novel = set(split.read("novel_ads")["ad_id"].to_pylist())
        assert len(novel) == split.num_rows("novel_ads") == round(case.novel_fraction * num_ads)
        ads = {row["ad_id"]: row["text"] for row in rows_in(parent, "ads")}
        known_as = {plain(ads[ad]) for ad in novel}
        _assert_clicks_follow(parent, split, novel, known_as, case)
        _assert_filters_follow(parent, split, novel, set(ads) - novel)
        _assert_edges_follow(parent, split, set() if case.keep_ad_edges else known_as)
        for table in ("ads", "queries/test", "filters/test"):
            assert rows_in(split, table) == rows_in(parent, table)


def _assert_clicks_follow(parent, split, novel, known_as, case):
    out = known_as if case.unseen_texts else set()
    hidden = {row["ad_id"] for row in rows_in(parent, "ads") if plain(row["text"]) in out} | novel
    texts = [text for text in _query_texts(parent, "train").values() if plain(text) not in out]
    before = {key: w for key, w in _clicks(parent, "train").items() if key[0] in texts}
    after = _clicks(split, "train")
    revealed = {click for click in after if click[2] in novel}
    clicked = {click[2] for click in before} & novel
    assert sorted(click[2] for click in revealed) == (sorted(clicked) if case.one_shot else [])
    assert after == {
        click: weight
        for click, weight in before.items()
        if click[2] not in hidden or click in revealed
    }
    without_clicks = set(texts) - {query for query, _, _ in before}
    left = {query for query, _, _ in after} | without_clicks
    assert set(_query_texts(split, "train").values()) == left
    for source, target in (("validation", "validation"), ("test", "zero_shot")):
        is_novel = target == "zero_shot"
        before = _clicks(parent, source)
        expected = {click: w for click, w in before.items() if (click[2] in novel) == is_novel}
        assert _clicks(split, target) == expected


def _assert_filters_follow(parent, split, novel, seen):
    for source, target, ads in (("validation", "validation", seen), ("test", "zero_shot", novel)):
        kept = set(_query_texts(split, target).values())
        expected = _pairs(parent, f"filters/{source}", source, kept, ads)
        assert _pairs(split, f"filters/{target}", target) == expected


def _assert_edges_follow(parent, split, cut):
    """Edges with an end that has a text of ``cut`` are gone, and those of queries that are."""
    ads = {row["ad_id"]: plain(row["text"]) for row in rows_in(parent, "ads")}
    queries = set(_query_texts(split, "train").values())
    queries = {text for text in queries if plain(text) not in cut}
    for name in parent.anchor_sets:
        rows = rows_in(parent, f"anchors/{name}")
        left = {row["anchor_id"] for row in rows if plain(row["text"]) not in cut}
        by_query = _pairs(parent, f"edges/{name}/query", "train", queries, left)
        by_ad = [
            tuple(row.values())
            for row in rows_in(parent, f"edges/{name}/ad")
            if ads[row["ad_id"]] not in cut and row["anchor_id"] in left
        ]
        assert _pairs(split, f"edges/{name}/query", "train") == by_query
        written = [tuple(row.values()) for row in rows_in(split, f"edges/{name}/ad")]
        assert written == sorted(by_ad)
        assert split.has(f"anchors/{name}") == bool(by_query or by_ad)
        if by_query or by_ad:
            assert rows_in(split, f"anchors/{name}") == rows


@pytest.mark.parametrize(
    ("flag", "value", "place"),
    [
        ("--novel-fraction", "nan", "novel fraction"),
        ("--novel-fraction", "0.99", "novel fraction"),
        ("--novel-fraction", "0.97", "novel fraction"),
        ("--output", "/proc", "/proc"),
        ("--dataset", "no/such/folder", "no/such/folder"),
    ],
)
def test_an_impossible_split_is_one_clear_line(flag, value, place, dataset_path, tmp_path, refused):
    known = ["--dataset", dataset_path, "--output", tmp_path / "split"]
    assert place in refused(ingest, "novel", *known, flag, value)
    assert list(tmp_path.iterdir()) == []


def test_a_split_is_not_split_again(split_path, tmp_path):
    with pytest.raises(DatasetError, match=str(split_path)):
        make_novel_split(split_path, tmp_path / "again", NovelSettings(0.3))


def test_each_split_is_searched_among_its_ads(split_path, prepared, encoder_path, tmp_path):
    dataset = Dataset(split_path)
    data = prepare_in_process(dataset, tmp_path, str(encoder_path), MAX_LENGTH, True)
    novel = set(dataset.read("novel_ads")["ad_id"].to_pylist())
    every = set(range(40))
    assert len(novel) == 12
    for split, ads in (("validation", every - novel), ("test", every), ("zero_shot", novel)):
        assert data.candidates(split).tolist() == sorted(ads)
    assert prepared.splits == ["train", "validation", "test"]
    assert prepared.candidates("validation").tolist() == list(range(40))
