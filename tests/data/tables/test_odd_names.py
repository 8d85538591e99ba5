"""Ids and texts as programs change them: said in the import, in graphs and in the index."""

import unicodedata
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import errors_in, import_in_process, write_rows
from written_out import column_of

from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.tables.clicks.settings import Columns, UserTables
from ramen_ray.data.tables.graphs.edges import EdgeList, add_edge_list
from ramen_ray.data.tables.graphs.session_events import SessionLog
from ramen_ray.data.tables.graphs.sessions import SessionSettings, add_co_session
from ramen_ray.data.tables.new_ads import NewAds, read_changes

NUMBERS = range(60)
OTHER_SPELLINGS = {
    "zeros": (lambda n: f"00{n}", lambda n: f"{n}"),
    "a fraction": (lambda n: f"{n}", lambda n: f"{n}.0"),
    "case": (lambda n: f"AB{n}", lambda n: f"ab{n}"),
    "spaces": (lambda n: f"a {n}", lambda n: f" a  {n} "),
    "Unicode forms": (
        lambda n: unicodedata.normalize("NFD", f"é{n}"),
        lambda n: unicodedata.normalize("NFC", f"é{n}"),
    ),
}
SPELLINGS = pytest.mark.parametrize("case", OTHER_SPELLINGS)


def _ads(folder, name=str, first=0):
    rows = ((name(n), f"ad {n}") for n in range(first, 6))
    return write_rows(folder / "ads.csv", "ad_id text", rows)


@SPELLINGS
@pytest.mark.parametrize("given", ["remove", "sync", "ads"])
def test_an_index_is_not_changed_by_ids_in_another_spelling(given, case, tmp_path, caplog):
    known, named = OTHER_SPELLINGS[case]
    ads = pa.table({"ad_id": [known(n) for n in range(6)], "text": [f"ad {n}" for n in range(6)]})
    table = _ads(tmp_path, named, 1)
    with pytest.raises(DatasetError, match="row 2, column 'ad_id': 5 "):
        read_changes(NewAds(**{given: table}), ads)
    rows = [(named(1), "ad 1"), ("new", "x"), ("y", "y")]
    few = write_rows(tmp_path / "few.csv", "ad_id text", rows)
    changes = read_changes(NewAds(**{given: few}, allow_lost_ads=True), ads)
    assert changes.num_unknown == (3 if given == "remove" else 0)
    assert "left out" not in caplog.text


@pytest.mark.parametrize("odd", ["5 ", unicodedata.normalize("NFD", "é")])
def test_ids_that_look_alike_and_differ_are_said_with_their_row(odd, tmp_path, caplog):
    """Graphs and logs of sessions trim names; there only accents differ."""
    rows = [(f"query {n}", n % 6, n // 3, 1_775_000_000 + n) for n in NUMBERS]
    rows[7] = ("query 7", odd, 2, 1_775_000_007)
    clicks = write_rows(tmp_path / "clicks.csv", "query ad_id session_id time", rows)
    names = [*range(6), odd]
    ads = write_rows(tmp_path / "ads.csv", "ad_id text", ((name, f"ad {name}") for name in names))
    shop, findings = import_in_process(UserTables(clicks, ads=ads), tmp_path / "shop")
    places = [(finding.severity, Path(finding.file).name, finding.row) for finding in findings]
    assert places == [("warning", "ads.csv", 8), ("warning", "clicks.csv", 9)]
    caplog.clear()
    read_changes(NewAds(sync=ads), pa.table({"ad_id": ["0", "7"], "text": ["ad 0", "ad 7"]}))
    assert "ads.csv, row 8, column 'ad_id': 1 cells" in caplog.text
    add_co_session(shop.path, SessionLog(clicks), SessionSettings(min_support=1))
    assert ("clicks.csv, row 9, column 'ad_id': 1 cells" in caplog.text) == (odd == odd.strip())


def test_an_id_that_a_table_lists_is_no_word_for_nothing(tmp_path):
    names = ["None", "NA", "null", "1", "2", "3"]
    ads = write_rows(tmp_path / "ads.csv", "ad_id text", ((name, f"ad {name}") for name in names))
    rows = [(f"query {n}", names[n % 6]) for n in NUMBERS]
    clicks = write_rows(tmp_path / "clicks.csv", "query ad_id", rows)
    shop, findings = import_in_process(UserTables(clicks, ads=ads), tmp_path / "out")
    assert (findings, column_of(shop, "ads", "source_id")) == ([], names)
    left = UserTables(clicks, ads=ads, null_words="leave-out")
    shop, _ = import_in_process(left, tmp_path / "left")
    assert column_of(shop, "ads", "source_id") == ["1", "2", "3"]


def test_a_text_of_digits_is_no_number_among_texts(tmp_path):
    """A dataset without ids takes numbers from tables that have nothing else."""
    rows = ((f"query {n}", f"ad {n % 6}") for n in NUMBERS)
    clicks = write_rows(tmp_path / "c.csv", "query ad", rows)
    shop, _ = import_in_process(UserTables(clicks), tmp_path / "shop")
    train = column_of(shop, "queries/train")

    def add(*names):
        rows = ((name, "a") for name in names)
        links = write_rows(tmp_path / "links.csv", "query anchor", rows)
        add_edge_list(shop.path, "links", EdgeList(query_edges=links))

    for names in ((train[0], train[3], "2", "no such query"), ("2", "05")):
        with pytest.raises(DatasetError, match=f"column 'query': 2 .*'2', '{names[-1]}'"):
            add(*names)
    add("2", "5")
    assert column_of(Dataset(shop.path), "edges/links/query", "query_id") == [2, 5]


def test_words_for_nothing_are_left_out_of_joined_texts(tmp_path):
    words = ["NULL", r"\N", "cheap", "", "N/A", "none left"]
    rows = ((n, f"ad {n}", word) for n, word in enumerate(words))
    ads = write_rows(tmp_path / "ads.csv", "ad_id text more", rows)
    rows = ((f"query {n}", n % 6) for n in NUMBERS)
    clicks = write_rows(tmp_path / "c.csv", "query ad_id", rows)
    tables = UserTables(clicks, ads=ads, columns=Columns(ad_text=("text", "more")))
    dataset, (finding,) = import_in_process(tables, tmp_path / "out")
    texts = column_of(dataset, "ads")
    assert texts == ["ad 0", "ad 1", "ad 2 cheap", "ad 3", "ad 4", "ad 5 none left"]
    assert (finding.row, finding.column, finding.message[:7]) == (2, "more", "3 cells")
    kept, _ = import_in_process(replace(tables, null_words="keep"), tmp_path / "kept")
    assert column_of(kept, "ads")[0] == "ad 0 NULL"


def test_columns_to_filter_by_have_any_name(tmp_path):
    names = ("Market", 'a "b"', "^c")
    rows = [(n, f"ad {n}", *(f"{name} {n}" for name in names)) for n in range(6)]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(columns, ["ad_id", "text", *names]), tmp_path / "ads.parquet")
    clicks = write_rows(tmp_path / "c.csv", "query ad_id", ((f"query {n}", n % 6) for n in NUMBERS))
    tables = UserTables(
        clicks, ads=str(tmp_path / "ads.parquet"), columns=Columns(ad_filters=names)
    )
    dataset, _ = import_in_process(tables, tmp_path / "out")
    ads = dataset.read("ads")
    for place, name in enumerate(names, start=2):
        assert ads[f"filter_{name}"].to_pylist() == [row[place] for row in rows]
    assert errors_in(dataset) == []
