"""One training step: draw, encode the distinct texts once, triplet terms, optimiser.

Shapes: b local rows, B rows of the global batch, C = 2 + K + H columns of a draw with K
regularisers and H hard negatives, U distinct texts, D width of an embedding, L candidates of a
pool.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.csr import Csr, ragged_positions
from ramen_ray.data.prepared import Prepared
from ramen_ray.data.tokens import TokenTable
from ramen_ray.method.adaptation import Adaptation, gain, leads
from ramen_ray.method.clustering import Clusters
from ramen_ray.method.distributed import gather_embeddings, gather_rows, sum_over_workers, world
from ramen_ray.method.losses import triplet_loss
from ramen_ray.method.sampling import (
    Graphs,
    Regularizer,
    clustered_order,
    draw,
    draw_hard_negatives,
    epoch_order,
    num_steps,
)
from ramen_ray.method.texts import TokenBatch


@dataclass(frozen=True)
class Objective:
    """The triplet objective's constants; λ per anchor set, 0 where a set is absent.

    Of ``every_steps`` steps only the first draws anchors, and its regularisers count that many
    times: what is optimised stays the same on average, for a part of the texts to encode.
    """

    margin: float
    num_negatives: int
    softmax_weighting: bool
    lambda_x: Mapping[str, float]
    lambda_z: Mapping[str, float]
    every_steps: int = 1

    def draws_anchors(self, step: int) -> bool:
        """Tell whether a step is one with anchors."""
        return step % self.every_steps == 0

    @property
    def regularizers(self) -> dict[Regularizer, float]:
        """The regularisers whose weight is not 0, by anchor set, and their weights.

        What has no weight is no part of a run: it is neither drawn nor encoded.
        """
        weights: dict[Regularizer, float] = {}
        for anchor_set in sorted({*self.lambda_x, *self.lambda_z}):
            weights[Regularizer(anchor_set, "query")] = self.lambda_x.get(anchor_set, 0.0)
            weights[Regularizer(anchor_set, "ad")] = self.lambda_z.get(anchor_set, 0.0)
        return {regularizer: weight for regularizer, weight in weights.items() if weight}

    @property
    def terms(self) -> list[str]:
        """Names of the loss terms in the order that :func:`step_losses` gives them."""
        return ["task", *(regularizer.term for regularizer in self.regularizers)]

    @property
    def weights(self) -> list[float]:
        """The terms' weights: 1 for the task, then the regularisers'."""
        return [1.0, *self.regularizers.values()]


def open_graphs(edges: Path, regularizers: Iterable[Regularizer]) -> Graphs:
    """Map the graphs that lie in ``edges`` as SET/{query,ad}."""
    return {one: Csr.open(edges / one.path) for one in regularizers}


class Batches:
    """The batches of a run: which texts each step encodes and what is positive to what.

    Attributes:
        truths: per regulariser, the graphs whose edges are no negatives, drawn or not.
        clusters: the order of the coming epochs' queries; None stands for random order.
        shortlists: (train queries, size) ads to draw hard negatives from; None draws none.
        seen: (train queries, D), where steps leave their queries' embeddings; None keeps none.
    """

    def __init__(
        self,
        query_ids: NDArray[np.int64],
        clicks: Csr,
        graphs: Graphs,
        tables: list[TokenTable],
        batch_size: int,
        seed: int,
    ) -> None:
        """Draw from clicks and graphs whose rows are those of ``query_ids``.

        Args:
            query_ids: (train queries,) the ids of the query rows.
            clicks: query rows x ads.
            graphs: one per regulariser.
            tables: texts of queries and ads, then of each regulariser's anchors.
            batch_size: queries of a global batch.
            seed: of all draws.
        """
        self.query_ids = query_ids
        self.clicks = clicks
        self.graphs = graphs
        self.truths = {one: [edges] for one, edges in graphs.items()}
        self.tables = tables
        self.batch_size = batch_size
        self.seed = seed
        self.steps_per_epoch = num_steps(len(query_ids), batch_size)
        self.clusters: Clusters | None = None
        self.shortlists: NDArray[np.int32] | None = None
        self.seen: Tensor | None = None
        self._epoch = -1
        self._order = np.empty((0, 0), dtype=np.int64)

    @classmethod
    def of(
        cls,
        data: Prepared,
        regularizers: Iterable[Regularizer],
        batch_size: int,
        seed: int,
        edges: Path | None = None,
    ) -> "Batches":
        """Map the tables of a prepared dataset.

        Where ``edges`` holds a graph to draw from in place of its own, the own edges are no
        negatives either.
        """
        own = open_graphs(data.path / "edges", regularizers)
        graphs = own if edges is None else open_graphs(edges, regularizers)
        anchors = [data.anchors(regularizer.anchor_set) for regularizer in graphs]
        tables = [data.queries["train"], data.ads, *anchors]
        batches = cls(data.query_ids, data.clicks["train"], graphs, tables, batch_size, seed)
        if edges is not None:
            batches.truths = {one: [own[one], graphs[one]] for one in graphs}
        return batches

    def expect_hard_negatives(self, per_query: int) -> None:
        """Make room for ads drawn from the shortlists, whether there are shortlists yet or not."""
        self.tables = [*self.tables, *[self.tables[1]] * per_query]

    @property
    def hard_columns(self) -> list[int]:
        """Columns of a draw that hold hard negatives."""
        return list(range(2 + len(self.graphs), len(self.tables)))

    def anchor_columns(self, anchor_set: str) -> list[int]:
        """Columns of a draw that hold anchors of a set."""
        of_set = (regularizer.anchor_set == anchor_set for regularizer in self.graphs)
        return [column for column, belongs in enumerate(of_set, start=2) if belongs]

    def take_graphs(self, graphs: Graphs) -> None:
        """Draw from other ``graphs`` of the same regularisers from now on."""
        self.graphs = graphs

    def draw(self, step: int, with_anchors: bool = True) -> Int64s:
        """Return this worker's share (b, C) of a step's draws.

        The columns are those of :func:`~ramen_ray.method.sampling.draw`, then the hard negatives.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = self._order_of(epoch), epoch
        rows = self._order[position]
        ids, key = self.query_ids[rows], (self.seed, epoch)
        drawn = draw(rows, ids, self.clicks, self.graphs, key)
        if not with_anchors:
            drawn[:, 2:] = -1
        num_hard = len(self.hard_columns)
        if self.shortlists is None:
            return np.pad(drawn, [(0, 0), (0, num_hard)], constant_values=-1)
        return np.hstack([drawn, draw_hard_negatives(self.shortlists, rows, ids, num_hard, key)])

    def _order_of(self, epoch: int) -> Int64s:
        rank, num_workers = world()
        share = self.batch_size // num_workers
        lanes = range(rank * share, (rank + 1) * share)
        if self.clusters is not None:
            return clustered_order(self.clusters, self.batch_size, lanes, self.seed, epoch)
        return epoch_order(len(self.query_ids), self.batch_size, lanes, self.seed, epoch)


@dataclass(frozen=True)
class DistinctTexts:
    """The distinct texts of a global batch, shortest first.

    Attributes:
        columns: (U,) which column of the draws a text comes from.
        rows: (U,) its row in that column's table.
        lengths: (U,) its tokens, ascending.
        position: (B, C) where each drawn text stands among the U; -1 where nothing was drawn.
    """

    columns: Int64s
    rows: Int64s
    lengths: Int64s
    position: Int64s


def distinct_texts(draws: Int64s, tables: list[TokenTable]) -> DistinctTexts:
    """Find the distinct texts of ``draws`` (B, C), whose columns are rows of ``tables``."""
    drawn = draws >= 0
    hashes = np.zeros(draws.shape, dtype=np.uint64)
    for column, table in enumerate(tables):
        present = drawn[:, column]
        hashes[present, column] = table.hashes[draws[present, column]]
    _, first, inverse = np.unique(hashes[drawn], return_index=True, return_inverse=True)
    drawn_rows, drawn_columns = np.nonzero(drawn)
    columns = drawn_columns[first]
    rows = draws[drawn_rows[first], columns]
    lengths = np.empty(len(first), dtype=np.int64)
    for column, table in enumerate(tables):
        lengths[columns == column] = table.lengths(rows[columns == column])
    by_length = np.argsort(lengths, kind="stable")
    rank_of = np.empty_like(by_length)
    rank_of[by_length] = np.arange(len(by_length))
    position = np.full(draws.shape, -1, dtype=np.int64)
    position[drawn] = rank_of[inverse]
    return DistinctTexts(columns[by_length], rows[by_length], lengths[by_length], position)


def gather_tokens(columns: Int64s, rows: Int64s, tables: list[TokenTable]) -> TokenBatch:
    """Collect texts (u,) from several tables; ``columns`` says of which each row is."""
    by_column = np.argsort(columns, kind="stable")
    parts, lengths = [], np.empty(len(rows), dtype=np.int64)
    for column, table in enumerate(tables):
        chosen = by_column[columns[by_column] == column]
        parts.append(table.gather(rows[chosen]))
        lengths[chosen] = table.lengths(rows[chosen])
    starts = np.empty(len(rows), dtype=np.int64)
    starts[by_column] = np.cumsum(lengths[by_column]) - lengths[by_column]
    return TokenBatch(np.concatenate(parts)[ragged_positions(starts, lengths)], lengths)


def encode_distinct(
    encoder: nn.Module,
    texts: DistinctTexts,
    tables: list[TokenTable],
    device: torch.device,
    use_bf16: bool,
) -> Tensor:
    """Encode each distinct text once, shared out over the workers; returns (U, D) float32."""
    rank, num_workers = world()
    mine = slice(rank, None, num_workers)
    batch = gather_tokens(texts.columns[mine], texts.rows[mine], tables)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=use_bf16):
        embeddings = encoder(batch)
    share = -(-len(texts.rows) // num_workers)
    padded = nn.functional.pad(embeddings, (0, 0, 0, share - len(embeddings)))
    return gather_embeddings(padded).transpose(0, 1).flatten(0, 1)[: len(texts.rows)]


@dataclass(frozen=True)
class Pool:
    """The distinct candidates of a global batch: ascending ids, and where their texts stand."""

    ids: Int64s
    positions: Int64s

    @classmethod
    def of(cls, draws: Int64s, position: Int64s, columns: list[int]) -> "Pool":
        """Collect what the given columns of ``draws`` (B, C) drew."""
        ids, first = np.unique(draws[:, columns], return_index=True)
        present = ids >= 0
        return cls(ids[present], position[:, columns].reshape(-1)[first[present]])

    def find(self, drawn: Int64s) -> Int64s:
        """Return where ``drawn`` ids (b,) stand in the pool; -1 for -1."""
        return np.where(drawn >= 0, np.searchsorted(self.ids, drawn), -1)

    def is_positive(self, truths: Iterable[Csr], rows: Int64s) -> NDArray[np.bool_]:
        """Mark the pool's candidates that a truth links to ``rows`` (b,); returns (b, L) bool."""
        mask = np.zeros((len(rows), len(self.ids)), dtype=bool)
        for truth in truths:
            row, candidate = truth.gather(rows)
            place = np.minimum(np.searchsorted(self.ids, candidate), len(self.ids) - 1)
            known = self.ids[place] == candidate
            mask[row[known], place[known]] = True
        return mask


def step_losses(
    encoder: nn.Module,
    batches: Batches,
    step: int,
    objective: Objective,
    use_bf16: bool = False,
    adaptation: Adaptation | None = None,
) -> Tensor:
    """Return this worker's share of a step's loss terms (terms,) in ``objective.terms``' order.

    Each term is a sum over this worker's rows divided by the global batch size, so that the sum
    over the workers is the mean over the global batch, whatever their number. The regularisers'
    terms are 0 in steps without anchors, and ``objective.every_steps`` times that mean in others.
    An ``adaptation`` sees how the terms agree.
    """
    device = next(encoder.parameters()).device
    with_anchors = objective.draws_anchors(step)
    local = batches.draw(step, with_anchors)
    draws = gather_rows(local, device)
    texts = distinct_texts(draws, batches.tables)
    embeddings_UD = encode_distinct(encoder, texts, batches.tables, device, use_bf16)
    if batches.seen is not None:
        queries = _to_device(texts.position[:, 0], device)
        kept = embeddings_UD.detach()[queries].to(batches.seen.dtype)
        batches.seen[_to_device(draws[:, 0], device)] = kept
    start = world()[0] * len(local)
    here = texts.position[start : start + len(local)]

    def term(row_column: int, drawn_column: int, pool: Pool, truths: Iterable[Csr]) -> Tensor:
        if not len(pool.ids):
            return embeddings_UD.new_zeros(())
        rows_bD = embeddings_UD[_to_device(here[:, row_column], device)]
        pool_LD = embeddings_UD[_to_device(pool.positions, device)]
        losses = triplet_loss(
            rows_bD @ pool_LD.T,
            _to_device(pool.find(local[:, drawn_column]), device),
            _to_device(pool.is_positive(truths, local[:, row_column]), device),
            objective.margin,
            objective.num_negatives,
            objective.softmax_weighting,
        )
        return losses.sum() / batches.batch_size

    ads = Pool.of(draws, texts.position, [1, *batches.hard_columns])
    terms = [term(0, 1, ads, [batches.clicks])]
    for column, (regularizer, truths) in enumerate(batches.truths.items(), start=2):
        columns = batches.anchor_columns(regularizer.anchor_set)
        pool = Pool.of(draws, texts.position, columns)
        mean = term(regularizer.node_column, column, pool, truths)
        terms.append(objective.every_steps * mean)
    if adaptation is not None and with_anchors:
        mine = slice(start, start + len(local))
        gains = _gains(embeddings_UD.detach(), batches, draws, texts.position, mine)
        adaptation.observe(objective.every_steps * gains)
    return torch.stack(terms)


def _gains(
    embeddings_UD: Tensor, batches: Batches, draws: Int64s, position: Int64s, mine: slice
) -> Tensor:
    """Return the regularisers' gains (K,) on the rows ``mine`` of the global batch's draws."""
    device = embeddings_UD.device
    local, clicks = draws[mine], [batches.clicks]
    columns_CBD = embeddings_UD[_to_device(position.T.clip(min=0), device)]
    queries_bD, ads_bD = columns_CBD[:2, mine]
    ads = Pool.of(draws, position, [1, *batches.hard_columns])
    ads_LD = embeddings_UD[_to_device(ads.positions, device)]
    clicked_bL = _to_device(ads.is_positive(clicks, local[:, 0]), device)
    own_ads = Pool.of(local, position[mine], [1])
    clicked_Bb = own_ads.is_positive(clicks, draws[:, 0])[:, own_ads.find(local[:, 1])]
    ahead_2bD = [
        leads(queries_bD, ads_bD, ads_LD, clicked_bL),
        leads(ads_bD, queries_bD, columns_CBD[0], _to_device(clicked_Bb.T, device)),
    ]
    gains = []
    for column, regularizer in enumerate(batches.graphs, start=2):
        node = regularizer.node_column
        drawn, rows = (
            _to_device(np.flatnonzero((of[:, [1, column]] >= 0).all(axis=1)), device)
            for of in (draws, local)
        )
        mean_anchor_D = columns_CBD[column, drawn].mean(dim=0)
        nodes_bD, anchors_bD = (columns_CBD[each, mine][rows] for each in (node, column))
        gains.append(gain(ahead_2bD[node][rows], nodes_bD, anchors_bD, mean_anchor_D))
    return torch.stack(gains)


def _to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


@dataclass
class TrainState:
    """What a run changes as it goes; ``step`` is also the position of every random draw.

    Without an ``adaptation`` the terms' weights stay the objective's.
    """

    encoder: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    step: int = 0
    adaptation: Adaptation | None = None


def train_steps(
    state: TrainState,
    batches: Batches,
    objective: Objective,
    stop: int,
    *,
    use_bf16: bool = False,
    max_gradient_norm: float | None = None,
) -> Iterator[Tensor]:
    """Train from ``state.step`` up to step ``stop``, yielding each step's (terms,) of this worker.

    The yielded losses stay on the device and are not waited for.
    """
    adaptation = state.adaptation
    device = next(state.encoder.parameters()).device
    num_workers = world()[1]
    weights = torch.tensor(objective.weights, device=device)
    while state.step < stop:
        terms = step_losses(state.encoder, batches, state.step, objective, use_bf16, adaptation)
        if adaptation is not None:
            weights = adaptation.weights
        loss = (terms * weights).sum() * num_workers  # DDP averages gradients over the workers
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(state.encoder.parameters(), max_gradient_norm)
        state.optimizer.step()
        state.schedule.step()
        state.step += 1
        yield terms.detach()


def global_losses(steps: list[Tensor]) -> NDArray[np.float32]:
    """Turn the workers' shares of several steps' terms into their global values (steps, terms)."""
    return sum_over_workers(torch.stack(steps)).float().cpu().numpy()
