"""Last stages of a co-session graph: weigh the strongest pairs, a range of anchors at a time.

Pairs and texts go through files of a staging folder, as those of an edge list do
(:mod:`~ramen_ray.data.graphs.edge_staging`), so no process holds all pairs.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.graphs.edge_joining import (
    NUMBERED,
    first_of_each,
    hash_range,
    range_of,
    write_staged,
)
from ramen_ray.data.graphs.edge_staging import NAMES, staged_batches, staged_file
from ramen_ray.data.graphs.nodes import NodeIndex
from ramen_ray.data.graphs.sessions import SessionSettings, edges_of
from ramen_ray.data.prepared.hashing import hash_strings, insertion_points
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import schema_of
from ramen_ray.data.store.texts import fold
from ramen_ray.data.validation.leaks import LEAKING_EDGES, NODE_TABLES, Leaks

PAIRS = pa.schema(
    [
        ("anchor", pa.uint64()),
        ("node", pa.uint64()),
        ("sessions", pa.int64()),
        ("anchor_sessions", pa.int64()),
        ("node_sessions", pa.int64()),
    ]
)
"""Staged pairs, by ascending anchor."""


@dataclass(frozen=True)
class Weighing:
    """What all tasks need that turn pairs into the edges of one side.

    Attributes:
        side: ``query`` or ``ad``.
        nodes: the side's nodes.
        num_sessions: number of all sessions.
        settings: which pairs become edges, and their weights.
        leaks: finds the edges to leave out; None keeps them.
        staging: folder of the staged pairs and texts.
    """

    side: str
    nodes: NodeIndex
    num_sessions: int
    settings: SessionSettings
    leaks: Leaks | None
    staging: Path


def stage_pairs(pairs: pa.Table, staging: Path) -> int:
    """Stage the strongest pairs of some nodes; returns how many there are.

    The file is named after the first node, so a task that runs again overwrites its own.
    """
    if len(pairs):
        file = staged_file(staging, f"pairs-{pc.min(pairs['node'])}", 0)
        write_staged(file, pairs.select(PAIRS.names).sort_by("anchor").combine_chunks())
    return len(pairs)


def stage_new_texts(texts: pa.Table, part: int, staging: Path) -> None:
    """Stage texts (hash, text) of a log's queries that are no nodes, as part ``part`` from 1."""
    write_staged(staged_file(staging, "query-texts", part), first_of_each(texts))


def stage_node_texts(dataset: Dataset, side: str, nodes: NodeIndex, staging: Path) -> None:
    """Stage the texts of a side's nodes, as part 0."""
    table = NODE_TABLES[side]
    with pa.ipc.new_file(str(staged_file(staging, f"{side}-texts", 0)), NAMES) as part:
        for ids, texts in dataset.batches(table, schema_of(table).names[:2]):
            columns = [nodes.text_hashes[ids.to_numpy()], pc.utf8_trim_whitespace(texts)]
            part.write_table(first_of_each(pa.table(columns, schema=NAMES)))


def weigh_anchors(weighing: Weighing, part: int, num_parts: int, folder: Path) -> dict[str, int]:
    """Stage the edges of one of ``num_parts`` ranges of anchors, and these anchors, in ``folder``.

    Returns:
        how many edges were left out, by reason.
    """
    of, bounds = weighing, hash_range(part, num_parts)
    pairs = range_of(staged_batches(of.staging, "pairs-*"), PAIRS, *bounds)
    edges = edges_of(pairs, of.nodes, of.num_sessions, of.settings)
    texts = first_of_each(range_of(staged_batches(of.staging, f"{of.side}-texts"), NAMES, *bounds))
    hashes, left_out = texts["hash"].to_numpy(), {}
    if of.leaks:
        folded = [hash_strings(fold(chunk)) for chunk in texts["text"].chunks]
        anchor_texts = np.concatenate(folded)
        row = insertion_points(edges["anchor"].to_numpy(), hashes)
        leaking = of.leaks.among(of.side, edges["node"].to_numpy(), anchor_texts[row])
        edges = edges.filter(pa.array(~leaking))
        left_out[f"{of.side} {LEAKING_EDGES}"] = int(leaking.sum())
    linked = np.isin(hashes, edges["anchor"].to_numpy())
    write_staged(staged_file(folder, of.side, part), edges.combine_chunks())
    write_staged(staged_file(folder, NUMBERED, part), texts.filter(pa.array(linked)))
    return left_out
