"""An encoded batch: vectors of what was drawn, pools of candidates, and which are positives.

Shapes: b rows of this worker and B of the global batch, U distinct texts, L candidates of a pool,
D width of an embedding, d width of a classifier.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr, ragged_positions
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.devices import to_device
from ramen_ray.method.distributed import gather_embeddings, world
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.sampling.batches import Batch
from ramen_ray.method.sampling.regularizers import Regularizer
from ramen_ray.method.sampling.training_data import ADS, QUERIES, TrainingData, anchor_table


@dataclass(frozen=True)
class DistinctTexts:
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
    def from_batch(cls, batch: Batch, tables: Mapping[str, TokenTable]) -> "DistinctTexts":
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

    def find(self, drawn: Int64s) -> Int64s:
        """Return the positions of ``drawn`` ids, of any shape, in the pool; -1 for -1."""
        return np.where(drawn >= 0, np.searchsorted(self.ids, drawn), -1)

    def is_positive(self, known: Iterable[Csr], rows: Int64s) -> NDArray[np.bool_]:
        """Mark the candidates that a known graph links to ``rows`` (b,); returns (b, L) bool."""
        mask = np.zeros((len(rows), len(self.ids)), dtype=bool)
        for edges in known:
            row, candidate = edges.gather(rows)
            place = np.minimum(np.searchsorted(self.ids, candidate), len(self.ids) - 1)
            is_candidate = self.ids[place] == candidate
            mask[row[is_candidate], place[is_candidate]] = True
        return mask


@dataclass(frozen=True)
class EncodedBatch:
    """A batch and the embeddings of its texts.

    Attributes:
        data: what the batch was drawn from; it knows the positives.
        batch: the global batch.
        local: this worker's share of it.
        texts: the distinct texts of the global batch.
        embeddings_UD: (U, D) float32, the embeddings of ``texts``.
        classifier_queries_Ud: (U, d) float32, the vectors of ``texts`` that are compared with
            classifiers; None if the model has none.
        classifiers_Ld: (L, d) float32, the classifiers of the ``ad_pool``; likewise.
        enriched_bD: (b, D) float32, this worker's queries with their anchors (OAK); None if the
            model has no bank of these.
    """

    data: TrainingData
    batch: Batch
    local: Batch
    texts: DistinctTexts
    embeddings_UD: Tensor
    classifier_queries_Ud: Tensor | None = None
    classifiers_Ld: Tensor | None = None
    enriched_bD: Tensor | None = None

    def vectors(self, table: str, ids: Int64s) -> Tensor:
        """Return the embeddings (n, D) of drawn ids (n,); rows of id -1 hold arbitrary values."""
        return self.embeddings_UD[self._positions(table, ids)]

    def classifier_queries(self, queries: Int64s) -> Tensor:
        """Return the vectors (n, d), not normalised, of ``queries`` (n,) for classifiers.

        The model must have classifiers.
        """
        assert self.classifier_queries_Ud is not None, "the model has no classifiers"
        return self.classifier_queries_Ud[self._positions(QUERIES, queries)]

    def _positions(self, table: str, ids: Int64s) -> Tensor:
        positions = self.texts.find(table, ids.clip(min=self.texts.ids[table][0]))
        return to_device(positions, self.embeddings_UD.device)

    @cached_property
    def ad_pool(self) -> Pool:
        """Return the candidates of all queries of the batch: drawn ads and hard negatives."""
        return Pool.of_ads(self.batch)

    def anchor_pool(self, anchor_set: str) -> Pool:
        """Return the anchors of a set that nodes of either side drew."""
        drawn = [
            anchors
            for regularizer, (_, anchors) in self.batch.anchors.items()
            if regularizer.anchor_set == anchor_set
        ]
        return Pool(anchor_table(anchor_set), _unique_ids(drawn))

    def places(self, pool: Pool, drawn: Int64s) -> Tensor:
        """Return the positions of ``drawn`` ids, of any shape, in the pool, on the device."""
        return to_device(pool.find(drawn), self.embeddings_UD.device)

    @cached_property
    def clicked_in_pool(self) -> Tensor:
        """(B, L) bool, which ads of the ``ad_pool`` the batch's queries clicked: P_i ∩ L_B."""
        return self.positive_ads(self.ad_pool, self.batch.queries)

    @cached_property
    def own_clicked_in_pool(self) -> Tensor:
        """The rows of :attr:`clicked_in_pool` of this worker's queries, (b, L) bool."""
        if len(self.local.queries) == len(self.batch.queries):
            return self.clicked_in_pool
        return self.positive_ads(self.ad_pool, self.local.queries)

    def positive_ads(self, pool: Pool, queries: Int64s) -> Tensor:
        """Mark the ads of ``pool`` that were clicked for ``queries`` (b,); returns (b, L) bool."""
        return self._mask(pool.is_positive([self.data.clicks], queries))

    def positive_anchors(self, pool: Pool, regularizer: Regularizer, nodes: Int64s) -> Tensor:
        """Mark the anchors of ``pool`` that ``nodes`` (n,) are linked to; returns (n, L) bool."""
        return self._mask(pool.is_positive(self.data.known_edges[regularizer], nodes))

    def _mask(self, mask: NDArray[np.bool_]) -> Tensor:
        return to_device(mask, self.embeddings_UD.device)


def encode(
    model: nn.Module,
    data: TrainingData,
    local: Batch,
    use_bf16: bool = False,
    classifiers_of: Callable[[Int64s], Tensor] | None = None,
) -> EncodedBatch:
    """Encode each distinct text of the global batch once, split over the workers.

    Args:
        model: maps a :class:`~ramen_ray.method.model.texts.TokenBatch` to embeddings.
        data: what ``local`` was drawn from.
        local: this worker's share of the batch.
        use_bf16: encode under bfloat16 autocast.
        classifiers_of: returns the classifiers (n, d) of ads (n,), the same on every worker; None
            if the model has none.
    """
    device = next(model.parameters()).device
    batch = local.gathered(device)
    texts = DistinctTexts.from_batch(batch, data.tables)
    rank, num_workers = world()
    mine = slice(rank, None, num_workers)  # every n-th text, so that all workers get equal lengths
    tokens = gather_tokens(texts.tables[mine], texts.rows[mine], list(data.tables.values()))
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=use_bf16):
        embeddings = model(tokens)
    share = -(-len(texts.rows) // num_workers)
    padded = nn.functional.pad(embeddings, (0, 0, 0, share - len(embeddings)))
    # the transpose puts the workers' texts back into the order of ``texts``
    in_order = gather_embeddings(padded).transpose(0, 1).flatten(0, 1)[: len(texts.rows)]
    encoded = EncodedBatch(data, batch, local, texts, in_order)
    if classifiers_of is None:
        return encoded
    classifiers_Ld = classifiers_of(encoded.ad_pool.ids)
    dim = in_order.shape[1] - classifiers_Ld.shape[1]
    embeddings_UD, classifier_queries_Ud = in_order[:, :dim], in_order[:, dim:]
    return EncodedBatch(
        data, batch, local, texts, embeddings_UD, classifier_queries_Ud, classifiers_Ld
    )


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
