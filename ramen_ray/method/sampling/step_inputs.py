"""What a step computes on: all that is known of a batch before its texts are encoded.

None of it needs the model, so a thread can make it while a GPU computes the step before. Shapes: b
rows of this worker and B of the global batch, U distinct texts, L candidates of a pool, n nodes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.prepared.csr import Csr, ragged_positions
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.devices import staged
from ramen_ray.method.distributed import dealt_rows, world
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.sampling.batches import Batch
from ramen_ray.method.sampling.regularizers import Regularizer
from ramen_ray.method.sampling.training_data import TrainingData

NUM_MARKS = 1 << 18


@dataclass(frozen=True)
class BatchTexts:
    """The distinct texts of a global batch, shortest first.

    Attributes:
        tables: (U,) number of the table that a text comes from.
        rows: (U,) its row in that table.
        lengths: (U,) how many tokens it has, ascending.
        positions: where among the U the texts of all ids of :meth:`Batch.drawn` are, in their
            shapes; 0 for those of id -1.
    """

    tables: Int64s
    rows: Int64s
    lengths: Int64s
    positions: list[Int64s]

    @classmethod
    def from_batch(cls, batch: Batch, tables: Mapping[str, TokenTable]) -> "BatchTexts":
        """Find the distinct texts of all that was drawn from ``tables``."""
        drawn, numbers = batch.drawn(), {name: number for number, name in enumerate(tables)}
        sizes = [ids.size for _, ids in drawn]
        rows = np.concatenate([ids.reshape(-1) for _, ids in drawn])
        of_tables = np.repeat([numbers[name] for name, _ in drawn], sizes)
        hashes = np.concatenate([tables[name].hashes[ids.reshape(-1)] for name, ids in drawn])
        order = np.argsort(hashes)
        order = order[rows[order] >= 0]
        ordered = hashes[order]
        is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(order)]
        first = order[is_first]
        lengths = _lengths(of_tables[first], rows[first], list(tables.values()))
        by_length = np.argsort(lengths.astype(np.uint16), kind="stable")  # 16 bits: by counting
        rank_of = np.empty_like(by_length)
        rank_of[by_length] = np.arange(len(by_length))
        positions = np.zeros_like(rows)
        positions[order] = rank_of[np.cumsum(is_first) - 1]
        parts = np.split(positions, np.cumsum(sizes)[:-1])
        shaped = [part.reshape(ids.shape) for part, (_, ids) in zip(parts, drawn, strict=True)]
        shown = first[by_length]
        return cls(of_tables[shown], rows[shown], lengths[by_length], shaped)


def _lengths(numbers: Int64s, rows: Int64s, tables: list[TokenTable]) -> Int64s:
    """Count the tokens (u,) of texts; ``numbers`` (u,) says which table a row is in."""
    lengths = np.empty(len(rows), dtype=np.int64)
    for number, table in enumerate(tables):
        own = numbers == number
        lengths[own] = table.lengths(rows[own])
    return lengths


@dataclass(frozen=True)
class Pool:
    """The distinct candidates of a global batch: ascending ids (L,)."""

    ids: Int64s

    def find(self, drawn: Int64s) -> Int64s:
        """Return the places of ``drawn`` ids, of any shape, in the pool; -1 for -1."""
        return np.where(drawn >= 0, np.searchsorted(self.ids, drawn), -1)

    def links(self, known: Iterable[Csr], rows: Int64s) -> Int64s:
        """Return the pairs that a known graph links, as row of ``rows`` * L + place, ascending."""
        found = [self._links(edges, rows) for edges in known]
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found))

    def _links(self, edges: Csr, rows: Int64s) -> Int64s:
        row, candidate = edges.gather(rows)
        # Most are not in the pool, which a few bits of their ids tell sooner than a search does.
        marks = np.zeros(NUM_MARKS, dtype=bool)
        marks[self.ids & (NUM_MARKS - 1)] = True
        likely = np.flatnonzero(marks[candidate & (NUM_MARKS - 1)])
        row, candidate = row[likely], candidate[likely]
        place = np.searchsorted(self.ids, candidate)
        is_candidate = np.append(self.ids, -1)[place] == candidate
        return (row * len(self.ids) + place)[is_candidate]

    def is_positive(self, known: Iterable[Csr], rows: Int64s) -> Booleans:
        """Mark the candidates that a known graph links to ``rows`` (b,); returns (b, L) bool."""
        mask = np.zeros((len(rows), len(self.ids)), dtype=bool)
        mask.reshape(-1)[self.links(known, rows)] = True
        return mask


@dataclass(frozen=True)
class Found:
    """The distinct ids of what was drawn, and where they are.

    Attributes:
        pool: the ids.
        positions: (L,) of their texts among the U.
        places: in the pool, of each array that was drawn, in its shape; -1 for -1.
    """

    pool: Pool
    positions: Int64s
    places: list[Int64s]

    @classmethod
    def among(cls, drawn: list[Int64s], positions: list[Int64s]) -> "Found":
        """Find the distinct ids of ``drawn`` arrays, whose texts are at ``positions``."""
        flat = np.concatenate([ids.reshape(-1) for ids in drawn])
        ids, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
        skipped = int(len(ids) > 0 and ids[0] < 0)
        parts = np.split(inverse - skipped, np.cumsum([one.size for one in drawn])[:-1])
        of_texts = np.concatenate([one.reshape(-1) for one in positions])[first[skipped:]]
        places = [part.reshape(one.shape) for part, one in zip(parts, drawn, strict=True)]
        return cls(Pool(ids[skipped:]), of_texts, places)


def pool_figures(batch: Batch, clicks: Csr) -> dict[str, float]:
    """Return what a softmax loss sees of the pool of a global batch.

    The last is the share of its ads that were clicked for none of the batch.
    """
    ids = np.unique(np.concatenate([batch.ads.reshape(-1), batch.hard_negatives.reshape(-1)]))
    pool = Pool(ids[ids >= 0])
    clicked_BL = pool.is_positive([clicks], batch.queries)
    return {
        "ads": float(len(pool.ids)),
        "clicked_per_query": float(clicked_BL.sum(axis=1).mean()),
        "share_unclicked": float(np.mean(~clicked_BL.any(axis=0))),
    }


@dataclass(frozen=True)
class Positions:
    """Where among the U texts those are that the losses compare; int64, copied without waiting.

    Attributes:
        queries: (b,) this worker's.
        all_queries: (B,).
        ads: (b,) the first ad of each of this worker's queries.
        ad_pool: (L,).
        nodes: per drawn regulariser (n,), this worker's.
        anchor_pools: by set, (L,).
    """

    queries: Tensor
    all_queries: Tensor
    ads: Tensor
    ad_pool: Tensor
    nodes: Mapping[Regularizer, Tensor]
    anchor_pools: Mapping[str, Tensor]


@dataclass(frozen=True)
class StepInputs:
    """A batch, its texts, the pools of candidates, and which candidates are known positives.

    Tensors are on the CPU, and copies of them to the step's device need no waiting.

    Attributes:
        batch: the global batch.
        local: this worker's share of it.
        tokens: this worker's share of the texts.
        anchor_pools: by set.
        at: positions of texts.
        ads: (b, P) int64, places in the pool of the ads that were drawn for this worker's queries;
            -1 for none.
        clicked: (clicks,) int64, as row * L + place, which ads of the pool were clicked for which
            of this worker's queries.
        anchors: per drawn regulariser (n,) int64, places in the pool of the anchors that this
            worker's nodes drew.
        linked: per drawn regulariser, likewise which anchors of the pool its nodes have.
        added: what the parts of the step have added, by name.
    """

    data: TrainingData
    batch: Batch
    local: Batch
    texts: BatchTexts
    tokens: TokenBatch
    ad_pool: Pool
    anchor_pools: Mapping[str, Pool]
    at: Positions
    ads: Tensor
    clicked: Tensor
    anchors: Mapping[Regularizer, Tensor]
    linked: Mapping[Regularizer, Tensor]
    added: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_local(cls, data: TrainingData, local: Batch, device: torch.device) -> "StepInputs":
        """Find out all about the batch that ``local`` is this worker's share of.

        With several workers this is a collective of their CPUs.
        """
        batch = local.gathered()
        texts = BatchTexts.from_batch(batch, data.tables)
        queries, ads, hard_negatives, *rest = texts.positions
        nodes = dict(zip(batch.anchors, rest[::2], strict=True))
        of_anchors = dict(zip(batch.anchors, rest[1::2], strict=True))
        of_ads = Found.among([batch.ads, batch.hard_negatives], [ads, hard_negatives])
        of_sets: dict[str, Found] = {}
        anchors: dict[Regularizer, Tensor] = {}
        for name in dict.fromkeys(one.anchor_set for one in batch.anchors):
            own = [one for one in batch.anchors if one.anchor_set == name]
            drawn = [batch.anchors[one].anchors for one in own]
            of_sets[name] = Found.among(drawn, [of_anchors[one] for one in own])
            for one, places in zip(own, of_sets[name].places, strict=True):
                anchors[one] = staged(_own(places), device)
        pools = {name: found.pool for name, found in of_sets.items()}
        at = Positions(
            staged(_own(queries), device),
            staged(queries, device),
            staged(_own(ads)[:, 0], device),
            staged(of_ads.positions, device),
            {one: staged(_own(positions), device) for one, positions in nodes.items()},
            {name: staged(found.positions, device) for name, found in of_sets.items()},
        )
        linked = {
            one: pools[one.anchor_set].links(data.known_edges[one], drawn.nodes)
            for one, drawn in local.anchors.items()
        }
        mine = dealt_rows()
        return cls(
            data,
            batch,
            local,
            texts,
            gather_tokens(texts.tables[mine], texts.rows[mine], list(data.tables.values())),
            of_ads.pool,
            pools,
            at,
            staged(_own(of_ads.places[0]), device),
            staged(of_ads.pool.links([data.clicks], local.queries), device),
            anchors,
            {one: staged(links, device) for one, links in linked.items()},
        )


def _own(rows: Int64s) -> Int64s:
    """Return this worker's rows of what was gathered from all."""
    rank, num_workers = world()
    share = len(rows) // num_workers
    return rows[rank * share : (rank + 1) * share]


def gather_tokens(numbers: Int64s, rows: Int64s, tables: list[TokenTable]) -> TokenBatch:
    """Collect texts (u,) from several tables; ``numbers`` (u,) says which table a row is in."""
    by_table = np.argsort(numbers, kind="stable")
    parts, lengths = [], np.empty(len(rows), dtype=np.int64)
    for number, table in enumerate(tables):
        chosen = by_table[numbers[by_table] == number]
        parts.append(table.gather(rows[chosen]))
        lengths[chosen] = table.lengths(rows[chosen])
    starts = np.empty(len(rows), dtype=np.int64)
    starts[by_table] = np.cumsum(lengths[by_table]) - lengths[by_table]
    return TokenBatch(np.concatenate(parts)[ragged_positions(starts, lengths)], lengths)
