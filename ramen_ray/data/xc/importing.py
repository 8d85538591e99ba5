"""Read a folder of the extreme classification repository into a dataset directory."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import sparse

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.findings import Finding, error_at
from ramen_ray.data.prepared.hashing import uniforms
from ramen_ray.data.store.dataset import (
    Dataset,
    DatasetError,
    DatasetWriter,
    dataset_name,
    new_dataset,
)
from ramen_ray.data.store.schemas import ZERO_SHOT
from ramen_ray.data.xc.layouts import GraphFiles, XcFiles, find_files
from ramen_ray.data.xc.lines import read_ids
from ramen_ray.data.xc.matrices import read_matrix, read_shape
from ramen_ray.data.xc.texts import Scan, TextFile, scan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeLines:
    """Ads or anchors: the lines of their file that have a text; a node's id is its index here.

    Attributes:
        file: their texts.
        lines: (nodes,) line numbers from 0, ascending.
        num_lines: how many lines the file has.
    """

    file: TextFile
    lines: Int64s
    num_lines: int


@dataclass(frozen=True)
class Queries:
    """The queries of a split that are kept; a query's id is its index in the arrays.

    Attributes:
        file: their texts.
        lines: (queries,) line numbers from 0 in ``file``, ascending.
        rows: (queries,) row numbers in the split's matrices and filters, ascending.
        num_rows: how many rows the split's matrices have.
        clicks: (queries, ads) positive weights.
    """

    file: TextFile
    lines: Int64s
    rows: Int64s
    num_rows: int
    clicks: sparse.csr_array

    @property
    def have_ads(self) -> NDArray[np.bool_]:
        """(queries,) whether each has a click."""
        return np.diff(self.clicks.indptr) > 0

    def take(self, chosen: NDArray[Any]) -> "Queries":
        """Return the ``chosen`` queries: (queries,) bool."""
        return Queries(
            self.file, self.lines[chosen], self.rows[chosen], self.num_rows, self.clicks[chosen]
        )


def import_xc(
    source: Path,
    output: Path,
    name: str | None = None,
    text: Literal["title", "title+content"] | None = None,
    validation_fraction: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Import a folder of the XC repository, in any of its layouts, with its graphs.

    Held-out queries without ads and rows without text are left out. Train queries without ads are
    kept for their edges. Warnings say what was left out and what was repaired. Published splits
    stay as they are. If there is no validation split, train queries with ads are held out; queries
    of the same text (up to case and white space) stay together.

    Args:
        source: folder with the data set's files.
        output: dataset directory to write; must not exist.
        name: name of the data set; by default that of the folder.
        text: a JSON object's text; by default its title if the name of the data set contains
            "titles", else its title and content.
        validation_fraction: share of the train queries to hold out, in (0, 1).
        seed: of the choice of held-out queries.

    Raises:
        DatasetError: the files are incomplete or malformed (names file, row and column), no query
            is left for a split, or ``output`` exists.
    """
    if not 0 < validation_fraction < 1:
        raise DatasetError(f"the validation fraction {validation_fraction} is not between 0 and 1")
    source = source.absolute()
    name = dataset_name(name, source)
    with_content = text == "title+content" if text else "titles" not in name.lower()
    files = find_files(source, with_content)
    ads = _read_nodes(files.ads, "ads")
    splits = _read_splits(files, ads, validation_fraction, seed)
    about = {"source": f"XC files in the layout {files.layout}", **propensity_constants(name)}
    with new_dataset(output, name=name, **about) as writer:
        writer.write("ads", _numbered(ads.file, ads.lines, "ad_id"))
        for split, queries in splits.items():
            writer.write(f"queries/{split}", _query_rows(queries))
        _write_filters(writer, files, splits, ads)
        _write_novel_ads(writer, files, ads)
        for graph, graph_files in files.graphs.items():
            _write_graph(writer, graph, graph_files, splits, ads)
    return Dataset(output)


def propensity_constants(name: str) -> dict[str, float]:
    """Return the constants A and B of Jain et al. (2016) that the XC repository gives a data set.

    All others have the defaults of the configuration.
    """
    name = name.lower()
    if "amazon" in name:
        return {"propensity_a": 0.6, "propensity_b": 2.6}
    if "wiki" in name and "wikiseealso" not in name:
        return {"propensity_a": 0.5, "propensity_b": 0.4}
    return {}


def _read_nodes(file: TextFile, what: str) -> NodeLines:
    scanned = scan(file)
    lines = np.flatnonzero(~scanned.is_empty)
    if not len(lines):
        raise error_at(file.path, "the file has no texts")
    _warn(file, np.flatnonzero(scanned.is_empty), f"{what} have no text and are left out")
    return NodeLines(file, lines, scanned.num_lines)


def _warn(file: TextFile, lines: Int64s, message: str) -> None:
    if len(lines):
        message = f"{len(lines)} {message}; this is the first"
        log.warning(Finding("warning", str(file.path), message, row=int(lines[0]) + 1))


def _read_splits(files: XcFiles, ads: NodeLines, fraction: float, seed: int) -> dict[str, Queries]:
    scans: dict[TextFile, Scan] = {}
    splits: dict[str, Queries] = {}
    for split, of_split in files.splits.items():
        if of_split.texts not in scans:
            scans[of_split.texts] = scan(of_split.texts)
        splits[split] = _read_queries(files, split, scans[of_split.texts], ads)
    if "validation" not in splits:
        train = splits["train"]
        hashes = scans[train.file].hashes[train.lines]
        held_out = (uniforms((seed,), hashes) < fraction) & train.have_ads
        in_train = ~np.isin(hashes, hashes[held_out])
        splits |= {"train": train.take(in_train), "validation": train.take(held_out)}
    for split, queries in splits.items():
        if not queries.have_ads.any():
            raise error_at(
                queries.file.path,
                f"no query with text and ads is left for the split {split!r}",
                advice="hold out another fraction" if split not in files.splits else "",
            )
    return splits


def _read_queries(files: XcFiles, split: str, scanned: Scan, ads: NodeLines) -> Queries:
    """Read a split's clicks; leave out its queries without text, and held-out ones without ads."""
    of_split = files.splits[split]
    file = of_split.texts
    lines = np.arange(scanned.num_lines)
    if of_split.clicks is None:
        clicks = file.clicks(ads.num_lines)
    else:
        columns = _columns(files, split, ads)
        if split == ZERO_SHOT and file == files.splits["test"].texts:
            lines = _lines_with_novel_ads(files, len(lines), ads)
        matrix = read_matrix(of_split.clicks, (len(lines), len(columns)))
        shape = len(lines), ads.num_lines
        clicks = sparse.csr_array(
            (matrix.data, matrix.indices + columns.start, matrix.indptr), shape
        )
    clicks = _only_columns(clicks, ads)
    without_text, without_ads = scanned.is_empty[lines], np.diff(clicks.indptr) == 0
    _warn(file, lines[without_text], "queries have no text and are left out")
    if split == "train":
        _warn(file, lines[without_ads], "queries have no ads and take part in the graph only")
        without_ads[:] = False
    _warn(file, lines[without_ads], "queries have no ads and are left out")
    rows = np.flatnonzero(~(without_text | without_ads))
    return Queries(file, lines[rows], rows, len(lines), clicks[rows])


def _columns(files: XcFiles, split: str, ads: NodeLines) -> range:
    """Return the ads that the split's matrix has columns for."""
    which, train_clicks = files.splits[split].ads, files.splits["train"].clicks
    if which == "all" or train_clicks is None:
        return range(ads.num_lines)
    num_seen = read_shape(train_clicks)[1]
    if num_seen >= ads.num_lines:
        message = f"has {num_seen} columns for {ads.num_lines} ads, so none of them is novel"
        raise error_at(train_clicks, message)
    return range(num_seen) if which == "seen" else range(num_seen, ads.num_lines)


def _lines_with_novel_ads(files: XcFiles, num_test: int, ads: NodeLines) -> Int64s:
    """Find the test queries that are the rows of a zero-shot matrix without texts of its own."""
    zero_clicks, test_clicks = files.splits[ZERO_SHOT].clicks, files.splits["test"].clicks
    assert zero_clicks and test_clicks  # the layout has them
    num_rows = read_shape(zero_clicks)[0]
    if num_rows == num_test:
        return np.arange(num_test)
    columns = _columns(files, ZERO_SHOT, ads)
    novel = read_matrix(test_clicks, (num_test, ads.num_lines))[:, columns.start :]
    lines = np.flatnonzero(np.diff(novel.indptr))
    advice = "add the texts of its rows as raw/tst_X_zero.txt"
    if num_rows != len(lines):
        message = f"has {num_rows} rows, but {len(lines)} of {num_test} test queries have novel ads"
        raise error_at(zero_clicks, message, advice=advice)
    if (read_matrix(zero_clicks, (num_rows, len(columns))) != novel[lines]).nnz:
        message = "its rows are not the test queries with novel ads, in the same order"
        raise error_at(zero_clicks, message, advice=advice)
    return lines


def _only_columns(matrix: sparse.csr_array, nodes: NodeLines) -> sparse.csr_array:
    return matrix if len(nodes.lines) == nodes.num_lines else matrix[:, nodes.lines]


def _selected(file: TextFile, lines: Int64s) -> Iterator[pa.Table]:
    """Read the given lines (ascending) of a text file."""
    first = 0
    for batch in file.batches():
        start, stop = np.searchsorted(lines, [first, first + len(batch)])
        if stop > start:
            yield batch.take(pa.array(lines[start:stop] - first))
        first += len(batch)


def _numbered(file: TextFile, lines: Int64s, id_column: str) -> Iterator[pa.Table]:
    first = 0
    for batch in _selected(file, lines):
        yield batch.add_column(0, id_column, pa.array(np.arange(first, first + len(batch))))
        first += len(batch)


def _query_rows(queries: Queries) -> Iterator[pa.Table]:
    is_weighted = bool(np.any(queries.clicks.data != 1))
    first = 0
    for batch in _numbered(queries.file, queries.lines, "query_id"):
        clicks = queries.clicks[first : first + len(batch)]
        offsets = pa.array(clicks.indptr, pa.int32())
        ad_ids = pa.ListArray.from_arrays(offsets, pa.array(clicks.indices, pa.int64()))
        rows = batch.append_column("ad_ids", ad_ids)
        if is_weighted:
            weights = pa.ListArray.from_arrays(offsets, pa.array(clicks.data, pa.float32()))
            rows = rows.append_column("weights", weights)
        yield rows
        first += len(batch)


def _write_filters(
    writer: DatasetWriter, files: XcFiles, splits: dict[str, Queries], ads: NodeLines
) -> None:
    for split, queries in splits.items():
        published_as = split if split in files.splits else "train"
        path = files.splits[published_as].filters
        if split == "train" or path is None:
            continue
        columns = _columns(files, published_as, ads)
        pairs = read_ids(path, (queries.num_rows, len(columns)))
        query_ids = _new_ids(queries.rows, queries.num_rows)[pairs[:, 0]]
        ad_ids = _new_ids(ads.lines, ads.num_lines)[pairs[:, 1] + columns.start]
        kept = (query_ids >= 0) & (ad_ids >= 0)
        table = pa.table({"query_id": query_ids[kept], "ad_id": ad_ids[kept]})
        writer.write(f"filters/{split}", table)


def _write_novel_ads(writer: DatasetWriter, files: XcFiles, ads: NodeLines) -> None:
    if files.novel_ads is not None:
        lines = read_ids(files.novel_ads, (ads.num_lines,))[:, 0]
    elif any(split.ads == "novel" for split in files.splits.values()):
        lines = np.array(_columns(files, ZERO_SHOT, ads))
    else:
        return
    ad_ids = _new_ids(ads.lines, ads.num_lines)[lines]
    writer.write("novel_ads", pa.table({"ad_id": ad_ids[ad_ids >= 0]}))


def _write_graph(
    writer: DatasetWriter, name: str, files: GraphFiles, splits: dict[str, Queries], ads: NodeLines
) -> None:
    anchors = _read_nodes(files.anchors, "anchors")
    nodes = {
        "query": ("query_id", splits["train"].rows, splits["train"].num_rows),
        "ad": ("ad_id", ads.lines, ads.num_lines),
    }
    tables = {}
    for side, path in files.edges.items():
        id_column, rows, num_rows = nodes[side]
        edges = _only_columns(read_matrix(path, (num_rows, anchors.num_lines))[rows], anchors)
        if edges.nnz:
            tables[f"edges/{name}/{side}"] = _edge_rows(edges, id_column)
    if not tables:
        message = "the graph has no edges to train on and is left out"
        log.warning(Finding("warning", str(files.anchors.path), message))
        return
    writer.write(f"anchors/{name}", _numbered(anchors.file, anchors.lines, "anchor_id"))
    for table, edges in tables.items():
        writer.write(table, edges)


def _edge_rows(edges: sparse.csr_array, id_column: str) -> pa.Table:
    nodes = np.repeat(np.arange(edges.shape[0]), np.diff(edges.indptr))
    return pa.table({id_column: nodes, "anchor_id": edges.indices, "weight": edges.data})


def _new_ids(kept: Int64s, size: int) -> Int64s:
    """Map old ids 0..size-1 to indices into ``kept``; ids that are not kept to -1."""
    ids = np.full(size, -1, dtype=np.int64)
    ids[kept] = np.arange(len(kept))
    return ids
