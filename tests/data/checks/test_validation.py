"""Malformed dataset directories, each with the exact finding that it must give."""

import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import MAX_LENGTH, prepare_in_process, query_table, text_table
from written_out import plain

from ramen_ray.data.checks import loading, validate
from ramen_ray.data.checks.structure import check_structure
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset, write_metadata
from ramen_ray.data.store.schemas import schema_of

Change = Callable[[Path], Any]


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


def _recount(path: Path) -> None:
    write_metadata(path, Dataset(path).metadata)


def _edit(table: str, change: Callable[[pa.Table], pa.Table], recount: bool = True) -> Change:
    def edit(path: Path) -> None:
        file = path / f"{table}.parquet"
        pq.write_table(change(pq.read_table(file)), file)
        if recount:
            _recount(path)

    return edit


def _set(table: str, column: str, row: int, *values: Any) -> Change:
    """Set ``values`` from ``row`` on."""

    def change(rows: pa.Table) -> pa.Table:
        content = rows[column].to_pylist()
        content[row : row + len(values)] = values
        index = rows.column_names.index(column)
        return rows.set_column(index, column, pa.array(content, rows[column].type))

    return _edit(table, change)


def _text(table: str, row: int, *texts: str | None) -> Change:
    return _set(table, "text", row, *texts)


def _cast(table: str, column: str, kind: pa.DataType) -> Change:
    def change(rows: pa.Table) -> pa.Table:
        index = rows.column_names.index(column)
        return rows.set_column(index, column, pc.cast(rows[column], kind))

    return _edit(table, change)


def _append(table: str, **row: Any) -> Change:
    def change(rows: pa.Table) -> pa.Table:
        return pa.concat_tables([rows, pa.Table.from_pylist([row], schema=rows.schema)])

    return _edit(table, change)


def _all(*changes: Change) -> Change:
    def change(path: Path) -> None:
        for each in changes:
            each(path)

    return change


def _write(name: str, content: bytes) -> Change:
    return lambda path: (path / name).write_bytes(content)


def _json(**changes: Any) -> Change:
    def rewrite(path: Path) -> None:
        file = path / "dataset.json"
        content = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    return rewrite


def _remove(*names: str) -> Change:
    def remove(path: Path) -> None:
        for name in names:
            if (path / name).is_dir():
                shutil.rmtree(path / name)
            else:
                (path / f"{name}.parquet").unlink()
        _recount(path)

    return remove


def _without_recount(*names: str) -> Change:
    def remove(path: Path) -> None:
        for name in names:
            (path / f"{name}.parquet").unlink()

    return remove


def _halve(path: Path) -> None:
    file = path / "anchors" / "links.parquet"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _scribble(path: Path) -> None:
    """Damage the pages of a file and leave its footer whole."""
    file = path / "edges" / "links" / "ad.parquet"
    content = bytearray(file.read_bytes())
    content[4:60] = b"\xff" * 56
    file.write_bytes(content)


def _break_utf8(path: Path) -> None:
    file = path / "ads.parquet"
    rows = pq.read_table(file)
    texts = [text.encode() for text in rows["text"].to_pylist()]
    texts[5] = "na\u00efve".encode("latin-1")
    broken = pa.array(texts, pa.binary()).view(pa.string())
    pq.write_table(rows.set_column(1, "text", broken), file)


def _split_ads(path: Path, *ids: int, drop_source_id: bool = False) -> None:
    """Write the ads as two files of 20 rows."""
    file = path / "ads.parquet"
    rows = pq.read_table(file)
    rows = rows.set_column(0, "ad_id", pa.array(ids or range(40)))
    file.unlink()
    file.mkdir()
    pq.write_table(rows[:20], file / "0.parquet")
    second = rows[20:]
    pq.write_table(
        second.drop_columns(["source_id"]) if drop_source_id else second, file / "1.parquet"
    )


def _as(table: str, copy: str) -> Change:
    def copy_table(path: Path) -> None:
        target = path / f"{copy}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path / f"{table}.parquet", target)
        _recount(path)

    return copy_table


def _spelt(finding: str) -> str:
    """Write out "E TABLE:ROW:COLUMN MESSAGE", an error, or "W ...", a warning.

    Row and column may be absent; a file may stand in place of TABLE, as "E @FILE: ...".
    """
    severity = {"E": "error", "W": "warning"}[finding[0]]
    if finding[2] == "@":
        return f"{severity}: {finding[3:]}"
    place, _, message = finding[2:].partition(" ")
    table, row, column = [*place.split(":"), "", ""][:3]
    folder, _, part = table.rpartition("/")
    file = f"{folder}.parquet/{part}.parquet" if part.isdecimal() else f"{table}.parquet"
    row, column = row and f", row {row}", column and f", column {column!r}"
    return f"{severity}: {file}{row}{column}: {message}"


UNOPENED: dict[str, tuple[Change, list[str]]] = {
    "missing directory": (shutil.rmtree, ["no dataset directory", "broken"]),
    "no dataset.json": (lambda path: (path / "dataset.json").unlink(), ["broken", "dataset.json"]),
    "bad JSON": (
        lambda path: (path / "dataset.json").write_text("{'name'"),
        ["dataset.json", "not valid JSON"],
    ),
    "deep JSON": (
        lambda path: (path / "dataset.json").write_text("[" * 100_000),
        ["dataset.json", "not valid JSON"],
    ),
    "JSON list": (lambda path: (path / "dataset.json").write_text("[]"), ["format_version"]),
    "other version": (_json(format_version=7), ["dataset.json", "format_version is 7"]),
    "no version": (_json(format_version=None), ["format_version is None"]),
    "no name": (_json(name=None), ["dataset.json", "'name'"]),
    "name of another place": (
        _json(name="../../evil"),
        ["dataset.json: 'name': '../../evil' is not a valid name"],
    ),
}
CASES: dict[str, tuple[Change, *tuple[str, ...]]] = {
    # tables and columns
    "missing table": (_remove("ads"), "E ads there is no table 'ads'"),
    "missing split": (
        _remove("queries/validation"),
        "E queries/validation there is no table 'queries/validation'",
    ),
    "missing edges": (
        _remove("edges/topics"),
        "E anchors/topics anchor set 'topics' has no edges (no edges/topics/query or .../ad)",
    ),
    "zero-shot queries without novel ads": (
        _remove("novel_ads"),
        "E queries/zero_shot it exists without novel_ads",
        "W ads:12:source_id ad without a train click (2 of 40, 5.0%): 'ads:12', 'ads:39' (row 39)",
    ),
    "zero-shot filters without queries": (
        _remove("queries/zero_shot"),
        "E novel_ads it exists without queries/zero_shot",
        "E filters/zero_shot it exists without queries/zero_shot",
    ),
    "unknown table": (
        _as("ads", "querys/train"),
        "W querys/train the dataset directory has no table 'querys/train'; it is not read",
    ),
    "anchor set with a blank": (
        _all(_as("anchors/links", "anchors/my links"), _as("edges/links/ad", "edges/my links/ad")),
        (
            "E @anchors/my links.parquet: anchor set: 'my links' is not a valid name: use "
            "letters, digits, '_' and '-', begin with a letter, a digit or '_', and use at most"
            " 100 bytes"
        ),
        (
            "W @edges/my links/ad.parquet, row 71, column 'anchor_id': edge that joins a held-"
            "out query to its answer (1 of 84, 1.2%): ad 'gneiss chert shale northern' anchor "
            "'gneiss shale'"
        ),
    ),
    "half a file": (_halve, "E anchors/links not a readable parquet file"),
    "not parquet": (
        _write("filters/test.parquet", b"query_id,ad_id"),
        "E filters/test not a readable parquet file",
    ),
    "damaged pages": (_scribble, "E edges/links/ad not a readable parquet file"),
    "missing column": (
        _edit("queries/test", lambda rows: rows.drop_columns(["ad_ids"])),
        (
            "E queries/test::ad_ids the column is missing (there are ['query_id', 'text', "
            "'source_id'])"
        ),
    ),
    "column twice": (
        _edit("ads", lambda rows: rows.append_column("text", rows["text"])),
        "E ads::text 2 columns have this name, but for case",
    ),
    "column twice, but for case": (
        _edit("ads", lambda rows: rows.add_column(0, "Text", rows["text"])),
        "E ads::text 2 columns have this name, but for case",
    ),
    "optional column in one part": (
        lambda path: _split_ads(path, drop_source_id=True),
        "E ads/1::source_id the column is missing (there are ['ad_id', 'text'])",
    ),
    "filter columns whose names are alike": (
        _edit(
            "ads",
            lambda rows: rows.append_column("filter_a", rows["text"]).append_column(
                "filter_a in bytes", pa.array([b"\xff"] * 40).view(pa.string())
            ),
        ),
        (
            "E @ads.parquet, row 0, column 'filter_a in bytes': bytes that are not UTF-8: "
            "b'\\xff', b'\\xff' (row 1), b'\\xff' (row 2) and 37 more"
        ),
    ),
    "text of numbers": (
        _edit("ads", lambda rows: rows.set_column(1, "text", rows["ad_id"])),
        "E ads::text the column is int64, not string",
    ),
    "columns of other types": (
        _all(
            _cast("edges/links/ad", "anchor_id", pa.int32()),
            _cast("edges/links/query", "weight", pa.float64()),
            _cast("queries/train", "weights", pa.list_(pa.float64())),
        ),
        "E queries/train::weights the column is list<element: double>, not list<item: float>",
        "E edges/links/query::weight the column is double, not float",
        "E edges/links/ad::anchor_id the column is int32, not int64",
    ),
    "empty tables": (
        _all(
            *(
                _edit(table, lambda rows: rows[:0])
                for table in ("queries/validation", "ads", "edges/links/ad")
            )
        ),
        "E queries/validation table 'queries/validation' is empty",
        "E ads table 'ads' is empty",
        "E edges/links/ad table 'edges/links/ad' is empty",
    ),
    # header against rows
    "rows lost": (
        _edit("ads", lambda rows: rows[:39], recount=False),
        "E ads it has 39 rows, but dataset.json says 40",
        "E queries/validation:3:ad_ids id outside 0..38: 39",
        "E queries/test:9:ad_ids id outside 0..38: 39",
        "E filters/zero_shot:1:ad_id id outside 0..38: 39",
        "E queries/zero_shot:2:ad_ids id outside 0..38: 39",
        "E novel_ads:3:ad_id id outside 0..38: 39",
        "E edges/links/ad:80:ad_id id outside 0..38: 39, 39 (row 81), 39 (row 82) and 1 more",
        "E edges/topics/ad:35:ad_id id outside 0..38: 39",
        "W ads:38:text text that an earlier ad has (1 of 39, 2.6%): 'lathe rasp anvil small'",
        "W ads:12:source_id ad without a train click (1 of 39, 2.6%): 'ads:12'",
    ),
    "table lost": (
        _without_recount("filters/test"),
        "W @dataset.json: num_rows counts 10 rows of 'filters/test', which does not exist",
    ),
    "no counts": (
        _json(num_rows=[1, 2]),
        "E @dataset.json: num_rows is not an object that gives each table's row count",
    ),
    # ids
    "dangling ads of many queries": (
        _set("queries/train", "ad_ids", 4, [40, 41], [-3], [43], [44]),
        "E queries/train:4:ad_ids id outside 0..39: 40, 41, -3 (row 5) and 2 more",
        "E queries/train:5:weights other number of weights than of ad_ids: 3, 2 (row 6)",
    ),
    "null among the ads": (
        _set("queries/train", "ad_ids", 2, [1, None]),
        "E queries/train:2:ad_ids no value: [1, None]",
        "E queries/train:2:weights other number of weights than of ad_ids: 1",
    ),
    "negative id": (_set("ads", "ad_id", 0, -1), "E ads:0:ad_id id outside 0..39: -1"),
    "id that is not dense": (
        _set("anchors/topics", "anchor_id", 5, 6),
        "E anchors/topics:5:anchor_id id outside 0..5: 6",
    ),
    "repeated ids": (
        _all(
            _set("queries/train", "query_id", 5, 6),
            _set("ads", "ad_id", 3, 39),
            _set("anchors/links", "anchor_id", 1, 0),
        ),
        "E queries/train:6:query_id id that an earlier row has: 6",
        "E ads:39:ad_id id that an earlier row has: 39",
        "E anchors/links:1:anchor_id id that an earlier row has: 0",
    ),
    "repeated id in another part": (
        lambda path: _split_ads(path, *range(20), 7, *range(21, 40)),
        "E ads/1:0:ad_id id that an earlier row has: 7",
        (
            "W ads/1:18:text text that an earlier ad has (2 of 40, 5.0%): 'lathe rasp anvil "
            "small', 'lathe rasp anvil small' (row 19)"
        ),
        "W ads/0:12:source_id ad without a train click (1 of 40, 2.5%): 'ads:12'",
    ),
    "novel ad out of range": (
        _set("novel_ads", "ad_id", 0, 40),
        "E novel_ads:0:ad_id id outside 0..39: 40",
        "E queries/zero_shot:0:ad_ids ad that is not in novel_ads: 36, 36 (row 2)",
    ),
    "novel ad twice": (
        _set("novel_ads", "ad_id", 1, 36),
        "E novel_ads:1:ad_id id that an earlier row has: 36",
        "E queries/zero_shot:1:ad_ids ad that is not in novel_ads: 37",
    ),
    "zero-shot query of a known ad": (
        _set("queries/zero_shot", "ad_ids", 1, [37, 5]),
        "E queries/zero_shot:1:ad_ids ad that is not in novel_ads: 5",
    ),
    "repeated source id": (
        _set("ads", "source_id", 8, "ads:3"),
        "W ads:8:source_id source_id that an earlier row has (1 of 40, 2.5%): 'ads:3'",
    ),
    "missing source id": (
        _set("anchors/links", "source_id", 4, None, None),
        "W anchors/links:4:source_id no source_id (2 of 30, 6.7%): null, null (row 5)",
    ),
    # texts
    "null text": (_text("ads", 3, None), "E ads:3:text no value: null"),
    "empty text": (_text("queries/train", 8, ""), "E queries/train:8:text empty text: ''"),
    "text not in UTF-8": (_break_utf8, "E ads:5:text bytes that are not UTF-8: b'na\\xefve'"),
    "texts damaged by a wrong encoding": (
        _text(
            "ads", 3, "caf\u00c3\u00a9", "the bird\u00e2\u20ac\u2122s", "bi\ufffdrds", "\ufefffirst"
        ),
        "W ads:3:text text that looks damaged by a wrong encoding (4 of 40, 10.0%): "
        "'caf\u00c3\u00a9', 'the bird\u00e2\u20ac\u2122s' (row 4), 'bi\ufffdrds' (row 5) and 1 "
        "more",
    ),
    "texts without a visible character": (
        _text("ads", 3, "\u200b", " \u200d\u2060 ", "\u200bb", "\u00ad\u200c"),
        "W ads:3:text text without a visible character (3 of 40, 7.5%): "
        "'\\u200b', ' \\u200d\\u2060 ' (row 4), '\\xad\\u200c' (row 6)",
    ),
    "ads that differ in case": (
        _text("ads", 3, "Red shoes", "red shoes", "boots", "RED  SHOES"),
        "W ads:4:text text that an earlier ad has, up to case and white space (2 of 40, 5.0%): "
        "'red shoes', 'RED  SHOES' (row 6)",
    ),
    "control characters": (
        _text("queries/zero_shot", 0, "bell\x07", "nul\x00", "csi\x9b"),
        (
            "W queries/zero_shot:0:text text that looks damaged by a wrong encoding (3 of 3, "
            "100.0%): 'bell\\x07', 'nul\\x00' (row 1), 'csi\\x9b' (row 2)"
        ),
    ),
    # clicks
    "query without ads": (
        _set("queries/validation", "ad_ids", 5, []),
        "E queries/validation:5:ad_ids no ads for query_id: 5",
    ),
    "train queries without a click": (
        _all(
            _set("queries/train", "ad_ids", 3, []),
            _set("queries/train", "weights", 3, []),
            _set("queries/train", "ad_ids", 5, []),
            _set("queries/train", "weights", 5, []),
        ),
        "W queries/train:3:ad_ids train query without a click (2 of 60, 3.3%): 3, 5 (row 5)",
    ),
    "one ad twice": (
        _set("queries/train", "ad_ids", 4, [7, 2, 7]),
        "E queries/train:4:ad_ids one ad twice: 7",
        "E queries/train:4:weights other number of weights than of ad_ids: 2",
    ),
    "too few click weights": (
        _set("queries/train", "weights", 3, []),
        "E queries/train:3:weights other number of weights than of ad_ids: 0",
    ),
    "click weights that are no positive numbers": (
        _all(
            _set("queries/train", "ad_ids", 0, [1, 7], [2, 8]),
            _set("queries/train", "weights", 0, [1.0, float("nan")], [-2.0, 1.0]),
        ),
        "E queries/train:0:weights weight that is not a positive number: nan, -2 (row 1)",
    ),
    "null click weights": (
        _set("queries/train", "weights", 1, None),
        "E queries/train:1:weights no value: null",
    ),
    # edges
    "dangling ends of edges": (
        _all(
            _set("edges/topics/query", "anchor_id", 3, 6),
            _set("edges/links/query", "query_id", 0, 60),
            _set("edges/links/ad", "ad_id", 0, -2),
        ),
        "E edges/links/query:0:query_id id outside 0..59: 60",
        "E edges/links/ad:0:ad_id id outside 0..39: -2",
        "E edges/topics/query:3:anchor_id id outside 0..5: 6",
    ),
    "weights that are no positive numbers": (
        _set("edges/links/ad", "weight", 0, float("nan"), float("inf"), 0.0, -0.5),
        "E edges/links/ad:0:weight weight that is not a positive number: nan, inf (row 1), "
        "0 (row 2) and 1 more",
    ),
    "edge twice": (
        _append("edges/topics/ad", ad_id=0, anchor_id=0, weight=3.0),
        "E edges/topics/ad:36:anchor_id pair that an earlier row has: ad_id 0 anchor_id 0",
    ),
    # filters
    "dangling ends of filter pairs": (
        _all(_set("filters/test", "query_id", 0, 12), _set("filters/validation", "ad_id", 1, 99)),
        "E filters/validation:1:ad_id id outside 0..39: 99",
        "E filters/test:0:query_id id outside 0..11: 12",
    ),
    "filter pair twice": (
        _append("filters/zero_shot", query_id=1, ad_id=39),
        (
            "W filters/zero_shot:2:ad_id pair that an earlier row has (1 of 3, 33.3%): query_id"
            " 1 ad_id 39"
        ),
    ),
}

DOUBTS = [
    *map(
        _spelt,
        (
            (
                "W ads:38:text text that an earlier ad has (2 of 40, 5.0%): 'lathe rasp anvil "
                "small', 'lathe rasp anvil small' (row 39)"
            ),
            (
                "W queries/validation:3:text query that queries/train has too, up to case and white"
                " space (2 of 12, 16.7%): 'rasp lathe northern', 'anvil mallet' (row 9)"
            ),
            (
                "W queries/test:2:text query that queries/train has too, up to case and white space"
                " (1 of 12, 8.3%): 'rasp anvil'"
            ),
            "W ads:12:source_id ad without a train click (1 of 40, 2.5%): 'ads:12'",
            (
                "W edges/links/ad:71:anchor_id edge that joins a held-out query to its answer (1 of"
                " 84, 1.2%): ad 'gneiss chert shale northern' anchor 'gneiss shale'"
            ),
        ),
    )
]
"""What the handmade dataset is warned of."""


@pytest.mark.parametrize("case", UNOPENED)
def test_a_folder_that_is_no_dataset_directory_is_not_opened(copied: Path, case: str):
    change, fragments = UNOPENED[case]
    change(copied)
    with pytest.raises(DatasetError) as error:
        Dataset(copied)
    for fragment in fragments:
        assert fragment in str(error.value)


def test_a_sound_dataset_has_warnings_only_and_its_rows_are_counted(copied: Path):
    assert _lines(copied) == DOUBTS
    dataset = Dataset(copied)
    assert check_structure(dataset) == {t: len(dataset.read(t)) for t in dataset.tables}
    _remove("filters")(copied)
    assert _lines(copied) == DOUBTS


TOGETHER = """
missing table, missing split, missing edges, zero-shot filters without queries, half a file,
  not parquet, damaged pages, no counts
zero-shot queries without novel ads, unknown table, anchor set with a blank, missing column,
  filter columns whose names are alike, table lost, text not in UTF-8
column twice, columns of other types, id that is not dense, missing source id, control characters,
  query without ads, edge twice, filter pair twice
null among the ads, empty text, train queries without a click,
  click weights that are no positive numbers, weights that are no positive numbers
optional column in one part, one ad twice, null click weights
text of numbers, too few click weights
dangling ads of many queries, negative id, repeated ids, novel ad out of range, repeated source id,
  null text, dangling ends of edges, dangling ends of filter pairs
repeated id in another part, novel ad twice
zero-shot query of a known ad, texts damaged by a wrong encoding
"""
"""Cases that do not touch each other: a dataset has all of a line; each other case has its own."""
GROUPS = [line.split(", ") for line in TOGETHER.strip().replace(",\n  ", ", ").splitlines()]
GROUPS += [[case] for case in CASES if not any(case in group for group in GROUPS)]


@pytest.mark.parametrize("group", GROUPS, ids=" and ".join)
def test_what_is_wrong_is_found_and_nothing_else(copied: Path, group: list[str]):
    for case in group:
        CASES[case][0](copied)
    found = [line for line in _lines(copied) if line not in DOUBTS]
    expected = {case: [*map(_spelt, CASES[case][1:])] for case in group}
    for case, lines in expected.items():
        assert [line for line in found if line in lines] == lines, case
    assert len(found) == sum(map(len, expected.values())), found


@settings(max_examples=15)
@given(st.lists(st.integers(-5, 60), min_size=1, max_size=30))
def test_exactly_the_ids_out_of_range_are_shown(ids: list[int]):
    rows = pa.table({"ad_id": ids, "text": ["a"] * len(ids)})
    with tempfile.TemporaryDirectory() as folder:
        dataset = write_dataset(Path(folder) / "made", {"ads": rows}, name="made")
        found = [one for one in validate(dataset) if one.message.startswith("id outside")]
    limit = len(ids)
    outside = [(row, number) for row, number in enumerate(ids) if not 0 <= number < limit]
    assert [finding.message for finding in found] == _expected(
        f"id outside 0..{limit - 1}", outside
    )
    assert [finding.row for finding in found] == [row for row, _ in outside[:1]]


def _expected(what: str, hits: list[tuple[int, Any]], out_of: int | None = None) -> list[str]:
    """Write out the finding for ``hits``, which are (row, what is shown)."""
    if not hits:
        return []
    share = f" ({len(hits)} of {out_of}, {100 * len(hits) / out_of:.1f}%)" if out_of else ""
    first = hits[0][0]
    shown = [f"{value} (row {row})" if row != first else str(value) for row, value in hits[:3]]
    more = f" and {len(hits) - 3} more" if len(hits) > 3 else ""
    return [f"{what}{share}: {', '.join(shown)}{more}"]


TEXTS = st.sampled_from(
    ["a b", "A  b", " a\tB ", "c", "C", "d e", "D\u3000E", "\u00c9t\u00e9", "\u00e9T\u00c9", "f"]
)
QUERIES = st.lists(
    st.tuples(TEXTS, st.sets(st.integers(0, 11), max_size=3)), min_size=1, max_size=12
)
PAIRS = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), min_size=1, max_size=30)


def _again(values):
    return [(row, value) for row, value in enumerate(values) if value in values[:row]]


def _in_another_spelling(values):
    rows = []
    for row, value in enumerate(values):
        earlier = {one for one in values[:row] if plain(one) == plain(value)}
        if earlier and value not in earlier:
            rows.append((row, value))
    return rows


@settings(max_examples=15)
@given(
    QUERIES,
    QUERIES,
    st.lists(TEXTS, min_size=12, max_size=12),
    st.lists(TEXTS, min_size=15, max_size=15),
    PAIRS,
    PAIRS,
    st.integers(1, 9),
)
def test_cross_table_findings_are_those_of_plain_loops(
    train, test, ads, anchors, edges, filters, batch
):
    def queries(rows):
        return query_table([text for text, _ in rows], [sorted(ad_ids) for _, ad_ids in rows])

    tables = {
        "queries/train": queries(train),
        "queries/validation": queries([("unseen", {0})]),
        "queries/test": queries(test),
        "ads": text_table("ad_id", ads),
        "anchors/links": text_table("anchor_id", anchors),
        "edges/links/ad": pa.table(
            {
                "ad_id": [ad for ad, _ in edges],
                "anchor_id": [anchor for _, anchor in edges],
                "weight": [1.0] * len(edges),
            }
        ),
        "filters/test": pa.table(
            {"query_id": [q for q, _ in filters], "ad_id": [ad for _, ad in filters]}
        ),
    }
    with tempfile.TemporaryDirectory() as folder, patch.object(loading, "ROWS_PER_BATCH", batch):
        dataset = write_dataset(Path(folder) / "made", tables, name="made")
        of_rows = ("id outside", "no ads for query_id")
        found = [f.message for f in validate(dataset) if not f.message.startswith(of_rows)]

    clicked = {ad for _, ad_ids in train for ad in ad_ids}
    trained = {plain(text) for text, _ in train}
    answers = {(query, ad) for query, (_, ad_ids) in enumerate(test) for ad in ad_ids}
    expected = _expected(
        "pair that an earlier row has",
        [(r, f"ad_id {ad} anchor_id {anchor}") for r, (ad, anchor) in _again(edges)],
    )
    expected += _expected(
        "pair that an earlier row has",
        [(r, f"query_id {q} ad_id {ad}") for r, (q, ad) in _again(filters)],
        len(filters),
    )
    expected += _expected(
        "text that an earlier ad has", [(r, repr(text)) for r, text in _again(ads)], 12
    )
    expected += _expected(
        "text that an earlier ad has, up to case and white space",
        [(r, repr(text)) for r, text in _in_another_spelling(ads)],
        12,
    )
    expected += _expected(
        "query that queries/train has too, up to case and white space",
        [(r, repr(text)) for r, (text, _) in enumerate(test) if plain(text) in trained],
        len(test),
    )
    without_click = [(query, query) for query, (_, ad_ids) in enumerate(train) if not ad_ids]
    expected += _expected("train query without a click", without_click, len(train))
    expected += _expected("train query without a click or an edge", without_click, len(train))
    if not clicked:
        expected.append("no train query has a click")
    unclicked = [(ad, ad) for ad in range(12) if ad not in clicked]
    expected += _expected("ad without a train click", unclicked, 12)
    right = [(r, f"query_id {p[0]} ad_id {p[1]}") for r, p in enumerate(filters) if p in answers]
    expected += _expected("pair that is a right answer in queries/test", right, len(filters))
    asked = {(plain(test[query][0]), plain(ads[ad])) for query, ad in answers}
    asked.add(("unseen", plain(ads[0])))
    either = asked | {(answer, query) for query, answer in asked}

    def edges_where(is_found):
        return [
            (r, f"ad {ads[ad]!r} anchor {anchors[anchor]!r}")
            for r, (ad, anchor) in enumerate(edges)
            if ad < 12 and anchor < 15 and is_found(ad, plain(anchors[anchor]))
        ]

    leaks = edges_where(lambda ad, anchor: (plain(ads[ad]), anchor) in either)
    expected += _expected("edge that joins a held-out query to its answer", leaks, len(edges))
    led_to = {(ad, plain(text)) for text, ad_ids in train for ad in ad_ids}
    repeats = edges_where(lambda ad, anchor: (ad, anchor) in led_to)
    if 10 * len(repeats) >= len(edges):
        expected += _expected("edge that repeats a train click", repeats, len(edges))
    clicks = [
        (r, text, ad)
        for r, (text, ad_ids) in enumerate(train)
        for ad in sorted(ad_ids, key=ads.__getitem__)
    ]
    turned = [
        (r, f"query {text!r} ad {ads[ad]!r}")
        for r, text, ad in clicks
        if (plain(ads[ad]), plain(text)) in asked
    ]
    expected += _expected("train click that is a held-out click reversed", turned, len(clicks))
    assert Counter(found) == Counter(expected)


TABLES = st.sampled_from(
    ["ads", "queries/train", "queries/test", "anchors/links", "edges/links/ad", "filters/test"]
)
IDS = st.one_of(st.none(), st.integers(-2, 70), st.integers(-(2**63), 2**63 - 1))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)


@st.composite
def mutations(draw: st.DrawFn) -> Change:
    """A change to a dataset directory, harmless or not."""
    table, row, column = draw(TABLES), draw(st.integers(0, 8)), draw(st.integers(0, 2))
    columns = schema_of(table).names
    name = columns[column % len(columns)]
    kind = draw(st.sampled_from(["drop", "cast", "ids", "lists", "bytes", "cut", "json", "raw"]))
    match kind:
        case "drop":
            return _edit(table, lambda rows: rows.drop_columns([name]))
        case "cast":
            types = [
                pa.int8(),
                pa.int32(),
                pa.uint64(),
                pa.float64(),
                pa.large_string(),
                pa.bool_(),
            ]
            to = draw(st.sampled_from([*types, pa.list_(pa.int64()), pa.null()]))
            return _edit(table, lambda rows: _retyped(rows, name, to))
        case "ids":
            return _set(table, columns[0], row, *draw(st.lists(IDS, min_size=1, max_size=3)))
        case "lists":
            lists = draw(st.lists(st.none() | st.lists(IDS, max_size=3), min_size=1, max_size=3))
            return _set("queries/train", "ad_ids", row, *lists)
        case "bytes":
            content = draw(st.binary(max_size=6))
            texts = "anchors/links" if "text" not in columns else table
            return _edit(texts, lambda rows: _with_bytes(rows, row, content))
        case "cut":
            return _cut(table, draw(st.integers(0, 3000)))
        case "json":
            value = draw(JSON)
            return _json(num_rows=value) if row % 2 else _write_json(value)
    return _write("dataset.json", draw(st.binary(max_size=40)))


def _retyped(rows: pa.Table, name: str, to: pa.DataType) -> pa.Table:
    index = rows.column_names.index(name)
    try:
        return rows.set_column(index, name, rows[name].cast(to))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return rows.set_column(index, name, pa.nulls(len(rows), to))


def _with_bytes(rows: pa.Table, row: int, content: bytes) -> pa.Table:
    if rows.schema.field("text").type != pa.string():
        return rows
    texts = rows["text"].cast(pa.binary()).to_pylist()
    texts[min(row, len(texts) - 1)] = content
    index = rows.column_names.index("text")
    return rows.set_column(index, "text", pa.array(texts, pa.binary()).view(pa.string()))


def _cut(table: str, size: int) -> Change:
    def cut(path: Path) -> None:
        file = path / f"{table}.parquet"
        file.write_bytes(file.read_bytes()[:size])

    return cut


def _write_json(value: Any) -> Change:
    return lambda path: (path / "dataset.json").write_text(json.dumps(value))


@settings(max_examples=12)
@given(st.lists(mutations(), min_size=1, max_size=3))
def test_any_damage_gives_findings_and_without_errors_a_dataset_can_be_trained_on(
    dataset_path: Path, encoder_path: Path, changes: list[Change]
):
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copytree(dataset_path, Path(folder) / "changed")
        for change in changes:
            # a change may not apply any more after those before it
            with suppress(pa.ArrowException, OSError, KeyError, ValueError, TypeError):
                change(path)
        try:
            findings = validate(Dataset(path))
        except DatasetError:
            return
        assert json.dumps([asdict(finding) for finding in findings])
        usable = not any(finding.severity == "error" for finding in findings)
        prepared = Path(folder) / "prepared"
        prepared.mkdir()
        with nullcontext() if usable else pytest.raises(DatasetError):
            prepare_in_process(Dataset(path), prepared, str(encoder_path), MAX_LENGTH, True)


@settings(max_examples=8)
@given(st.integers(0, 100), st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255))))
def test_changed_bytes_of_a_file_give_findings(dataset_path: Path, choice: int, changes):
    with tempfile.TemporaryDirectory() as folder:
        path = shutil.copytree(dataset_path, Path(folder) / "changed")
        files = sorted(path.rglob("*.parquet"))
        file = files[choice % len(files)]
        content = bytearray(file.read_bytes())
        for place, byte in changes:
            content[place % len(content)] = byte
        file.write_bytes(content)
        assert all(str(finding) for finding in validate(Dataset(path)))


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(KeyError, match="colours"):
        write_dataset(tmp_path / "new", {"colours": pa.table({"a": [1]})}, name="new")
    assert list(tmp_path.iterdir()) == []


def test_some_rows_are_read_from_the_parts_that_hold_them(copied: Path, full_path: Path):
    file = copied / "ads.parquet"
    rows = pq.read_table(file)
    file.unlink()
    file.mkdir()
    for number in range(4):
        pq.write_table(rows[10 * number : 10 * number + 10], file / f"{number}.parquet")
    dataset = Dataset(copied)
    chosen = [0, 9, 10, 25, 39]
    assert dataset.rows_with_ids("ads", chosen).to_pylist() == rows.take(chosen).to_pylist()
    assert dataset.num_rows("ads") == 40
    assert dataset.tables == Dataset(full_path).tables
