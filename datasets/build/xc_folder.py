"""Folders of the XC repository: which files a layout has, and what is read from them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.findings import error_at
from ramen_ray.data.store.schemas import SPLITS, ZERO_SHOT
from ramen_ray.naming import naming_fault
from xc_files import build_matrix, read_ids, read_lines, read_matrix, read_objects


class Layout(NamedTuple):
    """What a layout calls its files; clicks are stems of a .txt or .npz, or in the JSON objects."""

    texts: tuple[str, str, str]  # of train queries, test queries and ads
    clicks: tuple[str, str] | None = ("trn_X_Y", "tst_X_Y")


LAYOUTS = {
    "json": Layout(("trn.json", "tst.json", "lbl.json"), clicks=None),
    "ngame": Layout(("trn.raw.txt", "tst.raw.txt", "lbl.raw.txt")),
    "renee": Layout(("trn_X.txt", "tst_X.txt", "Y.txt")),
    "oak": Layout(("raw_data/train.raw.txt", "raw_data/test.raw.txt", "raw_data/label.raw.txt")),
    "dexml": Layout(("raw/trn_X.txt", "raw/tst_X.txt", "raw/Y.txt"), ("Y.trn", "Y.tst")),
}
SHORT = {"train": "trn", "validation": "val", "test": "tst"}
SHORT_SIDES = {"query": "trn", "ad": "lbl"}
RESERVED = {*SPLITS, *SHORT.values(), "label", "lbl"}
"""Names that no anchor set can have: the layout uses these files for queries and ads."""


class Nodes(NamedTuple):
    """Texts of queries, ads or anchors by the lines of their file, and users' own ids, if any."""

    path: Path
    texts: list[str]
    source_ids: list[str] | None = None

    @property
    def filled(self) -> Int64s:
        """(nodes,) the lines that have a text, ascending: a node's id is its place among these."""
        return np.flatnonzero([bool(text.strip()) for text in self.texts])


class Split(NamedTuple):
    """A split as published: clicks (lines, lines of the ads), and pairs to filter (pairs, 2)."""

    nodes: Nodes
    clicks: csr_array
    filters: Int64s


class Folder:
    """A folder of XC files, whose layout its train texts tell."""

    def __init__(self, path: Path, encoding: str, with_content: bool) -> None:
        """Recognise the layout; JSON is preferred, as raw texts of other layouts are made of it."""
        self.path = path
        self.with_content = with_content
        self.encoding = encoding
        layouts = [name for name, layout in LAYOUTS.items() if self._find(layout.texts[0])]
        if not layouts or (len(layouts) > 1 and "json" not in layouts):
            known = ", ".join(f"{layout.texts[0]} ({name})" for name, layout in LAYOUTS.items())
            mixed = (
                f"the layouts {' and '.join(layouts)} are mixed" if layouts else "no train texts"
            )
            raise error_at(path, mixed, advice=f"a folder has one of {known}")
        self.layout = layouts[0]
        self.files = LAYOUTS[self.layout]
        self.num_seen = 0  # ads that come before novel ones

    def ads(self) -> Nodes:
        """Read the ads."""
        return self._nodes(self.files.texts[2])

    def splits(self) -> dict[str, Split]:
        """Read the queries of all splits, with clicks as wide as there are ads."""
        num_ads = len(self.ads().texts)
        if self.layout == "dexml" and self._find("Y.tst_zero"):
            return self._splits_of_irene(num_ads)
        splits = {}
        for split, text, place in (("train", 0, 0), ("test", 1, 1)):
            nodes = self._nodes(self.files.texts[text])
            if self.files.clicks is None:
                clicks = self._clicks_of_objects(nodes, num_ads)
            else:
                clicks = self._matrix(self.files.clicks[place], (len(nodes.texts), num_ads))
            splits[split] = Split(nodes, clicks, self._filters(split, clicks.shape))
        if self.layout == "oak" and self._find("raw_data/validation.raw.txt"):
            nodes = self._nodes("raw_data/validation.raw.txt")
            clicks = self._matrix("val_X_Y", (len(nodes.texts), num_ads))
            splits["validation"] = Split(nodes, clicks, self._filters("validation", clicks.shape))
        return splits

    def _splits_of_irene(self, num_ads: int) -> dict[str, Split]:
        """Read splits whose train matrix has columns of the seen ads, and the last of the novel."""
        train, test = (self._nodes(text) for text in self.files.texts[:2])
        seen = read_matrix(self._need("Y.trn"))
        self.num_seen = seen.shape[1]
        num_novel = num_ads - self.num_seen
        if num_novel <= 0 or seen.shape[0] != len(train.texts):
            message = f"has {seen.shape} rows and columns for {len(train.texts)} queries, and"
            raise error_at(self._need("Y.trn"), f"{message} {num_ads} ads of which some are novel")
        seen = _in_columns(seen, 0, num_ads)
        full = self._matrix("Y.tst_full", (len(test.texts), num_ads))
        novel = full[:, self.num_seen :]
        zero = read_matrix(self._need("Y.tst_zero"))
        asked = test
        if self._find("raw/tst_X_zero.txt"):
            asked = self._nodes("raw/tst_X_zero.txt")
        elif zero.shape[0] != len(test.texts):
            lines = np.flatnonzero(np.diff(novel.indptr))
            asked = Nodes(test.path, [test.texts[line] for line in lines])
            novel = novel[lines]
        if asked.path == test.path and (zero.shape != novel.shape or (zero != novel).nnz):
            message = "its rows are not those of the test queries with novel ads, in their order"
            advice = "add the texts of its rows as raw/tst_X_zero.txt"
            raise error_at(self._need("Y.tst_zero"), message, advice=advice)
        zero = self._matrix("Y.tst_zero", (len(asked.texts), num_novel))
        pairs = self._filters("test_zero", zero.shape)
        pairs[:, 1] += self.num_seen
        zero = _in_columns(zero, self.num_seen, num_ads)
        return {
            "train": Split(train, seen, self._filters("train", seen.shape)),
            "test": Split(test, full, self._filters("test_full", full.shape)),
            ZERO_SHOT: Split(asked, zero, pairs),
        }

    def graphs(self) -> list[str]:
        """Name the graphs by their matrices; variants of one that have no texts are left out."""
        matrices = [*self.path.glob("*_trn_X_Y.*"), *self.path.glob("*_lbl_X_Y.*")]
        names = {file.name.rpartition("_X_Y")[0][:-4] for file in matrices}
        graphs = [
            name
            for name in sorted(names)
            if self._anchors(name) or not any(name.startswith(f"{other}_renee") for other in names)
        ]
        for name in graphs:
            if name in RESERVED or naming_fault(name, dots=False):
                advice = "rename its files; use letters, digits, '_' and '-'"
                raise error_at(self.path, f"a graph cannot be named {name!r}", advice=advice)
        return graphs

    def graph(self, name: str) -> tuple[Nodes, dict[str, Path]]:
        """Read a graph's anchors, and find its matrix of each side."""
        matrices = {side: self._find(f"{name}_{short}_X_Y") for side, short in SHORT_SIDES.items()}
        anchors = self._anchors(name)
        if anchors is None:
            raise error_at(self.path, f"{name}.raw.txt is missing, the texts of a graph")
        return self._nodes(anchors), {side: file for side, file in matrices.items() if file}

    def _anchors(self, name: str) -> str | None:
        places = f"raw_data/{name}.raw.txt", f"{name}.raw.txt"
        return next(filter(self._find, places), None)

    def _nodes(self, name: str) -> Nodes:
        path = self._need(name)
        if self.layout == "json" and ".json" in path.suffixes:
            objects = read_objects(path, title=str)
            texts = [node["title"] for node in objects]
            if self.with_content:
                texts = [f"{node['title']} {node.get('content') or ''}".strip() for node in objects]
            ids = [str(node["uid"]) for node in objects if "uid" in node]
            return Nodes(path, texts, ids if len(ids) == len(texts) else None)
        return Nodes(path, read_lines(path, self.encoding))

    def _clicks_of_objects(self, nodes: Nodes, num_ads: int) -> csr_array:
        objects = read_objects(nodes.path, target_ind=list)
        ads = [node["target_ind"] for node in objects]
        weights = [node.get("target_rel") or [1.0] * len(node["target_ind"]) for node in objects]
        lengths = np.array(list(map(len, ads)))
        wrong = np.flatnonzero(lengths != list(map(len, weights)))
        if len(wrong):
            message = "target_rel does not have as many numbers as target_ind"
            raise error_at(nodes.path, message, row=int(wrong[0]) + 1)
        try:
            indices = np.array([ad for row in ads for ad in row], dtype=np.int64)
            values = np.array([weight for row in weights for weight in row], dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise error_at(nodes.path, f"target_ind or target_rel: {error}") from error
        shape = len(objects), num_ads
        return build_matrix(nodes.path, shape, None, (lengths, indices, values), first_row=1)

    def _matrix(self, stem: str, shape: tuple[int, int]) -> csr_array:
        return read_matrix(self._need(stem), shape)

    def _filters(self, split: str, shape: tuple[int, int]) -> Int64s:
        names = [f"filter_labels_{split}", f"{SHORT.get(split, split)}_filter_labels"]
        file = next(filter(None, map(self._find, names)), None)
        return np.empty((0, 2), np.int64) if file is None else read_ids(file, shape)

    def _need(self, name: str) -> Path:
        if (file := self._find(name)) is None:
            raise error_at(self.path, f"{name} is missing (layout {self.layout})")
        return file

    def _find(self, name: str) -> Path | None:
        """Find a file by its name, or the stem of a matrix; two that match are refused."""
        places = [self.path / f"{name}{ending}" for ending in ("", ".gz", ".txt", ".npz")]
        files = [place for place in places if place.is_file()]
        if len(files) > 1:
            message = " and ".join(str(file.relative_to(self.path)) for file in files)
            raise error_at(self.path, f"{message} both match", advice="leave one of them there")
        return files[0] if files else None


def _in_columns(matrix: csr_array, first: int, num_columns: int) -> csr_array:
    """Return a matrix with so many columns, in which the given one's begin at ``first``."""
    entries = matrix.data, matrix.indices + first, matrix.indptr
    return csr_array(entries, shape=(matrix.shape[0], num_columns))
