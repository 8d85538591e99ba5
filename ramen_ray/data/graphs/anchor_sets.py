"""Add a whole anchor set to an existing dataset directory, or change nothing."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramen_ray.data.prepared.hashing import hash_strings
from ramen_ray.data.store.dataset import (
    UNFINISHED,
    Dataset,
    DatasetError,
    DatasetWriter,
    write_metadata,
)
from ramen_ray.data.store.texts import fold
from ramen_ray.data.validation.leaks import LEAKING_EDGES, Leaks, Protocol
from ramen_ray.naming import naming_fault

SIDES = ("query", "ad")


@dataclass(frozen=True)
class Edges:
    """The edges of one side: ``nodes`` and ``anchors`` (edges,) int64, ``weights`` (edges,)."""

    nodes: NDArray[np.int64]
    anchors: NDArray[np.int64]
    weights: NDArray[Any]

    @classmethod
    def none(cls) -> "Edges":
        """No edges: the side is left out."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))

    def __len__(self) -> int:
        """Return the number of edges."""
        return len(self.nodes)


def check_spelling(name: str) -> None:
    """Check that an anchor set may have this name.

    Raises:
        DatasetError: the name is unusable.
    """
    if fault := naming_fault(name, dots=False):
        raise DatasetError(f"anchor set: {fault}")


def check_name(dataset: Dataset, name: str, replace: bool) -> None:
    """Check that an anchor set ``name`` may be added. This is cheap: call it before the work.

    Raises:
        DatasetError: the name is unusable, or is taken and ``replace`` is not set.
    """
    check_spelling(name)
    if name in dataset.anchor_sets and not replace:
        raise DatasetError(
            f"{dataset.path} has an anchor set {name!r} already; give another name, or set replace"
        )


def add_anchor_set(
    dataset_path: Path,
    name: str,
    texts: pa.Array,
    edges: Mapping[str, Edges],
    made: Mapping[str, Any],
    replace: bool = False,
) -> dict[str, int]:
    """Write ``anchors/<name>`` and ``edges/<name>/...`` into a dataset directory.

    Anchors without edges are left out, and the others numbered in their order. If this is
    interrupted, the dataset stays as it was, or lacks the set if this was just being replaced.

    Args:
        dataset_path: the dataset directory.
        name: the anchor set.
        texts: (anchors,) strings.
        edges: the edges of ``query`` (train queries) and ``ad``; an empty side is left out.
        made: how the set was made, for ``dataset.json``.
        replace: whether a set of this name may be replaced.

    Returns:
        The row counts of the tables written, and how many nodes of each side have no edges.

    Raises:
        DatasetError: the name is unusable or taken (perhaps by another process during the call),
            or there are no edges.
    """
    dataset = Dataset(dataset_path)
    check_name(dataset, name, replace)
    if not any(map(len, edges.values())):
        raise DatasetError(f"anchor set {name!r} would have no edges; {dataset.path} is unchanged")
    with folder_beside(dataset, name) as aside:
        written = write_anchor_set(DatasetWriter(aside), name, texts, edges)
        put_in_place(aside, dataset, name, made, written, replace)
    linked = {side: len(np.unique(of_side.nodes)) for side, of_side in edges.items()}
    return written | nodes_without_edges(dataset, linked)


def apply_protocol(
    protocol: Protocol, dataset: Dataset, texts: pa.Array, edges: Mapping[str, Edges]
) -> tuple[dict[str, Edges], dict[str, int]]:
    """Leave out edges that join a held-out query to its answer, if the protocol is strict.

    Args:
        protocol: that of the anchor set.
        dataset: the dataset that the edges belong to.
        texts: (anchors,) strings.
        edges: by side.

    Returns:
        The other edges, and how many were left out of each side.
    """
    if protocol == "as-published":
        return dict(edges), {}
    leaks = Leaks.from_dataset(dataset)
    anchor_texts = hash_strings(fold(texts))
    kept, counts = {}, {}
    for side, found in edges.items():
        leaking = leaks.among(side, found.nodes, anchor_texts[found.anchors])
        kept[side] = Edges(*(getattr(found, of.name)[~leaking] for of in fields(Edges)))
        counts[f"{side} {LEAKING_EDGES}"] = int(leaking.sum())
    return kept, counts


@contextmanager
def folder_beside(dataset: Dataset, name: str) -> Iterator[Path]:
    """Yield a hidden folder in a dataset directory where the set ``name`` can be written."""
    aside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=dataset.path))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def put_in_place(
    aside: Path,
    dataset: Dataset,
    name: str,
    made: Mapping[str, Any],
    written: Mapping[str, int],
    replace: bool,
) -> None:
    """Move an anchor set's tables from :func:`folder_beside` into the dataset directory.

    Args:
        aside: the folder with the tables.
        dataset: the dataset directory.
        name: the anchor set.
        made: how the set was made, for ``dataset.json``.
        written: row counts of its tables.
        replace: whether a set of this name may be replaced.

    Raises:
        DatasetError: there is a set of this name, and ``replace`` is not set.
    """
    if not replace:
        _check_room(dataset.path, name)
    with _hidden(dataset.path, name):
        _move_in(aside, dataset.path, name)
        made_by = {**dataset.metadata.get("anchor_sets", {}), name: dict(made)}
        write_metadata(dataset.path, {**dataset.metadata, "anchor_sets": made_by}, written)


def remove_anchor_set(dataset_path: Path, name: str) -> None:
    """Remove an anchor set from a dataset directory, if it exists."""
    dataset = Dataset(dataset_path)
    if name not in dataset.anchor_sets:
        return
    with _hidden(dataset.path, name):
        made_by = {**dataset.metadata.get("anchor_sets", {})}
        made_by.pop(name, None)
        write_metadata(dataset.path, {**dataset.metadata, "anchor_sets": made_by})
        _delete(dataset.path, name)


def write_anchor_set(
    writer: DatasetWriter, name: str, texts: pa.Array, edges: Mapping[str, Edges]
) -> dict[str, int]:
    """Write ``anchors/<name>`` and ``edges/<name>/...``; see :func:`add_anchor_set`.

    Returns:
        The row count of every table written.
    """
    linked = np.unique(np.concatenate([side.anchors for side in edges.values()]))
    tables = {
        f"anchors/{name}": pa.table(
            {"anchor_id": np.arange(len(linked)), "text": texts.take(pa.array(linked))}
        )
    }
    for side in SIDES:
        if side in edges and len(edges[side]):
            tables[f"edges/{name}/{side}"] = _edge_table(side, edges[side], linked)
    for table, rows in tables.items():
        writer.write(table, rows)
    return {table: rows.num_rows for table, rows in tables.items()}


def nodes_without_edges(dataset: Dataset, linked: Mapping[str, int]) -> dict[str, int]:
    """Count each side's nodes without edges; ``linked`` has the numbers of those with edges."""
    nodes = {"query": ("queries/train", "train queries"), "ad": ("ads", "ads")}
    return {
        f"{nodes[side][1]} without edges": dataset.num_rows(nodes[side][0]) - count
        for side, count in linked.items()
    }


def _edge_table(side: str, edges: Edges, linked: NDArray[np.int64]) -> pa.Table:
    anchors = np.searchsorted(linked, edges.anchors)
    order = np.lexsort((anchors, edges.nodes))
    return pa.table(
        {
            f"{side}_id": edges.nodes[order],
            "anchor_id": anchors[order],
            "weight": edges.weights[order].astype(np.float32),
        }
    )


@contextmanager
def _hidden(folder: Path, name: str) -> Iterator[None]:
    """Hide the set from readers until all its tables are in place; one unlink then reveals it."""
    marker = folder / f"{UNFINISHED}{name}"
    marker.touch()
    yield
    marker.unlink()


def _check_room(folder: Path, name: str) -> None:
    """Check that nothing would be overwritten except what an interrupted call left half-written."""
    if (folder / f"{UNFINISHED}{name}").exists():
        return
    for path in _places(folder, name):
        if path.exists():
            raise DatasetError(
                f"{path} exists already; move it away, give another name, or set replace"
            )


def _places(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / "edges" / name, folder / "anchors" / f"{name}.parquet"


def _delete(folder: Path, name: str) -> None:
    edges, anchors = _places(folder, name)
    shutil.rmtree(edges, ignore_errors=True)
    if anchors.is_dir():
        shutil.rmtree(anchors)
    anchors.unlink(missing_ok=True)


def _move_in(aside: Path, folder: Path, name: str) -> None:
    _delete(folder, name)
    for made, place in zip(_places(aside, name), _places(folder, name), strict=True):
        place.parent.mkdir(exist_ok=True)
        made.rename(place)
