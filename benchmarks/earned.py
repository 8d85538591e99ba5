"""Which graphs earn a pull: good, half-random, shuffled and misleading ones, of ads and of queries.

The preset bag-unidec trains without a graph, while graphs of every kind beside it are measured as
adaptive λ measures them, but never pull; so one training judges all of a side. In *misleading*
graphs every node has the anchors of another. The table has the epoch from which a graph would pull,
if ever, and the most that it earned, in powers of ten of its start; it pulls from 1 on. `ratio` is
the most that a shuffled or misleading graph earned. With `--train`, good and half-random graphs of
ads do pull, and a second table has what they bring on validation and test.

    python -m benchmarks.earned [--sets rdocs foldoc debian] [--into docs/evidence]
        [--train] [--seeds 3]
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from benchmarks.common import finish, options
from benchmarks.graph_gain import GraphVariant, dataset_of, measured
from benchmarks.in_process import Run, all_steps, begin_on, dealt, with_graphs
from benchmarks.made_sets import made
from benchmarks.tables import compared, write
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.objectives.adaptation import AdaptiveWeights
from ramen_ray.method.sampling.training_data import Regularizer, TrainingData, anchor_table
from ramen_ray.orchestration.run.build import build_objective
from ramen_ray.presets import bag_unidec, linked_sets

SEED = 7


def misleading(edges: Csr, draw: np.random.Generator) -> Csr:
    """Give every node the anchors of another."""
    nodes, anchors = edges.gather(np.arange(edges.num_rows))
    return Csr.from_pairs(draw.permutation(edges.num_rows)[nodes], anchors, edges.num_rows)


KINDS: Mapping[str, Callable[[Csr, np.random.Generator], Csr]] = {
    "good": lambda edges, draw: edges,
    "half-random": lambda edges, draw: dealt(edges, draw, 0.5),
    "shuffled": lambda edges, draw: dealt(edges, draw, 1.0),
    "misleading": misleading,
}
USELESS = ("shuffled", "misleading")


def main() -> None:
    sets = ["rdocs", "foldoc", "debian"]
    asked = options(__doc__, sets=sets, train=False, seeds=3, into="")
    torch.set_num_threads(1)
    if asked.train:
        lines = [line for dataset in asked.sets for line in gains(dataset, asked.seeds)]
        write("earned_gains", lines, asked.into)
        return
    lines = [
        line
        for dataset in asked.sets
        for side in ("lambda_z", "lambda_x")
        for line in judged(bag_unidec(dataset), side)
    ]
    write("earned", lines, asked.into)
    most = max(float(line["most_earned"]) for line in lines if line["graph"] in USELESS)
    finish(most, {})


def gains(dataset: str, seeds: int) -> Iterator[dict[str, str]]:
    config = bag_unidec(made(dataset))
    plain = GraphVariant(WITHOUT_GRAPH, part="both")
    pulling = {
        "good graph": GraphVariant({}, part="both"),
        "half-random graph": GraphVariant({}, random_edges=0.5, part="both"),
    }
    for split in ("validation", "test"):
        without = [measured(config, plain, seed, split) for seed in range(seeds)]
        for name, variant in pulling.items():
            runs = [measured(config, variant, seed, split) for seed in range(seeds)]
            for line in compared(dataset, f"unidec, {name}", runs, "unidec", without):
                yield {"split": split, **line}


def judged(config: RunConfig, side: str) -> list[dict[str, str]]:
    """Return a line for each kind of graph of the strict sets' edges of queries, or of ads."""
    dataset = Dataset(config.dataset)
    sets = [one for one in linked_sets(dataset)[side] if one in dataset.strict_anchor_sets]

    def with_sets(names: list[str]) -> RunConfig:
        none: dict[str, Any] = {"regularization.lambda_x": {}, "regularization.lambda_z": {}}
        return overlay(config, {**none, f"regularization.{side}": dict.fromkeys(names, 1.0)})

    run = silent(with_sets([f"{one} {kind}" for one in sets for kind in KINDS]), with_sets(sets))
    (adaptive,) = [part for part in run.state.parts if isinstance(part, AdaptiveWeights)]
    pulling, most = dict[str, float](), dict[str, float]()
    start = adaptive.save(run.data.path)
    for _ in all_steps(run):
        for name, earned in adaptive.save(run.data.path).items():
            powers = math.log10(earned / start[name])
            most[name] = max(most.get(name, 0.0), powers)
            if powers >= 1:
                pulling.setdefault(name, run.state.step / run.sampler.steps_per_epoch)
    lines = []
    for term in run.objective.terms:
        if term.regularizer is not None:
            name, kind = term.regularizer.anchor_set.rsplit(" ", 1)
            cells = dataset.name, term.regularizer.side, name, kind
            line = dict(zip(("dataset", "side", "anchor set", "graph"), cells, strict=True))
            line["pulls from epoch"] = f"{pulling[term.name]:.1f}" if term.name in pulling else ""
            lines.append({**line, "most_earned": f"{most[term.name]:.2f}"})
    return lines


def silent(config: RunConfig, own: RunConfig) -> Run:
    """Begin a run whose graphs, named "SET KIND", are made of those of ``own`` and never pull."""
    data = dataset_of(config.dataset, config.encoder)
    whole = TrainingData.from_prepared(data, build_objective(own).regularizers)
    graphs = {
        Regularizer(f"{one.anchor_set} {kind}", one.side): make(edges, np.random.default_rng(SEED))
        for one, edges in whole.graphs.items()
        for kind, make in KINDS.items()
    }
    tables = {
        anchor_table(one.anchor_set): whole.tables[anchor_table(one.anchor_set.rsplit(" ", 1)[0])]
        for one in graphs
    }
    made = with_graphs(replace(whole, tables={**whole.tables, **tables}), graphs)
    run = begin_on(made, config, data)
    terms = [
        replace(term, loss=lambda encoded: encoded.embeddings_UD.new_zeros(()))
        if term.regularizer
        else term
        for term in run.objective.terms
    ]
    run.objective = replace(run.objective, terms=tuple(terms))
    return run


if __name__ == "__main__":
    main()
