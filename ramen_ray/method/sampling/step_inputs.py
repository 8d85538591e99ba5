"""What a step computes on: all about a batch that can be said before its texts are encoded.

None of it needs the model, so it is made while a GPU still computes the step before. Shapes: b
rows of this worker and B of the global batch, U distinct texts, L candidates of a pool, n nodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramen_ray.data.arrays import Int64s, ragged_positions
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import TokenTable
from ramen_ray.method.distributed import dealt_rows, own_range, staged
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.sampling.batches import Batch
from ramen_ray.method.sampling.training_data import Regularizer, TrainingData

NUM_MARKS = 1 << 18


@dataclass(frozen=True)
class BatchTexts:
    """The distinct texts of a global batch, shortest first."""

    tables: Int64s  # (U,) number of the table that a text comes from
    rows: Int64s  # (U,) its row in that table
    lengths: Int64s  # (U,) how many tokens it has, ascending
    # where among the U the texts of all ids of :meth:`Batch.drawn` are, in their shapes; 0 for
    # those of id -1
    positions: list[Int64s]

    @classmethod
    def from_batch(cls, batch: Batch, tables: Mapping[str, TokenTable]) -> "BatchTexts":
        """Find the distinct texts of all that was drawn from ``tables``."""
        drawn = batch.drawn()
        numbers = {name: number for number, name in enumerate(tables)}
        sizes = [ids.size for _, ids in drawn]
        rows = _flat([ids for _, ids in drawn])
        of_tables = np.repeat([numbers[name] for name, _ in drawn], sizes)
        hashes = np.concatenate([tables[name].hashes[ids.reshape(-1)] for name, ids in drawn])
        order = np.argsort(hashes)
        order = order[rows[order] >= 0]
        ordered = hashes[order]
        is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(order)]
        first = order[is_first]
        lengths = np.empty_like(first)
        for number, table in enumerate(tables.values()):
            in_table = of_tables[first] == number
            lengths[in_table] = table.lengths(rows[first[in_table]])
        by_length = np.argsort(lengths.astype(np.uint16), kind="stable")  # 16 bits: by counting
        rank_of = np.empty_like(by_length)
        rank_of[by_length] = np.arange(len(by_length))
        positions = np.zeros_like(rows)
        positions[order] = rank_of[np.cumsum(is_first) - 1]
        parts = np.split(positions, np.cumsum(sizes)[:-1])
        shaped = [part.reshape(ids.shape) for part, (_, ids) in zip(parts, drawn, strict=True)]
        texts = first[by_length]
        return cls(of_tables[texts], rows[texts], lengths[by_length], shaped)


@dataclass(frozen=True)
class Pool:
    """The distinct candidates of a global batch: ascending ids (L,)."""

    ids: Int64s

    def find(self, drawn: Int64s) -> Int64s:
        """Return the places of ``drawn`` ids, of any shape, in the pool; -1 for -1."""
        return np.where(drawn >= 0, np.searchsorted(self.ids, drawn), -1)

    def links(self, graphs: Iterable[Csr], rows: Int64s) -> Int64s:
        """Return pairs that any graph links, ascending: (place in ``rows``) * L + place in pool."""
        # Most are not in the pool, which a few bits of their ids tell sooner than a search does.
        marks = np.zeros(NUM_MARKS, dtype=bool)
        marks[self.ids & (NUM_MARKS - 1)] = True
        links = []
        for edges in graphs:
            row, candidate = edges.gather(rows)
            likely = np.flatnonzero(marks[candidate & (NUM_MARKS - 1)])
            row = row[likely]
            candidate = candidate[likely]
            place = np.searchsorted(self.ids, candidate)
            is_candidate = np.append(self.ids, -1)[place] == candidate
            links.append((row * len(self.ids) + place)[is_candidate])
        return links[0] if len(links) == 1 else np.unique(np.concatenate(links))


@dataclass(frozen=True)
class Comparison:
    """This worker's rows, and the candidates of the global batch; int64 tensors on the CPU."""

    pool: Pool  # the candidates
    rows: Tensor  # (n,) positions of the rows' texts among the U
    candidates: Tensor  # (L,) positions of the candidates' texts
    drawn: Tensor  # (n, P) places in the pool of what each row drew; -1 for none
    positives: Tensor  # (links,) all that are known, as row * L + place, ascending


@dataclass(frozen=True)
class StepInputs:
    """A batch, its texts, and what is compared with what."""

    data: TrainingData
    batch: Batch  # the global batch
    local: Batch  # this worker's share of it
    texts: BatchTexts
    tokens: TokenBatch  # this worker's share of the texts
    queries: Tensor  # (B,) int64, positions of the batch's queries among the U, as in a comparison
    task: Comparison  # this worker's queries, and the ads that the batch drew
    # (L,) bool, the ads of the task whose texts are among the U; None if all are. Other ads have
    # the position of another text, and classifiers alone are compared with them
    is_encoded: Tensor | None
    # those that drew, with this worker's nodes and the anchors of their set
    regularizers: Mapping[Regularizer, Comparison]
    # what the parts of the step have added, by name
    added: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_local(
        cls, data: TrainingData, local: Batch, batch_size: int, device: torch.device
    ) -> "StepInputs":
        """Make the inputs from this worker's share of a batch, by a collective of all CPUs."""
        batch = local.gathered(batch_size)
        texts = BatchTexts.from_batch(batch, data.tables)
        queries, ads, hard_negatives, *rest = texts.positions
        nodes = dict(zip(batch.anchors, rest[::2], strict=True))
        anchors = dict(zip(batch.anchors, rest[1::2], strict=True))

        def compared(
            positions: Int64s,
            rows: Int64s,
            drawn: Int64s,
            graphs: Iterable[Csr],
            pool: Pool,
            candidates: Int64s,
        ) -> Comparison:
            own_positions = positions[own_range(len(positions))]
            arrays = own_positions, candidates, pool.find(drawn), pool.links(graphs, rows)
            return Comparison(pool, *(staged(array, device) for array in arrays))

        nowhere = np.full_like(batch.unencoded, -1)
        pool, places = _pool(
            [batch.ads, batch.hard_negatives, batch.unencoded], [ads, hard_negatives, nowhere]
        )
        is_encoded = staged(places >= 0, device) if batch.unencoded.size else None
        of_sets = {}
        for name in {regularizer.anchor_set for regularizer in batch.anchors}:
            sides = [regularizer for regularizer in batch.anchors if regularizer.anchor_set == name]
            drawn = [batch.anchors[side].anchors for side in sides]
            of_sets[name] = _pool(drawn, [anchors[side] for side in sides])
        mine = dealt_rows()
        return cls(
            data,
            batch,
            local,
            texts,
            gather_tokens(
                texts.tables[mine], texts.rows[mine], texts.lengths[mine], data.tables.values()
            ),
            staged(queries, device),
            compared(queries, local.queries, local.ads, [data.clicks], pool, np.maximum(places, 0)),
            is_encoded,
            {
                regularizer: compared(
                    nodes[regularizer],
                    drawn.nodes,
                    drawn.anchors[:, None],
                    data.known_edges[regularizer],
                    *of_sets[regularizer.anchor_set],
                )
                for regularizer, drawn in local.anchors.items()
            },
        )


def _pool(drawn: Sequence[Int64s], positions: Sequence[Int64s]) -> tuple[Pool, Int64s]:
    """Return the distinct ids of ``drawn`` arrays, and the position (L,) of each."""
    ids, first = np.unique(_flat(drawn), return_index=True)
    is_id = ids >= 0
    return Pool(ids[is_id]), _flat(positions)[first[is_id]]


def _flat(arrays: Sequence[Int64s]) -> Int64s:
    return np.concatenate([array.reshape(-1) for array in arrays])


def gather_tokens(
    numbers: Int64s, rows: Int64s, lengths: Int64s, tables: Iterable[TokenTable]
) -> TokenBatch:
    """Collect texts (u,) with their lengths; ``numbers`` (u,) says which table a row is in."""
    by_table = np.argsort(numbers, kind="stable")
    parts = [
        table.gather(rows[by_table[numbers[by_table] == number]])
        for number, table in enumerate(tables)
    ]
    starts = np.empty_like(lengths)
    starts[by_table] = np.cumsum(lengths[by_table]) - lengths[by_table]
    return TokenBatch(np.concatenate(parts)[ragged_positions(starts, lengths)], lengths)
