"""Judgements of an import, and what becomes of them in other datasets, against plain loops."""

import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from random_datasets import random_dataset
from support import errors_in, import_in_process, with_tables, write_rows
from written_out import click_weights_of, clicks_of, column_of, judged_of, plain

from ramen_ray.data.splits.judged import JudgedTable, add_judgements
from ramen_ray.data.splits.novel import NovelSettings, make_novel_split
from ramen_ray.data.splits.sample import sample_dataset
from ramen_ray.data.store import dataset as store
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.made_folder import in_use
from ramen_ray.data.store.schemas import JUDGED, JUDGEMENTS, SPLITS
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import Columns, Splits, UserTables

NUM_QUERIES = 60
NUM_ADS = 9
BEST = 3


def _all_judged(dataset):
    return {split: judged_of(dataset, split) for split in SPLITS}


@pytest.fixture(scope="module")
def drawn():
    """Judgements, some of them of the same pair, by the same source or another."""
    draw = np.random.default_rng(0)
    sources = np.array(["human", "teacher"])
    return [
        (f"query {query}", f"ad {ad}", sources[source], int(grade))
        for query, ad, source, grade in zip(
            draw.integers(0, NUM_QUERIES, 500),
            draw.integers(0, NUM_ADS, 500),
            draw.integers(0, 2, 500),
            draw.integers(0, BEST + 1, 500),
            strict=True,
        )
    ]


def _tables(folder, judged):
    """Write clicks over ten days, in which later queries come back, and the judgements."""
    draw = np.random.default_rng(1)
    clicks = [
        (f"query {query}", f"ad {draw.integers(NUM_ADS)}", f"2026-03-{day + 1:02d}")
        for day in range(10)
        for query in {*draw.integers(0, NUM_QUERIES, 20), 6 * day}
    ]
    clicks += [("Query  7", "ad 1", "2026-03-10"), ("query 7", "ad 1", "2026-03-01")]
    clicks += [("query 8", f"ad {ad}", "2026-03-01") for ad in range(NUM_ADS)]
    every = [(f"query {query}", f"ad {query % NUM_ADS}", "2026-03-02") for query in range(60)]
    return UserTables(
        write_rows(folder / "clicks.csv", "query ad day", clicks + every),
        judged=write_rows(folder / "judged.csv", "query ad by level", judged),
        judged_highest=BEST,
        columns=Columns(clicks_time="day", judged_grade="level", judged_source="by"),
    )


def _given(judged):
    return JudgedTable(judged, BEST, grade="level", source="by")


DAYS = {"validation_from": "2026-03-05", "test_from": "2026-03-08"}
SPLITTINGS = {
    "drawn": Splits(test_fraction=0.2, validation_fraction=0.2),
    "new-queries": Splits(**DAYS),
    "later-clicks": Splits(**DAYS, held_out="later-clicks"),
}


@pytest.mark.parametrize("by_time", [False, True])
def test_judgements_are_imported_as_plain_loops_would(by_time, drawn, tmp_path):
    tables = _tables(tmp_path, drawn)
    splits = SPLITTINGS["later-clicks" if by_time else "drawn"]
    tables = replace(tables, splits=splits, max_clicks_per_query=9)
    dataset, findings = import_in_process(tables, tmp_path / "out")
    assert findings == errors_in(dataset) == []
    last = {plain(text): split for split in SPLITS for text in clicks_of(dataset, split)}
    given = defaultdict(list)
    for query, ad, source, level in drawn:
        given[query, ad, source].append(level / BEST)
    for split in SPLITS:
        asked = clicks_of(dataset, split)
        expected = {
            pair: pytest.approx(sum(grades) / len(grades))
            for pair, grades in given.items()
            if last.get(plain(pair[0])) == split and pair[0] in asked
        }
        assert judged_of(dataset, split) == expected
    assert "query 8" not in last, "it is left out as a bot, with its judgements"
    assert all(_all_judged(dataset).values())


BAD_ROWS = {
    "query 1,ad 1,human,4": "'level'",
    "query 1,ad 1,human,-1": "'level'",
    "query 1,ad 1,human,nan": "'level'",
    "query 1,ad 1,,2": "'by'",
    "no query,ad 1,human,2": "'query'",
    "query 1,no ad,human,2": "'ad'",
}


def test_bad_judgements_are_refused_or_left_out(drawn, tmp_path):
    tables = _tables(tmp_path, drawn)
    dataset = import_tables(tables, tmp_path / "expected")
    file = tmp_path / "judged.csv"
    fine = file.read_text()
    for row, column in BAD_ROWS.items():
        file.write_text(f"{fine}{row}\n")
        with pytest.raises(DatasetError, match=f"judged.csv, row 502, column {column}"):
            add_judgements(dataset, _given(tables.judged), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    file.write_text("\n".join([fine.removesuffix("\n"), *BAD_ROWS, ""]))
    with pytest.raises(DatasetError, match=r"judged.csv, row 502, column 'level': 3 cells"):
        import_tables(tables, tmp_path / "out")
    lenient = import_tables(replace(tables, skip_bad_rows=True), tmp_path / "out")
    assert _all_judged(lenient) == _all_judged(dataset)


def test_judgements_without_sources_have_one(tmp_path):
    tables = _tables(tmp_path, [("query 1", "ad 1", "", 1), ("query 2", "ad 1", "", 0)])
    given = replace(tables, columns=Columns(judged_grade="level"), judged_highest=2)
    rows = _all_judged(import_tables(given, tmp_path / "out")).values()
    assert {pair: grade for grades in rows for pair, grade in grades.items()} == {
        ("query 1", "ad 1", "given"): 0.5,
        ("query 2", "ad 1", "given"): 0.0,
    }


def test_judgements_follow_queries_and_ads_into_other_datasets(tmp_path):
    parent = random_dataset(tmp_path / "parent", 0)
    tables = {}
    draw = np.random.default_rng(0)
    for split in SPLITS:
        num_queries = parent.num_rows(f"queries/{split}")
        num_ads = parent.num_rows("ads")
        pairs = draw.choice(num_queries * num_ads, num_queries * num_ads // 3, replace=False)
        grades = draw.random(len(pairs))
        columns = [pairs // num_ads, pairs % num_ads, ["human"] * len(pairs), grades]
        tables[f"judged/{split}"] = pa.table(columns, schema=JUDGEMENTS)
    whole = with_tables(parent, tmp_path / "whole", tables)
    novel = make_novel_split(whole.path, tmp_path / "novel", NovelSettings(0.3))
    sample = sample_dataset(whole.path, tmp_path / "sample", 6)
    new = {column_of(novel, "ads")[ad] for ad in novel.read("novel_ads")["ad_id"].to_pylist()}
    assert errors_in(novel) == errors_in(sample) == []
    for made in (novel, sample):
        ads = {*column_of(made, "ads")}
        for split in SPLITS:
            known = ads - new if made is novel and split != "test" else ads
            queries = {*column_of(made, f"queries/{split}")}
            assert judged_of(made, split) == {
                pair: grade
                for pair, grade in judged_of(whole, split).items()
                if pair[0] in queries and pair[1] in known
            }


@pytest.mark.parametrize("by_time", [False, True])
def test_judgements_added_later_are_those_of_an_import_with_them(by_time, drawn, tmp_path):
    only_train = [("query 90", f"ad {ad}", "2026-03-01") for ad in range(3)]
    later = [("QUERY 90", "ad 1", "2026-03-10")]
    tables = _tables(tmp_path, [*drawn, ("query 90", "ad 1", "human", 2)])
    with Path(tables.clicks).open("a") as file:
        file.writelines(f"{','.join(row)}\n" for row in only_train + later)
    splits = SPLITTINGS["later-clicks" if by_time else "drawn"]
    whole = import_tables(replace(tables, splits=splits), tmp_path / "whole")
    without = UserTables(tables.clicks, columns=Columns(clicks_time="day"), splits=splits)
    parent = import_tables(without, tmp_path / "parent")
    assert not {*parent.tables} & {*JUDGED}
    made = add_judgements(parent, _given(tables.judged), tmp_path / "made")
    assert errors_in(made) == []
    assert made.tables == whole.tables
    for split in SPLITS:
        expected = judged_of(whole, split).items()
        assert judged_of(made, split) == {pair: pytest.approx(grade) for pair, grade in expected}
        assert clicks_of(made, split) == clicks_of(whole, split)
    new = [("query 1", "ad 1", "human", 3), ("query 2", "ad 1", "teacher", 0)]
    last = write_rows(tmp_path / "new.csv", "query ad by level", new)
    changed = _all_judged(add_judgements(made, _given(last)))
    assert errors_in(Dataset(made.path)) == []
    assert sum(map(len, changed.values())) >= sum(map(len, _all_judged(whole).values()))
    replaced = {(query, ad, source): level / BEST for query, ad, source, level in new}
    for split in SPLITS:
        stays = judged_of(whole, split)
        grades = {pair: replaced.get(pair, stays.get(pair)) for pair in changed[split]}
        assert stays.keys() <= grades.keys() <= stays.keys() | replaced.keys()
        assert changed[split] == {pair: pytest.approx(grade) for pair, grade in grades.items()}


def test_judgements_are_put_whole_into_a_directory_that_no_job_uses(tmp_path, monkeypatch):
    tables = _tables(tmp_path, [("query 1", "ad 1", "human", 3), ("query 2", "ad 1", "human", 0)])
    dataset = import_tables(UserTables(tables.clicks), tmp_path / "out")
    given = _given(tables.judged)
    with in_use(dataset.path), pytest.raises(DatasetError, match="in use by a job"):
        add_judgements(dataset, given)
    with monkeypatch.context() as patched:
        patched.setattr(store, "write_metadata", lambda *_: sys.exit("as if it were killed"))
        with pytest.raises(SystemExit):
            add_judgements(dataset, given)
    assert not {*Dataset(dataset.path).tables} & {*JUDGED}
    assert errors_in(Dataset(dataset.path)) == []
    made = add_judgements(Dataset(dataset.path), given)
    assert sum(map(len, _all_judged(made).values())) == 2
    assert errors_in(made) == []


VIEWS = Columns(
    clicks_weight="clicks", clicks_time="day", clicks_views="views", clicks_position="at"
)


@pytest.fixture(scope="module")
def log():
    """Rows of query, ad, day, clicks, views and position; a bot clicks on all that it sees."""
    draw = np.random.default_rng(0)
    rows = [("bot", f"ad {ad}", "2026-03-01", 500, 500, 1) for ad in range(NUM_ADS)]
    rows += [(f"once {query}", "ad 1", "2026-03-01", 1, 1, 1) for query in range(3)]
    for query in range(40):
        for ad in draw.choice(NUM_ADS, 6, replace=False):
            for day in draw.integers(1 + query // 6, 10, 2):
                views = int(draw.integers(1, 40))
                at = int(draw.integers(1, 4))
                clicks = 0 if (query + ad) % 3 else int(draw.binomial(views, 0.5 / at))
                rows.append((f"query {query}", f"ad {ad}", f"2026-03-{day:02d}", clicks, views, at))
    return rows


def _expected(rows, splits):
    """Return clicks and expected clicks by pair and period, of periods that count."""
    has_time = splits.test_from is not None
    periods = [has_time * ((day >= "2026-03-05") + (day >= "2026-03-08")) for _, _, day, *_ in rows]
    first = {}
    for row, period in zip(rows, periods, strict=True):
        if row[3] and row[0] != "bot":
            first[row[0]] = min(first.get(row[0], 2), period)
    counted = [
        (row, period)
        for row, period in zip(rows, periods, strict=True)
        if row[0] in first and (splits.held_out == "later-clicks" or first[row[0]] == period)
    ]
    clicks = defaultdict(int)
    views = defaultdict(int)
    for (_, _, _, clicked, seen, at), period in counted:
        clicks[period, at] += clicked
        views[period, at] += seen
    pairs = defaultdict(lambda: np.zeros(2))
    for (query, ad, _, clicked, seen, at), period in counted:
        pairs[query, ad, period] += [clicked, seen * clicks[period, at] / views[period, at]]
    return pairs


@pytest.mark.parametrize("name", SPLITTINGS)
def test_impressions_weigh_clicks_and_judge_ads_as_plain_loops_would(name, log, tmp_path):
    splits = SPLITTINGS[name]
    least = 4.0
    tables = UserTables(
        write_rows(tmp_path / "log.csv", "query ad day clicks views at", log),
        columns=VIEWS,
        splits=splits,
        weights="coec",
        min_expected=least,
        max_clicks_per_query=1000,
    )
    dataset, findings = import_in_process(tables, tmp_path / "out")
    assert findings == errors_in(dataset) == []
    pairs = _expected(log, splits)
    last = {text: split for split in SPLITS for text in clicks_of(dataset, split)}
    clicked = {(query, ad) for (query, ad, _), (clicks, _) in pairs.items() if clicks}
    refused = {
        (query, ad, "shown")
        for (query, ad, _), (clicks, expected) in pairs.items()
        if expected >= least and (query, ad) not in clicked
    }
    for number, split in enumerate(SPLITS):
        weights = {}
        for (query, ad, period), (clicks, expected) in pairs.items():
            is_there = last[query] == split if name != "later-clicks" else period == number
            if clicks and is_there:
                coec = (clicks + 1) / (expected + 1)
                weights[query, ad] = pytest.approx(coec if split == "train" else clicks)
        assert weights == click_weights_of(dataset, split)
        judged = judged_of(dataset, split)
        assert judged == {key: 0.0 for key in refused if last[key[0]] == split}
    assert len(refused) > 15
    assert _all_judged(dataset)["train"]


@pytest.mark.parametrize("at_one_position", [False, True])
def test_rows_without_clicks_are_impressions(at_one_position, log, tmp_path):
    """Rows of one impression each say the same as their sums, at positions from 0 or from 1.

    Where all are at one position, it need not be given.
    """
    summed = [(*row[:-1], 4 if at_one_position else row[-1]) for row in log]
    single = [
        (query, ad, day, int(number < clicks), at - 1)
        for query, ad, day, clicks, views, at in summed
        for number in range(views)
    ]
    position = None if at_one_position else "at"
    of_rows = Columns(clicks_weight="clicks", clicks_position=position)
    made = []
    for rows, columns in ((summed, VIEWS), (single, of_rows)):
        names = "query ad day clicks views at" if columns is VIEWS else "query ad day clicks at"
        clicks = write_rows(tmp_path / f"{len(rows)}.csv", names, rows)
        tables = UserTables(clicks, columns=columns, weights="coec", min_expected=3.0)
        made.append(import_tables(tables, tmp_path / f"{len(rows)}"))
    for table in made[0].tables:
        assert made[0].read(table).equals(made[1].read(table)), table


BAD_VIEWS = {
    "query 1,ad 1,2026-03-01,3,2,1": "row 2, column 'views'",
    "query 1,ad 1,2026-03-01,1,2,-1": "row 2, column 'at'",
    "query 1,ad 1,2026-03-01,nan,2,1": "row 2, column 'clicks'",
    "query 1,ad 1,2026-03-01,2,2,1": "no impression without a click",
}


@pytest.mark.parametrize(("row", "told"), BAD_VIEWS.items())
def test_impressions_that_cannot_be_are_refused(row, told, tmp_path):
    rows = [row.split(","), *([f"query {n}", "ad 2", "2026-03-01", 2, 2, 1] for n in range(60))]
    file = write_rows(tmp_path / "log.csv", "query ad day clicks views at", rows)
    with pytest.raises(DatasetError, match=told):
        import_tables(UserTables(file, columns=VIEWS, weights="coec"), tmp_path / "out")
