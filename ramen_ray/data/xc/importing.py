"""Read a folder of the extreme classification repository into a dataset directory."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ramen_ray.data.arrays import Booleans, Int64s, to_lists
from ramen_ray.data.findings import Finding, error_at
from ramen_ray.data.prepared.hashing import hash_strings, uniforms
from ramen_ray.data.store.dataset import (
    WHILE_READ,
    Dataset,
    DatasetError,
    DatasetWriter,
    dataset_name,
    new_dataset,
)
from ramen_ray.data.store.same_texts import fold
from ramen_ray.data.store.schemas import ZERO_SHOT
from ramen_ray.data.xc.layouts import GraphFiles, XcFiles, find_files
from ramen_ray.data.xc.matrices import read_ids, read_matrix, read_shape
from ramen_ray.data.xc.text_files import Scan, TextFile, scan

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SplitQueries:
    """The queries of a split that are kept; a query's id is its index in the arrays."""

    texts: Scan
    lines: Int64s  # (queries,) of the file of their texts, ascending
    rows: Int64s  # (queries,) of the split's matrices, ascending
    num_rows: int  # of these matrices
    clicks: csr_array  # (queries, ads) positive weights

    @property
    def have_ads(self) -> Booleans:
        """(queries,) whether each has a click."""
        return np.diff(self.clicks.indptr) > 0

    def take(self, chosen: NDArray[Any]) -> "SplitQueries":
        """Return the ``chosen`` queries: flags (queries,), or ids."""
        return replace(
            self, lines=self.lines[chosen], rows=self.rows[chosen], clicks=self.clicks[chosen]
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

    Held-out queries without ads and rows without text are left out; warnings say so. Published
    splits stay as they are. If there is no validation split, a share of the train queries with ads
    is held out; queries of the same text (up to case and white space) stay together. By default the
    ``name`` is the folder's, and the ``text`` of a JSON object is its title if the name contains
    "titles", else its title and content. Raises a DatasetError if the files are incomplete or
    malformed (names file, row and column) or change meanwhile, no query is left for a split, or
    ``output`` exists.
    """
    if not 0 < validation_fraction < 1:
        raise DatasetError(f"the validation fraction {validation_fraction} is not between 0 and 1")
    source = source.absolute()
    name = dataset_name(name, source)
    before = _state(source)
    with_content = text == "title+content" if text else "titles" not in name.lower()
    files = find_files(source, with_content)
    ads = _scan_nodes(files.ads, "ads")
    splits = _read_splits(files, ads, validation_fraction, seed)
    about = {"source": f"XC files in the layout {files.layout}", **propensity_constants(name)}
    with new_dataset(output, name=name, **about) as writer:
        writer.write("ads", _numbered(ads.file, ads.filled, "ad_id"))
        for split, queries in splits.items():
            writer.write(f"queries/{split}", _query_rows(queries))
        _write_filters(writer, files, splits, ads)
        _write_novel_ads(writer, files, ads)
        for graph, graph_files in files.graphs.items():
            _write_graph(writer, graph, graph_files, splits["train"], ads)
        if _state(source) != before:  # texts are read twice
            raise DatasetError(f"{source} has changed {WHILE_READ}")
    return Dataset(output)


def _state(folder: Path) -> dict[Path, tuple[int, int]]:
    files = ((file, file.stat()) for file in folder.rglob("*") if file.is_file())
    return {file: (found.st_size, found.st_mtime_ns) for file, found in files}


def propensity_constants(name: str) -> dict[str, float]:
    """Return the A and B of Jain et al. (2016) that the XC repository gives to some data sets."""
    name = name.lower()
    if "amazon" in name:
        return {"propensity_a": 0.6, "propensity_b": 2.6}
    if "wiki" in name and "wikiseealso" not in name:
        return {"propensity_a": 0.5, "propensity_b": 0.4}
    return {}


def _scan_nodes(file: TextFile, what: str) -> Scan:
    """Scan the texts of ads or anchors; a node's id is its index among the filled lines."""
    scanned = scan(file)
    if not len(scanned.filled):
        raise error_at(file.path, "the file has no texts")
    empty = np.flatnonzero(scanned.is_empty)
    _warn(file, empty, f"{what} have no text and are left out")
    return scanned


def _warn(file: TextFile, lines: Int64s, message: str) -> None:
    if len(lines):
        message = f"{len(lines)} {message}; this is the first"
        log.warning(Finding("warning", str(file.path), message, row=int(lines[0]) + 1))


def _read_splits(files: XcFiles, ads: Scan, fraction: float, seed: int) -> dict[str, SplitQueries]:
    scan_once = cache(scan)  # two splits may share their texts
    splits = {
        split: _read_queries(files, split, scan_once(of.texts), ads)
        for split, of in files.splits.items()
    }
    if "validation" not in splits:
        train = splits["train"]
        folded = (fold(rows["text"].combine_chunks()) for rows in train.texts.file.batches())
        none = np.zeros(0, dtype=np.uint64)  # of an empty file, which has no batch
        hashes = np.concatenate([none, *map(hash_strings, folded)])[train.lines]
        held_out = (uniforms((seed,), hashes) < fraction) & train.have_ads
        in_train = ~np.isin(hashes, hashes[held_out])
        splits |= {"train": train.take(in_train), "validation": train.take(held_out)}
    for split, queries in splits.items():
        if not queries.have_ads.any():
            raise error_at(
                queries.texts.file.path,
                f"no query with text and ads is left for the split {split!r}",
                advice="hold out another fraction" if split not in files.splits else "",
            )
    return splits


def _read_queries(files: XcFiles, split: str, texts: Scan, ads: Scan) -> SplitQueries:
    """Read a split's clicks; leave out its queries without text, and held-out ones without ads."""
    path, lines = files.splits[split].clicks, np.arange(texts.num_lines)
    if path is None:
        clicks = texts.file.clicks(ads.num_lines)
    else:
        columns = _columns(files, split, ads)
        if split == ZERO_SHOT and texts.file == files.splits["test"].texts:
            lines = _lines_with_novel_ads(files, len(lines), ads)
        found = read_matrix(path, (len(lines), len(columns)))
        shape = len(lines), ads.num_lines
        clicks = csr_array((found.data, found.indices + columns.start, found.indptr), shape)
    all_rows = np.arange(len(lines))
    queries = SplitQueries(texts, lines, all_rows, len(lines), _filled_columns(clicks, ads))
    without_text, without_ads = texts.is_empty[lines], ~queries.have_ads
    _warn(texts.file, lines[without_text], "queries have no text and are left out")
    if split == "train":
        message = "queries have no ads and take part in the graph only"
        _warn(texts.file, lines[without_ads], message)
        return queries.take(~without_text)
    _warn(texts.file, lines[without_ads], "queries have no ads and are left out")
    return queries.take(~(without_text | without_ads))


def _columns(files: XcFiles, split: str, ads: Scan) -> range:
    """Return the lines of the ads that the split's matrix has columns for."""
    which, train_clicks = files.splits[split].ads, files.splits["train"].clicks
    if which == "all" or train_clicks is None:
        return range(ads.num_lines)
    num_seen = read_shape(train_clicks)[1]
    if num_seen >= ads.num_lines:
        message = f"has {num_seen} columns for {ads.num_lines} ads, so none of them is novel"
        raise error_at(train_clicks, message)
    return range(num_seen) if which == "seen" else range(num_seen, ads.num_lines)


def _lines_with_novel_ads(files: XcFiles, num_test: int, ads: Scan) -> Int64s:
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


def _filled_columns(matrix: csr_array, nodes: Scan) -> csr_array:
    """Leave out the columns of lines without text."""
    return matrix[:, nodes.filled] if nodes.is_empty.any() else matrix


def _numbered(file: TextFile, lines: Int64s, id_column: str) -> Iterator[pa.Table]:
    """Read the texts of some lines (ascending), numbered from 0."""
    first = 0
    for batch in file.batches():
        start, stop = np.searchsorted(lines, [first, first + len(batch)])
        if stop > start:
            ids = pa.array(np.arange(start, stop))
            yield batch.take(pa.array(lines[start:stop] - first)).add_column(0, id_column, ids)
        first += len(batch)


def _query_rows(queries: SplitQueries) -> Iterator[pa.Table]:
    is_weighted = bool(np.any(queries.clicks.data != 1))
    for rows in _numbered(queries.texts.file, queries.lines, "query_id"):
        first = rows["query_id"][0].as_py()
        clicks = queries.clicks[first : first + len(rows)]
        degrees = np.diff(clicks.indptr)
        rows = rows.append_column("ad_ids", to_lists(clicks.indices, degrees))
        if is_weighted:
            rows = rows.append_column("weights", to_lists(clicks.data, degrees))
        yield rows


def _write_filters(
    writer: DatasetWriter, files: XcFiles, splits: dict[str, SplitQueries], ads: Scan
) -> None:
    for split, queries in splits.items():
        published_as = split if split in files.splits else "train"
        path = files.splits[published_as].filters
        if split == "train" or path is None:
            continue
        columns = _columns(files, published_as, ads)
        pairs = read_ids(path, (queries.num_rows, len(columns)))
        query_ids = _new_ids(queries.rows, queries.num_rows)[pairs[:, 0]]
        ad_ids = _new_ids(ads.filled, ads.num_lines)[pairs[:, 1] + columns.start]
        kept = (query_ids >= 0) & (ad_ids >= 0)
        table = pa.table({"query_id": query_ids[kept], "ad_id": ad_ids[kept]})
        writer.write(f"filters/{split}", table)


def _write_novel_ads(writer: DatasetWriter, files: XcFiles, ads: Scan) -> None:
    if files.novel_ads is not None:
        lines = read_ids(files.novel_ads, (ads.num_lines,))[:, 0]
    elif any(split.ads == "novel" for split in files.splits.values()):
        lines = np.array(_columns(files, ZERO_SHOT, ads))
    else:
        return
    ad_ids = _new_ids(ads.filled, ads.num_lines)[lines]
    writer.write("novel_ads", pa.table({"ad_id": ad_ids[ad_ids >= 0]}))


def _write_graph(
    writer: DatasetWriter, name: str, files: GraphFiles, train: SplitQueries, ads: Scan
) -> None:
    anchors = _scan_nodes(files.anchors, "anchors")
    nodes = {"query": (train.rows, train.num_rows), "ad": (ads.filled, ads.num_lines)}
    tables = {}
    for side, path in files.edges.items():
        rows, num_rows = nodes[side]
        found = _filled_columns(read_matrix(path, (num_rows, anchors.num_lines))[rows], anchors)
        if found.nnz:
            ids = np.repeat(np.arange(len(rows)), np.diff(found.indptr))
            edges = {f"{side}_id": ids, "anchor_id": found.indices, "weight": found.data}
            tables[f"edges/{name}/{side}"] = pa.table(edges)
    if not tables:
        message = "the graph has no edges to train on and is left out"
        log.warning(Finding("warning", str(files.anchors.path), message))
        return
    writer.write(f"anchors/{name}", _numbered(anchors.file, anchors.filled, "anchor_id"))
    for table, edges in tables.items():
        writer.write(table, edges)


def _new_ids(kept: Int64s, size: int) -> Int64s:
    """Map old ids 0..size-1 to indices into ``kept``; ids that are not kept to -1."""
    ids = np.full(size, -1, dtype=np.int64)
    ids[kept] = np.arange(len(kept))
    return ids
