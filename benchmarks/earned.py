"""Which graphs earn a pull: good, partly random, shuffled and misleading ones, of ads and queries.

The preset bag-unidec trains without a graph, while graphs of every kind beside it are tested as
adaptive λ tests them, but never pull; so one training judges all of a side. In *misleading* graphs
every node has the anchors of another. The table has, of the graphs of a kind, how many would pull
within the training, the epoch from which their median would, and the largest ratio that any reached
of its z to the one that the look asked for. `ratio` is the share of useless graphs that would pull.
With `--train`, good and half-random graphs of ads do pull, and a second table has what they bring
on validation and test.

    python -m benchmarks.earned [--sets rdocs foldoc debian] [--epochs 8] [--draws 2]
        [--into docs/evidence] [--train] [--seeds 3]
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
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

CPU = torch.device("cpu")
SEED = 7


def misleading(edges: Csr, draw: np.random.Generator) -> Csr:
    """Give every node the anchors of another."""
    nodes, anchors = edges.gather(np.arange(edges.num_rows))
    return Csr.from_pairs(draw.permutation(edges.num_rows)[nodes], anchors, edges.num_rows)


KINDS: Mapping[str, Callable[[Csr, np.random.Generator], Csr]] = {
    "good": lambda edges, draw: edges,
    "half-random": lambda edges, draw: dealt(edges, draw, 0.5),
    "80 % random": lambda edges, draw: dealt(edges, draw, 0.8),
    "shuffled": lambda edges, draw: dealt(edges, draw, 1.0),
    "misleading": misleading,
}
USELESS = ("shuffled", "misleading")


def main() -> None:
    sets = ["rdocs", "foldoc", "debian"]
    asked = options(__doc__, sets=sets, train=False, seeds=3, into="", epochs=8, draws=2)
    torch.set_num_threads(1)
    if asked.train:
        lines = [line for dataset in asked.sets for line in gains(dataset, asked.seeds)]
        write("earned_gains", lines, asked.into)
        return
    lines = []
    for dataset in asked.sets:
        for side in ("lambda_z", "lambda_x"):
            config = overlay(bag_unidec(dataset), {"training.epochs": asked.epochs})
            lines += judged(config, side, asked.draws)
    write("earned", lines, asked.into)
    useless = [line for line in lines if line["graph"] in USELESS]
    num_pulling = sum(int(line["pull"]) for line in useless)
    finish(num_pulling / sum(int(line["graphs"]) for line in useless), {})


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


def judged(config: RunConfig, side: str, draws: int) -> list[dict[str, str]]:
    """Return a line for each kind of graph of the strict sets' edges of queries, or of ads."""
    dataset = Dataset(config.dataset)
    sets = [one for one in linked_sets(dataset)[side] if one in dataset.strict_anchor_sets]
    made = {
        f"{one} {kind} {number}": kind
        for one in sets
        for kind in KINDS
        for number in range(1 if kind == "good" else draws)
    }

    def with_sets(names: Iterable[str]) -> RunConfig:
        none: dict[str, Any] = {"regularization.lambda_x": {}, "regularization.lambda_z": {}}
        return overlay(config, {**none, f"regularization.{side}": dict.fromkeys(names, 1.0)})

    run = silent(with_sets(made), with_sets(sets), made)
    adaptive = Watched(run, len(sets))
    run.state.parts = [
        adaptive if isinstance(part, AdaptiveWeights) else part for part in run.state.parts
    ]
    for _ in all_steps(run):
        pass
    lines = []
    for one in sets:
        for kind in KINDS:
            places = [
                place
                for place, term in enumerate(run.objective.terms)
                if term.regularizer is not None
                and term.regularizer.anchor_set.rsplit(" ", 1)[0] == f"{one} {kind}"
            ]
            epochs = sorted(adaptive.pulls_from[place] for place in places)
            median = epochs[(len(epochs) - 1) // 2]
            largest = max(adaptive.largest[place] for place in places)
            line = {
                "dataset": dataset.name,
                "side": {"lambda_z": "ad", "lambda_x": "query"}[side],
                "anchor set": one,
                "graph": kind,
                "graphs": str(len(places)),
                "pull": str(sum(math.isfinite(epoch) for epoch in epochs)),
                "median from epoch": f"{median:.1f}" if math.isfinite(median) else "",
                "largest z to needed": f"{largest:.2f}",
            }
            lines.append(line)
    return lines


class Watched(AdaptiveWeights):
    """Tests graphs as if each was one of ``num_sets``, notes when they pass, and never pulls."""

    def __init__(self, run: Run, num_sets: int) -> None:
        rate = run.config.regularization.adaptive_step
        super().__init__(run.objective, rate, run.sampler.steps_per_epoch, CPU)
        self.num_tests = num_sets
        self.pulls_from = dict.fromkeys(range(len(run.objective.terms)), math.inf)
        self.largest = dict.fromkeys(self.pulls_from, -math.inf)

    def look(self) -> None:
        """Note which graphs pass the test."""
        before = self._pulls
        super().look()
        z_sum, squares = self._evidence
        needed = self.needed_z * squares.sqrt()
        for place, ratio in enumerate((z_sum / needed.clamp(min=1e-9)).tolist()):
            self.largest[place] = max(self.largest[place], ratio)
            if ratio > 1:
                first = min(self.pulls_from[place], self._step / self.steps_per_epoch)
                self.pulls_from[place] = first
        self._pulls = before


def silent(config: RunConfig, own: RunConfig, made: Mapping[str, str]) -> Run:
    """Begin a run whose graphs, named "SET KIND NUMBER", are ``made`` of those of ``own``."""
    data = dataset_of(config.dataset, config.encoder)
    whole = TrainingData.from_prepared(data, build_objective(own).regularizers)
    graphs = {}
    tables = {}
    for one, edges in whole.graphs.items():
        for name, kind in made.items():
            if name.startswith(f"{one.anchor_set} {kind} "):
                draw = np.random.default_rng([SEED, int(name.rsplit(" ", 1)[1])])
                graphs[Regularizer(name, one.side)] = KINDS[kind](edges, draw)
                tables[anchor_table(name)] = whole.tables[anchor_table(one.anchor_set)]
    changed = with_graphs(replace(whole, tables={**whole.tables, **tables}), graphs)
    run = begin_on(changed, config, data)
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
