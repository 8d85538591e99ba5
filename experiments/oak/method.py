"""OAK on a base: its settings, its part of the step, the terms of its objective, its queries.

Links of a batch enrich its queries, and move their rows of the bank. The task counts with enriched
queries and without, and a calibration between both. Shapes: b rows of this worker, L ads of the
pool, K entries of a row that count.
"""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from experiments.oak.augmentation import Augmentation, Combiner, Pooling
from experiments.oak.links import bank_texts, train_links
from ramen_ray.config import NotNegative, Positive, RunConfig, Section
from ramen_ray.data.arrays import Int64s, keyed_hash
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared, TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder, Embeddings
from ramen_ray.method.model.heads import Classifiers
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import TASK, Objective, Term, ramen_objective, task_term
from ramen_ray.method.sampling.batches import Sampler, draw_several
from ramen_ray.method.sampling.encoded import EncodedBatch, StepPart, similarities
from ramen_ray.method.training.classifier_training import ClassifierTraining
from ramen_ray.method.training.state import build_schedule, head_groups

LINK = 8  # keeps the random numbers apart from those of the batches' other draws
ENRICHED = "enriched_bD"  # added to a batch: (b, D) float32, this worker's queries with anchors
NUM_CALIBRATED = 10


class OakSettings(Section):
    """What OAK adds to a run: queries are enriched by their anchors (experiments/README.md)."""

    anchor_sets: tuple[str, ...]
    """Anchor sets that queries are enriched by."""
    max_links: Positive = 15
    """Most of a query's edges that a step uses, drawn anew each time."""
    links_at_test: Positive = 3
    """Anchors that the linker gives a validation or test query."""
    encoder_weight: NotNegative = 1.0
    """Weight of the task with queries that are not enriched; with them it is 1."""
    calibration_weight: NotNegative = 0.1
    """Weight of the calibration: enriched scores beat the others for the right ads only."""
    calibration_margin: NotNegative = 0.05
    """Margin of the calibration."""
    bank_lr: NotNegative = 0.02
    """Peak learning rate of the anchors' vectors, which get Adam row by row; 0 keeps them as they
    start, at the embeddings of the anchors' texts."""
    pooling: Pooling = "attention"
    """How the vectors of a query's anchors become one."""
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the attention's weights that are dropped in training."""


def oak_objective(config: RunConfig, oak: OakSettings) -> Objective:
    """Build OAK's terms, with the run's triplet loss; those of weight 0 are left out."""
    constants = config.loss
    loss = TripletLoss(constants.margin, constants.num_negatives, constants.softmax_weighting)

    def enriched(encoded: EncodedBatch) -> Tensor:
        return similarities(encoded.added[ENRICHED], encoded.ads_LD)

    def calibration(encoded: EncodedBatch) -> Tensor:
        plain_bL = encoded.own_similarity
        clicked_bL = encoded.own_clicked_in_pool
        margin = oak.calibration_margin
        losses_b = calibration_losses(plain_bL, enriched(encoded), clicked_bL, margin)
        return losses_b.sum() / len(encoded.batch.queries)

    terms = [
        task_term(loss, 1.0, TASK, enriched),
        task_term(loss, oak.encoder_weight, "encoder"),
        Term("calibration", oak.calibration_weight, calibration),
    ]
    return ramen_objective(loss, {}, {}, 1, [term for term in terms if term.weight])


def calibration_losses(
    plain_bL: Tensor, enriched_bL: Tensor, is_clicked_bL: Tensor, margin: float
) -> Tensor:
    """Return how far each row's enriched scores are from beating the plain ones where they should.

    The scores (b, L) should be higher by ``margin`` for ads that a query led to, and lower for all
    others. Returns (b,) the mean hinge over the 10 entries that are furthest off, or all if there
    are fewer.
    """
    ahead_bL = torch.where(is_clicked_bL, enriched_bL - plain_bL, plain_bL - enriched_bL)
    hinges_bL = (margin - ahead_bL).clamp(min=0)
    return hinges_bL.topk(min(NUM_CALIBRATED, hinges_bL.shape[1]), dim=1).values.mean(dim=1)


class OakPart(StepPart):
    """Enriches the queries of batches, in a run of one process.

    Attributes:
        augmentation: what enriches.
        bank: trains the bank; None if it stays as it is.
    """

    name = "oak"

    def __init__(
        self,
        augmentation: Augmentation,
        bank: ClassifierTraining | None,
        combiner: tuple[torch.optim.Optimizer, LRScheduler],
        links: "Links",
    ) -> None:
        """Train ``augmentation`` in place, its combiner by an optimiser with a schedule."""
        self.augmentation = augmentation
        self.bank = bank
        self._optimizer, self._schedule = combiner
        self._links = links
        self._step = 0
        self._drawn: tuple[Tensor, Int64s, Int64s, Tensor] | None = None

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with enriched queries."""
        links = self._links.draw(self._step, encoded.inputs.local.queries)
        anchors = np.unique(links[links >= 0])
        bank = self.augmentation.bank
        rows = bank.take(anchors) if self.bank is None else self.bank.rows(anchors)
        queries_bD = encoded.queries_bD
        self._drawn = queries_bD.detach(), links, anchors, rows
        enriched_bD = self.augmentation(queries_bD, links, anchors, rows)
        return replace(encoded, added={**encoded.added, ENRICHED: enriched_bD})

    def after(self, encoded: EncodedBatch) -> None:
        """Move the combiner, and the rows of the bank that the batch used."""
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._schedule.step()
        if self.bank is not None and self._drawn is not None:
            _, _, anchors, rows = self._drawn
            assert rows.grad is not None, "no term is of enriched queries"
            self.bank.update(anchors, rows.grad)
        self._step += 1

    def evenness(self) -> float | None:
        """Return :meth:`Augmentation.evenness` of the last batch."""
        return None if self._drawn is None else self.augmentation.evenness(*self._drawn)


class Links:
    """Draws links of train queries from their edges, anew in each epoch."""

    def __init__(self, edges: Csr, num_links: int, sampler: Sampler) -> None:
        """Draw ``num_links`` of the edges (query rows x anchors of the bank) of each query."""
        self._edges = edges
        self._num_links = num_links
        self._ids: NDArray[Any] = sampler.data.query_ids
        self._seed = sampler.seed
        self._steps_per_epoch = sampler.steps_per_epoch

    def draw(self, step: int, rows: Int64s) -> Int64s:
        """Return distinct anchors (b, m) of the queries ``rows`` (b,); -1 where there are fewer."""
        key = (self._seed, step // self._steps_per_epoch, LINK)
        own_keys = keyed_hash(key, self._ids[rows])
        return draw_several(self._edges, rows, own_keys, self._num_links, key)


def oak_part(
    config: RunConfig, oak: OakSettings, data: Prepared, model: DualEncoder, sampler: Sampler
) -> OakPart:
    """Build what OAK starts from, a combiner that adds and a bank of the anchors' texts."""
    texts = bank_texts(data, oak.anchor_sets)
    edges = train_links(data, oak.anchor_sets)
    is_linked = np.zeros(len(texts), dtype=bool)
    is_linked[edges.indices] = True
    vectors = torch.from_numpy(model.unscaled(texts, np.arange(len(texts))))
    combiner = Combiner(model.encoder.dim, oak.pooling, oak.attention_dropout)
    augmentation = Augmentation(combiner, Classifiers(vectors, 0, is_linked)).to(model.device)
    num_steps = sampler.steps_per_epoch * config.training.epochs
    rates = config.optimizer
    groups = head_groups([augmentation.combiner], rates.head_lr or rates.lr, rates.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=rates.lr, eps=1e-6, fused=True)
    warmup_steps = round(rates.warmup_fraction * num_steps)
    schedule = build_schedule(optimizer, warmup_steps, num_steps, rates.decay)
    falling = partial(build_schedule, warmup_steps=0, total_steps=num_steps, decay="cosine")
    bank = ClassifierTraining(augmentation.bank, oak.bank_lr, falling) if oak.bank_lr else None
    links = Links(edges, oak.max_links, sampler)
    return OakPart(augmentation, bank, (optimizer, schedule), links)


class AugmentedQueries(DualEncoder):
    """A model with the links of one split's queries; its ads are the model's."""

    def __init__(self, model: DualEncoder, augmentation: Augmentation, links: NDArray[Any]) -> None:
        """Enrich by ``links`` (queries, m): the anchors of each query, -1 for none."""
        super().__init__(model.encoder)
        self.augmentation = augmentation
        self.links = links

    def embed_queries(
        self, texts: TokenTable, rows: NDArray[Any], use_bf16: bool = False
    ) -> Embeddings:
        """Return the enriched embeddings (n, D) of the split's queries ``rows`` (n,)."""
        embedded = super().embed_queries(texts, rows, use_bf16)
        return self.augmentation.enrich(embedded, self.links[rows])
