"""Malformed dataset directories, each with the exact findings that it must give."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from breaking import (
    Change,
    append,
    cast,
    change_json,
    copy,
    cut,
    edit,
    in_turn,
    remove,
    scribble,
    set_bytes,
    set_cells,
    split,
    write,
)
from support import query_table

from ramen_ray.data.checks.structure import check_structure
from ramen_ray.data.checks.validation import validate
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset, write_metadata
from ramen_ray.data.store.schemas import JUDGED, JUDGEMENTS


@pytest.fixture(scope="module")
def full_path(dataset_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The handmade dataset with every optional table and column."""
    dataset = Dataset(dataset_path)
    tables = {table: dataset.read(table) for table in dataset.tables}
    for table, rows in tables.items():
        if table.split("/")[0] in ("queries", "ads", "anchors"):
            own_ids = pa.array([f"{table}:{number}" for number in range(len(rows))])
            tables[table] = rows.append_column("source_id", own_ids)
    train = tables["queries/train"]
    weights = [[1.0 + ad for ad in ads] for ads in train["ad_ids"].to_pylist()]
    tables["queries/train"] = train.append_column("weights", pa.array(weights))
    texts = ["first of the new", "second of the new", "third of the new"]
    tables["queries/zero_shot"] = query_table(texts, [[36], [37, 38], [36, 39]])
    tables["filters/zero_shot"] = pa.table({"query_id": [0, 1], "ad_id": [38, 39]})
    tables["novel_ads"] = pa.table({"ad_id": [36, 37, 38, 39]})
    for table in JUDGED:
        pairs = [0, 0, 0], [4, 4, 5], ["human", "teacher", "human"], [0.0, 0.5, 1.0]
        tables[table] = pa.table(pairs, JUDGEMENTS.names)
    tables["aliases/query"] = pa.table(
        {"name": ["gone", "merged"], "of": [None, "queries/train:0"]}
    )
    path = tmp_path_factory.mktemp("full") / "full"
    return write_dataset(path, tables, name="full").path


@pytest.fixture
def copied(full_path: Path, tmp_path: Path) -> Path:
    """A dataset directory to break."""
    return shutil.copytree(full_path, tmp_path / "broken")


def _lines(path: Path) -> list[str]:
    """Write out all findings without their advice, which each has."""
    found = validate(Dataset(path))
    assert all(finding.advice for finding in found)
    spelt = [f"{f.severity}: {replace(f, advice='')}" for f in found]
    return [re.sub("(?<=not a readable parquet file):.*", "", line) for line in spelt]


def _spelt(text: str) -> list[str]:
    """Write out lines of "E TABLE:ROW:COLUMN MESSAGE", errors, or "W ...", warnings.

    Row and column may be absent; a file may stand in place of TABLE, as "E @FILE: ...". An indented
    line goes on with the one before it.
    """
    findings = []
    for line in re.sub(r"\n\s{4,}", " ", text.strip()).split("\n"):
        severity = {"E": "error", "W": "warning"}[line[0]]
        if line[2] == "@":
            findings.append(f"{severity}: {line[3:]}")
            continue
        place, _, message = line[2:].partition(" ")
        table, row, column = [*place.split(":"), "", ""][:3]
        folder, _, part = table.rpartition("/")
        file = f"{folder}.parquet/{part}.parquet" if part.isdecimal() else f"{table}.parquet"
        row, column = row and f", row {row}", column and f", column {column!r}"
        findings.append(f"{severity}: {file}{row}{column}: {message}")
    return findings


DOUBTS = _spelt("""
W queries/validation:3:text query that queries/train has too, up to case and white space (2 of 12,
    16.7%): 'rasp lathe northern', 'anvil mallet' (row 9)
W queries/test:2:text query that queries/train has too, up to case and white space (1 of 12, 8.3%):
    'rasp anvil'
W ads:38:text text that an earlier ad has (2 of 40, 5.0%): 'lathe rasp anvil small', 'lathe rasp
    anvil small' (row 39)
W ads:12:source_id ad without a train click (1 of 40, 2.5%): 'ads:12'
W edges/links/ad:71:anchor_id edge that joins a held-out query to its answer (1 of 84, 1.2%): ad
    'gneiss chert shale northern' anchor 'gneiss shale'
""")
"""What the handmade dataset is warned of."""


def test_a_sound_dataset_has_warnings_only_and_its_rows_are_counted(copied):
    assert _lines(copied) == DOUBTS
    dataset = Dataset(copied)
    assert check_structure(dataset) == {t: len(dataset.read(t)) for t in dataset.tables}
    remove("filters")(copied)
    assert _lines(copied) == DOUBTS


BROKEN: dict[str, dict[Change, str]] = {
    "tables that are missing, and files that are damaged": {
        remove("ads"): "E ads there is no table 'ads'",
        remove("queries/validation"): """
E queries/validation there is no table 'queries/validation'""",
        remove("edges/topics"): """
E anchors/topics anchor set 'topics' has no edges (no edges/topics/query or .../ad)""",
        remove("queries/zero_shot"): """
E novel_ads it exists without queries/zero_shot
E filters/zero_shot it exists without queries/zero_shot""",
        cut("anchors/links", 800): "E anchors/links not a readable parquet file",
        write("filters/test.parquet", b"query_id,ad_id"): """
E filters/test not a readable parquet file""",
        scribble("edges/links/ad"): "E edges/links/ad not a readable parquet file",
        change_json(num_rows=[1, 2]): """
E @dataset.json: num_rows is not an object that gives each table's row count""",
    },
    "names": {
        remove("novel_ads"): """
E queries/zero_shot it exists without novel_ads
W ads:12:source_id ad without a train click (2 of 40, 5.0%): 'ads:12', 'ads:39' (row 39)""",
        copy("ads", "querys/train"): """
W querys/train the dataset directory has no table 'querys/train'; it is not read""",
        in_turn(
            copy("anchors/links", "anchors/my links"), copy("edges/links/ad", "edges/my links/ad")
        ): """
E @anchors/my links.parquet: anchor set: 'my links' is not a valid name: use letters, digits, '_'
    and '-', begin with a letter, a digit or '_', and use at most 100 bytes
W @edges/my links/ad.parquet, row 71, column 'anchor_id': edge that joins a held-out query to its
    answer (1 of 84, 1.2%): ad 'gneiss chert shale northern' anchor 'gneiss shale'""",
        edit("queries/test", lambda rows: rows.drop_columns(["ad_ids"])): """
E queries/test::ad_ids the column is missing (there are ['query_id', 'text', 'source_id'])""",
        edit(
            "ads",
            lambda rows: rows.append_column("filter_a", rows["text"]).append_column(
                "filter_a in bytes", pa.array([b"\xff"] * 40).view(pa.string())
            ),
        ): r"""
E @ads.parquet, row 0, column 'filter_a in bytes': bytes that are not UTF-8: b'\xff', b'\xff'
    (row 1), b'\xff' (row 2) and 37 more""",
        set_bytes("ads", 5, "naïve".encode("latin-1")): r"""
E ads:5:text bytes that are not UTF-8: b'na\xefve'""",
        remove("filters/test", recount=False): """
W @dataset.json: num_rows counts 10 rows of 'filters/test', which does not exist""",
    },
    "types": {
        edit("ads", lambda rows: rows.append_column("text", rows["text"])): """
E ads::text 2 columns have this name, but for case""",
        in_turn(
            cast("edges/links/ad", "anchor_id", pa.int32()),
            cast("edges/links/query", "weight", pa.float64()),
            cast("queries/train", "weights", pa.list_(pa.float64())),
        ): """
E queries/train::weights the column is list<element: double>, not list<item: float>
E edges/links/query::weight the column is double, not float
E edges/links/ad::anchor_id the column is int32, not int64""",
        set_cells("anchors/topics", "anchor_id", 5, 6): """
E anchors/topics:5:anchor_id id outside 0..5: 6""",
        set_cells("anchors/links", "source_id", 4, None, None): """
W anchors/links:4:source_id no source_id (2 of 30, 6.7%): null, null (row 5)""",
        set_cells("queries/zero_shot", "text", 0, "bell\x07", "nul\x00", "csi\x9b"): r"""
W queries/zero_shot:0:text text that looks damaged by a wrong encoding (3 of 3, 100.0%):
    'bell\x07', 'nul\x00' (row 1), 'csi\x9b' (row 2)""",
        set_cells("queries/validation", "ad_ids", 5, []): """
E queries/validation:5:ad_ids no ads for query_id: 5""",
        append("edges/topics/ad", ad_id=0, anchor_id=0, weight=3.0): """
E edges/topics/ad:36:anchor_id pair that an earlier row has: ad_id 0 anchor_id 0""",
        append("aliases/query", name="gone", of=None): """
E aliases/query:2:name id that an earlier row has: 'gone'""",
        append("filters/zero_shot", query_id=1, ad_id=39): """
W filters/zero_shot:2:ad_id pair that an earlier row has (1 of 3, 33.3%): query_id 1 ad_id 39""",
        append("judged/test", query_id=0, ad_id=4, source="teacher", grade=1.0): """
E judged/test:3:source judgement that an earlier row has: query_id 0 ad_id 4 source 'teacher'""",
        set_cells("judged/train", "grade", 1, 1.5, np.nan): """
E judged/train:1:grade grade outside 0..1: 1.5, nan (row 2)""",
        set_cells("judged/train", "source", 0, None): "E judged/train:0:source no value: null",
        set_cells("judged/test", "query_id", 2, 12): """
E judged/test:2:query_id id outside 0..11: 12""",
    },
    "weights": {
        set_cells("queries/train", "ad_ids", 2, [1, None]): """
E queries/train:2:ad_ids no value: [1, None]
E queries/train:2:weights other number of weights than of ad_ids: 1""",
        set_cells("queries/train", "text", 8, ""): "E queries/train:8:text empty text: ''",
        set_cells("aliases/query", "name", 0, None): "E aliases/query:0:name no value: null",
        in_turn(
            set_cells("queries/train", "ad_ids", 3, [], []),
            set_cells("queries/train", "weights", 3, [], []),
        ): """
W queries/train:3:ad_ids train query without a click (2 of 60, 3.3%): 3, 4 (row 4)""",
        in_turn(
            set_cells("queries/train", "ad_ids", 0, [1, 7], [2, 8]),
            set_cells("queries/train", "weights", 0, [1.0, float("nan")], [-2.0, 1.0]),
        ): """
E queries/train:0:weights weight that is not a positive number: nan, -2 (row 1)""",
        set_cells("edges/links/ad", "weight", 0, float("nan"), float("inf"), 0.0, -0.5): """
E edges/links/ad:0:weight weight that is not a positive number: nan, inf (row 1), 0 (row 2) and 1
    more""",
    },
    "a column in one part, or in two spellings": {
        in_turn(
            split("ads", 2),
            edit("ads.parquet/1", lambda rows: rows.drop_columns(["source_id"]), recount=False),
        ): "E ads/1::source_id the column is missing (there are ['ad_id', 'text'])",
        set_cells("queries/train", "ad_ids", 4, [7, 2, 7]): """
E queries/train:4:ad_ids one ad twice: 7
E queries/train:4:weights other number of weights than of ad_ids: 2""",
        set_cells("queries/train", "weights", 1, None): "E queries/train:1:weights no value: null",
        edit("queries/test", lambda rows: rows.add_column(0, "Text", rows["text"])): """
E queries/test::text 2 columns have this name, but for case""",
    },
    "a text of numbers": {
        edit("ads", lambda rows: rows.set_column(1, "text", rows["ad_id"])): """
E ads::text the column is int64, not string""",
        set_cells("queries/train", "weights", 3, []): """
E queries/train:3:weights other number of weights than of ad_ids: 0""",
    },
    "ids": {
        set_cells("queries/train", "ad_ids", 4, [40, 41], [-3], [43], [44]): """
E queries/train:4:ad_ids id outside 0..39: 40, 41, -3 (row 5) and 2 more
E queries/train:5:weights other number of weights than of ad_ids: 3, 2 (row 6)""",
        set_cells("ads", "ad_id", 0, -1): "E ads:0:ad_id id outside 0..39: -1",
        set_cells("queries/train", "query_id", 5, 6): """
E queries/train:6:query_id id that an earlier row has: 6""",
        set_cells("anchors/links", "anchor_id", 1, 0): """
E anchors/links:1:anchor_id id that an earlier row has: 0""",
        set_cells("novel_ads", "ad_id", 0, 40): """
E novel_ads:0:ad_id id outside 0..39: 40
E queries/zero_shot:0:ad_ids ad that is not in novel_ads: 36, 36 (row 2)""",
        set_cells("ads", "source_id", 8, "ads:3"): """
W ads:8:source_id source_id that an earlier row has (1 of 40, 2.5%): 'ads:3'""",
        set_cells("ads", "text", 3, None): "E ads:3:text no value: null",
        set_cells("edges/links/ad", "ad_id", 0, -2): """
E edges/links/ad:0:ad_id id outside 0..39: -2""",
        set_cells("filters/test", "query_id", 0, 12): """
E filters/test:0:query_id id outside 0..11: 12""",
    },
    "ids that repeat in another part": {
        in_turn(set_cells("ads", "ad_id", 20, 7), split("ads", 2)): """
E ads/1:0:ad_id id that an earlier row has: 7
W ads/1:18:text text that an earlier ad has (2 of 40, 5.0%): 'lathe rasp anvil small', 'lathe rasp
    anvil small' (row 19)
W ads/0:12:source_id ad without a train click (1 of 40, 2.5%): 'ads:12'""",
        set_cells("novel_ads", "ad_id", 1, 36): """
E novel_ads:1:ad_id id that an earlier row has: 36
E queries/zero_shot:1:ad_ids ad that is not in novel_ads: 37""",
    },
    "texts": {
        set_cells("judged/train", "query_id", 2, 51): """
E judged/train:2:query_id judgement of a query that is held out too, up to case and white space:
    'rasp anvil'""",
        set_cells("queries/zero_shot", "ad_ids", 1, [37, 5]): """
E queries/zero_shot:1:ad_ids ad that is not in novel_ads: 5""",
        set_cells("ads", "text", 3, "cafÃ©", "the birdâ€™s", "bi\ufffdrds", "\ufefffirst"): """
W ads:3:text text that looks damaged by a wrong encoding (4 of 40, 10.0%): 'cafÃ©', 'the birdâ€™s'
    (row 4), 'bi\ufffdrds' (row 5) and 1 more""",
        set_cells("ads", "text", 13, "\u200b", " \u200d\u2060 ", "\u200bb", "\u00ad\u200c"): r"""
W ads:13:text text without a visible character (3 of 40, 7.5%): '\u200b', ' \u200d\u2060 ' (row
    14), '\xad\u200c' (row 16)""",
        set_cells("ads", "text", 20, "Red shoes", "red shoes", "boots", "RED  SHOES"): """
W ads:21:text text that an earlier ad has, up to case and white space (2 of 40, 5.0%): 'red shoes',
    'RED  SHOES' (row 23)""",
    },
    "empty tables": {
        edit("queries/validation", lambda rows: rows[:0]): """
E queries/validation table 'queries/validation' is empty""",
        edit("ads", lambda rows: rows[:0]): "E ads table 'ads' is empty",
        edit("edges/links/ad", lambda rows: rows[:0]): """
E edges/links/ad table 'edges/links/ad' is empty""",
    },
    "rows lost": {
        edit("ads", lambda rows: rows[:39], recount=False): """
E ads it has 39 rows, but dataset.json says 40
E queries/validation:3:ad_ids id outside 0..38: 39
E queries/test:9:ad_ids id outside 0..38: 39
E filters/zero_shot:1:ad_id id outside 0..38: 39
E queries/zero_shot:2:ad_ids id outside 0..38: 39
E novel_ads:3:ad_id id outside 0..38: 39
E edges/links/ad:80:ad_id id outside 0..38: 39, 39 (row 81), 39 (row 82) and 1 more
E edges/topics/ad:35:ad_id id outside 0..38: 39
W ads:38:text text that an earlier ad has (1 of 39, 2.6%): 'lathe rasp anvil small'
W ads:12:source_id ad without a train click (1 of 39, 2.6%): 'ads:12'""",
    },
}
"""Changes that do not touch each other: a dataset has all of a group."""


@pytest.mark.parametrize("group", BROKEN)
def test_what_is_wrong_is_found_and_nothing_else(copied, group):
    expected = []
    for change, findings in BROKEN[group].items():
        change(copied)
        expected += _spelt(findings)
    found = [line for line in _lines(copied) if line not in DOUBTS]
    assert sorted(found) == sorted(expected)


UNOPENED: dict[str, tuple[Change, str]] = {
    "missing directory": (shutil.rmtree, "no dataset directory .*broken"),
    "no dataset.json": (lambda path: (path / "dataset.json").unlink(), r"broken.*dataset\.json"),
    "bad JSON": (write("dataset.json", b"{'name'"), r"dataset\.json.* not valid JSON"),
    "deep JSON": (write("dataset.json", b"[" * 100_000), r"dataset\.json.* not valid JSON"),
    "JSON list": (write("dataset.json", b"[]"), "format_version"),
    "other version": (change_json(format_version=7), r"dataset\.json.* format_version is 7"),
    "no version": (change_json(format_version=None), "format_version is None"),
    "true for a version": (change_json(format_version=True), "format_version is True"),
    "no name": (change_json(name=None), r"dataset\.json.*'name'"),
    "name of another place": (
        change_json(name="../../evil"),
        r"dataset\.json: 'name': '\.\./\.\./evil' is not a valid name",
    ),
}


@pytest.mark.parametrize("case", UNOPENED)
def test_a_folder_that_is_no_dataset_directory_is_not_opened(copied, case):
    change, message = UNOPENED[case]
    change(copied)
    with pytest.raises(DatasetError, match=message):
        Dataset(copied)


def test_rows_keep_their_numbers_in_large_tables_of_several_files(copied):
    """Row numbers are those of the engine, whose threads must not change them."""
    size, again = 400_000, [123_456, 300_001, 399_999]
    ids = np.arange(size)
    ids[again] = [7, 8, 9]
    rows = pa.table({"ad_id": ids, "text": [f"ad {number}" for number in range(size)]})
    (copied / "ads.parquet").unlink()
    (copied / "ads.parquet").mkdir()
    pq.write_table(rows[:300_000], copied / "ads.parquet" / "0.parquet", row_group_size=1000)
    pq.write_table(rows[300_000:], copied / "ads.parquet" / "1.parquet")
    write_metadata(copied, Dataset(copied).metadata)
    (finding,) = [found for found in validate(Dataset(copied)) if found.severity == "error"]
    assert (finding.file, finding.row) == ("ads.parquet/0.parquet", again[0])
    assert ": 7, 8 (1.parquet, row 1), 9 (1.parquet, row 99999)" in finding.message
