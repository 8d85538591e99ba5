"""XC folders: every layout imported, and what is exported read back."""

import json
import logging
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_datasets import random_dataset
from scipy import sparse
from support import run_config_of
from written_out import edge_weights_of, pairs_of, plain
from xc_world import (
    NUM_ADS,
    NUM_TEST,
    WORLD,
    World,
    imported,
    put,
    put_graphs,
    put_json,
    put_matrix,
    put_oak,
    put_pairs,
    put_raw,
)

from jobs import export, ingest
from ramen_ray.data.checks.structure import check_structure
from ramen_ray.data.findings import Finding
from ramen_ray.data.splits.novel import NovelSettings, make_novel_split
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.data.xc import matrices
from ramen_ray.data.xc.exporting import export_xc
from ramen_ray.data.xc.importing import import_xc


@pytest.fixture
def oak(tmp_path: Path) -> Path:
    """The world in the layout oak, with its graphs."""
    return put_oak(tmp_path)


def _texts(dataset: Dataset, table: str) -> list[str]:
    rows = dataset.read(table)
    assert rows[0].to_pylist() == list(range(len(rows)))
    return rows["text"].to_pylist()


def _clicks(dataset: Dataset, split: str) -> dict[tuple[str, str], float]:
    """The split's (query, ad) pairs by their texts."""
    ads = _texts(dataset, "ads")
    return {
        (row["text"], ads[ad]): weight
        for row in dataset.read(f"queries/{split}").to_pylist()
        for ad, weight in zip(row["ad_ids"], row.get("weights", repeat(1.0)), strict=False)
    }


def _entries(matrix: Any, left: Sequence[str], right: Sequence[str]) -> dict[Any, float]:
    matrix = matrix.tocoo()
    entries = zip(matrix.coords[0], matrix.coords[1], matrix.data, strict=True)
    return {(left[row], right[column]): float(value) for row, column, value in entries}


def _assert_is(dataset: Dataset) -> None:
    """Compare with what scipy holds, graphs too; validation queries are train ones with ads."""
    check_structure(dataset)
    assert _texts(dataset, "ads") == WORLD.ads
    train, held_out = _clicks(dataset, "train"), _clicks(dataset, "validation")
    assert train | held_out == _entries(WORLD.train_clicks, WORLD.train, WORLD.ads)
    assert train.keys().isdisjoint(held_out)
    asked = _texts(dataset, "queries/train") + _texts(dataset, "queries/validation")
    assert sorted(asked) == sorted(WORLD.train)
    assert {query for query, _ in held_out} == set(_texts(dataset, "queries/validation"))
    assert _clicks(dataset, "test") == _entries(WORLD.test_clicks, WORLD.test, WORLD.ads)
    for split, texts, pairs in (
        ("validation", WORLD.train, WORLD.train_filters),
        ("test", WORLD.test, WORLD.test_filters),
    ):
        kept = set(_texts(dataset, f"queries/{split}"))
        expected = {(texts[q], WORLD.ads[a]) for q, a in pairs if texts[q] in kept}
        assert pairs_of(dataset, f"filters/{split}", f"queries/{split}", "ads") == expected
    assert dataset.anchor_sets == ["category", "hyper_link"]
    kept = set(_texts(dataset, "queries/train"))
    edges = _entries(WORLD.links["trn"], WORLD.train, WORLD.anchors)
    in_train = {pair: weight for pair, weight in edges.items() if pair[0] in kept}
    for name in dataset.anchor_sets:
        assert _texts(dataset, f"anchors/{name}") == WORLD.anchors
        assert edge_weights_of(dataset, name, "query") == in_train
    ad_edges = _entries(WORLD.links["lbl"], WORLD.ads, WORLD.anchors)
    assert edge_weights_of(dataset, "hyper_link", "ad") == ad_edges
    assert not dataset.has("edges/category/ad")
    assert not dataset.has("edges/hyper_link/test_query")


@pytest.mark.parametrize(
    ("layout", "suffix"), [("ngame", ".txt"), ("renee", ".npz"), ("oak", ".txt"), ("dexml", ".npz")]
)
def test_raw_texts_with_matrices(tmp_path, layout, suffix, caplog):
    folder = tmp_path / "Some-Titles"
    put_raw(folder, layout, suffix)
    put_graphs(folder, suffix, "" if layout == "ngame" else "raw_data/")
    dataset = imported(folder)
    assert dataset.name == "Some-Titles"
    _assert_is(dataset)
    without_ads = sum(np.diff(WORLD.train_clicks.indptr) == 0)
    assert f"{without_ads} queries have no ads and take part in the graph only" in caplog.text


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json(tmp_path, suffix):
    put_json(tmp_path / "LF-Wiki", suffix)
    put_graphs(tmp_path / "LF-Wiki", ".txt")
    put_matrix(tmp_path / "LF-Wiki" / "trn_X_Y", WORLD.train_clicks, ".txt")
    dataset = imported(tmp_path / "LF-Wiki")
    _assert_is(dataset)
    ids = dataset.read("queries/test").to_pylist()
    assert all(WORLD.test[int(row["source_id"][1:])] == row["text"] for row in ids)
    assert "weights" not in dataset.schema("queries/train").names


@pytest.mark.parametrize(
    ("name", "text", "first", "propensities"),
    [
        ("LF-WikiTITLES-500K", None, "ad", (0.5, 0.4)),
        ("LF-Wiki", None, "ad 0", (0.5, 0.4)),
        ("LF-Wiki", "title", "ad", (0.5, 0.4)),
        ("LF-AmazonTitles-131K", "title+content", "ad 0", (0.6, 2.6)),
        ("LF-WikiSeeAlsoTitles-320K", None, "ad", (0.55, 1.5)),
        ("mine", None, "ad 0", (0.55, 1.5)),
    ],
)
def test_the_name_says_which_text_counts_and_brings_the_constants_of_the_repository(
    name, text, first, propensities, tmp_path
):
    put_json(tmp_path / "xc", "")
    dataset = import_xc(tmp_path / "xc", tmp_path / name, name, text, 0.3)
    assert dataset.name == name
    assert _texts(dataset, "ads")[0] == first
    evaluation = run_config_of(["tiny", "--dataset", str(dataset.path)]).evaluation
    assert (evaluation.propensity_a, evaluation.propensity_b) == propensities


def test_json_with_numbers_as_uid_no_content_blank_lines_and_marks(tmp_path):
    for name in ("trn", "tst", "lbl"):
        rows = [{"uid": n, "title": f"{name} {n}", "target_ind": [n]} for n in range(9)]
        marks = ["\ufeff", "\ufeff", *[" "] * 7]  # of two files that were joined
        lines = [mark + json.dumps(row) for mark, row in zip(marks, rows, strict=True)]
        put(tmp_path / "xc" / f"{name}.json", [lines[0], "", *lines[1:]])
    dataset = import_xc(tmp_path / "xc", tmp_path / "out", validation_fraction=0.4)
    assert dataset.read("ads")["source_id"].to_pylist() == [str(n) for n in range(9)]
    assert _texts(dataset, "ads")[3] == "lbl 3"


def test_irene(tmp_path):
    num_seen = 20
    novel = WORLD.test_clicks[:, num_seen:]
    rows = np.flatnonzero(np.diff(novel.indptr))
    assert 0 < len(rows) < NUM_TEST
    zero_filters = [(n, n % 5) for n in range(len(rows))]
    for variant in ("one text file", "own texts", "all rows"):
        folder, output = tmp_path / variant, tmp_path / f"{variant} out"
        put(folder / "raw" / "trn_X.txt", WORLD.train)
        put(folder / "raw" / "tst_X.txt", WORLD.test)
        put(folder / "raw" / "Y.txt", WORLD.ads)
        put_matrix(folder / "Y.trn", WORLD.train_clicks[:, :num_seen], ".npz")
        put_matrix(folder / "Y.tst_full", WORLD.test_clicks, ".npz")
        put_matrix(folder / "Y.tst_zero", novel if variant == "all rows" else novel[rows], ".npz")
        if variant == "own texts":
            put(folder / "raw" / "tst_X_zero.txt", [WORLD.test[row] for row in rows])
        filters = [(int(rows[q]), a) if variant == "all rows" else (q, a) for q, a in zero_filters]
        put_pairs(folder / "filter_labels_test_zero.txt", filters)
        put_pairs(folder / "filter_labels_test_full.txt", WORLD.test_filters)
        dataset = import_xc(folder, output, validation_fraction=0.3)
        check_structure(dataset)
        train = _clicks(dataset, "train") | _clicks(dataset, "validation")
        assert train == _entries(WORLD.train_clicks[:, :num_seen], WORLD.train, WORLD.ads)
        assert _clicks(dataset, "test") == _entries(WORLD.test_clicks, WORLD.test, WORLD.ads)
        zero = _entries(novel, WORLD.test, WORLD.ads[num_seen:])
        assert _clicks(dataset, "zero_shot") == zero
        assert dataset.read("novel_ads")["ad_id"].to_pylist() == list(range(num_seen, NUM_ADS))
        assert pairs_of(dataset, "filters/zero_shot", "queries/zero_shot", "ads") == {
            (WORLD.test[rows[q]], WORLD.ads[num_seen + a]) for q, a in zero_filters
        }


def test_validation_queries_share_no_text_with_train(tmp_path):
    texts = [f"{'Same' if n % 2 else 'sAME '} {n // 4}" for n in range(400)]
    clicks = sparse.csr_array(np.ones((400, 1), dtype=np.float32))
    world = World(texts, ["a"], ["b"], [], clicks, clicks[:1], [], [], {})
    put_raw(tmp_path / "xc", "oak", ".npz", world)
    drawn = []
    for number, seed in enumerate((0, 0, 1)):
        dataset = import_xc(tmp_path / "xc", tmp_path / str(number), seed=seed)
        drawn.append([_texts(dataset, f"queries/{split}") for split in ("train", "validation")])
        train, validation = ({plain(text) for text in texts} for texts in drawn[-1])
        assert not train & validation
        assert 0.04 < len(validation) / 100 < 0.18
    assert drawn[0] == drawn[1] != drawn[2]


def _warnings(caplog: pytest.LogCaptureFixture, fragment: str) -> list[Finding]:
    records = [record.msg for record in caplog.records if record.levelno == logging.WARNING]
    return [one for one in records if isinstance(one, Finding) and fragment in one.message]


def test_a_few_bytes_of_windows_1252_are_read_and_reported(oak, caplog):
    lines = [f"Zürich “{n}” ".encode() for n in range(25)]
    for row in (3, 5):
        lines[row] += "“noir” 5 €".encode("cp1252")
    (oak / "raw_data" / "label.raw.txt").write_bytes(b"\r\n".join(lines) + b"\r\n")
    texts = _texts(imported(oak), "ads")
    assert texts[4] == "Zürich “4” "
    assert [texts[row] for row in (3, 5)] == [f"Zürich “{row}” “noir” 5 €" for row in (3, 5)]
    (found,) = _warnings(caplog, "Windows-1252")
    assert (found.row, Path(found.file).name) == (4, "label.raw.txt")
    assert found.message.startswith("2 lines are not UTF-8, and were read as Windows-1252: ")


def test_marks_of_joined_files_and_words_for_no_text_are_reported(oak, caplog):
    words = ["NULL", "None", "\\N", " N/A", "Nonesuch"]
    texts = [f"ad {n}" for n in range(20)] + words
    content = [("\ufeff" if n in (0, 7, 11) else "") + text for n, text in enumerate(texts)]
    put(oak / "raw_data" / "label.raw.txt", content)
    assert _texts(imported(oak), "ads") == texts
    (marks,) = _warnings(caplog, "byte order mark")
    assert (marks.row, marks.message[:2]) == (8, "2 ")
    (found,) = _warnings(caplog, "stand for none")
    assert found.row == 21
    assert "(4 of 25, 16.0%): 'NULL', 'None' (row 22)" in found.message


def test_odd_ends_of_matrices_comments_and_empty_filters(oak, caplog):
    matrix = (oak / "tst_X_Y.txt").read_text().split("\n")
    matrix[1] += " # the first"
    (oak / "tst_X_Y.txt").write_text("\n".join([*matrix[:20], ""]))
    (oak / "filter_labels_test.txt").write_bytes(b"# none\n\n")
    (oak / "filter_labels_train.txt").unlink()
    whole = (oak / "hyper_link_lbl_X_Y.txt").read_text()
    (oak / "hyper_link_lbl_X_Y.txt").write_text(whole.rstrip("\n"))
    dataset = imported(oak)
    shortened = WORLD.test_clicks[:19]
    assert _clicks(dataset, "test") == _entries(shortened, WORLD.test, WORLD.ads)
    assert "tst_X_Y.txt, row 21: the last 1 of 20 rows are absent" in caplog.text
    assert "hyper_link_lbl_X_Y.txt, row 26: its last line has no end" in caplog.text
    assert not dataset.has("filters/validation")


def test_nodes_without_text_are_left_out_with_their_pairs(oak, caplog):
    put(oak / "raw_data" / "label.raw.txt", ["", *WORLD.ads[1:7], " \t", *WORLD.ads[8:]])
    put(oak / "raw_data" / "train.raw.txt", [*WORLD.train[:9], "", *WORLD.train[10:]])
    put(oak / "raw_data" / "category.raw.txt", [*WORLD.anchors[:4], "", *WORLD.anchors[5:]])
    dataset = imported(oak)
    check_structure(dataset)

    def without(pairs: dict[Any, float], *texts: str) -> dict[Any, float]:
        return {pair: weight for pair, weight in pairs.items() if not {*pair} & {*texts}}

    gone = WORLD.ads[0], WORLD.ads[7], WORLD.train[9]
    clicks = without(_entries(WORLD.train_clicks, WORLD.train, WORLD.ads), *gone)
    assert _clicks(dataset, "train") | _clicks(dataset, "validation") == clicks
    ad_edges = without(_entries(WORLD.links["lbl"], WORLD.ads, WORLD.anchors), *gone)
    assert edge_weights_of(dataset, "hyper_link", "ad") == ad_edges
    kept = set(_texts(dataset, "queries/train"))
    edges = without(_entries(WORLD.links["trn"], WORLD.train, WORLD.anchors), WORLD.anchors[4])
    edges = {pair: weight for pair, weight in edges.items() if pair[0] in kept}
    assert edge_weights_of(dataset, "category", "query") == edges
    assert "label.raw.txt, row 1: 2 ads have no text" in caplog.text
    assert "category.raw.txt, row 5: 1 anchors have no text" in caplog.text


def _contents(dataset: Dataset) -> dict[str, list[dict[str, Any]]]:
    """All rows in the order of their ids, and the ads of each query in theirs, with weights."""
    found = {}
    for table in dataset.tables:
        rows = dataset.read(table).to_pylist()
        for row in rows:
            if "ad_ids" in row:
                weights = row.pop("weights", None) or [1.0] * len(row["ad_ids"])
                row["ad_ids"] = sorted(zip(row["ad_ids"], weights, strict=True))
        found[table] = sorted(rows, key=lambda row: list(row.values())[:2])
    return found


@pytest.mark.parametrize("seed", range(6))
def test_round_trip(seed, tmp_path):
    """XC files keep rows in the order of their ids, and ads ascending, so other orders are lost."""
    parent = random_dataset(tmp_path / "parent", seed, 12, weighted=seed % 2 == 1)
    split = make_novel_split(parent.path, tmp_path / "split", NovelSettings(0.3))
    tables = {name: split.read(name) for name in split.tables}
    names = {"/left": "/a_trn", "/more": "/b-1_renee"}
    for old, new in names.items():
        tables = {name.replace(old, new): rows for name, rows in tables.items()}
    tables["ads"] = tables["ads"].drop_columns("filter_kind")
    dataset = write_dataset(tmp_path / "in", tables, name="round")
    export_xc(dataset, tmp_path / "xc")
    found = import_xc(tmp_path / "xc", tmp_path / "out")
    assert _contents(found) == _contents(dataset)
    assert "zero_shot" in found.splits and "b-1_renee" in found.anchor_sets
    for table in found.tables:
        assert found.schema(table) == dataset.schema(table)


def test_the_size_of_blocks_does_not_matter(monkeypatch, oak, tmp_path):
    """Files larger than a block read as small ones do."""
    (oak / "raw_data" / "test.source_id.txt").write_text("7\n" * NUM_TEST)
    whole = import_xc(oak, tmp_path / "whole")
    monkeypatch.setattr(matrices, "BLOCK_BYTES", 100)
    monkeypatch.setattr(matrices, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr("ramen_ray.data.tables.reading.lines.BYTES_PER_BLOCK", 100)
    assert import_xc(oak, tmp_path / "parts").fingerprint == whole.fingerprint
    export_xc(whole, tmp_path / "again")
    again = import_xc(tmp_path / "again", tmp_path / "parts again")
    assert again.fingerprint == whole.fingerprint


def test_jobs(oak, tmp_path, done, refused, caplog):
    (oak / "raw_data" / "label.raw.txt").write_bytes(b"\xff\n" + b"hat\n" * (NUM_ADS - 1))
    made, exported = tmp_path / "a", tmp_path / "b"
    printed = done(ingest, "xc", "--source", oak, "--output", made)
    assert printed.startswith(f"wrote xc to {made}\n")
    assert "label.raw.txt, row 1: 1 lines are not UTF-8" in caplog.text
    printed = done(export, "xc", made, "--output", exported)
    assert printed.startswith(f"wrote {exported}\nnext: ")
    assert import_xc(exported, tmp_path / "c").fingerprint == Dataset(made).fingerprint
    error = refused(export, "xc", tmp_path / "none", "--output", tmp_path / "d")
    assert error.startswith("error: there is no dataset directory")
