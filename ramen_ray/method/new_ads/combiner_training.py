"""What a run trains to make a combiner, on frozen embeddings: its model, and a part of its steps.

In the first steps the classifiers of the seen ads can be trained alone (NGAME's last stage); then
comes the combiner. IRENE's released code freezes the classifiers then; its draft trains them too.

Shapes: N texts, U distinct texts, b queries of this worker, L ads of a step's pool, K neighbours,
D width of a vector, S seen ads, by whose rows ads are numbered.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared, TokenTable
from ramen_ray.method.distributed import (
    dealt_rows,
    gather_dealt,
    staged,
    sum_over_workers,
    to_device,
)
from ramen_ray.method.model.dual_encoder import CLASSIFIER_FOLDER, TextEmbeddings
from ramen_ray.method.model.heads import Classifiers
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.new_ads.neighbours import Ranked, SeenAds
from ramen_ray.method.new_ads.representation import WEIGHTS_FILE, Combiner
from ramen_ray.method.objectives.terms import CLASSIFIERS
from ramen_ray.method.retrieval.search import drop_filtered
from ramen_ray.method.sampling.batches import SamplingSources
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.sampling.training_data import ADS, QUERIES, TrainingData
from ramen_ray.method.training.classifier_training import ClassifierPart, ClassifierTraining

QUERIES_PER_SEARCH = 4096
COMBINED = "combined_LD"  # what is added to a batch: (L, D), the combined vectors of the pool's ads


class CombinerModel(nn.Module):
    """A combiner in training, over frozen embeddings (U, D) float16 or float32, and classifiers."""

    def __init__(self, combiner: Combiner, classifiers: Classifiers, ads: TextEmbeddings) -> None:
        super().__init__()
        self.combiner = combiner
        self.classifiers = classifiers
        self.embeddings = ads.embeddings
        device = combiner.text_type.device
        self._ad_scales = None if ads.scales is None else to_device(ads.scales, device)
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(_sum_gradient)

    def forward(self, texts: TokenBatch) -> Tensor:
        """Return the embeddings (N, D) float32 of texts of :func:`training_data`."""
        vectors = self.embeddings[texts.token_ids].astype(np.float32)
        return to_device(vectors, self.combiner.text_type.device)

    def combine(self, texts_ND: Tensor, neighbours_NKD: Tensor, cosines_NK: Tensor) -> Tensor:
        """Return the combined vectors (N, D) of ads, given their texts' embeddings."""
        if self._ad_scales is not None:
            texts_ND = texts_ND * self._ad_scales
        combined: Tensor = self.combiner(texts_ND, neighbours_NKD, cosines_NK)
        return combined

    def save(self, folder: Path) -> None:
        """Write the combiner; classifiers are saved apart."""
        save_file(self.combiner.state_dict(), folder / WEIGHTS_FILE)

    def load(self, folder: Path) -> None:
        """Take the combiner and the classifiers of a checkpoint."""
        self.combiner.load_state_dict(load_file(folder / WEIGHTS_FILE))
        saved = Classifiers.open(folder / CLASSIFIER_FOLDER)
        self.classifiers.vectors.copy_(saved.vectors)


def _sum_gradient(parameter: Tensor) -> None:
    """Sum a gradient over the workers: each has the part of its own queries and ads."""
    assert parameter.grad is not None, "called once it is known"
    sum_over_workers(parameter.grad)


def clicks_on(data: Prepared, seen: Int64s) -> Csr:
    """Return the train clicks, query rows x seen ads, whose ids ``seen`` (S,) ascend."""
    clicks = data.clicks["train"]
    rows, ads = clicks.gather(np.arange(clicks.num_rows))
    is_seen = np.isin(ads, seen)
    return Csr.from_pairs(rows[is_seen], np.searchsorted(seen, ads[is_seen]), clicks.num_rows)


def training_data(
    query_ids: NDArray[np.int64], clicks: Csr, queries: TextEmbeddings, seen: TextEmbeddings
) -> TrainingData:
    """Return what steps draw from: train queries, seen ads, and clicks between these."""

    def table(texts: TextEmbeddings) -> TokenTable:
        # As the encoder is frozen, each text is a single token: the number of its embedding.
        numbers = texts.positions
        return TokenTable(numbers, np.arange(len(numbers) + 1), numbers.astype(np.uint64))

    return TrainingData(query_ids, clicks, {}, {}, {QUERIES: table(queries), ADS: table(seen)})


class _Used(NamedTuple):
    """The classifiers that a step of the combiner uses, by the places of its ads among them."""

    rows: Int64s  # (n,) ascending
    in_pool: Tensor  # (L,) places of the pool's ads
    near: Tensor  # (l, K) places of the neighbours of this worker's share of the pool, if any
    cosines: Tensor  # (l, K) float32, of their texts; -inf where no neighbour is


class CombinerPart(ClassifierPart):
    """Adds a pool's classifiers and combined vectors to a batch, and trains the classifiers."""

    def __init__(
        self,
        model: CombinerModel,
        training: ClassifierTraining,
        neighbours: Ranked,
        first_steps: int,
        sources: Callable[[SamplingSources, bool], SamplingSources],
        is_frozen: bool,
    ) -> None:
        """Train classifiers, alone in the first steps; then beside a combiner, if not frozen.

        ``neighbours`` (S, K) are of each seen ad, never itself, with cosines. ``sources`` sets what
        steps draw from, and is told whether they are of the first.
        """
        super().__init__(training)
        self._model = model
        self._neighbours = neighbours
        self._is_frozen = is_frozen
        self._first_steps = first_steps
        self._draws = sources
        self._step = 0

    def prepare(self, inputs: StepInputs) -> StepInputs:
        """Return the inputs with the neighbours of the pool's ads, after the first steps."""
        if self._step < self._first_steps:
            return inputs
        pool = inputs.task.pool.ids
        mine = dealt_rows()  # each worker combines a share
        near_LK = self._neighbours.rows[pool]
        cosines_LK = self._neighbours.scores[pool]
        rows = np.unique(np.concatenate([pool, near_LK[near_LK >= 0]]))
        near = np.searchsorted(rows, near_LK[mine].clip(min=rows[0]))
        arrays = np.searchsorted(rows, pool), near, cosines_LK[mine].astype(np.float32)
        device = self._model.combiner.text_type.device
        used = _Used(rows, *(staged(array, device) for array in arrays))
        return replace(inputs, added={**inputs.added, COMBINED: used})

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with the classifiers of its pool, and later the combined vectors."""
        pool = encoded.ad_pool.ids
        used: _Used | None = encoded.inputs.added.get(COMBINED)
        if used is None:
            self._moved = pool, self.training.rows(pool)
            return replace(encoded, added={CLASSIFIERS: self._moved[1]})
        vectors = self.training.rows(used.rows)
        self._moved = used.rows, vectors
        vectors = vectors.detach() if self._is_frozen else vectors
        # with indexing, threads would add gradients in any order
        classifiers_LD = functional.embedding(encoded.copied(used.in_pool), vectors)
        near_lKD = functional.embedding(encoded.copied(used.near), vectors)
        text_lD = encoded.vectors(encoded.copied(encoded.inputs.task.candidates)[dealt_rows()])
        combined_lD = self._model.combine(text_lD, near_lKD, encoded.copied(used.cosines))
        combined_LD = gather_dealt(combined_lD, len(pool))
        return replace(encoded, added={CLASSIFIERS: classifiers_LD, COMBINED: combined_LD})

    def after(self, encoded: EncodedBatch) -> None:
        """Move the classifiers that a loss has compared, or a combiner in training used."""
        rows, vectors = self._moved
        if vectors.grad is not None:
            self.training.update(rows, vectors.grad)

    def prepare_next_steps(self, step: int, sources: SamplingSources) -> SamplingSources:
        """Set what the next steps draw from."""
        self._step = step
        return self._draws(sources, step < self._first_steps)

    def save(self, folder: Path) -> Any:
        """Write the classifiers and their moments."""
        return {**super().save(folder), "next_step": self._step}

    def restore(self, folder: Path, content: Any, sources: SamplingSources) -> SamplingSources:
        """Restore the moments; the model has the classifiers."""
        super().restore(folder, content, sources)
        return self.prepare_next_steps(content["next_step"], sources)


def compared_with(added: str, dropout: float = 0.0) -> Callable[[EncodedBatch], Tensor]:
    """Return a similarity (b, L) of queries, with dropout, to the vectors ``added`` to a batch."""

    def similarity(encoded: EncodedBatch) -> Tensor:
        return functional.dropout(encoded.queries_bD, dropout) @ encoded.added[added].T

    return similarity


def bce(similarity_bL: Tensor, positives_bP: Tensor, is_positive_bL: Tensor) -> Tensor:
    """Return each query's mean cross-entropy (b,) of ads' scores against clicks: a Loss."""
    targets_bL = is_positive_bL.to(similarity_bL.dtype)
    return functional.binary_cross_entropy_with_logits(
        similarity_bL, targets_bL, reduction="none"
    ).mean(dim=1)


def nearest_unclicked(
    queries: TextEmbeddings, clicks: Csr, seen: SeenAds, count: int
) -> NDArray[np.int32]:
    """Find every train query's nearest unclicked seen ads: rows (queries, count) int32, or -1."""
    num_queries = clicks.num_rows
    shortlists = np.full((num_queries, count), -1, dtype=np.int32)
    most = int(clicks.degrees(np.arange(num_queries)).max(initial=0))
    for start in range(0, num_queries, QUERIES_PER_SEARCH):
        rows = np.arange(start, min(start + QUERIES_PER_SEARCH, num_queries))
        near, scores = seen.nearest(queries.take(rows), count + most)
        clicked = np.stack(clicks.gather(rows), axis=1)
        shortlists[rows] = drop_filtered((near, scores.astype(np.float32)), clicked, count)[0]
    return shortlists
