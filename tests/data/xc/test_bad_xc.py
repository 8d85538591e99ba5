"""XC folders that are broken, and datasets that no XC folder can hold: refused by place."""

import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from random_datasets import JSON
from support import node_edges, query_table, text_table
from xc_world import (
    NUM_ADS,
    NUM_TEST,
    WORLD,
    imported,
    put_json,
    put_matrix,
    put_oak,
    put_raw,
)

from ramen_ray.data.store.dataset import DatasetError, write_dataset
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.data.xc import importing
from ramen_ray.data.xc.exporting import export_xc
from ramen_ray.data.xc.importing import import_xc
from ramen_ray.data.xc.text_files import TextFile

FEW = settings(max_examples=12)


def test_zero_shot_rows_must_be_the_test_queries_with_novel_ads(tmp_path):
    folder = tmp_path / "xc"
    put_raw(folder, "dexml", ".npz")
    put_matrix(folder / "Y.trn", WORLD.train_clicks[:, :20], ".npz")
    put_matrix(folder / "Y.tst_full", WORLD.test_clicks, ".npz")
    novel = WORLD.test_clicks[:, 20:]
    rows = np.flatnonzero(np.diff(novel.indptr))
    for wrong, words in ((rows[1:], "test queries have novel ads"), (rows[::-1], "the same order")):
        put_matrix(folder / "Y.tst_zero", novel[wrong], ".npz")
        with pytest.raises(DatasetError, match=words):
            import_xc(folder, tmp_path / "out")
    put_matrix(folder / "Y.trn", WORLD.train_clicks, ".npz")
    with pytest.raises(DatasetError, match="none of them is novel"):
        import_xc(folder, tmp_path / "out")


Change = Callable[[bytes], bytes]


def _line(number: int, text: str | bytes) -> Change:
    """Replace a line (from 1) of a text file, which may be gzipped."""
    new = text.encode() if isinstance(text, str) else text

    def change(content: bytes) -> bytes:
        is_packed = content.startswith(b"\x1f\x8b")
        lines = (gzip.decompress(content) if is_packed else content).split(b"\n")
        content = b"\n".join([*lines[: number - 1], new, *lines[number:]])
        return gzip.compress(content) if is_packed else content

    return change


def _more(text: str) -> Change:
    return lambda content: content + text.encode()


def _first_lines(count: int, end: bytes) -> Change:
    return lambda content: b"\n".join(content.split(b"\n")[:count]) + end


def _json(**fields: Any) -> Change:
    return _line(5, json.dumps({"uid": "a", "title": "x", **fields}))


def _npz(**arrays: Any) -> bytes:
    """Make an npz of test clicks whose parts are partly others."""
    parts = {
        "indices": np.array([0, 1], dtype=np.int32),
        "indptr": np.array([0, 2] + [2] * (NUM_TEST - 1), dtype=np.int32),
        "format": b"csr",
        "shape": np.array([NUM_TEST, NUM_ADS]),
        "data": np.ones(2, dtype=np.float32),
    }
    np.savez(content := io.BytesIO(), **{**parts, **arrays})
    return content.getvalue()


def _lines(*lines: bytes) -> bytes:
    return b"".join(line + b"\n" for line in lines)


TRAIN, TEST, TEST_NPZ = "trn_X_Y.txt", "tst_X_Y.txt", "tst_X_Y.npz"
ADS, QUERIES = "raw_data/label.raw.txt", "raw_data/train.raw.txt"
LINKS, FILTERS = "raw_data/hyper_link.raw.txt", "filter_labels_test.txt"
JSON_ADS, JSON_TRAIN, JSON_TEST = "lbl.json.gz", "trn.json.gz", "tst.json.gz"
MALFORMED: list[tuple[str, Change | bytes | None, list[str]]] = [
    (TRAIN, _line(1, "0:1.0 1:1.0"), ["trn_X_Y.txt, row 1", "'rows columns'"]),
    (TRAIN, b"", ["trn_X_Y.txt, row 1", "''"]),
    (TRAIN, _line(1, "61 25"), ["61 rows and 25 columns", "60 and 25 texts"]),
    (TRAIN, _line(5, "3:1 25:1"), ["row 5", "column '25'", "outside 0..24"]),
    (TRAIN, _line(6, "3:1 3:1"), ["row 6", "column '3'", "twice"]),
    (TRAIN, _line(7, "4:1 3:1"), ["row 7", "column '4'", "must ascend"]),
    (TRAIN, _line(8, "4:1 x:1"), ["trn_X_Y.txt, row 8", "'x:1'"]),
    (TRAIN, _line(8, "4:"), ["trn_X_Y.txt, row 8", "'4:'"]),
    (TRAIN, _line(8, "4,1"), ["trn_X_Y.txt, row 8", "'4,1'"]),
    (TRAIN, _line(9, "4:nan"), ["row 9", "column '4'", "nan", "positive finite"]),
    (TRAIN, _line(9, "4:0.0"), ["row 9", "column '4'", "0.0", "positive finite"]),
    (TRAIN, _more("\n1:1\n"), ["trn_X_Y.txt, row 63", "more rows than the 60"]),
    (TEST, _first_lines(16, b"\n"), ["row 16: it ends after 15 of the 20 rows", "it was cut off"]),
    (TEST, _first_lines(20, b""), ["row 20: it ends after 19 of the 20", "last line has no end"]),
    (TEST, None, ["tst_X_Y.txt or tst_X_Y.npz is missing", "layout oak"]),
    ("hyper_link_lbl_X_Y.txt", _line(2, "15:1"), ["hyper_link_lbl_X_Y.txt, row 2", "0..14"]),
    (LINKS, _more("one more\n"), ["hyper_link_trn_X_Y.txt", "60 and 16 texts"]),
    (LINKS, None, ["raw_data/hyper_link.raw.txt or hyper_link"]),
    ("raw_data/test.raw.txt", _more("one more\n"), ["tst_X_Y.txt", "21 and 25 texts"]),
    (QUERIES, None, ["no train texts of any known layout", "trn.json.gz", "Y.trn"]),
    (ADS, b"\n \n", ["label.raw.txt", "no text"]),
    (ADS, None, ["label.raw.txt is missing", "layout oak"]),
    (ADS, _lines(*["größe".encode("cp1252")] * 25), ["25 lines are not UTF-8, too many", "iconv"]),
    (ADS, _lines("红色的鞋子".encode("gbk"), *[b"a"] * 24), ["1 lines are neither UTF-8 nor"]),
    (ADS, _lines(b"a", "туфли".encode("cp1251"), *[b"b"] * 23), ["row 2: 1 lines are neither"]),
    ("trn_X.txt", b"a\n", ["renee and oak are mixed", "trn_X.txt"]),
    ("trn_X_Y.npz", b"x", ["trn_X_Y.txt and trn_X_Y.npz both match"]),
    ("train_trn_X_Y.txt", b"", ["cannot be named 'train'"]),
    (FILTERS, _more("3 25\n"), ["_test.txt, row 21, column '2'", "0..24"]),
    (FILTERS, _more("\n3 4 5\n"), ["row 22", "3 numbers where 2"]),
    (TEST_NPZ, b"PK\3\4 not a zip", ["scipy can read"]),
    (TEST_NPZ, _npz(format=b"what"), ["tst_X_Y.npz", "not a sparse matrix"]),
    (TEST_NPZ, _npz(indices=np.array([0, 25])), ["tst_X_Y.npz, row 0, column '25'"]),
    (TEST_NPZ, _npz(indices=np.array([1, 1])), ["row 0, column '1'", "twice"]),
    (TEST_NPZ, _npz(data=np.array([1.0, np.nan])), ["row 0, column '1'", "nan"]),
    (TEST_NPZ, _npz(data=np.array([{}, 1], dtype=object)), ["tst_X_Y.npz"]),
    (TEST_NPZ, _npz(indptr=np.array([0, 3, *[2] * 19])), ["row 1", "ends before it starts"]),
    (TEST_NPZ, _npz(shape=np.array([20, 26])), ["20 rows and 26 columns", "20 and 25 texts"]),
    (JSON_ADS, None, ["lbl.json.gz or lbl.json is missing", "layout json"]),
    (JSON_TRAIN, lambda content: content[:-40], ["damaged or cut off"]),
    (JSON_TRAIN, gzip.compress(b"", mtime=0), ["trn.json.gz"]),
    (JSON_TRAIN, _line(5, b'{"a": ' + b"[" * 100_000), ["row 5", "nested too deep"]),
    (JSON_TRAIN, _json(), ["row 5", "no target_ind"]),
    (JSON_TRAIN, _json(target_ind=3), ["row 5", "list of whole numbers"]),
    (JSON_TRAIN, _json(target_ind=[None]), ["row 5", "list of whole numbers"]),
    (JSON_TRAIN, _json(target_ind=[25], target_rel=[1.0]), ["row 5, column '25'", "outside 0..24"]),
    (JSON_TRAIN, _json(target_ind=[2, 2], target_rel=[1, 1]), ["row 5, column '2'", "twice"]),
    (JSON_TEST, _json(target_ind=[2, 3], target_rel=[1]), ["row 5", "not have as many numbers"]),
    (JSON_TEST, _json(target_ind=[2], target_rel=[0]), ["row 5, column '2'", "positive finite"]),
    (JSON_ADS, _line(5, '{"uid": "a"}'), ["row 5", "no title"]),
    (JSON_ADS, _json(title=7), ["row 5, column 'title'", "7 is a number, not text"]),
    (JSON_ADS, _line(5, '{"uid": "a", "title": "x"'), ["row 5", "not a JSON object"]),
    (JSON_ADS, _line(5, '{"uid": "a", "title": "x"} {}'), ["row 5", "not a JSON object"]),
    (JSON_ADS, _json(content=[]), ["row 5", "'content': [] is neither text"]),
]
"""A file, what it becomes (None: it is removed), and what is said of it."""


@pytest.mark.parametrize(("name", "change", "words"), MALFORMED)
def test_malformed_folders(name, change, words, tmp_path):
    folder = tmp_path / "xc"
    if ".json" in name:
        put_json(folder, ".gz")
        words = [*words, name]
    else:
        put_oak(tmp_path)
    if name == TEST_NPZ:
        (folder / TEST).unlink()
    if change is None:
        (folder / name).unlink()
    else:
        new = change if isinstance(change, bytes) else change((folder / name).read_bytes())
        (folder / name).write_bytes(new)
    with pytest.raises(DatasetError) as caught:
        imported(folder)
    assert all(word in str(caught.value) for word in words), caught.value
    assert [path.name for path in tmp_path.iterdir()] == ["xc"]


ONE, TWO = text_table("anchor_id", ["a"]), text_table("ad_id", ["a", "b"])


@pytest.mark.parametrize(
    ("table", "change", "message"),
    [
        ("ads", text_table("ad_id", ["a", "b\nc"]), "ads.parquet, row 1, column 'text'.* break"),
        ("ads", text_table("ad_id", ["a\r", "b"]), "ads.parquet, row 0, column 'text'.* break"),
        ("ads", TWO.take([1, 1]), "ads.parquet, row 1, column 'ad_id'.* earlier row has: 1"),
        ("queries/test", query_table(["x"], [[1]]), "test.parquet, row 0, column 'ad_ids'.* 0..0"),
        ("edges/links/ad", node_edges("ad_id", [[], [0]]), "ad.parquet, row 0, .*'ad_id'.* 0..0"),
        ("anchors/label", ONE, "'label' needs another name"),
    ],
)
def test_what_cannot_be_exported(tmp_path, table, change, message):
    tables = {f"queries/{split}": query_table(["x"], [[0]]) for split in SPLITS}
    tables |= {"ads": text_table("ad_id", ["a"]), "anchors/links": ONE}
    tables |= {"edges/links/ad": node_edges("ad_id", [[0]]), table: change}
    dataset = write_dataset(tmp_path / "in", tables, name="x")
    with pytest.raises(DatasetError, match=message):
        export_xc(dataset, tmp_path / "xc")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_folder_that_changes_while_it_is_imported_is_refused(tmp_path, monkeypatch):
    oak, scan = put_oak(tmp_path), importing.scan
    ads = oak / "raw_data" / "label.raw.txt"

    def change_after(file: TextFile) -> Any:
        found = scan(file)
        ads.write_text("\n".join(reversed(ads.read_text().split("\n"))))
        return found

    monkeypatch.setattr(importing, "scan", change_after)
    with pytest.raises(DatasetError, match="has changed while it was read"):
        imported(oak)


def test_nothing_is_overwritten(tmp_path):
    oak = put_oak(tmp_path)
    dataset = imported(oak)
    with pytest.raises(DatasetError, match="exists already"):
        imported(oak)
    with pytest.raises(DatasetError, match="exists already"):
        export_xc(dataset, oak)
    with pytest.raises(DatasetError, match="not between 0 and 1"):
        import_xc(oak, tmp_path / "new", validation_fraction=1.0)
    with pytest.raises(DatasetError, match="no folder"):
        import_xc(tmp_path / "nowhere", tmp_path / "new")


def _mutate(content: bytes, draw: Callable[[Any], Any]) -> bytes:
    """Replace a stretch by other bytes, a few times."""
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        stop = draw(st.integers(start, min(len(content), start + 20)))
        new = draw(st.binary(max_size=12) | st.sampled_from([b":", b"\n", b" ", b"-1", b"9" * 25]))
        content = content[:start] + new + content[stop:]
    return content


FUZZED = {
    ".txt": [TRAIN, FILTERS, ADS, "category_trn_X_Y.txt"],
    ".npz": ["trn_X_Y.npz", "hyper_link_lbl_X_Y.npz"],
    ".gz": [JSON_TRAIN, JSON_ADS],
    ".json": ["trn.json", "tst.json", "lbl.json"],
}


@pytest.mark.parametrize("kind", FUZZED)
@FEW
@given(data=st.data())
def test_damaged_files_are_read_or_refused(kind, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    if kind in (".txt", ".npz"):
        put_oak(folder, kind)
    else:
        put_json(folder / "xc", kind.removesuffix(".json") or "")
    file = folder / "xc" / data.draw(st.sampled_from(FUZZED[kind]))
    file.write_bytes(_mutate(file.read_bytes(), data.draw))
    try:
        import_xc(folder / "xc", folder / "out", validation_fraction=0.3)
    except DatasetError as error:
        assert str(folder) in str(error)
        assert [path.name for path in folder.iterdir()] == ["xc"]


KEYS = ["uid", "title", "content", "target_ind", "target_rel"]


@FEW
@given(found=st.lists(st.dictionaries(st.sampled_from(KEYS), JSON) | JSON))
def test_any_json_is_read_or_refused(found, tmp_path_factory):
    file = TextFile(tmp_path_factory.mktemp("json") / "trn.json", with_content=True)
    file.path.write_text("".join(f"{json.dumps(value)}\n" for value in found))
    for read in (lambda: list(file.batches()), lambda: file.clicks(10)):
        try:
            read()
        except DatasetError as error:
            assert str(file.path) in str(error)
