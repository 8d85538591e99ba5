"""Import a user's own edges into a dataset directory, as an anchor set."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.checks import check
from ramen_ray.data.findings import FirstFindings, raise_errors
from ramen_ray.data.graphs.anchor_sets import (
    check_name,
    folder_beside,
    nodes_without_edges,
    put_in_place,
)
from ramen_ray.data.graphs.edge_joining import (
    collect_anchors,
    join_edges,
    list_anchors,
    num_anchor_parts,
)
from ramen_ray.data.graphs.edge_lists import EdgeList, Named, Naming, made_by
from ramen_ray.data.graphs.edge_staging import (
    Notes,
    read_notes,
    report_repeated_anchors,
    stage_anchors,
    stage_edges,
)
from ramen_ray.data.graphs.nodes import KnownNodes
from ramen_ray.data.sources import ROWS_PER_PIECE, Piece, find_pieces, located
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter
from ramen_ray.data.tasks import RunTasks, one_after_another, runner_for

Counts = dict[str, int]


def add_edge_list(
    dataset_path: Path,
    name: str,
    edge_list: EdgeList,
    replace: bool = False,
    run: RunTasks = one_after_another,
) -> dict[str, int]:
    """Add an anchor set from a user's edges to a dataset directory.

    Args:
        dataset_path: the dataset directory.
        name: the anchor set.
        edge_list: where the edges are.
        replace: whether a set of this name may be replaced.
        run: runs the tasks if there is much to do, else this process does; if on several machines,
            all must reach the dataset directory.

    Returns:
        Counts of the rows written, of nodes without edges, and of edges left out or merged.

    Raises:
        DatasetError: the dataset is not usable; the name is taken; edges are wrong (names every
            file and row); or no edge is left.
    """
    dataset = Dataset(dataset_path)
    check_name(dataset, name, replace)
    check(dataset)
    num_pieces = sum(len(find_pieces(*table)) for table in edge_list.tables.values())
    run = runner_for(dataset.total_rows + num_pieces * ROWS_PER_PIECE, run)
    with folder_beside(dataset, name) as aside:
        index = partial(KnownNodes.in_files, dataset, edge_list.protocol, aside / "known")
        (known,) = run([index])
        namings: dict[str, Naming] = {}
        if edge_list.query_edges:
            namings["query"] = partial(_name_queries, known=known)
        if edge_list.ad_edges:
            namings["ad"] = partial(_name_ads, known=known)
        found = write_edge_list(edge_list, name, namings, DatasetWriter(aside), run)
        put_in_place(aside, dataset, name, made_by(edge_list), found.num_rows, replace)
    return found.num_rows | nodes_without_edges(dataset, found.linked) | found.counts


@dataclass(frozen=True)
class WrittenEdges:
    """What :func:`write_edge_list` wrote.

    Attributes:
        num_rows: row counts of the tables.
        linked: how many nodes of each side have edges.
        counts: how many edges were left out, by reason, or merged.
    """

    num_rows: Counts
    linked: Counts
    counts: Counts


def write_edge_list(
    edge_list: EdgeList,
    name: str,
    namings: Mapping[str, Naming],
    writer: DatasetWriter,
    run: RunTasks = one_after_another,
) -> WrittenEdges:
    """Write a user's edges as the tables of an anchor set, in tasks.

    A task holds a batch of a source, or a million edges (more if one node has more), and 8 bytes
    for every anchor. If the source repeats an edge, the weights are summed.

    Args:
        edge_list: where the edges are.
        name: name of the anchor set.
        namings: find the nodes of the sides ``query`` and ``ad``.
        writer: writer of the dataset directory; its folder holds the staged files during the call.
        run: runs the tasks.

    Raises:
        DatasetError: edges are wrong (names every file and row), or no edge is left.
    """
    if not namings:
        raise DatasetError("there are no edges; give query_edges, ad_edges or both")
    with TemporaryDirectory(prefix=".staging-", dir=writer.folder) as staging:
        folder = Path(staging)
        staged, counts = _stage(edge_list, name, namings, folder, run)
        _number(edge_list, list(namings), folder, run)
        joined = join_edges(folder, name, list(namings), writer, run)
        for side, found in joined.edges.items():
            counts[f"repeated {side} edges merged"] = staged[side] - found
    return WrittenEdges(joined.num_rows, joined.nodes, counts)


def _stage(
    edge_list: EdgeList, name: str, namings: Mapping[str, Naming], folder: Path, run: RunTasks
) -> tuple[Counts, Counts]:
    """Stage all tables; returns the numbers of edges of each side, and of edges left out."""
    pieces = {kind: find_pieces(*table) for kind, table in edge_list.tables.items()}
    kinds = [*namings]
    if edge_list.anchors:
        _stage_anchors(edge_list, pieces["anchors"], folder, run)
        kinds = ["anchors", "repeated", *kinds]
    run(
        [
            partial(stage_edges, piece, side, number, edge_list, folder, naming)
            for side, naming in namings.items()
            for number, piece in enumerate(pieces[side])
        ]
    )
    notes = {kind: read_notes(folder, kind) for kind in kinds}
    for side in namings:
        _refuse_no_rows(notes[side], edge_list, side)
    first = FirstFindings.of([finding for kind in kinds for finding in notes[kind].findings])
    raise_errors(
        f"the edge list of anchor set {name!r}",
        located(first.shown, chain.from_iterable(pieces.values())),
        sum(notes[kind].num_errors for kind in kinds),
    )
    left_out: Counter[str] = Counter()
    for kind in kinds:
        left_out.update(notes[kind].left_out)
    staged = {side: notes[side].num_rows for side in namings}
    if not any(staged.values()):
        found = ", ".join(f"{count} {what}" for what, count in left_out.items() if count)
        raise DatasetError(f"the edge list of anchor set {name!r} leaves no edges: {found}")
    return staged, dict(left_out)


def _stage_anchors(edge_list: EdgeList, pieces: list[Piece], folder: Path, run: RunTasks) -> None:
    numbered = list(enumerate(pieces))
    run([partial(stage_anchors, piece, number, edge_list, folder) for number, piece in numbered])
    _refuse_no_rows(read_notes(folder, "anchors"), edge_list, "anchors")
    (repeated,) = run([partial(list_anchors, folder)])
    report = partial(report_repeated_anchors, edge_list=edge_list, folder=folder)
    run(
        [
            partial(report, piece, number, repeated=repeated[number])
            for number, piece in numbered
            if repeated[number].any()
        ]
    )


def _refuse_no_rows(notes: Notes, edge_list: EdgeList, kind: str) -> None:
    if not notes.num_batches:
        raise DatasetError(f"{edge_list.tables[kind][0]} holds no rows")


def _number(edge_list: EdgeList, sides: list[str], folder: Path, run: RunTasks) -> None:
    """Number the anchors that the edges name."""
    num_names = sum(read_notes(folder, side).num_names for side in sides)
    num_names = max(num_names, read_notes(folder, "anchors").num_rows)
    num_parts = num_anchor_parts(num_names)
    are_listed = edge_list.anchors is not None
    run([partial(collect_anchors, folder, n, num_parts, are_listed) for n in range(num_parts)])


def _name_queries(cells: pa.StringArray, known: KnownNodes) -> Named:
    """Find the train queries that cells name; ids take precedence over texts, in all splits."""
    cells = pc.utf8_trim_whitespace(cells)
    is_held_out = known.held_out.has_ids(cells)
    positions, nodes = known.queries.named(cells)
    in_train = ~is_held_out[positions]
    positions, nodes = positions[in_train], nodes[in_train]
    unnamed = np.ones(len(cells), dtype=bool)
    unnamed[positions] = False
    others = np.flatnonzero(unnamed)
    is_held_out[others] |= known.held_out.has_texts(cells.take(pa.array(others)))
    is_leak = partial(known.leaks.among, "query", nodes) if known.leaks else None
    return Named(positions, nodes, {"validation and test queries": is_held_out}, is_leak)


def _name_ads(cells: pa.StringArray, known: KnownNodes) -> Named:
    positions, nodes = known.ads.named(pc.utf8_trim_whitespace(cells))
    is_leak = partial(known.leaks.among, "ad", nodes) if known.leaks else None
    return Named(positions, nodes, {}, is_leak)
