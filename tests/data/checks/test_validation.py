"""Malformed dataset directories, each with the places of what is wrong with it."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from breaking import (
    append,
    cast,
    change_json,
    copy,
    edit,
    in_turn,
    remove,
    scribble,
    set_bytes,
    set_cells,
    split,
    write,
)
from support import query_table, tables_in

from ramen_ray.data.checks.structure import check_structure
from ramen_ray.data.checks.validation import validate
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset, write_metadata
from ramen_ray.data.store.schemas import JUDGED, JUDGEMENTS


@pytest.fixture(scope="module")
def full_path(dataset_path, tmp_path_factory):
    """The handmade dataset with every optional table and column."""
    tables = tables_in(dataset_path)
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
def copied(full_path, tmp_path):
    """A dataset directory to break."""
    return shutil.copytree(full_path, tmp_path / "broken")


def _places(path):
    """Write out the findings, each of which has advice: how bad, file, row and column."""
    found = validate(Dataset(path))
    assert all(finding.advice for finding in found)
    parts = [(f.severity, f.file.replace(".parquet", ""), f.row, f.column) for f in found]
    return [" ".join(str(part) for part in place if part is not None) for place in parts]


DOUBTS = [
    "warning queries/validation 3 text",
    "warning queries/test 2 text",
    "warning ads 38 text",
    "warning ads 12 source_id",
    "warning edges/links/ad 71 anchor_id",
]
"""What the handmade dataset is warned of."""


def test_a_sound_dataset_has_warnings_only_and_its_rows_are_counted(copied):
    assert _places(copied) == DOUBTS
    dataset = Dataset(copied)
    assert check_structure(dataset) == {t: len(dataset.read(t)) for t in dataset.tables}
    remove("filters")(copied)
    assert _places(copied) == DOUBTS


BROKEN = [
    {  # tables that are missing, and files that are damaged
        remove("ads"): "error ads",
        remove("queries/validation"): "error queries/validation",
        remove("edges/topics"): "error anchors/topics",
        remove("queries/zero_shot"): "error novel_ads, error filters/zero_shot",
        write("anchors/links.parquet", b"PAR1"): "error anchors/links",
        scribble("edges/links/ad"): "error edges/links/ad",
        change_json(num_rows=[1, 2]): "error dataset.json",
    },
    {  # names
        remove("novel_ads"): "error queries/zero_shot",
        copy("ads", "querys/train"): "warning querys/train",
        in_turn(
            copy("anchors/links", "anchors/my links"), copy("edges/links/ad", "edges/my links/ad")
        ): "error anchors/my links, warning edges/my links/ad 71 anchor_id",
        edit("queries/test", lambda rows: rows.drop_columns(["ad_ids"])): """\
error queries/test ad_ids""",
        remove("filters/test", recount=False): "warning dataset.json",
    },
    {  # types
        edit("ads", lambda rows: rows.append_column("Text", rows["text"])): "error ads text",
        cast("edges/links/ad", "anchor_id", pa.int32()): "error edges/links/ad anchor_id",
        cast("queries/train", "weights", pa.list_(pa.float64())): "error queries/train weights",
        set_cells("anchors/topics", "anchor_id", 5, 6): "error anchors/topics 5 anchor_id",
        set_cells("anchors/links", "source_id", 4, None): "warning anchors/links 4 source_id",
        set_cells("queries/zero_shot", "text", 1, "nul\x00"): "warning queries/zero_shot 1 text",
        append("aliases/query", name="gone", of=None): "error aliases/query 2 name",
        append("judged/test", query_id=0, ad_id=4, source="teacher", grade=1.0): """\
error judged/test 3 source""",
        set_cells("judged/train", "grade", 1, 1.5): "error judged/train 1 grade",
        set_cells("judged/test", "query_id", 2, 12): "error judged/test 2 query_id",
    },
    {  # weights
        set_cells("queries/train", "ad_ids", 2, [1, None]): """\
error queries/train 2 ad_ids, error queries/train 2 weights""",
        set_cells("queries/train", "text", 8, ""): "error queries/train 8 text",
        set_cells("aliases/query", "name", 0, None): "error aliases/query 0 name",
        set_cells("edges/links/ad", "weight", 0, 0.0): "error edges/links/ad 0 weight",
        set_cells("queries/train", "weights", 4, [np.nan, 1.0]): "error queries/train 4 weights",
    },
    {  # a column in one part, and one ad twice
        in_turn(
            split("ads", 2),
            edit("ads.parquet/1", lambda rows: rows.drop_columns(["source_id"]), recount=False),
        ): "error ads/1 source_id",
        set_cells("queries/train", "ad_ids", 4, [7, 2, 7]): """\
error queries/train 4 ad_ids, error queries/train 4 weights""",
        set_cells("queries/train", "weights", 1, None): "error queries/train 1 weights",
    },
    {  # ids
        set_cells("queries/train", "ad_ids", 4, [40, 41]): "error queries/train 4 ad_ids",
        set_cells("ads", "ad_id", 0, -1): "error ads 0 ad_id",
        set_cells("queries/train", "query_id", 5, 6): "error queries/train 6 query_id",
        set_cells("novel_ads", "ad_id", 0, 40): """\
error novel_ads 0 ad_id, error queries/zero_shot 0 ad_ids""",
        set_cells("ads", "source_id", 8, "ads:3"): "warning ads 8 source_id",
        set_cells("ads", "text", 3, None): "error ads 3 text",
    },
    {  # ids that repeat in another part
        in_turn(set_cells("ads", "ad_id", 20, 7), split("ads", 2)): """\
error ads/1 0 ad_id, warning ads/1 18 text, warning ads/0 12 source_id""",
        set_cells("novel_ads", "ad_id", 1, 36): """\
error novel_ads 1 ad_id, error queries/zero_shot 1 ad_ids""",
    },
    {  # texts
        set_cells("judged/train", "query_id", 2, 51): "error judged/train 2 query_id",
        set_cells("ads", "text", 3, "cafÃ©"): "warning ads 3 text",
        set_cells("ads", "text", 13, " \u200d\u2060 "): "warning ads 13 text",
    },
    {
        edit("ads", lambda rows: rows[:0]): "error ads",
        edit("edges/links/ad", lambda rows: rows[:0]): "error edges/links/ad",
        edit("queries/validation", lambda rows: rows[:0]): "error queries/validation",
    },
    {edit("edges/links/ad", lambda rows: rows[:40], recount=False): "error edges/links/ad"},
    {set_bytes("ads", 5, "naïve".encode("latin-1")): "error ads 5 text"},
]
"""Changes that do not touch each other: a dataset has all of a group."""


@pytest.mark.parametrize("group", BROKEN)
def test_what_is_wrong_is_found_and_nothing_else(copied, group):
    expected = []
    for change, places in group.items():
        change(copied)
        expected += places.split(", ")
    found = [place for place in _places(copied) if place not in DOUBTS]
    assert sorted(found) == sorted(expected)


UNOPENED = [
    (shutil.rmtree, "broken"),
    (lambda path: (path / "dataset.json").unlink(), r"broken.*dataset\.json"),
    (write("dataset.json", b"{'name'"), r"dataset\.json"),
    (write("dataset.json", b"[]"), r"dataset\.json.*format_version"),
    (change_json(format_version=7), r"dataset\.json.*format_version.* 7"),
    (change_json(name=None), r"dataset\.json.*'name'"),
    (change_json(name="../../evil"), r"dataset\.json.*'name'.*evil"),
]


@pytest.mark.parametrize(("change", "place"), UNOPENED)
def test_a_folder_that_is_no_dataset_directory_is_not_opened(copied, change, place):
    change(copied)
    with pytest.raises(DatasetError, match=place):
        Dataset(copied)


def test_rows_keep_their_numbers_in_large_tables_of_several_files(copied):
    """Row numbers are those of the engine, whose threads must not change them."""
    size = 400_000
    again = [123_456, 300_001, 399_999]
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
