"""Co-session anchor sets from a log: with Ray Data, read it, group sessions, count and rank pairs.

One streaming execution has three shuffles: events by session, pairs by anchor, pairs by node. Only
the final edges come to the driver.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray
import ray.data
from numpy.typing import NDArray

from ramen_ray.data.arrays import UInt64s
from ramen_ray.data.graphs.anchor_sets import (
    add_anchor_set,
    apply_protocol,
    check_name,
    remove_anchor_set,
)
from ramen_ray.data.graphs.nodes import HeldOut, NodeIndex
from ramen_ray.data.graphs.sessions import (
    STRONGEST_PAIRS,
    KnownNodes,
    SessionLog,
    SessionSettings,
    count_pairs,
    edges_of,
    read_events,
    strongest_pairs,
    supported_pairs,
)
from ramen_ray.data.sources import Piece, find_pieces, read_piece
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.validation import check
from ramen_ray.orchestration.cluster.attempts import limited_attempts
from ramen_ray.orchestration.cluster.resources import num_cpus, start_ray, user_errors

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
    check(dataset)
    pieces = _find_pieces(log)
    known = KnownNodes(
        NodeIndex.from_table(dataset, "queries/train"),
        NodeIndex.from_table(dataset, "ads"),
        HeldOut.from_dataset(dataset),
    )
    made = {"made_by": "co-session", "settings": asdict(log) | asdict(settings)}
    start_ray()
    with tempfile.TemporaryDirectory(prefix=".sessions-", dir=dataset.path) as folder:
        aside = Path(folder)
        pairs = _count(_Work(pieces, log, known, aside), settings)
        summary = dict(_noted(aside))
        made_sets = {}
        for name, side, nodes in (
            (settings.query_set, "query", known.queries),
            (settings.ad_set, "ad", known.ads),
        ):
            found, anchors = edges_of(pairs, nodes, summary.get("sessions", 0), settings)
            texts, edges = _texts(dataset, nodes, anchors, aside), {side: found}
            edges, left_out = apply_protocol(settings.protocol, dataset, texts, edges)
            summary |= left_out
            if len(edges[side]):
                made_sets[name] = texts, edges
            summary[f"edges/{name}/{side}"] = len(edges[side])
    if not made_sets:
        counts = ", ".join(f"{count} {what}" for what, count in summary.items() if count)
        raise DatasetError(
            f"{log.sessions} gives no edges; lower min_support? Found: {counts or 'nothing'}"
        )
    for name, anchor_set in made_sets.items():
        summary |= add_anchor_set(dataset.path, name, *anchor_set, made, replace)
    if replace:
        for name in {settings.query_set, settings.ad_set}.difference(made_sets):
            remove_anchor_set(dataset.path, name)
    return summary


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


def _count(work: _Work, settings: SessionSettings) -> pa.Table:
    """Return the strongest pairs of all nodes."""
    num_pieces = len(work.pieces)
    num_partitions = min(max(num_pieces, num_cpus()), MAX_PARTITIONS)
    rows = ray.data.range(num_pieces, override_num_blocks=num_pieces).map_batches(
        _read, fn_args=(ray.put(work),), batch_size=1
    )
    # each function needs all rows of its key, so the order of the three shuffles is fixed
    for key, function in (
        ("session", partial(_count_pairs, settings=settings, aside=work.aside)),
        ("anchor", partial(supported_pairs, min_support=settings.min_support)),
        ("node", partial(strongest_pairs, settings=settings)),
    ):
        rows = rows.repartition(num_partitions, keys=[key]).map_batches(
            _of_whole_groups, fn_args=(function,), batch_format="pyarrow", batch_size=None
        )
    with user_errors():
        parts = list(rows.iter_batches(batch_format="pyarrow", batch_size=None))
    return pa.concat_tables([STRONGEST_PAIRS.empty_table(), *(part for part in parts if len(part))])


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
        texts = pa.concat_tables(new_texts)
        _, first = np.unique(texts["hash"].to_numpy(), return_index=True)
        pq.write_table(texts.take(pa.array(first)), work.aside / f"texts-{number}.parquet")
    _note(work.aside, f"piece-{number}", dropped)


def _count_pairs(events: pa.Table, settings: SessionSettings, aside: Path) -> pa.Table:
    pairs, counts = count_pairs(events, settings)
    _note(aside, f"sessions-{pc.min(events['session'])}", counts)
    return pairs


def _note(aside: Path, name: str, counts: Counter[str]) -> None:
    """Write counts to a file named after the task, which overwrites it if it runs again."""
    (aside / f"{name}.json").write_text(json.dumps(counts))


def _noted(aside: Path) -> Counter[str]:
    total: Counter[str] = Counter()
    for file in aside.glob("*.json"):
        total.update(json.loads(file.read_text()))
    return total


def _texts(dataset: Dataset, nodes: NodeIndex, anchors: UInt64s, aside: Path) -> pa.Array:
    """Return the texts (anchors,) with the hashes ``anchors`` (ascending)."""
    if not len(anchors):
        return pa.array([], pa.string())
    table = "ads" if nodes.key else "queries/train"
    node = nodes.by_text.first(anchors)
    known = np.sort(node[node >= 0])
    hashes = [nodes.text_hashes[known]]
    texts = [pc.utf8_trim_whitespace(dataset.rows(table, known.tolist())["text"])]
    for file in aside.glob("texts-*.parquet") if table != "ads" else ():
        new = pq.read_table(file)
        new = new.filter(pa.array(np.isin(new["hash"].to_numpy(), anchors)))
        hashes.append(new["hash"].to_numpy())
        texts.append(new["text"])
    _, first = np.unique(np.concatenate(hashes), return_index=True)
    return pa.concat_arrays([c for column in texts for c in column.chunks]).take(pa.array(first))
