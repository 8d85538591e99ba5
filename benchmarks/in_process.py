"""A whole training in this process, without Ray: for benchmarks of many short runs."""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ramen_ray.config import RunConfig
from ramen_ray.data.arrays import map_array
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared, TokenTable
from ramen_ray.method.graph.pruning import prune
from ramen_ray.method.graph.walk import WalkGraph, WalkSettings, most_visited
from ramen_ray.method.model.dual_encoder import DualEncoder, TextEmbeddings, number_distinct
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.retrieval.shortlists import write_shortlists
from ramen_ray.method.sampling.batches import Sampler, SamplingSources
from ramen_ray.method.sampling.training_data import Graphs, TrainingData, node_table
from ramen_ray.method.training.state import TrainState
from ramen_ray.method.training.step import train_steps
from ramen_ray.orchestration.run.build import (
    build_classifiers,
    build_model,
    build_objective,
    build_sampler,
    build_state,
    build_training_data,
    use_bf16,
)

EDGE_SEED = 7
Change = Callable[[TrainingData], TrainingData]
"""Replaces a run's training data before it begins."""


@dataclass
class Run:
    """A run before its first epoch."""

    config: RunConfig
    data: Prepared
    model: DualEncoder
    objective: Objective
    sampler: Sampler
    state: TrainState


def train(config: RunConfig, data: Prepared, *changes: Change) -> DualEncoder:
    """Train as ``jobs/train.py`` does with synchronous tasks; returns the last model.

    ``changes`` are applied to the training data, in their order.
    """
    return train_all_epochs(begin(config, data, *changes))


def begin(config: RunConfig, data: Prepared, *changes: Change, edges: Path | None = None) -> Run:
    """Build what :func:`train` trains, on the graphs in ``edges``, by default the dataset's own."""
    regularizers = build_objective(config).regularizers
    training_data = build_training_data(config, data, regularizers, edges)
    if config.walk.enabled:
        settings, walked = WalkSettings(**config.walk.model_dump(exclude={"enabled"})), {}
        for one, own in training_data.graphs.items():
            graph = WalkGraph.from_edges(own, settings.max_anchor_degree)
            walked[one] = most_visited(graph, 0, own.num_rows, settings, config.seed)
        known = {one: [own, walked[one]] for one, own in training_data.graphs.items()}
        training_data = replace(training_data, graphs=walked, known_edges=known)
    for change in changes:
        training_data = change(training_data)
    return begin_on(training_data, config, data)


def begin_on(training_data: TrainingData, config: RunConfig, data: Prepared) -> Run:
    """Build what :func:`train` trains on given graphs."""
    model = build_model(config).to("cuda" if torch.cuda.is_available() else "cpu")
    keep_tokens(model.encoder, data.occurring_tokens)
    if model.classifier_head is not None:
        model.classifiers = build_classifiers(config, model, data)
    objective = build_objective(config)
    sampler = build_sampler(config, data, training_data)
    state = build_state(config, model, model, sampler, objective)
    return Run(config, data, model, objective, sampler, state)


def train_all_epochs(run: Run) -> DualEncoder:
    """Train a run to its last epoch; returns its model."""
    for _ in all_steps(run):
        pass
    encoder = run.model.encoder
    encoder.set_token_table(encoder.token_table.whole())
    return run.model


def all_steps(run: Run) -> Iterator[Tensor]:
    """Train a run to its last epoch; yields after each step."""
    state, steps_per_epoch = run.state, run.sampler.steps_per_epoch
    bf16 = use_bf16(run.config, run.model.device)
    state.prepare_next_steps()
    for epoch in range(run.config.training.epochs):
        state.sources = renewed(run, state.sources, epoch)
        stop = steps_per_epoch * (epoch + 1)
        yield from train_steps(state, run.sampler, run.objective, stop, use_bf16=bf16)
        state.prepare_next_steps()


def renewed(run: Run, sources: SamplingSources, epoch: int) -> SamplingSources:
    """Return what an epoch draws from: new shortlists, pruned graphs, or what there was."""
    base, pruning = run.config.base, run.config.pruning
    if base.parts.hard_negatives == "shortlists" and epoch and epoch % base.refresh_every == 0:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "shortlists.npy"
            write_shortlists(run.model, run.data, base.parts.shortlist_size, file)
            sources = replace(sources, shortlists=np.array(map_array(file)))
    since = epoch - pruning.warmup_epochs
    if pruning.mode != "never" and since >= 0 and since % pruning.every_epochs == 0:
        sources = replace(sources, graphs=pruned(run))
    return sources


def pruned(run: Run) -> Graphs:
    """Return the run's graphs without the edges whose texts the model finds unlike."""
    kept = {}
    for one, edges in run.sampler.data.graphs.items():
        nodes = run.data.ads if node_table(one) == "ads" else run.data.queries["train"]
        of, to = embedded_texts(run.model, [nodes, run.data.anchors(one.anchor_set)])
        threshold = run.config.pruning.prune_threshold
        with tempfile.TemporaryDirectory() as folder:  # the kept edges stay mapped into memory
            prune(edges, of, to, threshold, Path(folder))
            kept[one] = Csr.open(Path(folder))
    return kept


def embedded_texts(model: DualEncoder, tables: list[TokenTable]) -> list[TextEmbeddings]:
    """Embed the texts of some tables, each distinct one once."""
    distinct, positions = number_distinct(tables)
    vectors = np.concatenate(
        [model.embed_texts(table, rows) for table, rows in zip(tables, distinct, strict=True)]
    )
    return [TextEmbeddings(vectors, places) for places in positions]


def first_queries(whole: TrainingData, share: float) -> TrainingData:
    """Keep the first train queries, which lie in shuffled order, and drop the others."""
    count = round(share * len(whole.query_ids))
    graphs = {
        one: prefix(edges, count) if one.side == "query" else edges
        for one, edges in whole.graphs.items()
    }
    ids, clicks = whole.query_ids[:count], prefix(whole.clicks, count)
    return with_graphs(replace(whole, query_ids=ids, clicks=clicks), graphs)


def prefix(csr: Csr, num_rows: int) -> Csr:
    end, weights = csr.indptr[num_rows], csr.cumulative_weights
    kept = None if weights is None else weights[: end + 1]
    return Csr(csr.indptr[: num_rows + 1], csr.indices[:end], kept)


def random_edges(whole: TrainingData, share: float) -> TrainingData:
    """Deal the anchors of a share of the edges out anew; 1 leaves nothing but the degrees."""
    draw = np.random.default_rng(EDGE_SEED)
    return with_graphs(
        whole, {one: dealt(edges, draw, share) for one, edges in whole.graphs.items()}
    )


def dealt(edges: Csr, draw: np.random.Generator, share: float) -> Csr:
    """Return a graph with the anchors of a share of the edges dealt out anew."""
    nodes, anchors = edges.gather(np.arange(edges.num_rows))
    chosen = np.flatnonzero(draw.random(len(anchors)) < share)
    anchors[chosen] = draw.permutation(anchors[chosen])
    pairs = np.unique(np.stack([nodes, anchors]), axis=1)
    return Csr.from_pairs(pairs[0], pairs[1], edges.num_rows)


def with_graphs(whole: TrainingData, graphs: Graphs) -> TrainingData:
    """Replace the graphs; an edge that is gone is no longer known either."""
    known = {one: [edges] for one, edges in graphs.items()}
    return replace(whole, graphs=graphs, known_edges=known)
