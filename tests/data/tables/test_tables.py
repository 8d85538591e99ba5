"""A user's own tables against plain loops over the same rows."""

import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import PATIENCE_S, ROOT, errors_in, import_in_process, wait_until, write_rows
from written_out import clicked_pairs, column_of, edge_weights_of, plain

from jobs import ingest
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import Columns, Splits, UserTables
from ramen_ray.data.tables.reading import records

QUERY_TEXTS = ["red shoes", "Red  Shoes", "red shoes ", "boots", "hat", "HAT", "socks", "gloves"]
WITH_IDS = Columns(clicks_weight="count", clicks_time="day")
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 9), st.integers(0, 6), st.integers(1, 3), st.sampled_from(range(1, 29))
    ),
    min_size=30,
    max_size=80,
)

VALIDATION_DAY = 5
TEST_DAY = 9
SOME_LIMITS = st.fixed_dictionaries(
    {
        "max_clicks_per_query": st.sampled_from([1000.0, 9.0]),
        "min_click_weight": st.sampled_from([0.0, 3.0]),
        "min_queries_per_ad": st.sampled_from([0, 2]),
    }
)


def _write_shop(folder, events):
    """Write the three tables; queries 8 and 9 have ids of earlier ones."""
    ids = [f"q{n}" for n in [*range(8), 2, 3]]
    texts = [*QUERY_TEXTS, "red shoes ", "another text"]
    write_rows(folder / "queries.csv", "query_id text", zip(ids, texts, strict=True))
    ads = pd.DataFrame({"ad_id": range(100, 107), "text": [f"ad number {n}" for n in range(7)]})
    ads.to_json(folder / "ads.jsonl", orient="records", lines=True)
    rows = [(ids[q], 100 + ad, count, f"2026-03-{day:02d}") for q, ad, count, day in events]
    clicks = pd.DataFrame(rows, columns=["query_id", "ad_id", "count", "day"])
    clicks.to_parquet(folder / "clicks.parquet", row_group_size=13)


def _shop(folder, **changes):
    found = {"clicks": "clicks.parquet", "queries": "queries.csv", "ads": "ads.jsonl"}
    paths = {kind: str(folder / name) for kind, name in found.items()}
    return UserTables(**{**paths, "columns": WITH_IDS, **changes})


def _clicks_of(dataset, split):
    texts = column_of(dataset, "ads")
    return {
        row["text"]: dict(zip((texts[ad] for ad in row["ad_ids"]), row["weights"], strict=True))
        for row in dataset.read(f"queries/{split}").to_pylist()
    }


def _by_loops(events, all_clicks, limits):
    """Split by time with loops; returns {split: {query: {ad: weight}}}, and which ads are kept."""
    text_of = [*QUERY_TEXTS, *QUERY_TEXTS[2:4]]
    sums = defaultdict(float)
    for query, ad, count, day in events:
        sums[text_of[query], ad, (day >= VALIDATION_DAY) + (day >= TEST_DAY)] += count
    until_then = defaultdict(float)
    for (text, _, period), weight in sums.items():
        for later in range(period, 3):
            until_then[text, later] += weight
    light = limits["min_click_weight"]
    most = limits["max_clicks_per_query"]
    sums = {
        (text, ad, period): weight
        for (text, ad, period), weight in sums.items()
        if weight >= light and until_then[text, period] <= most
    }
    first = defaultdict(lambda: 9)
    for text, _, period in sums:
        first[plain(text)] = min(first[plain(text)], period)
    counted = [key for key in sums if all_clicks or key[2] == first[plain(key[0])]]
    train_ads = [ad for _, ad, period in counted if period == 0]
    kept_ads = [ad for ad in range(7) if train_ads.count(ad) >= limits["min_queries_per_ad"]]
    found = {split: defaultdict(dict) for split in SPLITS}
    for text, ad, period in counted:
        if ad in kept_ads:
            found[SPLITS[period]][text][f"ad number {ad}"] = sums[text, ad, period]
    return found, kept_ads


@settings(max_examples=12)
@given(events=EVENTS, held_out=st.sampled_from(["new-queries", "later-clicks"]), limits=SOME_LIMITS)
def test_a_split_by_time_is_that_of_plain_loops(events, held_out, limits, tmp_path_factory):
    """What is held out decides on nothing that is trained on."""
    folder = tmp_path_factory.mktemp("shop")
    _write_shop(folder, events)
    days = (f"2026-03-{day:02d}" for day in (VALIDATION_DAY, TEST_DAY))
    splits = Splits(validation_from=next(days), test_from=next(days), held_out=held_out)
    shop = _shop(folder, splits=splits, **limits)
    expected, kept_ads = _by_loops(events, held_out == "later-clicks", limits)
    if not all(expected.values()):
        with pytest.raises(DatasetError, match="split would have no queries"):
            import_in_process(shop, folder / "out")
        return
    dataset, findings = import_in_process(shop, folder / "out")
    assert findings == []
    assert {split: _clicks_of(dataset, split) for split in SPLITS} == expected
    assert column_of(dataset, "ads", "source_id") == [str(100 + ad) for ad in kept_ads]
    for split in SPLITS:
        for row in dataset.read(f"queries/{split}").to_pylist():
            assert QUERY_TEXTS[int(row["source_id"][1:])] == row["text"]


def _random_shop(folder, name="out", **changes):
    return import_tables(UserTables(str(folder / "clicks.csv"), **changes), folder / name)


def test_reversed_clicks_are_left_out_on_request(tmp_path):
    draw = np.random.default_rng(1)
    names = [f"Page {n}" for n in range(60)]
    pairs = [(names[a], names[b].lower()) for a, b in draw.integers(0, 60, (500, 2)).tolist()]
    write_rows(tmp_path / "clicks.csv", "query ad", pairs)
    made = _random_shop(tmp_path), _random_shop(tmp_path, "kept", drop_reversed_clicks=True)
    whole, kept = ({split: clicked_pairs(one, split) for split in SPLITS} for one in made)
    answers = {(ad, query.lower()) for query, ad in whole["test"] | whole["validation"]}
    left = {one for one in whole["train"] if (one[0].lower(), one[1]) not in answers}
    assert 0 < len(left) < len(whole["train"])
    assert kept == {**whole, "train": left}


def test_a_random_split_keeps_every_click_once_and_texts_apart(tmp_path, caplog):
    caplog.set_level("INFO", "ramen_ray.data.tables.clicks.import_tables")
    pairs = [  # 400 queries, each in two spellings
        (f"{'Query' if n % 3 else 'query'} {n % 400}", f"ad {(n * n) % 37}") for n in range(1600)
    ]
    write_rows(tmp_path / "clicks.csv", "query ad", pairs)
    dataset = _random_shop(tmp_path, splits=Splits(0.2, 0.1))
    assert f"1,600 rows of known queries and ads, {len(set(pairs)):,} different" in caplog.text
    assert dataset.metadata["imported"]["splits"]["test_fraction"] == 0.2
    assert column_of(dataset, "ads") == list(dict.fromkeys(ad for _, ad in pairs))
    assert clicked_pairs(dataset) == set(pairs)
    folded = []
    for split in SPLITS:
        rows = dataset.read(f"queries/{split}").to_pylist()
        folded.append({plain(row["text"]) for row in rows})
        assert all(row["ad_ids"] == sorted(set(row["ad_ids"])) for row in rows)
        assert rows[0].keys() == {"query_id", "text", "ad_ids"}
    assert not (folded[0] & folded[1] | folded[0] & folded[2] | folded[1] & folded[2])
    assert len(folded[2]) == pytest.approx(80, abs=25)
    assert len(folded[1]) == pytest.approx(40, abs=20)
    assert errors_in(dataset) == []


def test_the_same_tables_give_the_same_bytes_with_any_number_of_threads(tmp_path, monkeypatch):
    """Fractions are added in one order, wherever blocks of lines end; the seed gives the split."""
    rng = np.random.default_rng(0)
    rows = {
        "query": [f"query {n}" for n in rng.integers(0, 3000, 60_000)],
        "ad": [f"ad {n}" for n in rng.integers(0, 500, 60_000)],
        "n": rng.random(60_000),
    }
    pd.DataFrame(rows).to_csv(tmp_path / "clicks.csv", index=False)
    columns = Columns(clicks_weight="n")
    found = []
    for threads, block_size in ((1, 1 << 24), (4, 30_000)):
        monkeypatch.setattr(records, "BYTES_PER_BLOCK", block_size)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=threads: set(range(n)))
        found.append(_random_shop(tmp_path, f"out-{threads}", columns=columns).fingerprint)
    assert found[0] == found[1]
    other = _random_shop(tmp_path, "other", columns=columns, splits=Splits(seed=1))
    assert other.fingerprint != found[0]


def test_edges_come_in_with_the_clicks(tmp_path):
    """A query that has two ids has the edges of both; socks and gloves are held out.

    HAT's clicks are later than those of hat and do not count: it stays for its edges.
    """
    _write_shop(tmp_path, [(n % 8, n % 3, 1, 1 + 3 * (n % 8)) for n in range(48)])
    with (tmp_path / "queries.csv").open("a") as queries:
        queries.write("q8,boots\n")
    rows = [(f"q{n}", n % 2, 1.0 + n) for n in range(9)]
    topics = write_rows(tmp_path / "topics.csv", "key title", enumerate(["even", "odd"]))
    listed = {"anchor_id": "key", "anchor_text": "title"}
    shop = _shop(
        tmp_path,
        columns=replace(WITH_IDS, edges_anchor="topic", edges_weight="w", **listed),
        splits=Splits(validation_from="2026-03-16", test_from="2026-03-22"),
        query_edges={"topics": write_rows(tmp_path / "links.csv", "query_id topic w", rows)},
        anchors={"topics": topics},
    )
    dataset, findings = import_in_process(shop, tmp_path / "out")
    assert findings == errors_in(dataset) == []
    train = _clicks_of(dataset, "train")
    expected = defaultdict(float)
    for number, text in enumerate([*QUERY_TEXTS, "boots"]):
        if text in train:
            expected[text, ["even", "odd"][number % 2]] += 1.0 + number
    assert len(train) == 6
    assert [text for text, ads in train.items() if not ads] == ["HAT"]
    assert edge_weights_of(dataset, "topics", "query") == expected


CLICKS = "query_id,ad_id,count,day\n"
GOOD = "".join(f"q{n % 8},{100 + n % 7},1,2026-03-{n % 28 + 1:02d}\n" for n in range(60))


def test_many_bad_rows_of_many_files_are_one_line(tmp_path, caplog):
    _write_shop(tmp_path, [(0, 0, 1, 1)])
    (tmp_path / "clicks").mkdir()
    for number in range(30):
        (tmp_path / "clicks" / f"{number:02d}.csv").write_text(CLICKS + GOOD + "1\n" * 99)
    changes = {"clicks": str(tmp_path / "clicks"), "splits": Splits(0.3, 0.3)}
    with pytest.raises(DatasetError) as error:
        import_tables(_shop(tmp_path, **changes), tmp_path / "out")
    assert re.search(r"00.csv, row 62: 2970 .*in 30 files", str(error.value))
    assert str(error.value).count("\n") == 1
    import_tables(_shop(tmp_path, **changes, skip_bad_rows=True), tmp_path / "out")
    assert sum("cells instead of" in line for line in caplog.messages) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("clicks", CLICKS, "clicks.csv has no rows that can be used"),
        ("queries", "query_id,text\n", "queries.csv has no rows that can be used"),
        ("clicks", f"{CLICKS}zz,1,1,2026-03-01\n", "are query_id and ad_id the right columns"),
    ],
)
def test_tables_without_rows_or_clicks_that_match_nothing_are_refused(
    name, content, message, tmp_path
):
    _write_shop(tmp_path, [(0, 0, 1, 1)])
    (tmp_path / f"{name}.csv").write_text(content)
    tables = _shop(tmp_path, **{name: str(tmp_path / f"{name}.csv")}, skip_bad_rows=True)
    with pytest.raises(DatasetError, match=message):
        import_tables(tables, tmp_path / "out")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_import_that_is_ended_leaves_no_dataset_directory(number, done, tmp_path):
    """End the process in the middle; after SIGKILL, import again with the same command."""
    rows = ((f"q{n % 20_000}", f"ad {n % 3_000}") for n in range(300_000))
    clicks = write_rows(tmp_path / "clicks.csv", "query ad", rows)
    words = ["tables", "--clicks", clicks, "--output", str(tmp_path / "out")]
    command = [sys.executable, str(ROOT / "jobs" / "ingest.py"), *words]
    importing = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    begun = ".ramen_ray-*/content/.ramen_ray-*"
    wait_until(lambda: list(tmp_path.glob(begun)) or importing.poll() is not None, begun)
    assert importing.poll() is None
    importing.send_signal(number)
    _, said = importing.communicate(timeout=PATIENCE_S)
    if number != signal.SIGKILL:
        assert (importing.returncode, said) == (128 + number, "interrupted\n")
        assert [file.name for file in tmp_path.iterdir()] == ["clicks.csv"]
        return
    with pytest.raises(DatasetError, match="out"):
        Dataset(tmp_path / "out")
    assert f"wrote out to {tmp_path / 'out'}" in done(ingest, *words)
    assert {file.name for file in tmp_path.iterdir()} == {"clicks.csv", "out"}
    assert sum(Dataset(tmp_path / "out").num_rows(f"queries/{s}") for s in SPLITS) == 20_000
