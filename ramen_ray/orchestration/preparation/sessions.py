"""Co-session anchor sets from a log: with Ray Data, read it, group sessions, count and rank pairs.

One streaming execution has three shuffles: events by session, pairs by anchor, pairs by node. Its
pairs go to files, and tasks join these to edges; none of them comes to the driver.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
from numpy.typing import NDArray

from ramen_ray.data.graphs.anchor_sets import (
    check_name,
    folder_beside,
    nodes_without_edges,
    put_in_place,
    remove_anchor_set,
)
from ramen_ray.data.graphs.edge_joining import JoinedEdges, join_edges, num_anchor_parts
from ramen_ray.data.graphs.edge_staging import staged_batches
from ramen_ray.data.graphs.nodes import KnownNodes
from ramen_ray.data.graphs.session_edges import (
    Weighing,
    stage_new_texts,
    stage_node_texts,
    stage_pairs,
    weigh_anchors,
)
from ramen_ray.data.graphs.sessions import (
    SessionLog,
    SessionSettings,
    count_pairs,
    read_events,
    strongest_pairs,
    supported_pairs,
)
from ramen_ray.data.sources import Piece, find_pieces, read_piece
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter
from ramen_ray.data.validation import check
from ramen_ray.orchestration.cluster.attempts import limited_attempts
from ramen_ray.orchestration.cluster.resources import num_cpus, start_ray, user_errors
from ramen_ray.orchestration.cluster.tasks import in_tasks

MAX_PARTITIONS = 512


def add_co_session(
    dataset_path: Path, log: SessionLog, settings: SessionSettings, replace: bool = False
) -> dict[str, int]:
    """Add the anchor sets of a log of sessions to a dataset directory.

    Args:
        dataset_path: the dataset directory.
        log: the log and its columns.
        settings: which pairs become edges, and the names of the anchor sets of train queries and of
            ads. A set that gets no edges is left out; with ``replace``, an old one is removed.
        replace: whether sets of these names may be replaced.

    Returns:
        Counts of rows written, of nodes without edges, and of what was left out of the log.

    Raises:
        DatasetError: dataset or log is not usable, a name is taken, or there would be no edges.
    """
    dataset = Dataset(dataset_path)
    for name in (settings.query_set, settings.ad_set):
        check_name(dataset, name, replace)
    check(dataset, in_tasks)
    pieces = _find_pieces(log)
    made = {"made_by": "co-session", "settings": asdict(log) | asdict(settings)}
    start_ray()
    with ExitStack() as stack:
        staging = tempfile.TemporaryDirectory(prefix=".sessions-", dir=dataset.path)
        aside = Path(stack.enter_context(staging))
        folders = {
            name: stack.enter_context(folder_beside(dataset, name))  # before anything is read
            for name in (settings.query_set, settings.ad_set)
        }
        index = partial(KnownNodes.in_files, dataset, settings.protocol, aside / "known")
        (known,) = in_tasks([index])
        num_pairs = _count(_Work(pieces, log, known, aside), settings)
        summary = dict(_noted(aside))
        num_sessions = summary.get("sessions", 0)
        written = {}
        for name, side, nodes in (
            (settings.query_set, "query", known.queries),
            (settings.ad_set, "ad", known.ads),
        ):
            stage_node_texts(dataset, side, nodes, aside)
            weighing = Weighing(side, nodes, num_sessions, settings, known.leaks, aside)
            joined, left_out = _write_set(weighing, name, num_pairs, DatasetWriter(folders[name]))
            summary |= {**left_out, f"edges/{name}/{side}": joined.edges[side]}
            if joined.num_rows:
                summary |= joined.num_rows | nodes_without_edges(dataset, joined.nodes)
                written[name] = joined.num_rows
        if not written:
            found = ", ".join(f"{count} {what}" for what, count in summary.items() if count)
            raise DatasetError(
                f"{log.sessions} gives no edges; lower min_support? Found: {found or 'nothing'}"
            )
        for name, num_rows in written.items():
            put_in_place(folders[name], dataset, name, made, num_rows, replace)
    if replace:
        for name in {settings.query_set, settings.ad_set}.difference(written):
            remove_anchor_set(dataset.path, name)
    return summary


def _write_set(
    weighing: Weighing, name: str, num_pairs: int, writer: DatasetWriter
) -> tuple[JoinedEdges, Counter[str]]:
    """Write an anchor set in tasks; also returns how many edges were left out, by reason."""
    folder = weighing.staging / weighing.side
    folder.mkdir()
    num_texts = sum(map(len, staged_batches(weighing.staging, f"{weighing.side}-texts")))
    num_parts = num_anchor_parts(max(num_pairs, num_texts))  # a part loads both of its range
    weigh = partial(weigh_anchors, weighing, num_parts=num_parts, folder=folder)
    left_out: Counter[str] = Counter()
    for counts in in_tasks([partial(weigh, part) for part in range(num_parts)]):
        left_out.update(counts)
    return join_edges(folder, name, [weighing.side], writer, in_tasks), left_out


def _find_pieces(log: SessionLog) -> list[Piece]:
    pieces = find_pieces(log.sessions, log.columns)
    if not pieces:
        raise DatasetError(f"{log.sessions} holds no rows")
    return pieces


@dataclass(frozen=True)
class _Work:
    """What the tasks that read the log need; they write counts and new texts to ``aside``."""

    pieces: list[Piece]
    log: SessionLog
    known: KnownNodes
    aside: Path


def _count(work: _Work, settings: SessionSettings) -> int:
    """Stage the strongest pairs of all nodes; returns how many there are."""
    num_pieces = len(work.pieces)
    num_partitions = min(max(num_pieces, num_cpus()), MAX_PARTITIONS)
    rows = ray.data.range(num_pieces, override_num_blocks=num_pieces).map_batches(
        _read, fn_args=(ray.put(work),), batch_size=1
    )
    # each function needs all rows of its key, so the order of the three shuffles is fixed
    for key, function in (
        ("session", partial(_count_pairs, settings=settings, aside=work.aside)),
        ("anchor", partial(supported_pairs, min_support=settings.min_support)),
        ("node", partial(_stage_strongest, settings=settings, aside=work.aside)),
    ):
        rows = rows.repartition(num_partitions, keys=[key]).map_batches(
            _of_whole_groups, fn_args=(function,), batch_format="pyarrow", batch_size=None
        )
    with user_errors():
        return sum(row["pairs"] for row in rows.iter_rows())


def _of_whole_groups(
    rows: pa.Table, function: Callable[[pa.Table], pa.Table]
) -> Iterator[pa.Table]:
    """Apply ``function`` to a partition, which has all rows of its keys, or is empty."""
    if len(rows):
        yield function(rows)


def _read(batch: dict[str, NDArray[np.int64]], reference: ray.ObjectRef) -> Iterator[pa.Table]:
    """Read one piece; notes what is dropped and writes the texts of new queries."""
    work: _Work = ray.get(reference)
    (number,) = batch["id"].tolist()
    dropped: Counter[str] = Counter()
    new_texts = []
    piece = work.pieces[number]
    with limited_attempts(work.aside / "attempts", f"{piece.path} from {piece.start}"):
        for row_batch in read_piece(piece):
            events, new, reasons = read_events(row_batch, work.log, work.known)
            dropped.update(reasons)
            new_texts.append(new)
            yield events
    if new_texts:
        stage_new_texts(pa.concat_tables(new_texts), 1 + number, work.aside)
    _note(work.aside, f"piece-{number}", dropped)


def _count_pairs(events: pa.Table, settings: SessionSettings, aside: Path) -> pa.Table:
    pairs, counts = count_pairs(events, settings)
    _note(aside, f"sessions-{pc.min(events['session'])}", counts)
    return pairs


def _stage_strongest(pairs: pa.Table, settings: SessionSettings, aside: Path) -> pa.Table:
    return pa.table({"pairs": [stage_pairs(strongest_pairs(pairs, settings), aside)]})


def _note(aside: Path, name: str, counts: Counter[str]) -> None:
    """Write counts to a file named after the task, which overwrites it if it runs again."""
    (aside / f"{name}.json").write_text(json.dumps(counts))


def _noted(aside: Path) -> Counter[str]:
    total: Counter[str] = Counter()
    for file in aside.glob("*.json"):
        total.update(json.loads(file.read_text()))
    return total
