"""Add a whole anchor set to an existing dataset directory, or change nothing."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock

from ramen_ray.data.store.dataset import (
    UNFINISHED,
    WHILE_READ,
    Dataset,
    DatasetError,
    write_metadata,
)
from ramen_ray.errors import without_passwords
from ramen_ray.naming import naming_fault

NODES = "nodes"
"""In :func:`folder_beside`: a digest of the queries and ads, taken before they are read."""


def check_spelling(name: str) -> None:
    """Raise a DatasetError if an anchor set cannot have this name."""
    if fault := naming_fault(name, dots=False):
        raise DatasetError(f"anchor set: {fault}")


def check_name(dataset: Dataset, name: str, replace: bool) -> None:
    """Raise a DatasetError if a set cannot be called so, or is and ``replace`` is not set.

    This is cheap: call it before the work.
    """
    check_spelling(name)
    if name in dataset.anchor_sets and not replace:
        raise DatasetError(
            f"{dataset.path} has an anchor set {name!r} already; give another name, or set replace"
        )


@contextmanager
def folder_beside(dataset: Dataset, name: str) -> Iterator[Path]:
    """Yield a hidden folder in a dataset directory where the set ``name`` can be written."""
    aside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=dataset.path))
    try:
        (aside / NODES).write_text(_content_of_nodes(dataset))
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

    Sets that other jobs have put in place since ``dataset`` was opened stay. ``made`` says how the
    set was made, for ``dataset.json``; ``written`` has the row counts of its tables.

    Raises:
        DatasetError: there is a set of this name, and ``replace`` is not set; or queries or ads
            are no longer those that the edges were made for.
    """
    with _as_it_is_now(dataset.path) as now:
        if _content_of_nodes(now) != (aside / NODES).read_text():
            raise DatasetError(f"{dataset.path} has changed {WHILE_READ}")
        if not replace:
            _check_room(now.path, name)
        with _hidden(now.path, name):
            _move_in(aside, now.path, name)
            made_by = {**now.metadata.get("anchor_sets", {}), name: dict(made)}
            write_metadata(now.path, {**now.metadata, "anchor_sets": made_by}, written)


def remove_anchor_set(dataset_path: Path, name: str) -> None:
    """Remove an anchor set from a dataset directory, if it exists."""
    with _as_it_is_now(dataset_path) as now:
        if name not in now.anchor_sets:
            return
        with _hidden(now.path, name):
            made_by = {**now.metadata.get("anchor_sets", {})}
            made_by.pop(name, None)
            write_metadata(now.path, {**now.metadata, "anchor_sets": made_by})
            _delete(now.path, name)


def made_by(how: str, *settings: Any) -> dict[str, Any]:
    """Say in ``dataset.json`` by what and with which dataclasses of settings a set was made."""
    given = {name: value for one in settings for name, value in asdict(one).items()}
    return {"made_by": how, "settings": without_passwords(given)}


def nodes_without_edges(dataset: Dataset, linked: Mapping[str, int]) -> dict[str, int]:
    """Count each side's nodes without edges; ``linked`` has the numbers of those with edges."""
    nodes = {"query": ("queries/train", "train queries"), "ad": ("ads", "ads")}
    return {
        f"{nodes[side][1]} without edges": dataset.num_rows(nodes[side][0]) - count
        for side, count in linked.items()
    }


def _content_of_nodes(dataset: Dataset) -> str:
    return dataset.content_of(
        table for table in dataset.tables if not table.startswith(("anchors/", "edges/"))
    )


@contextmanager
def _as_it_is_now(path: Path) -> Iterator[Dataset]:
    """Open a dataset directory anew, and keep other jobs from changing it until the block ends."""
    with FileLock(path / ".lock"):
        yield Dataset(path)


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
