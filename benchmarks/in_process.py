"""A whole training in this process, without Ray: for benchmarks of many short runs."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ramen_ray.config import RunConfig
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.graph.pruning import prune
from ramen_ray.method.graph.walk import WalkGraph, WalkSettings, most_visited, visited_edges
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.embeddings import TextEmbeddings, number_distinct
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.retrieval.shortlists import open_shortlists, write_shortlists
from ramen_ray.method.sampling.batches import DrawState, Sampler
from ramen_ray.method.sampling.regularizers import Graphs
from ramen_ray.method.sampling.training_data import TrainingData, node_table
from ramen_ray.method.training.step import TrainState, train_steps
from ramen_ray.orchestration.run.build import (
    add_free_vectors,
    build_model,
    build_objective,
    build_sampler,
    build_state,
)

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

    Args:
        config: of the run.
        data: the prepared dataset.
        changes: applied to the training data, in their order.
    """
    return train_all_epochs(begin(config, data, *changes))


def begin(config: RunConfig, data: Prepared, *changes: Change, edges: Path | None = None) -> Run:
    """Build what :func:`train` trains, on the graphs in ``edges``, by default the dataset's own."""
    model = build_model(config)
    keep_tokens(model.encoder, data.occurring_tokens)
    add_free_vectors(config, model, data)
    objective = build_objective(config)
    training_data = TrainingData.from_prepared(data, objective.regularizers, edges)
    if config.walk.enabled:
        walked = walked_graphs(config, training_data.graphs)
        known = {one: [own, walked[one]] for one, own in training_data.graphs.items()}
        training_data = replace(training_data, graphs=walked, known_edges=known)
    for change in changes:
        training_data = change(training_data)
    sampler = build_sampler(config, data, training_data)
    return Run(config, data, model, objective, sampler, build_state(config, model, model, sampler))


def train_all_epochs(run: Run) -> DualEncoder:
    """Train a run to its last epoch; returns its model."""
    config, state, steps_per_epoch = run.config, run.state, run.sampler.steps_per_epoch
    state.advance()
    for epoch in range(config.training.epochs):
        graphs = run.sampler.data.graphs
        state.draws = renewed(config, run.data, run.model, graphs, state.draws, epoch)
        list(train_steps(state, run.sampler, run.objective, steps_per_epoch * (epoch + 1)))
        state.advance()
    encoder = run.model.encoder
    encoder.set_token_table(encoder.token_table.whole())
    return run.model


def walked_graphs(config: RunConfig, graphs: Graphs) -> Graphs:
    """Return the graphs of the anchors that random walks visit most."""
    walk = config.walk
    settings = WalkSettings(
        walk.num_hops, walk.restart_probability, walk.max_anchor_degree, walk.top_k
    )
    return {
        one: visited_edges(
            most_visited(
                WalkGraph.of(edges, walk.max_anchor_degree),
                0,
                edges.num_rows,
                settings,
                config.seed,
            )
        )
        for one, edges in graphs.items()
    }


def renewed(
    config: RunConfig,
    data: Prepared,
    model: DualEncoder,
    graphs: Graphs,
    draws: DrawState,
    epoch: int,
) -> DrawState:
    """Return what an epoch draws from: new shortlists, pruned graphs, or what there was."""
    base, pruning = config.base, config.pruning
    if base.parts.hard_negatives == "shortlists" and epoch and epoch % base.refresh_every == 0:
        draws = replace(draws, shortlists=shortlists(model, data, base.parts.shortlist_size))
    since = epoch - pruning.warmup_epochs
    if pruning.mode != "never" and since >= 0 and since % pruning.every_epochs == 0:
        draws = replace(draws, graphs=pruned(config, data, model, graphs))
    return draws


def shortlists(model: DualEncoder, data: Prepared, size: int) -> NDArray[np.int32]:
    """Return hard negatives (queries, size) of the train queries."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shortlists.npy"
        write_shortlists(model, data, size, file)
        return np.array(open_shortlists(file))


def pruned(config: RunConfig, data: Prepared, model: DualEncoder, graphs: Graphs) -> Graphs:
    """Return the graphs without the edges whose texts the model finds unlike."""
    kept = {}
    for one, edges in graphs.items():
        nodes = data.ads if node_table(one) == "ads" else data.queries["train"]
        tables = [nodes, data.anchors(one.anchor_set)]
        rows, positions = number_distinct(tables)
        embedded = [model.embed_texts(table, of) for table, of in zip(tables, rows, strict=True)]
        of_nodes, of_anchors = (
            TextEmbeddings(np.concatenate(embedded), part) for part in positions
        )
        threshold = config.pruning.prune_threshold
        with tempfile.TemporaryDirectory() as folder:  # the kept edges stay mapped into memory
            kept[one] = prune(edges, of_nodes, of_anchors, threshold, Path(folder)).edges
    return kept


def first_queries(share: float) -> Change:
    """Keep the first train queries, which lie in shuffled order, and drop the others."""

    def change(whole: TrainingData) -> TrainingData:
        count = round(share * len(whole.query_ids))
        graphs = {
            one: prefix(edges, count) if one.side == "query" else edges
            for one, edges in whole.graphs.items()
        }
        return replace(
            whole,
            query_ids=whole.query_ids[:count],
            clicks=prefix(whole.clicks, count),
            graphs=graphs,
            known_edges={one: [edges] for one, edges in graphs.items()},
        )

    return change


def prefix(csr: Csr, num_rows: int) -> Csr:
    """Return the first rows."""
    end, weights = csr.indptr[num_rows], csr.cumulative_weights
    kept = None if weights is None else weights[: end + 1]
    return Csr(csr.indptr[: num_rows + 1], csr.indices[:end], kept)


def random_edges(share: float, seed: int) -> Change:
    """Deal the anchors of a share of the edges out anew; 1 leaves nothing but the degrees."""

    def dealt(edges: Csr, draw: np.random.Generator) -> Csr:
        anchors = np.array(edges.indices)
        chosen = np.flatnonzero(draw.random(len(anchors)) < share)
        anchors[chosen] = draw.permutation(anchors[chosen])
        nodes: Int64s = np.repeat(np.arange(edges.num_rows), np.diff(edges.indptr))
        pairs = np.unique(np.stack([nodes, anchors]), axis=1)
        return Csr.from_pairs(pairs[0], pairs[1], edges.num_rows)

    def change(whole: TrainingData) -> TrainingData:
        draw = np.random.default_rng(seed)
        graphs = {one: dealt(edges, draw) for one, edges in whole.graphs.items()}
        known = {one: [edges] for one, edges in graphs.items()}
        return replace(whole, graphs=graphs, known_edges=known)

    return change
