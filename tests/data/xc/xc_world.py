"""One data set as matrices and lists of texts, written in each layout of the XC repository."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.xc.importing import import_xc

NUM_TRAIN, NUM_TEST, NUM_ADS, NUM_ANCHORS = 60, 20, 25, 15


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


def _made() -> World:
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


WORLD = _made()


def put(path: Path, texts: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{text}\n" for text in texts).encode())


def put_matrix(stem: Path, matrix: Any, suffix: str) -> None:
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
    put(Path(f"{stem}.txt"), rows)


def put_pairs(path: Path, pairs: Sequence[tuple[int, int]]) -> None:
    put(path, [f"{query} {ad}" for query, ad in pairs])


def put_raw(folder: Path, layout: str, suffix: str, world: World = WORLD) -> None:
    names = {
        "ngame": ("trn.raw.txt", "tst.raw.txt", "lbl.raw.txt"),
        "renee": ("trn_X.txt", "tst_X.txt", "Y.txt"),
        "oak": ("raw_data/train.raw.txt", "raw_data/test.raw.txt", "raw_data/label.raw.txt"),
        "dexml": ("raw/trn_X.txt", "raw/tst_X.txt", "raw/Y.txt"),
    }[layout]
    for name, texts in zip(names, (world.train, world.test, world.ads), strict=True):
        put(folder / name, texts)
    train, test = ("Y.trn", "Y.tst") if layout == "dexml" else ("trn_X_Y", "tst_X_Y")
    put_matrix(folder / train, world.train_clicks, suffix)
    put_matrix(folder / test, world.test_clicks, suffix)
    train, test = "filter_labels_train.txt", "filter_labels_test.txt"
    if layout == "renee":
        train, test = "trn_filter_labels.txt", "tst_filter_labels.txt"
    put_pairs(folder / train, world.train_filters)
    put_pairs(folder / test, world.test_filters)


def put_oak(folder: Path, suffix: str = ".txt") -> Path:
    """Write the world in the layout oak, with its graphs; returns its folder within ``folder``."""
    put_raw(folder / "xc", "oak", suffix)
    put_graphs(folder / "xc", suffix)
    return folder / "xc"


def imported(folder: Path) -> Dataset:
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


def put_json(folder: Path, suffix: str) -> None:
    files = {
        "trn": _objects(WORLD.train, WORLD.train_clicks),
        "tst": _objects(WORLD.test, WORLD.test_clicks),
        "lbl": _objects(WORLD.ads),
    }
    for name, objects in files.items():
        content = "".join(f"{line}\n" for line in objects).encode()
        folder.mkdir(exist_ok=True)
        content = gzip.compress(content) if suffix == ".gz" else content
        (folder / f"{name}.json{suffix}").write_bytes(content)
    put_pairs(folder / "filter_labels_train.txt", WORLD.train_filters)
    put_pairs(folder / "filter_labels_test.txt", WORLD.test_filters)


def put_graphs(folder: Path, suffix: str, texts: str = "raw_data/") -> None:
    put(folder / f"{texts}hyper_link.raw.txt", WORLD.anchors)
    put(folder / f"{texts}category.raw.txt", WORLD.anchors)
    for part, matrix in WORLD.links.items():
        put_matrix(folder / f"hyper_link_{part}_X_Y", matrix, suffix)
    put_matrix(folder / "category_trn_X_Y", WORLD.links["trn"], suffix)
    put_matrix(folder / "hyper_link_renee_tst_X_Y", WORLD.links["tst"], ".npz")
    put_matrix(folder / "hyper_link_renee_mean_trn_X_Y", WORLD.links["trn"], ".txt")
