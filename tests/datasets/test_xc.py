"""Folders of the XC repository: every layout read, what is exported read back, faults named."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from random_datasets import random_dataset
from scipy import sparse
from support import run_config_of
from written_out import click_weights_of, column_of, edge_weights_of, pairs_of

import xc
from ramen_ray.data.checks.structure import check_structure
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.schemas import schema_of

NUM_TRAIN, NUM_TEST, NUM_ADS, NUM_ANCHORS = 60, 20, 25, 15


def _random(draw, rows, columns, weighted):
    matrix = sparse.random_array((rows, columns), density=0.15, rng=draw, format="csr")
    matrix.data = draw.integers(1, 6, matrix.nnz) / 4 if weighted else np.ones(matrix.nnz)
    matrix.sort_indices()
    return matrix.astype(np.float32)


DRAW = np.random.default_rng(3)
TRAIN = [f"query {n} \u2028 Zürich" for n in range(NUM_TRAIN)]
TEST = [f"asked {n} 漢字" for n in range(NUM_TEST)]
ADS = [f"ad {n}" for n in range(NUM_ADS)]
ANCHORS = [f"anchor {n}" for n in range(NUM_ANCHORS)]
TRAIN_CLICKS = _random(DRAW, NUM_TRAIN, NUM_ADS, weighted=False)
TEST_CLICKS = _random(DRAW, NUM_TEST, NUM_ADS, weighted=True)
TRAIN_FILTERS = [(n, n % NUM_ADS) for n in range(NUM_TRAIN)]
TEST_FILTERS = [(n, n) for n in range(NUM_TEST)]
LINKS = {
    part: _random(DRAW, size, NUM_ANCHORS, weighted=True)
    for part, size in {"trn": NUM_TRAIN, "tst": NUM_TEST, "lbl": NUM_ADS}.items()
}


def put(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{text}\n" for text in texts).encode())


def put_matrix(stem, matrix, suffix=".txt"):
    """Write a matrix with scipy, or number by number."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    if suffix == ".npz":
        sparse.save_npz(f"{stem}.npz", matrix)
        return
    rows = [f"{matrix.shape[0]} {matrix.shape[1]}"]
    for row in matrix.toarray():
        rows.append(" ".join(f"{column}:{row[column]:.5f}" for column in np.flatnonzero(row)))
    put(Path(f"{stem}.txt"), rows)


def put_raw(folder, layout, suffix=".txt"):
    """Write the data set in a layout of raw texts, with its graphs."""
    names = {
        "ngame": ("trn.raw.txt", "tst.raw.txt", "lbl.raw.txt"),
        "renee": ("trn_X.txt", "tst_X.txt", "Y.txt"),
        "oak": ("raw_data/train.raw.txt", "raw_data/test.raw.txt", "raw_data/label.raw.txt"),
        "dexml": ("raw/trn_X.txt", "raw/tst_X.txt", "raw/Y.txt"),
    }[layout]
    for name, texts in zip(names, (TRAIN, TEST, ADS), strict=True):
        put(folder / name, texts)
    train, test = ("Y.trn", "Y.tst") if layout == "dexml" else ("trn_X_Y", "tst_X_Y")
    put_matrix(folder / train, TRAIN_CLICKS, suffix)
    put_matrix(folder / test, TEST_CLICKS, suffix)
    train, test = "filter_labels_train.txt", "filter_labels_test.txt"
    if layout == "renee":
        train, test = "trn_filter_labels.txt", "tst_filter_labels.txt"
    put_filters(folder / train, TRAIN_FILTERS)
    put_filters(folder / test, TEST_FILTERS)
    put_graphs(folder, suffix, "" if layout == "ngame" else "raw_data/")
    return folder


def put_filters(path, pairs):
    put(path, [f"{query} {ad}" for query, ad in pairs])


def put_graphs(folder, suffix, texts="raw_data/"):
    put(folder / f"{texts}hyper_link.raw.txt", ANCHORS)
    put(folder / f"{texts}category.raw.txt", ANCHORS)
    for part, matrix in LINKS.items():
        put_matrix(folder / f"hyper_link_{part}_X_Y", matrix, suffix)
    put_matrix(folder / "category_trn_X_Y", LINKS["trn"], suffix)
    put_matrix(folder / "hyper_link_renee_tst_X_Y", LINKS["tst"], ".npz")  # is not read


def _objects(texts, clicks=None):
    for row, text in enumerate(texts):
        title, _, content = text.rpartition(" ")
        node = {"uid": row, "title": title, "content": content}
        if clicks is not None:
            start, stop = clicks.indptr[row : row + 2]
            node["target_ind"] = clicks.indices[start:stop].tolist()[::-1]
            node["target_rel"] = clicks.data[start:stop].tolist()[::-1]
        yield json.dumps(node)


def put_json(folder, suffix=".gz"):
    files = {
        "trn": _objects(TRAIN, TRAIN_CLICKS),
        "tst": _objects(TEST, TEST_CLICKS),
        "lbl": _objects(ADS),
    }
    for name, lines in files.items():
        put(file := folder / f"{name}.json{suffix}", list(lines))
        if suffix:
            file.write_bytes(gzip.compress(file.read_bytes()))
    put_filters(folder / "filter_labels_train.txt", TRAIN_FILTERS)
    put_filters(folder / "filter_labels_test.txt", TEST_FILTERS)
    put_graphs(folder, ".txt")
    return folder


def imported(folder, output="out", **settings):
    """Import a folder into ``output`` beside it."""
    settings = {"validation_fraction": 0.3, **settings}
    return xc.import_xc(xc.Import(source=folder, output=folder.parent / output, **settings))


def _entries(matrix, left, right):
    matrix = matrix.tocoo()
    entries = zip(matrix.coords[0], matrix.coords[1], matrix.data, strict=True)
    return {(left[row], right[column]): float(value) for row, column, value in entries}


@pytest.mark.parametrize(
    ("layout", "suffix"),
    [
        *[("ngame", ".txt"), ("renee", ".npz"), ("oak", ".txt"), ("dexml", ".npz")],
        *[("json", ""), ("json", ".gz")],
    ],
)
def test_a_layout_is_read_whole(layout, suffix, tmp_path):
    """Compare with what scipy holds, graphs too; validation queries are train ones with ads."""
    folder = tmp_path / f"LF-{layout}"
    if layout == "json":
        put_json(folder, suffix)
    else:
        put_raw(folder, layout, suffix)
    dataset = imported(folder)
    assert dataset.name == folder.name
    check_structure(dataset)
    assert column_of(dataset, "ads") == ADS
    clicks = click_weights_of(dataset, "train", "validation")
    assert clicks == _entries(TRAIN_CLICKS, TRAIN, ADS)
    train, validation = (
        column_of(dataset, f"queries/{split}") for split in ("train", "validation")
    )
    assert sorted(train + validation) == sorted(TRAIN)
    assert {query for query, _ in click_weights_of(dataset, "validation")} == set(validation)
    assert click_weights_of(dataset, "test") == _entries(TEST_CLICKS, TEST, ADS)
    for split, texts, pairs in (
        ("validation", TRAIN, TRAIN_FILTERS),
        ("test", TEST, TEST_FILTERS),
    ):
        kept = set(column_of(dataset, f"queries/{split}"))
        expected = {(texts[query], ADS[ad]) for query, ad in pairs if texts[query] in kept}
        assert pairs_of(dataset, f"filters/{split}", f"queries/{split}", "ads") == expected
    assert dataset.anchor_sets == ["category", "hyper_link"]
    edges = _entries(LINKS["trn"], TRAIN, ANCHORS)
    in_train = {pair: weight for pair, weight in edges.items() if pair[0] in set(train)}
    for name in dataset.anchor_sets:
        assert column_of(dataset, f"anchors/{name}") == ANCHORS
        assert edge_weights_of(dataset, name, "query") == in_train
    assert edge_weights_of(dataset, "hyper_link", "ad") == _entries(LINKS["lbl"], ADS, ANCHORS)
    assert not dataset.has("edges/category/ad")
    assert not dataset.has("edges/hyper_link/test_query")
    if layout == "json":
        rows = dataset.read("queries/test").to_pylist()
        assert all(TEST[int(row["source_id"])] == row["text"] for row in rows)


@pytest.mark.parametrize(
    ("name", "text", "first", "propensities"),
    [
        ("LF-WikiTITLES-500K", None, "ad", (0.5, 0.4)),
        ("LF-AmazonTitles-131K", "title+content", "ad 0", (0.6, 2.6)),
    ],
)
def test_the_name_says_which_text_counts_and_brings_the_constants_of_the_repository(
    name, text, first, propensities, tmp_path
):
    dataset = imported(put_json(tmp_path / "xc"), name, name=name, text=text)
    assert column_of(dataset, "ads")[0] == first
    evaluation = run_config_of(["tiny", "--dataset", str(dataset.path)]).evaluation
    assert (evaluation.propensity_a, evaluation.propensity_b) == propensities


@pytest.mark.parametrize("variant", ["rows with novel ads", "own texts", "all rows"])
def test_seen_and_novel_ads(variant, tmp_path):
    folder = tmp_path / "xc"
    num_seen = 20
    novel = TEST_CLICKS[:, num_seen:]
    rows = np.flatnonzero(np.diff(novel.indptr))
    assert 0 < len(rows) < NUM_TEST
    for name, texts in (("trn_X", TRAIN), ("tst_X", TEST), ("Y", ADS)):
        put(folder / "raw" / f"{name}.txt", texts)
    put_matrix(folder / "Y.trn", TRAIN_CLICKS[:, :num_seen], ".npz")
    put_matrix(folder / "Y.tst_full", TEST_CLICKS, ".npz")
    put_matrix(folder / "Y.tst_zero", novel if variant == "all rows" else novel[rows], ".npz")
    if variant == "own texts":
        put(folder / "raw" / "tst_X_zero.txt", [TEST[row] for row in rows])
    filtered = [(place, place % 5) for place in range(len(rows))]
    pairs = [(int(rows[q]), a) if variant == "all rows" else (q, a) for q, a in filtered]
    put_filters(folder / "filter_labels_test_zero.txt", pairs)
    dataset = imported(folder)
    check_structure(dataset)
    seen = _entries(TRAIN_CLICKS[:, :num_seen], TRAIN, ADS)
    assert click_weights_of(dataset, "train", "validation") == seen
    assert click_weights_of(dataset, "test") == _entries(TEST_CLICKS, TEST, ADS)
    assert click_weights_of(dataset, "zero_shot") == _entries(novel, TEST, ADS[num_seen:])
    assert column_of(dataset, "novel_ads", "ad_id") == list(range(num_seen, NUM_ADS))
    assert pairs_of(dataset, "filters/zero_shot", "queries/zero_shot", "ads") == {
        (TEST[rows[query]], ADS[num_seen + ad]) for query, ad in filtered
    }
    if variant == "rows with novel ads":
        put_matrix(folder / "Y.tst_zero", novel[rows[::-1]], ".npz")
        with pytest.raises(DatasetError, match=r"Y\.tst_zero\.npz"):
            imported(folder, "again")


def _rows(dataset, table):
    """All rows in the order of their ids, and the ads of each query in theirs, with weights."""
    rows = []
    for row in dataset.read(table).to_pylist():
        weights = row.get("weights") or [1.0] * len(row.get("ad_ids", ()))
        clicks = sorted(zip(row.get("ad_ids", ()), weights, strict=True))
        names = [*schema_of(table).names, "weight"]
        rows.append((*(row[name] for name in names if name in row and name != "ad_ids"), *clicks))
    return sorted(rows)


@pytest.mark.parametrize("weighted", [False, True])
def test_what_is_exported_is_read_back(weighted, tmp_path, done):
    dataset = random_dataset(tmp_path / "in", 1, 12, weighted=weighted)
    done(xc, "export", "--dataset", dataset.path, "--output", tmp_path / "xc")
    done(xc, "import", "--source", tmp_path / "xc", "--output", tmp_path / "out")
    again = Dataset(tmp_path / "out")
    assert again.anchor_sets == dataset.anchor_sets
    for table in again.tables:
        assert _rows(again, table) == _rows(dataset, table)


FAULTS = [
    ("trn_X_Y.txt", b"60 25\n" + b"3:1 25:1\n" * 60, "trn_X_Y.txt, row 2, column '25'"),
    ("trn_X_Y.txt", None, "trn_X_Y"),
    ("trn_X_Y.npz", b"x", "trn_X_Y.npz"),
    ("raw_data/label.raw.txt", b"gr\xf6\xdfe\n", "label.raw.txt, row 1"),
    ("raw_data/train.raw.txt", None, "xc"),
    ("trn_X.txt", b"a\n", "renee and oak"),
    ("filter_labels_test.txt", b"3 25\n", "filter_labels_test.txt, row 1"),
    ("trn.json.gz", b'{"uid": "a", "title": "x"}\n', "row 1, column 'target_ind'"),
    ("lbl.json.gz", b'{"uid": "a"', "lbl.json.gz, row 1"),
]


@pytest.mark.parametrize(("name", "content", "place"), FAULTS)
def test_a_fault_is_named_and_leaves_nothing(name, content, place, tmp_path):
    folder = tmp_path / "xc"
    if ".json" in name:
        put_json(folder)
    else:
        put_raw(folder, "oak")
    if content is None:
        (folder / name).unlink()
    else:
        is_packed = name.endswith(".gz")
        (folder / name).write_bytes(gzip.compress(content) if is_packed else content)
    with pytest.raises(DatasetError, match=re.escape(place)):
        imported(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["xc"]
