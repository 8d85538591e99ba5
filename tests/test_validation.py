"""Malformed dataset directories, each with the words that its finding must say."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramen_ray.data.dataset import Dataset, DatasetError, write_dataset
from ramen_ray.data.validation import check_structure, row_problems, validate

Change = Callable[[Path], None]


def _findings(path: Path) -> str:
    try:
        return "\n".join(validate(Dataset(path)))
    except DatasetError as error:
        return str(error)


def _edit(table: str, change: Callable[[pa.Table], pa.Table]) -> Change:
    def edit(path: Path) -> None:
        file = path / f"{table}.parquet"
        pq.write_table(change(pq.read_table(file)), file)

    return edit


def _set(table: str, column: str, row: int, value: Any) -> Change:
    def change(rows: pa.Table) -> pa.Table:
        values = rows[column].to_pylist()
        values[row] = value
        index = rows.column_names.index(column)
        return rows.set_column(index, column, pa.array(values, rows[column].type))

    return _edit(table, change)


def _cast(table: str, column: str, kind: pa.DataType) -> Change:
    def change(rows: pa.Table) -> pa.Table:
        index = rows.column_names.index(column)
        return rows.set_column(index, column, pc.cast(rows[column], kind))

    return _edit(table, change)


def _rewrite_json(**changes: Any) -> Change:
    def rewrite(path: Path) -> None:
        file = path / "dataset.json"
        content = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))

    return rewrite


def _halve(path: Path) -> None:
    file = path / "anchors" / "links.parquet"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


STRUCTURE: dict[str, tuple[Change, list[str]]] = {
    "missing directory": (shutil.rmtree, ["no dataset directory", "broken"]),
    "no dataset.json": (lambda path: (path / "dataset.json").unlink(), ["broken", "dataset.json"]),
    "bad JSON": (
        lambda path: (path / "dataset.json").write_text("{'name'"),
        ["dataset.json", "not valid JSON"],
    ),
    "JSON list": (lambda path: (path / "dataset.json").write_text("[]"), ["format_version"]),
    "other version": (_rewrite_json(format_version=7), ["dataset.json", "format_version is 7"]),
    "no version": (_rewrite_json(format_version=None), ["format_version is None"]),
    "no name": (_rewrite_json(name=None), ["dataset.json", "'name'"]),
    "missing table": (
        lambda path: (path / "ads.parquet").unlink(),
        ["no table 'ads'", "ads.parquet"],
    ),
    "missing split": (
        lambda path: (path / "queries/validation.parquet").unlink(),
        ["no table 'queries/validation'"],
    ),
    "missing edges": (
        lambda path: shutil.rmtree(path / "edges/topics"),
        ["anchor set 'topics' has no edges", "edges/topics/query"],
    ),
    "half a file": (_halve, ["anchors/links.parquet", "not a readable parquet file"]),
    "missing column": (
        _edit("queries/test", lambda rows: rows.drop_columns(["ad_ids"])),
        ["queries/test.parquet", "column 'ad_ids' is missing"],
    ),
    "text of numbers": (
        _edit("ads", lambda rows: rows.set_column(1, "text", rows["ad_id"])),
        ["ads.parquet", "column 'text' is int64, not string"],
    ),
    "narrow ids": (
        _cast("edges/links/ad", "anchor_id", pa.int32()),
        ["edges/links/ad.parquet", "column 'anchor_id' is int32, not int64"],
    ),
    "wide weights": (
        _cast("edges/links/query", "weight", pa.float64()),
        ["edges/links/query.parquet", "column 'weight' is double, not float"],
    ),
    "empty split": (
        _edit("queries/validation", lambda rows: rows[:0]),
        ["'queries/validation' is empty", "hold out"],
    ),
    "empty ads": (_edit("ads", lambda rows: rows[:0]), ["'ads' is empty"]),
    "empty edges": (
        _edit("edges/links/ad", lambda rows: rows[:0]),
        ["'edges/links/ad' is empty", "leave the table out"],
    ),
}

ROWS: dict[str, tuple[Change, list[str]]] = {
    "dangling ad of a query": (
        _set("queries/train", "ad_ids", 4, [1, 40]),
        ["queries/train", "'ad_ids'", "0..39", "40"],
    ),
    "negative ad of a query": (
        _set("queries/test", "ad_ids", 2, [-3]),
        ["queries/test", "'ad_ids'", "-3"],
    ),
    "null among the ads": (
        _set("queries/train", "ad_ids", 2, [1, None]),
        ["queries/train", "ad_ids"],
    ),
    "null instead of ads": (_set("queries/train", "ad_ids", 2, None), ["queries/train", "ad_ids"]),
    "query without ads": (
        _set("queries/validation", "ad_ids", 5, []),
        ["queries/validation", "query_id 5", "no ads"],
    ),
    "negative id": (_set("ads", "ad_id", 0, -1), ["ads", "'ad_id'", "-1"]),
    "id that is not dense": (_set("anchors/topics", "anchor_id", 5, 6), ["'anchor_id'", "0..5: 6"]),
    "repeated query id": (
        _set("queries/train", "query_id", 5, 6),
        ["queries/train", "'query_id'", "repeats", "6"],
    ),
    "repeated ad id": (_set("ads", "ad_id", 0, 39), ["ads", "'ad_id'", "repeats", "39"]),
    "repeated anchor id": (
        _set("anchors/links", "anchor_id", 1, 0),
        ["anchors/links", "'anchor_id'", "repeats", "0"],
    ),
    "null text": (_set("ads", "text", 3, None), ["ads", "'text'", "1 nulls"]),
    "null id": (
        _set("queries/test", "query_id", 3, None),
        ["queries/test", "'query_id'", "1 nulls"],
    ),
    "empty text": (_set("queries/train", "text", 8, ""), ["queries/train", "query_id 8", "empty"]),
    "blank text": (_set("anchors/links", "text", 9, " \t\u3000"), ["anchor_id 9", "empty text"]),
    "dangling anchor": (
        _set("edges/topics/query", "anchor_id", 3, 6),
        ["edges/topics/query", "'anchor_id'", "0..5: 6"],
    ),
    "dangling query of an edge": (
        _set("edges/links/query", "query_id", 0, 60),
        ["edges/links/query", "'query_id'", "0..59: 60"],
    ),
    "dangling ad of an edge": (
        _set("edges/links/ad", "ad_id", 0, -2),
        ["edges/links/ad", "'ad_id'", "-2"],
    ),
    "NaN weight": (
        _set("edges/links/ad", "weight", 0, float("nan")),
        ["edges/links/ad", "ad_id 0", "weight"],
    ),
    "infinite weight": (
        _set("edges/links/ad", "weight", 0, float("inf")),
        ["edges/links/ad", "ad_id 0", "weight"],
    ),
    "zero weight": (
        _set("edges/topics/query", "weight", 2, 0.0),
        ["edges/topics/query", "query_id 2", "weight"],
    ),
    "negative weight": (
        _set("edges/links/query", "weight", 0, -0.5),
        ["edges/links/query", "query_id 0", "weight"],
    ),
    "null weight": (
        _set("edges/links/query", "weight", 0, None),
        ["edges/links/query", "'weight'"],
    ),
    "dangling query of a filter": (
        _set("filters/test", "query_id", 0, 12),
        ["filters/test", "'query_id'", "0..11: 12"],
    ),
    "dangling ad of a filter": (
        _set("filters/validation", "ad_id", 1, 99),
        ["filters/validation", "'ad_id'", "0..39: 99"],
    ),
}


@pytest.fixture
def copied(dataset_path: Path, tmp_path: Path) -> Path:
    """A dataset directory to break."""
    return shutil.copytree(dataset_path, tmp_path / "broken")


def test_a_sound_dataset_has_no_findings_and_its_rows_are_counted(copied: Path):
    assert validate(Dataset(copied)) == []
    dataset = Dataset(copied)
    expected = {table: len(dataset.read(table)) for table in dataset.tables}
    assert check_structure(dataset) == expected
    shutil.rmtree(copied / "filters")
    assert validate(Dataset(copied)) == []


@pytest.mark.parametrize("case", STRUCTURE)
def test_a_broken_structure_is_refused_before_any_row_is_read(copied: Path, case: str):
    change, fragments = STRUCTURE[case]
    change(copied)
    with pytest.raises(DatasetError) as error:
        check_structure(Dataset(copied))
    for fragment in fragments:
        assert fragment in str(error.value)


@pytest.mark.parametrize("case", ROWS)
def test_a_wrong_row_is_found(copied: Path, case: str):
    change, fragments = ROWS[case]
    change(copied)
    found = _findings(copied)
    for fragment in fragments:
        assert fragment in found


def test_all_findings_are_listed_at_once(copied: Path):
    for change in (
        _set("ads", "text", 3, " "),
        _set("ads", "ad_id", 1, 77),
        _set("edges/links/ad", "weight", 0, -1.0),
    ):
        change(copied)
    assert len(validate(Dataset(copied))) == 3
    (copied / "queries/test.parquet").unlink()
    _cast("queries/train", "text", pa.large_string())(copied)
    found = _findings(copied)
    assert "queries/test" in found
    assert "queries/train.parquet" in found


def test_a_repeated_id_is_found_across_the_parts_of_a_table(copied: Path):
    file = copied / "ads.parquet"
    rows = pq.read_table(file)
    file.unlink()
    file.mkdir()
    ids = [*range(20), 7, *range(21, 40)]
    rows = rows.set_column(0, "ad_id", pa.array(ids))
    pq.write_table(rows[:20], file / "0.parquet")
    pq.write_table(rows[20:], file / "1.parquet")
    assert "'ad_id' repeats ids: 7" in _findings(copied)


@given(st.lists(st.integers(-5, 60), min_size=1, max_size=30))
def test_exactly_the_ids_out_of_range_are_shown(ids):
    rows = pa.table({"ad_id": ids, "text": ["a"] * len(ids)})
    found = row_problems("ads", rows, {"ads": 40})
    outside = [number for number in ids if not 0 <= number < 40]
    if not outside:
        assert found == []
        return
    (message,) = found
    rest = len(outside) - 3
    shown = ", ".join(map(str, outside[:3])) + (f" and {rest} more" if rest > 0 else "")
    assert message.endswith(f"0..39: {shown}")


def test_an_existing_directory_is_never_written_over(copied: Path):
    before = sorted(copied.rglob("*"))
    with pytest.raises(DatasetError, match="exists already"):
        write_dataset(copied, {}, name="other")
    assert sorted(copied.rglob("*")) == before


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(KeyError, match="colours"):
        write_dataset(tmp_path / "new", {"colours": pa.table({"a": [1]})}, name="new")
    assert list(tmp_path.iterdir()) == []


def test_some_rows_are_read_from_the_parts_that_hold_them(copied: Path, dataset_path: Path):
    file = copied / "ads.parquet"
    rows = pq.read_table(file)
    file.unlink()
    file.mkdir()
    for number in range(4):
        pq.write_table(rows[10 * number : 10 * number + 10], file / f"{number}.parquet")
    dataset = Dataset(copied)
    chosen = [0, 9, 10, 25, 39]
    assert dataset.rows("ads", chosen).to_pylist() == rows.take(chosen).to_pylist()
    assert dataset.num_rows("ads") == 40
    assert dataset.tables == Dataset(dataset_path).tables


def test_the_fingerprint_changes_with_content_only(copied: Path, dataset_path: Path):
    assert Dataset(copied).fingerprint == Dataset(dataset_path).fingerprint
    _set("ads", "text", 3, "another text")(copied)
    assert Dataset(copied).fingerprint != Dataset(dataset_path).fingerprint


def test_repeated_clicks_and_edges_are_found(copied: Path):
    queries = pq.read_table(copied / "queries" / "train.parquet")
    ad_ids = queries["ad_ids"].to_pylist()
    ad_ids[4] = [7, 2, 7]
    doubled = queries.set_column(2, "ad_ids", pa.array(ad_ids, pa.list_(pa.int64())))
    pq.write_table(doubled, copied / "queries" / "train.parquet")
    edges = pq.read_table(copied / "edges" / "links" / "ad.parquet")
    again = pa.concat_tables([edges, edges.slice(3, 1)])
    pq.write_table(again, copied / "edges" / "links" / "ad.parquet")
    found = validate(Dataset(copied))
    ad_id = edges["ad_id"][3].as_py()
    assert "queries/train: query_id 4 names an ad twice in ad_ids" in found
    assert f"edges/links/ad: ad_id {ad_id} has an edge twice to one anchor_id" in found


def test_edges_without_anchors_are_found(copied: Path):
    (copied / "anchors" / "links.parquet").unlink()
    with pytest.raises(DatasetError, match="edges/links belongs to no anchor set"):
        check_structure(Dataset(copied))
