"""What other ways with negatives, heads and the graph bring to the preset bag-unidec.

All train with the preset's graph, on validation; none is an option of the library. *Left out* are
negatives that share an anchor with one of the query's drawn ads (of anchors of at most MOST_NODES
ads), or that have CLOSE of the least cosine of its clicked ads. The *logQ correction* takes the
log of how often an ad is drawn from its logits. Heads have dropout. After training, ads without
clicks answer by the sum of their text's vector and their neighbours' classifiers. Every run is
kept. `ratio` is R@10 of the last row over the preset's, on the last dataset.

    OMP_NUM_THREADS=1 python -m benchmarks.other_ways [--sets rdocs foldoc debian] [--seeds 2]
        [--into docs/evidence]
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from benchmarks.common import finish, options
from benchmarks.graph_gain import STORE, VERSION, dataset_of, measured_by_query
from benchmarks.in_process import Run, begin, train_all_epochs
from benchmarks.made_sets import made
from benchmarks.tables import ByQuery, Found, compared, kept, mean, write
from ramen_ray.config import flatten, overlay
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.objectives.losses import SoftmaxLoss
from ramen_ray.method.objectives.terms import (
    CLASSIFIER,
    NO_NEGATIVES,
    TASK,
    classifier_term,
    task_term,
)
from ramen_ray.method.sampling.encoded import EncodedBatch, StepPart
from ramen_ray.presets import bag_unidec

PRESET = "unidec and graph"
SHARED = "negatives that share an anchor with the positive left out"
NEAR = "negatives at 0.95 of the positive left out"
LOGQ = "logQ correction"
DROPOUT = "dropout of 0.1 of the heads"
SMOOTHED = {
    "half of the neighbours' classifiers for ads without clicks": 0.5,
    "the neighbours' classifiers for ads without clicks": 1.0,
}
TRAINED = (PRESET, SHARED, NEAR, LOGQ, DROPOUT)
MOST_NODES = 50
CLOSE = 0.95
DROPPED = 0.1
METRICS = ("P@1", "R@10", "clicked ads R@10", "never-clicked ads R@10")

Matrix = Any  # of scipy, which has no types
Floats = NDArray[np.float32]


def main() -> None:
    asked = options(__doc__, sets=["rdocs", "foldoc", "debian"], seeds=2, into="")
    torch.set_num_threads(1)
    lines, gain = list[dict[str, str]](), 1.0
    for dataset in asked.sets:
        runs: dict[str, list[ByQuery]] = {}
        for way in TRAINED:
            for seed in range(asked.seeds):
                for title, run in measured(dataset, way, seed).items():
                    kept_metrics = {name: run[name] for name in METRICS}
                    runs.setdefault(title, []).append(kept_metrics)
        for title, of_way in runs.items():
            over = PRESET if title != PRESET else ""
            lines += compared(dataset, title, of_way, over, runs[PRESET])
        gain = mean(of_way, "R@10") / mean(runs[PRESET], "R@10")
    write("graph_further", lines, asked.into)
    finish(gain, {})


def measured(dataset: str, way: str, seed: int) -> Mapping[str, ByQuery]:
    """Return the metrics by query of one training; of the preset's with neighbours, too."""
    config = overlay(bag_unidec(made(dataset)), {"seed": seed})
    data = dataset_of(config.dataset, config.encoder)

    def measure() -> Found:
        run = begin(config, data)
        CHANGES[way](run)
        model = train_all_epochs(run)
        model.part = "both"
        models = {way: model}
        if way == PRESET:
            models |= {title: smoothed(run, share) for title, share in SMOOTHED.items()}
        found = {name: measured_by_query(one, data, "validation") for name, one in models.items()}
        return found, {}

    return kept(STORE, ["other ways", VERSION, flatten(config), data.path.name, way], measure)[0]


class SharedAnchors(StepPart):
    """Leaves ads out of the negatives that share an anchor with an ad drawn for the query."""

    name = "shared anchors"

    def __init__(self, run: Run) -> None:
        self.links = links(run, MOST_NODES)

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with what is no negative of its queries."""
        drawn = encoded.batch.ads
        places = np.where(drawn >= 0, drawn, drawn[:, :1])
        own = sum(self.links[places[:, column]] for column in range(places.shape[1]))
        shared = (own @ self.links[encoded.ad_pool.ids].T).toarray() > 0
        return left_out(encoded, torch.from_numpy(shared))


class NearPositives(StepPart):
    """Leaves ads out of the negatives that are almost as near as the query's clicked ads."""

    name = "near positives"

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with what is no negative of its queries."""
        cosines_bL = encoded.own_similarity.detach()
        clicked_bL = encoded.own_clicked_in_pool
        lowest_b1 = cosines_bL.masked_fill(~clicked_bL, torch.inf).amin(dim=1, keepdim=True)
        return left_out(encoded, (cosines_bL > CLOSE * lowest_b1) & (lowest_b1 > 0))


class DrawnOften(StepPart):
    """Takes the log of how often ads are drawn from the logits of the softmax losses."""

    name = "drawn often"

    def __init__(self, run: Run) -> None:
        clicks = run.sampler.data.clicks
        degrees = np.diff(clicks.indptr)
        drawn = np.minimum(run.sampler.num_positives, degrees) / np.maximum(degrees, 1)
        times = np.bincount(clicks.indices, np.repeat(drawn, degrees), len(run.data.ads))
        times[times == 0] = times[times > 0].min()
        self.log_times = torch.from_numpy(np.log(times / times.mean())).float()
        self.of_pool = torch.zeros(())

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Look up how often the ads of the batch are drawn."""
        self.of_pool = self.log_times[torch.from_numpy(np.asarray(encoded.ad_pool.ids))]
        return encoded

    def loss(self, temperature: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Return the softmax loss of corrected similarities."""
        softmax = SoftmaxLoss(temperature)
        return lambda similarity_bL, places_bP, clicked_bL: softmax(
            similarity_bL - temperature * self.of_pool, places_bP, clicked_bL
        )


def left_out(encoded: EncodedBatch, is_left_out_bL: Tensor) -> EncodedBatch:
    """Return the batch with ads that are no negatives, unless they are clicked."""
    added = {NO_NEGATIVES: is_left_out_bL & ~encoded.own_clicked_in_pool}
    return replace(encoded, added={**encoded.added, **added})


def with_part(part: StepPart, run: Run) -> None:
    """Let a part extend the steps of a run, before all others."""
    run.state.parts = [part, *run.state.parts]


def corrected(run: Run) -> None:
    """Correct the losses of the encoder and of the classifiers for how often ads are drawn."""
    part = DrawnOften(run)
    with_part(part, run)
    loss, classifier = run.config.loss, run.config.classifier
    made_anew = {
        TASK: lambda weight: task_term(part.loss(loss.temperature), weight),
        CLASSIFIER: lambda weight: classifier_term(part.loss(classifier.temperature), weight),
    }
    terms = [
        made_anew[term.name](term.weight) if term.name in made_anew else term
        for term in run.objective.terms
    ]
    run.objective = replace(run.objective, terms=tuple(terms))


def with_dropout(run: Run) -> None:
    """Drop a share of the numbers that heads give, in training."""

    def drop(module: torch.nn.Module, pooled: Any, vectors: Tensor) -> Tensor:
        return functional.dropout(vectors, DROPPED) if torch.is_grad_enabled() else vectors

    for head in (run.model.encoder.projection, run.model.classifier_head):
        if head is not None:
            head.register_forward_hook(drop)


CHANGES: Mapping[str, Callable[[Run], None]] = {
    PRESET: lambda run: None,
    SHARED: lambda run: with_part(SharedAnchors(run), run),
    NEAR: partial(with_part, NearPositives()),
    LOGQ: corrected,
    DROPOUT: with_dropout,
}


class Smoothed(DualEncoder):
    """A trained model some of whose ads are searched by other vectors than their texts'."""

    def __init__(self, model: DualEncoder, ads: Int64s, vectors: Floats) -> None:
        super().__init__(model.encoder, model.classifier_head)
        self.classifiers, self.scoring, self.part = model.classifiers, model.scoring, model.part
        self.ads, self.other_vectors = ads, vectors

    def embed_ads(self, texts: TokenTable, rows: Int64s, use_bf16: bool = False) -> Floats:
        """Return trained ads' vectors for search."""
        vectors = super().embed_ads(texts, rows, use_bf16).copy()
        places = np.searchsorted(self.ads, rows).clip(max=len(self.ads) - 1)
        has_other = self.ads[places] == rows
        vectors[has_other, -self.other_vectors.shape[1] :] = self.other_vectors[places[has_other]]
        return vectors


def smoothed(run: Run, share: float) -> DualEncoder:
    """Return the model with neighbours' classifiers for ads that have none of their own."""
    model, ads = run.model, run.data.ads
    assert model.classifiers is not None, "the preset has classifiers"
    is_trained = np.asarray(model.classifiers.is_trained)
    of_anchor = links(run)
    trained = sparse.diags(is_trained.astype(float)) @ of_anchor
    degrees = np.asarray(trained.sum(axis=0)).ravel()
    neighbours = of_anchor @ sparse.diags(1 / np.maximum(degrees, 1)) @ trained.T
    rows = np.flatnonzero(~is_trained & (np.asarray(neighbours.sum(axis=1)).ravel() > 0))
    sums = neighbours.tocsr()[rows] @ unit(model.classifiers.vectors.detach().numpy())
    by_text = model.classifier_vectors(ads, rows)
    weight = model.scoring.weight
    scale = (weight / (1 + weight)) ** 0.5 * model.scoring.text_scale
    vectors = scale * unit(by_text + share * unit(np.asarray(sums)))
    return Smoothed(model, rows, vectors.astype(np.float32))


def links(run: Run, most_nodes: int | None = None) -> Matrix:
    """Return the ads' anchors of all sets (ads, anchors), of at most so many ads each."""
    parts = [
        links_of(edges, most_nodes)
        for regularizer, edges in run.sampler.data.graphs.items()
        if regularizer.side == "ad"
    ]
    return sparse.hstack(parts).tocsr()


def links_of(edges: Csr, most_nodes: int | None) -> Matrix:
    num_anchors = int(edges.indices.max()) + 1
    shape = (edges.num_rows, num_anchors)
    ones = np.ones(len(edges.indices))
    matrix = sparse.csr_matrix((ones, edges.indices, edges.indptr), shape=shape)
    if most_nodes is None:
        return matrix
    is_kept = np.bincount(edges.indices, minlength=num_anchors) <= most_nodes
    return matrix @ sparse.diags(is_kept.astype(float))


def unit(vectors: NDArray[Any]) -> NDArray[Any]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, 1e-9)


if __name__ == "__main__":
    main()
