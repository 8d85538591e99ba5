"""Co-session anchor sets from a log: Ray Data reads it, brings sessions together, counts and ranks.

One streaming execution with three shuffles: events meet by session, pairs by anchor, then by node.
Only the edges that remain come to the driver.
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
from ray.exceptions import RayTaskError

from ramen_ray.data.anchor_sets import add_anchor_set, check_name
from ramen_ray.data.dataset import Dataset, DatasetError
from ramen_ray.data.hashing import UInt64s
from ramen_ray.data.nodes import HeldOut, Nodes
from ramen_ray.data.sessions import (
    KnownNodes,
    SessionColumns,
    SessionSettings,
    count_pairs,
    edges_of,
    read_events,
    strongest_pairs,
    supported_pairs,
)
from ramen_ray.data.sources import Piece, find_pieces, read_piece
from ramen_ray.orchestration.cluster import start_ray

MAX_PARTITIONS = 512
PARTITION = "partition"


@dataclass(frozen=True)
class SetNames:
    """What the two anchor sets are called.

    Attributes:
        query_set: Anchor set of the queries asked in the same sessions.
        ad_set: Anchor set of the ads clicked in the same sessions.
    """

    query_set: str = "co_session"
    ad_set: str = "co_click"


def add_co_session(
    dataset_path: Path,
    source: str,
    columns: SessionColumns,
    settings: SessionSettings,
    names: SetNames,
    replace: bool = False,
) -> dict[str, int]:
    """Add the anchor sets of a log of sessions to a dataset directory.

    Args:
        dataset_path: the dataset directory.
        source: the log (see :func:`~ramen_ray.data.sources.find_pieces`), one row per event.
        columns: the log's columns.
        settings: which pairs become edges.
        names: the anchor sets, of train queries and of ads; one that gets no edge is left out.
        replace: whether sets of these names may be replaced.

    Returns:
        Row counts of what was written, nodes without edges, and what was left out of the log.

    Raises:
        DatasetError: dataset or log is not usable, a name is taken, or no edge comes out.
    """
    dataset = Dataset(dataset_path)
    for name in (names.query_set, names.ad_set):
        check_name(dataset, name, replace)
    pieces = find_pieces(source, columns.names)
    known = KnownNodes(
        Nodes.of(dataset, "queries/train"), Nodes.of(dataset, "ads"), HeldOut.of(dataset)
    )
    made = {
        "made_by": "co-session",
        "settings": {"source": source, **asdict(columns), **asdict(settings)},
    }
    start_ray()
    with tempfile.TemporaryDirectory(prefix=".sessions-", dir=dataset.path) as folder:
        aside = Path(folder)
        pairs = _count(_Log(pieces, columns, known, aside), settings)
        summary = dict(_noted(aside))
        for name, side, nodes in (
            (names.query_set, "query", known.queries),
            (names.ad_set, "ad", known.ads),
        ):
            edges, anchors = edges_of(pairs, nodes, summary["sessions"], settings)
            if len(edges):
                texts = _texts(dataset, nodes, anchors, aside)
                summary |= add_anchor_set(dataset.path, name, texts, {side: edges}, made, replace)
            summary[f"edges/{name}/{side}"] = len(edges)
    if not (summary[f"edges/{names.query_set}/query"] or summary[f"edges/{names.ad_set}/ad"]):
        found = ", ".join(f"{count} {what}" for what, count in summary.items())
        raise DatasetError(f"{source} gives no edges; lower --min-support? Seen: {found}")
    return summary


@dataclass(frozen=True)
class _Log:
    """What the tasks that read the log need; notes and texts of new queries go to ``aside``."""

    pieces: list[Piece]
    columns: SessionColumns
    known: KnownNodes
    aside: Path


def _count(log: _Log, settings: SessionSettings) -> pa.Table:
    """Return the strongest pairs of all nodes."""
    num_pieces = len(log.pieces)
    num_cpus = max(int(ray.cluster_resources().get("CPU", 1)), 1)
    num_partitions = min(max(num_pieces, num_cpus), MAX_PARTITIONS)
    meet = partial(_meet, num_partitions=num_partitions)
    events = ray.data.range(num_pieces, override_num_blocks=num_pieces).map_batches(
        _read, fn_args=(ray.put(log),), batch_size=1
    )
    pairs = meet(events, "session", partial(_count_pairs, settings=settings, aside=log.aside))
    pairs = meet(pairs, "anchor", partial(supported_pairs, min_support=settings.min_support))
    pairs = meet(pairs, "node", partial(strongest_pairs, settings=settings))
    try:
        return pa.concat_tables(pairs.iter_batches(batch_format="pyarrow", batch_size=None))
    except RayTaskError as error:
        if isinstance(error.cause, DatasetError):
            raise error.cause from None
        raise


def _meet(
    rows: ray.data.Dataset,
    key: str,
    function: Callable[[pa.Table], pa.Table],
    num_partitions: int,
) -> ray.data.Dataset:
    """Bring rows of one ``key`` together, many keys at once, and apply ``function`` to them."""
    numbered = rows.map_batches(
        _number, fn_args=(key, num_partitions), batch_format="pyarrow", batch_size=None
    )
    return numbered.groupby(PARTITION, num_partitions=num_partitions).map_groups(
        lambda group: function(group.drop_columns(PARTITION)), batch_format="pyarrow"
    )


def _number(rows: pa.Table, key: str, num_partitions: int) -> pa.Table:
    partition = (rows[key].to_numpy() % np.uint64(num_partitions)).astype(np.int64)
    return rows.append_column(PARTITION, pa.array(partition))


def _read(batch: dict[str, NDArray[np.int64]], reference: ray.ObjectRef) -> Iterator[pa.Table]:
    """Read one piece; notes what is dropped and writes the texts of queries that are new."""
    log: _Log = ray.get(reference)
    (number,) = batch["id"].tolist()
    dropped: Counter[str] = Counter()
    new_texts = []
    for block in read_piece(log.pieces[number]):
        events, texts, reasons = read_events(block, log.columns, log.known)
        dropped.update(reasons)
        new_texts.append(texts)
        yield events
    if new_texts:
        distinct = (
            pa.concat_tables(new_texts)
            .group_by("hash", use_threads=False)
            .aggregate([("text", "first")])
        )
        distinct = distinct.rename_columns({"text_first": "text"})
        pq.write_table(distinct, log.aside / f"texts-{number}.parquet")
    _note(log.aside, f"piece-{number}", dropped)


def _count_pairs(events: pa.Table, settings: SessionSettings, aside: Path) -> pa.Table:
    pairs, counts = count_pairs(events, settings)
    _note(aside, f"sessions-{pc.min(events['session'])}", counts)
    return pairs


def _note(aside: Path, name: str, counts: Counter[str]) -> None:
    """Write counts down under a name of the task's own: a repeated task writes them again."""
    (aside / f"{name}.json").write_text(json.dumps(counts))


def _noted(aside: Path) -> Counter[str]:
    total: Counter[str] = Counter()
    for file in aside.glob("*.json"):
        total.update(json.loads(file.read_text()))
    return total


def _texts(dataset: Dataset, nodes: Nodes, anchors: UInt64s, aside: Path) -> pa.Array:
    """Return the texts (anchors,) whose hashes are ``anchors`` (ascending)."""
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
