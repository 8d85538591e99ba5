"""XC folders: every layout imported, one exported, and the errors of broken ones."""

import gzip
import io
import json
import logging
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from conftest import RunHere
from hypothesis import HealthCheck, given, settings
from random_datasets import JSON, random_dataset
from scipy import sparse
from support import node_edges, query_table, run_config_of, text_table

from jobs import export, ingest
from ramen_ray.data.checks.structure import check_structure
from ramen_ray.data.findings import Finding
from ramen_ray.data.splits.novel import NovelSettings, make_novel_split
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset
from ramen_ray.data.xc import importing, matrices
from ramen_ray.data.xc.exporting import export_xc
from ramen_ray.data.xc.importing import import_xc
from ramen_ray.data.xc.text_files import TextFile

NUM_TRAIN, NUM_TEST, NUM_ADS, NUM_ANCHORS = 60, 20, 25, 15
HARMLESS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)


class World(NamedTuple):
    """One data set as scipy matrices and lists of distinct texts."""

    train: list[str]
    test: list[str]
    ads: list[str]
    anchors: list[str]
    train_clicks: sparse.csr_array
    test_clicks: sparse.csr_array
    train_filters: list[tuple[int, int]]
    test_filters: list[tuple[int, int]]
    links: dict[str, sparse.csr_array]


def _random(draw: np.random.Generator, rows: int, columns: int, weighted: bool) -> Any:
    matrix = sparse.random_array((rows, columns), density=0.15, rng=draw, format="csr")
    matrix.data = draw.integers(1, 6, matrix.nnz) / 4 if weighted else np.ones(matrix.nnz)
    matrix.sort_indices()
    return matrix.astype(np.float32)


@pytest.fixture(scope="module")
def world() -> World:
    draw = np.random.default_rng(3)
    sizes = {"trn": NUM_TRAIN, "tst": NUM_TEST, "lbl": NUM_ADS}
    return World(
        [f"query {n} \u2028 Zürich" for n in range(NUM_TRAIN)],
        [f"asked {n} 漢字" for n in range(NUM_TEST)],
        [f"ad {n}" for n in range(NUM_ADS)],
        [f"anchor {n}" for n in range(NUM_ANCHORS)],
        _random(draw, NUM_TRAIN, NUM_ADS, weighted=False),
        _random(draw, NUM_TEST, NUM_ADS, weighted=True),
        [(n, n % NUM_ADS) for n in range(NUM_TRAIN)],
        [(n, n) for n in range(NUM_TEST)],
        {part: _random(draw, size, NUM_ANCHORS, weighted=True) for part, size in sizes.items()},
    )


def _put(path: Path, texts: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{text}\n" for text in texts).encode())


def _put_matrix(stem: Path, matrix: Any, suffix: str) -> None:
    """Write a matrix with scipy, or number by number."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    if suffix == ".npz":
        sparse.save_npz(f"{stem}.npz", matrix)
        return
    rows = [f"{matrix.shape[0]} {matrix.shape[1]}"]
    for row in range(matrix.shape[0]):
        start, stop = matrix.indptr[row : row + 2]
        entries = zip(matrix.indices[start:stop], matrix.data[start:stop], strict=True)
        rows.append(" ".join(f"{column}:{value:.5f}" for column, value in entries))
    _put(Path(f"{stem}.txt"), rows)


def _put_pairs(path: Path, pairs: Sequence[tuple[int, int]]) -> None:
    _put(path, [f"{query} {ad}" for query, ad in pairs])


def _put_raw(folder: Path, world: World, layout: str, suffix: str) -> None:
    names = {
        "ngame": ("trn.raw.txt", "tst.raw.txt", "lbl.raw.txt"),
        "renee": ("trn_X.txt", "tst_X.txt", "Y.txt"),
        "oak": ("raw_data/train.raw.txt", "raw_data/test.raw.txt", "raw_data/label.raw.txt"),
        "dexml": ("raw/trn_X.txt", "raw/tst_X.txt", "raw/Y.txt"),
    }[layout]
    for name, texts in zip(names, (world.train, world.test, world.ads), strict=True):
        _put(folder / name, texts)
    train, test = ("Y.trn", "Y.tst") if layout == "dexml" else ("trn_X_Y", "tst_X_Y")
    _put_matrix(folder / train, world.train_clicks, suffix)
    _put_matrix(folder / test, world.test_clicks, suffix)
    train, test = "filter_labels_train.txt", "filter_labels_test.txt"
    if layout == "renee":
        train, test = "trn_filter_labels.txt", "tst_filter_labels.txt"
    _put_pairs(folder / train, world.train_filters)
    _put_pairs(folder / test, world.test_filters)


@pytest.fixture
def oak(world: World, tmp_path: Path) -> Path:
    """The world in the layout oak, with its graphs."""
    _put_raw(tmp_path / "xc", world, "oak", ".txt")
    _put_graphs(tmp_path / "xc", world, ".txt")
    return tmp_path / "xc"


def _import(folder: Path) -> Dataset:
    """Import a folder into ``out`` beside it."""
    return import_xc(folder, folder.parent / "out", validation_fraction=0.3)


def _objects(texts: Sequence[str], clicks: Any = None) -> list[str]:
    objects = []
    for row, text in enumerate(texts):
        title, _, content = text.rpartition(" ")
        found = {"uid": f"B{row}", "title": title, "content": content}
        if clicks is not None:
            start, stop = clicks.indptr[row : row + 2]
            found["target_ind"] = clicks.indices[start:stop].tolist()[::-1]
            found["target_rel"] = clicks.data[start:stop].tolist()[::-1]
        objects.append(json.dumps(found))
    return objects


def _put_json(folder: Path, world: World, suffix: str) -> None:
    files = {
        "trn": _objects(world.train, world.train_clicks),
        "tst": _objects(world.test, world.test_clicks),
        "lbl": _objects(world.ads),
    }
    for name, objects in files.items():
        content = "".join(f"{line}\n" for line in objects).encode()
        folder.mkdir(exist_ok=True)
        content = gzip.compress(content) if suffix == ".gz" else content
        (folder / f"{name}.json{suffix}").write_bytes(content)
    _put_pairs(folder / "filter_labels_train.txt", world.train_filters)
    _put_pairs(folder / "filter_labels_test.txt", world.test_filters)


def _put_graphs(folder: Path, world: World, suffix: str, texts: str = "raw_data/") -> None:
    _put(folder / f"{texts}hyper_link.raw.txt", world.anchors)
    _put(folder / f"{texts}category.raw.txt", world.anchors)
    for part, matrix in world.links.items():
        _put_matrix(folder / f"hyper_link_{part}_X_Y", matrix, suffix)
    _put_matrix(folder / "category_trn_X_Y", world.links["trn"], suffix)
    _put_matrix(folder / "hyper_link_renee_tst_X_Y", world.links["tst"], ".npz")
    _put_matrix(folder / "hyper_link_renee_mean_trn_X_Y", world.links["trn"], ".txt")


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


def _pairs(dataset: Dataset, table: str, left: str, right: str) -> dict[tuple[str, str], float]:
    """A table's pairs of ids, by the texts of the tables that the ids belong to."""
    from_texts, to_texts = _texts(dataset, left), _texts(dataset, right)
    rows = dataset.read(table).to_pydict()
    columns = list(rows.values())
    weights = rows.get("weight", [1.0] * len(columns[0]))
    return {
        (from_texts[a], to_texts[b]): weight
        for a, b, weight in zip(columns[0], columns[1], weights, strict=True)
    }


def _entries(matrix: Any, left: Sequence[str], right: Sequence[str]) -> dict[Any, float]:
    matrix = matrix.tocoo()
    entries = zip(matrix.coords[0], matrix.coords[1], matrix.data, strict=True)
    return {(left[row], right[column]): float(value) for row, column, value in entries}


def _assert_is(dataset: Dataset, world: World) -> None:
    """Compare with what scipy holds; validation queries are train queries with ads."""
    check_structure(dataset)
    assert _texts(dataset, "ads") == world.ads
    train, held_out = _clicks(dataset, "train"), _clicks(dataset, "validation")
    assert train | held_out == _entries(world.train_clicks, world.train, world.ads)
    assert train.keys().isdisjoint(held_out)
    asked = _texts(dataset, "queries/train") + _texts(dataset, "queries/validation")
    assert sorted(asked) == sorted(world.train)
    assert {query for query, _ in held_out} == set(_texts(dataset, "queries/validation"))
    assert _clicks(dataset, "test") == _entries(world.test_clicks, world.test, world.ads)
    for split, texts, pairs in (
        ("validation", world.train, world.train_filters),
        ("test", world.test, world.test_filters),
    ):
        kept = set(_texts(dataset, f"queries/{split}"))
        expected = {(texts[q], world.ads[a]) for q, a in pairs if texts[q] in kept}
        assert set(_pairs(dataset, f"filters/{split}", f"queries/{split}", "ads")) == expected


def _assert_graphs(dataset: Dataset, world: World) -> None:
    assert dataset.anchor_sets == ["category", "hyper_link"]
    kept = set(_texts(dataset, "queries/train"))
    edges = _entries(world.links["trn"], world.train, world.anchors)
    in_train = {pair: weight for pair, weight in edges.items() if pair[0] in kept}
    for name in dataset.anchor_sets:
        anchors = f"anchors/{name}"
        assert _texts(dataset, anchors) == world.anchors
        assert _pairs(dataset, f"edges/{name}/query", "queries/train", anchors) == in_train
    ad_edges = _pairs(dataset, "edges/hyper_link/ad", "ads", "anchors/hyper_link")
    assert ad_edges == _entries(world.links["lbl"], world.ads, world.anchors)
    assert not dataset.has("edges/category/ad")
    assert not dataset.has("edges/hyper_link/test_query")


@pytest.mark.parametrize(
    ("layout", "suffix"), [("ngame", ".txt"), ("renee", ".npz"), ("oak", ".txt"), ("dexml", ".npz")]
)
def test_raw_texts_with_matrices(
    world: World, tmp_path: Path, layout: str, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "Some-Titles"
    _put_raw(folder, world, layout, suffix)
    _put_graphs(folder, world, suffix, "" if layout == "ngame" else "raw_data/")
    dataset = _import(folder)
    assert dataset.name == "Some-Titles"
    _assert_is(dataset, world)
    _assert_graphs(dataset, world)
    without_ads = sum(np.diff(world.train_clicks.indptr) == 0)
    assert f"{without_ads} queries have no ads and take part in the graph only" in caplog.text


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json(world: World, tmp_path: Path, suffix: str) -> None:
    _put_json(tmp_path / "LF-Wiki", world, suffix)
    _put_graphs(tmp_path / "LF-Wiki", world, ".txt")
    _put_matrix(tmp_path / "LF-Wiki" / "trn_X_Y", world.train_clicks, ".txt")
    dataset = _import(tmp_path / "LF-Wiki")
    _assert_is(dataset, world)
    _assert_graphs(dataset, world)
    ids = dataset.read("queries/test").to_pylist()
    assert all(world.test[int(row["source_id"][1:])] == row["text"] for row in ids)
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
    name: str,
    text: Any,
    first: str,
    propensities: tuple[float, float],
    world: World,
    tmp_path: Path,
) -> None:
    _put_json(tmp_path / "xc", world, "")
    dataset = import_xc(tmp_path / "xc", tmp_path / name, name, text, 0.3)
    assert dataset.name == name
    assert _texts(dataset, "ads")[0] == first
    evaluation = run_config_of(["tiny", "--dataset", str(dataset.path)]).evaluation
    assert (evaluation.propensity_a, evaluation.propensity_b) == propensities


def test_json_with_numbers_as_uid_no_content_blank_lines_and_marks(tmp_path: Path) -> None:
    for name in ("trn", "tst", "lbl"):
        rows = [{"uid": n, "title": f"{name} {n}", "target_ind": [n]} for n in range(9)]
        marks = ["\ufeff", "\ufeff", *[" "] * 7]  # of two files that were joined
        lines = [mark + json.dumps(row) for mark, row in zip(marks, rows, strict=True)]
        _put(tmp_path / "xc" / f"{name}.json", [lines[0], "", *lines[1:]])
    dataset = import_xc(tmp_path / "xc", tmp_path / "out", validation_fraction=0.4)
    assert dataset.read("ads")["source_id"].to_pylist() == [str(n) for n in range(9)]
    assert _texts(dataset, "ads")[3] == "lbl 3"


def test_irene(world: World, tmp_path: Path) -> None:
    num_seen = 20
    novel = world.test_clicks[:, num_seen:]
    rows = np.flatnonzero(np.diff(novel.indptr))
    assert 0 < len(rows) < NUM_TEST
    zero_filters = [(n, n % 5) for n in range(len(rows))]
    for variant in ("one text file", "own texts", "all rows"):
        folder, output = tmp_path / variant, tmp_path / f"{variant} out"
        _put(folder / "raw" / "trn_X.txt", world.train)
        _put(folder / "raw" / "tst_X.txt", world.test)
        _put(folder / "raw" / "Y.txt", world.ads)
        _put_matrix(folder / "Y.trn", world.train_clicks[:, :num_seen], ".npz")
        _put_matrix(folder / "Y.tst_full", world.test_clicks, ".npz")
        _put_matrix(folder / "Y.tst_zero", novel if variant == "all rows" else novel[rows], ".npz")
        if variant == "own texts":
            _put(folder / "raw" / "tst_X_zero.txt", [world.test[row] for row in rows])
        filters = [(int(rows[q]), a) if variant == "all rows" else (q, a) for q, a in zero_filters]
        _put_pairs(folder / "filter_labels_test_zero.txt", filters)
        _put_pairs(folder / "filter_labels_test_full.txt", world.test_filters)
        dataset = import_xc(folder, output, validation_fraction=0.3)
        check_structure(dataset)
        train = _clicks(dataset, "train") | _clicks(dataset, "validation")
        assert train == _entries(world.train_clicks[:, :num_seen], world.train, world.ads)
        assert _clicks(dataset, "test") == _entries(world.test_clicks, world.test, world.ads)
        zero = _entries(novel, world.test, world.ads[num_seen:])
        assert _clicks(dataset, "zero_shot") == zero
        assert dataset.read("novel_ads")["ad_id"].to_pylist() == list(range(num_seen, NUM_ADS))
        pairs = _pairs(dataset, "filters/zero_shot", "queries/zero_shot", "ads")
        assert set(pairs) == {
            (world.test[rows[q]], world.ads[num_seen + a]) for q, a in zero_filters
        }


def test_zero_shot_rows_must_be_the_test_queries_with_novel_ads(
    world: World, tmp_path: Path
) -> None:
    folder = tmp_path / "xc"
    _put_raw(folder, world, "dexml", ".npz")
    _put_matrix(folder / "Y.trn", world.train_clicks[:, :20], ".npz")
    _put_matrix(folder / "Y.tst_full", world.test_clicks, ".npz")
    novel = world.test_clicks[:, 20:]
    rows = np.flatnonzero(np.diff(novel.indptr))
    for wrong, words in ((rows[1:], "test queries have novel ads"), (rows[::-1], "the same order")):
        _put_matrix(folder / "Y.tst_zero", novel[wrong], ".npz")
        with pytest.raises(DatasetError, match=words):
            import_xc(folder, tmp_path / "out")
    _put_matrix(folder / "Y.trn", world.train_clicks, ".npz")
    with pytest.raises(DatasetError, match="none of them is novel"):
        import_xc(folder, tmp_path / "out")


def _spelt(text: str) -> str:
    return " ".join(text.casefold().split())


def test_validation_queries_share_no_text_with_train(tmp_path: Path) -> None:
    texts = [f"{'Same' if n % 2 else 'sAME '} {n // 4}" for n in range(400)]
    clicks = sparse.csr_array(np.ones((400, 1), dtype=np.float32))
    world = World(texts, ["a"], ["b"], [], clicks, clicks[:1], [], [], {})
    _put_raw(tmp_path / "xc", world, "oak", ".npz")
    found = {}
    for seed in (0, 0, 1):
        dataset = import_xc(tmp_path / "xc", tmp_path / f"out{len(found)}{seed}", seed=seed)
        splits = [_texts(dataset, f"queries/{split}") for split in ("train", "validation")]
        train, validation = ({_spelt(text) for text in texts} for texts in splits)
        assert not train & validation
        assert 0.04 < len(validation) / 100 < 0.18
        found.setdefault(seed, []).append(splits)
        dataset.path.rename(tmp_path / f"done{len(found)}{len(found[seed])}")
    assert found[0][0] == found[0][1] != found[1][0]


def _warnings(caplog: pytest.LogCaptureFixture, fragment: str) -> list[Finding]:
    records = [record.msg for record in caplog.records if record.levelno == logging.WARNING]
    return [one for one in records if isinstance(one, Finding) and fragment in one.message]


def test_a_few_bytes_of_windows_1252_are_read_and_reported(
    oak: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"Zürich “{n}” ".encode() for n in range(25)]
    for row in (3, 5):
        lines[row] += "“noir” 5 €".encode("cp1252")
    (oak / "raw_data" / "label.raw.txt").write_bytes(b"\r\n".join(lines) + b"\r\n")
    texts = _texts(_import(oak), "ads")
    assert texts[4] == "Zürich “4” "
    assert [texts[row] for row in (3, 5)] == [f"Zürich “{row}” “noir” 5 €" for row in (3, 5)]
    (found,) = _warnings(caplog, "Windows-1252")
    assert (found.row, Path(found.file).name) == (4, "label.raw.txt")
    assert found.message.startswith("2 lines are not UTF-8, and were read as Windows-1252: ")


def test_marks_of_joined_files_and_words_for_no_text_are_reported(
    oak: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ["NULL", "None", "\\N", " N/A", "Nonesuch"]
    texts = [f"ad {n}" for n in range(20)] + words
    content = [("\ufeff" if n in (0, 7, 11) else "") + text for n, text in enumerate(texts)]
    _put(oak / "raw_data" / "label.raw.txt", content)
    assert _texts(_import(oak), "ads") == texts
    (marks,) = _warnings(caplog, "byte order mark")
    assert (marks.row, marks.message[:2]) == (8, "2 ")
    (found,) = _warnings(caplog, "stand for none")
    assert found.row == 21
    assert "(4 of 25, 16.0%): 'NULL', 'None' (row 22)" in found.message


def test_absent_rows_comments_and_empty_filters(
    oak: Path, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    matrix = (oak / "tst_X_Y.txt").read_text().split("\n")
    matrix[1] += " # the first"
    (oak / "tst_X_Y.txt").write_text("\n".join([*matrix[:20], ""]))
    (oak / "filter_labels_test.txt").write_bytes(b"# none\n\n")
    (oak / "filter_labels_train.txt").unlink()
    dataset = _import(oak)
    shortened = world.test_clicks[:19]
    assert _clicks(dataset, "test") == _entries(shortened, world.test, world.ads)
    assert "tst_X_Y.txt, row 21: the last 1 of 20 rows are absent" in caplog.text
    assert not dataset.has("filters/validation")


def test_a_last_line_that_may_have_been_cut_off_is_told(
    oak: Path, caplog: pytest.LogCaptureFixture
) -> None:
    matrix = (oak / "tst_X_Y.txt").read_text().rstrip("\n")
    (oak / "tst_X_Y.txt").write_text(matrix)
    _import(oak)
    assert "tst_X_Y.txt, row 21: its last line has no end" in caplog.text


def test_nodes_without_text_are_left_out_with_their_pairs(
    oak: Path, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    _put(oak / "raw_data" / "label.raw.txt", ["", *world.ads[1:7], " \t", *world.ads[8:]])
    _put(oak / "raw_data" / "train.raw.txt", [*world.train[:9], "", *world.train[10:]])
    _put(oak / "raw_data" / "category.raw.txt", [*world.anchors[:4], "", *world.anchors[5:]])
    dataset = _import(oak)
    check_structure(dataset)

    def without(pairs: dict[Any, float], *texts: str) -> dict[Any, float]:
        return {pair: weight for pair, weight in pairs.items() if not {*pair} & {*texts}}

    gone = world.ads[0], world.ads[7], world.train[9]
    clicks = without(_entries(world.train_clicks, world.train, world.ads), *gone)
    assert _clicks(dataset, "train") | _clicks(dataset, "validation") == clicks
    ad_edges = without(_entries(world.links["lbl"], world.ads, world.anchors), *gone)
    assert _pairs(dataset, "edges/hyper_link/ad", "ads", "anchors/hyper_link") == ad_edges
    kept = set(_texts(dataset, "queries/train"))
    edges = without(_entries(world.links["trn"], world.train, world.anchors), world.anchors[4])
    edges = {pair: weight for pair, weight in edges.items() if pair[0] in kept}
    assert _pairs(dataset, "edges/category/query", "queries/train", "anchors/category") == edges
    assert "label.raw.txt, row 1: 2 ads have no text" in caplog.text
    assert "category.raw.txt, row 5: 1 anchors have no text" in caplog.text


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
    (
        "raw_data/train.raw.txt",
        None,
        ["no train texts of any known layout", "trn.json.gz", "Y.trn"],
    ),
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
    (JSON_TRAIN, gzip.compress(b""), ["trn.json.gz"]),
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


@pytest.mark.parametrize("number", range(len(MALFORMED)))
def test_malformed_folders(world: World, tmp_path: Path, number: int) -> None:
    name, change, words = MALFORMED[number]
    folder = tmp_path / "xc"
    if ".json" in name:
        _put_json(folder, world, ".gz")
        words = [*words, name]
    else:
        _put_raw(folder, world, "oak", ".txt")
        _put_graphs(folder, world, ".txt")
    if name == TEST_NPZ:
        (folder / TEST).unlink()
    if change is None:
        (folder / name).unlink()
    else:
        new = change if isinstance(change, bytes) else change((folder / name).read_bytes())
        (folder / name).write_bytes(new)
    with pytest.raises(DatasetError) as caught:
        _import(folder)
    for word in words:
        assert word in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["xc"]


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


def _same(first: Dataset, second: Dataset) -> None:
    assert first.tables == second.tables
    for table in first.tables:
        assert first.schema(table) == second.schema(table)
        assert first.read(table).equals(second.read(table)), table


@pytest.mark.parametrize("seed", range(6))
def test_round_trip(seed: int, tmp_path: Path) -> None:
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
def test_what_cannot_be_exported(
    tmp_path: Path, table: str, change: pa.Table, message: str
) -> None:
    tables = {f"queries/{split}": query_table(["x"], [[0]]) for split in ("train", "test")}
    tables |= {"queries/validation": query_table(["x"], [[0]]), table: change}
    tables.setdefault("ads", text_table("ad_id", ["a"]))
    tables["anchors/links"] = ONE
    tables.setdefault("edges/links/ad", node_edges("ad_id", [[0]]))
    dataset = write_dataset(tmp_path / "in", tables, name="x")
    with pytest.raises(DatasetError, match=message):
        export_xc(dataset, tmp_path / "xc")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_folder_that_changes_while_it_is_imported_is_refused(
    oak: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan, ads = importing.scan, oak / "raw_data" / "label.raw.txt"

    def change_after(file: TextFile) -> Any:
        found = scan(file)
        ads.write_text("\n".join(reversed(ads.read_text().split("\n"))))
        return found

    monkeypatch.setattr(importing, "scan", change_after)
    with pytest.raises(DatasetError, match="has changed while it was read"):
        _import(oak)


def test_nothing_is_overwritten(oak: Path, tmp_path: Path) -> None:
    dataset = _import(oak)
    with pytest.raises(DatasetError, match="exists already"):
        _import(oak)
    with pytest.raises(DatasetError, match="exists already"):
        export_xc(dataset, oak)
    with pytest.raises(DatasetError, match="not between 0 and 1"):
        import_xc(oak, tmp_path / "new", validation_fraction=1.0)
    with pytest.raises(DatasetError, match="no folder"):
        import_xc(tmp_path / "nowhere", tmp_path / "new")


def test_the_size_of_blocks_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, oak: Path, tmp_path: Path
) -> None:
    """Files larger than a block read as small ones do."""
    (oak / "raw_data" / "test.source_id.txt").write_text("7\n" * NUM_TEST)
    whole = import_xc(oak, tmp_path / "whole")
    monkeypatch.setattr(matrices, "BLOCK_BYTES", 100)
    monkeypatch.setattr(matrices, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr("ramen_ray.data.tables.reading.lines.BYTES_PER_BLOCK", 100)
    _same(whole, import_xc(oak, tmp_path / "parts"))
    export_xc(whole, tmp_path / "again")
    _same(whole, import_xc(tmp_path / "again", tmp_path / "parts again"))


def test_jobs(
    oak: Path, tmp_path: Path, run_here: RunHere, caplog: pytest.LogCaptureFixture
) -> None:
    (oak / "raw_data" / "label.raw.txt").write_bytes(b"\xff\n" + b"hat\n" * (NUM_ADS - 1))
    imported, exported = tmp_path / "a", tmp_path / "b"
    code, printed = run_here(ingest, "xc", "--source", oak, "--output", imported)
    assert code == 0
    assert printed.startswith(f"wrote xc to {imported}\n")
    assert "label.raw.txt, row 1: 1 lines are not UTF-8" in caplog.text
    code, printed = run_here(export, "xc", imported, "--output", exported)
    assert code == 0, printed
    assert printed.startswith(f"wrote {exported}\nnext: ")
    _same(Dataset(imported), import_xc(exported, tmp_path / "c"))
    code, printed = run_here(export, "xc", tmp_path / "none", "--output", tmp_path / "d")
    assert code == 2
    assert printed.startswith("error: there is no dataset directory")


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
@HARMLESS
@given(data=st.data())
def test_damaged_files_are_read_or_refused(
    kind: str, data: st.DataObject, world: World, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    if kind in (".txt", ".npz"):
        _put_raw(folder / "xc", world, "oak", kind)
        _put_graphs(folder / "xc", world, kind)
    else:
        _put_json(folder / "xc", world, kind.removesuffix(".json") or "")
    file = folder / "xc" / data.draw(st.sampled_from(FUZZED[kind]))
    file.write_bytes(_mutate(file.read_bytes(), data.draw))
    try:
        import_xc(folder / "xc", folder / "out", validation_fraction=0.3)
    except DatasetError as error:
        assert str(folder) in str(error)
        assert [path.name for path in folder.iterdir()] == ["xc"]


KEYS = ["uid", "title", "content", "target_ind", "target_rel"]


@HARMLESS
@given(found=st.lists(st.dictionaries(st.sampled_from(KEYS), JSON) | JSON))
def test_any_json_is_read_or_refused(
    found: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = TextFile(tmp_path_factory.mktemp("json") / "trn.json", with_content=True)
    file.path.write_text("".join(f"{json.dumps(value)}\n" for value in found))
    for read in (lambda: list(file.batches()), lambda: file.clicks(10)):
        try:
            read()
        except DatasetError as error:
            assert str(file.path) in str(error)
