"""What a step computes on: all that is known of a batch before its texts are encoded.

None of it needs the model, so a thread can make it while a GPU computes the step before. Shapes: b
rows of this worker, U distinct texts of the batch, L candidates of a pool, n nodes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import ProcessGroup

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr, ragged_positions
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.devices import staged
from ramen_ray.method.distributed import dealt_rows
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.sampling.batches import Batch
from ramen_ray.method.sampling.regularizers import Regularizer
from ramen_ray.method.sampling.training_data import ADS, TrainingData, anchor_table


@dataclass(frozen=True)
class BatchTexts:
    """The distinct texts of a global batch, shortest first.

    Attributes:
        tables: (U,) number of the table that a text comes from.
        rows: (U,) its row in that table.
        lengths: (U,) how many tokens it has, ascending.
        ids: by table, the ids that were drawn, ascending.
        positions: by table, the position of each of these ids' texts among the U.
    """

    tables: Int64s
    rows: Int64s
    lengths: Int64s
    ids: Mapping[str, Int64s]
    positions: Mapping[str, Int64s]

    @classmethod
    def from_batch(cls, batch: Batch, tables: Mapping[str, TokenTable]) -> "BatchTexts":
        """Find the distinct texts of all that was drawn from ``tables``."""
        drawn: dict[str, list[Int64s]] = {name: [] for name in tables}
        for name, some in batch.drawn():
            drawn[name].append(some)
        ids = {name: _unique_ids(parts) for name, parts in drawn.items()}
        hashes = np.concatenate([tables[name].hashes[rows] for name, rows in ids.items()])
        lengths = np.concatenate([tables[name].lengths(rows) for name, rows in ids.items()])
        numbers = np.repeat(np.arange(len(ids)), [len(rows) for rows in ids.values()])
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        by_length = np.argsort(lengths[first], kind="stable")
        rank_of = np.empty_like(by_length)
        rank_of[by_length] = np.arange(len(by_length))
        ends = np.cumsum([len(rows) for rows in ids.values()])[:-1]
        positions = dict(zip(ids, np.split(rank_of[inverse], ends), strict=True))
        shown = first[by_length]
        all_rows = np.concatenate(list(ids.values()))
        return cls(numbers[shown], all_rows[shown], lengths[shown], ids, positions)

    def find(self, table: str, ids: Int64s) -> Int64s:
        """Return the positions of drawn ``ids`` among the U texts, in the shape of ``ids``."""
        return self.positions[table][np.searchsorted(self.ids[table], ids)]


def _unique_ids(parts: list[Int64s]) -> Int64s:
    """Return the distinct ids of arrays of any shape, ascending, without -1."""
    ids = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(p.ravel() for p in parts)]))
    return ids[ids >= 0]


@dataclass(frozen=True)
class Pool:
    """The distinct candidates of a global batch: ascending ids (L,) of a table."""

    table: str
    ids: Int64s

    @classmethod
    def of_ads(cls, batch: Batch) -> "Pool":
        """Return the candidates of all queries of a batch: drawn ads and hard negatives."""
        return cls(ADS, _unique_ids([batch.ads, batch.hard_negatives]))

    @classmethod
    def of_anchors(cls, batch: Batch, anchor_set: str) -> "Pool":
        """Return the anchors of a set that nodes of either side drew."""
        drawn = [
            anchors
            for regularizer, (_, anchors) in batch.anchors.items()
            if regularizer.anchor_set == anchor_set
        ]
        return cls(anchor_table(anchor_set), _unique_ids(drawn))

    def find(self, drawn: Int64s) -> Int64s:
        """Return the positions of ``drawn`` ids, of any shape, in the pool; -1 for -1."""
        return np.where(drawn >= 0, np.searchsorted(self.ids, drawn), -1)

    def links(self, edges: Csr, rows: Int64s) -> Int64s:
        """Return the pairs that are linked, as row of ``rows`` * L + place, ascending."""
        row, candidate = edges.gather(rows)
        place = np.searchsorted(self.ids, candidate)
        is_candidate = np.append(self.ids, -1)[place] == candidate
        return (row * len(self.ids) + place)[is_candidate]

    def is_positive(self, known: Iterable[Csr], rows: Int64s) -> NDArray[np.bool_]:
        """Mark the candidates that a known graph links to ``rows`` (b,); returns (b, L) bool."""
        mask = np.zeros((len(rows), len(self.ids)), dtype=bool)
        for edges in known:
            mask.reshape(-1)[self.links(edges, rows)] = True
        return mask


def pool_figures(batch: Batch, clicks: Csr) -> dict[str, float]:
    """Return what a softmax loss sees of the pool of a global batch.

    The last is the share of its ads that were clicked for none of the batch.
    """
    pool = Pool.of_ads(batch)
    clicked_BL = pool.is_positive([clicks], batch.queries)
    return {
        "ads": float(len(pool.ids)),
        "clicked_per_query": float(clicked_BL.sum(axis=1).mean()),
        "share_unclicked": float(np.mean(~clicked_BL.any(axis=0))),
    }


@dataclass(frozen=True)
class StepInputs:
    """A batch, its texts, the pools of candidates, and which candidates are known positives.

    The masks are CPU tensors from which copies to the step's device need no waiting.

    Attributes:
        batch: the global batch.
        local: this worker's share of it.
        tokens: this worker's share of the texts.
        anchor_pools: by set.
        clicked: (b, L) bool, the ads of the pool that were clicked for this worker's queries.
        linked: per drawn regulariser (n, L) bool, the anchors that this worker's nodes have.
    """

    data: TrainingData
    batch: Batch
    local: Batch
    texts: BatchTexts
    tokens: TokenBatch
    ad_pool: Pool
    anchor_pools: Mapping[str, Pool]
    clicked: Tensor
    linked: Mapping[Regularizer, Tensor]

    @classmethod
    def from_local(
        cls,
        data: TrainingData,
        local: Batch,
        device: torch.device,
        group: ProcessGroup | None = None,
    ) -> "StepInputs":
        """Find out all about the batch that ``local`` is this worker's share of.

        With several workers this is a collective, by ``group`` if there is one.
        """
        batch = local.gathered(device, group)
        texts = BatchTexts.from_batch(batch, data.tables)
        mine = dealt_rows()
        tokens = gather_tokens(texts.tables[mine], texts.rows[mine], list(data.tables.values()))
        ads = Pool.of_ads(batch)
        sets = dict.fromkeys(one.anchor_set for one in batch.anchors)
        pools = {name: Pool.of_anchors(batch, name) for name in sets}
        clicked = staged(ads.is_positive([data.clicks], local.queries), device)
        linked = {
            one: staged(pools[one.anchor_set].is_positive(data.known_edges[one], nodes), device)
            for one, (nodes, _) in local.anchors.items()
        }
        return cls(data, batch, local, texts, tokens, ads, pools, clicked, linked)


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
