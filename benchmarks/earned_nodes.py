"""What the test of adaptive λ sees, node by node: at 4 and 15 times the queries, of ads made cold.

The preset bag-unidec trains without a graph. Of a share of the ads that have edges and clicks, the
clicks are hidden, so that they are cold to it. Beside the training, the gains of all linked clicked
ads are computed by graphs of every kind, with a rival among 256 queries.

In the first table, `many` shuffled graphs have dealt-out anchors for as many ads as the set has,
four and fifteen times as many: each ad stands for others like it, with anchors of their own. It has
how many graphs would pull at any of the looks after EPOCHS, and the largest ratio of a z to the
needed one. The second has the mean of gains over their root mean square, of ads made cold and of
as many others, and how many ads the last look of 60 epochs would need at this ratio. `ratio` is the
share of shuffled graphs that would pull.

    python -m benchmarks.earned_nodes [--sets rdocs foldoc] [--graphs 100] [--into docs/evidence]
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import finish, options
from benchmarks.earned import KINDS, SEED
from benchmarks.graph_gain import dataset_of
from benchmarks.in_process import Run, all_steps, begin
from benchmarks.made_sets import made
from benchmarks.tables import write
from ramen_ray.config import WITHOUT_GRAPH, overlay
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.objectives.adaptation import needed_z
from ramen_ray.method.sampling.training_data import Graphs, TrainingData
from ramen_ray.orchestration.run.build import build_objective
from ramen_ray.presets import bag_unidec

COLD_SHARE = 0.05
EPOCHS = (1, 3, 8, 20)
LOOKS_BEFORE = 6  # within the first epoch
LAST_LOOK = 66
TIMES = (1, 4, 15)
POOL = 256

Floats = NDArray[np.floating[Any]]


def main() -> None:
    asked = options(__doc__, sets=["rdocs", "foldoc"], graphs=100, into="")
    torch.set_num_threads(1)
    sizes, cold = list[dict[str, str]](), list[dict[str, str]]()
    for dataset in asked.sets:
        found = Nodes(dataset, asked.graphs)
        for _ in found.after_epochs():
            pass
        sizes += found.size_lines()
        cold += found.cold_lines
    write("earned_sizes", sizes, asked.into)
    write("earned_cold", cold, asked.into)
    pulling = sum(int(line["pull"]) for line in sizes)
    finish(pulling / sum(int(line["graphs"]) for line in sizes), {})


class Nodes:
    """A training without a graph, beside which graphs are judged by all of their ads."""

    def __init__(self, dataset: str, num_graphs: int) -> None:
        config = bag_unidec(made(dataset))
        self.name, self.num_graphs = dataset, num_graphs
        self.data = dataset_of(config.dataset, config.encoder)
        whole = TrainingData.from_prepared(self.data, build_objective(config).regularizers)
        self.graphs: Graphs = whole.graphs
        clicks = whole.clicks
        queries, ads = clicks.gather(np.arange(clicks.num_rows))
        self.clicked_by = Csr.from_pairs(ads, queries, len(self.data.ads))
        is_linked = np.zeros(len(self.data.ads), dtype=bool)
        for edges in self.graphs.values():
            is_linked[edges.filled_rows] = True
        draw = np.random.default_rng(SEED)
        self.linked = np.flatnonzero(
            is_linked & (self.clicked_by.degrees(np.arange(len(is_linked))) > 0)
        )
        count = int(COLD_SHARE * len(self.linked))
        shuffled = draw.permutation(self.linked)
        self.groups = {"cold": shuffled[:count], "others": shuffled[count : 2 * count]}
        is_shown = ~np.isin(ads, self.groups["cold"])
        shown = Csr.from_pairs(queries[is_shown], ads[is_shown], clicks.num_rows)
        self.run: Run = begin(
            overlay(config, WITHOUT_GRAPH), self.data, lambda data: replace(data, clicks=shown)
        )
        self.largest: dict[tuple[str, int], Floats] = {}
        self.cold_lines: list[dict[str, str]] = []

    def after_epochs(self) -> Iterator[int]:
        """Train, and judge all graphs after EPOCHS."""
        steps = self.run.sampler.steps_per_epoch
        for step, _ in enumerate(all_steps(self.run), 1):
            epoch, rest = divmod(step, steps)
            if rest == 0 and epoch in EPOCHS:
                self.judge(epoch)
                yield epoch

    def judge(self, epoch: int) -> None:
        """Compute the gains of ads by each graph's anchors."""
        model = self.run.model
        model.part = "encoder"
        queries = model.embed_texts(self.data.queries["train"], np.arange(self.clicked_by_queries))
        ads = model.embed_texts(self.data.ads, self.linked)
        draw = np.random.default_rng([SEED, epoch])
        leads = self.leads(queries, ads, draw)
        needed = needed_z(LOOKS_BEFORE + epoch, len(self.graphs))
        for regularizer, edges in self.graphs.items():
            texts = self.data.anchors(regularizer.anchor_set)
            anchors = model.embed_texts(texts, np.arange(len(texts)))
            along = (leads * ads).sum(axis=1, keepdims=True)
            # what an anchor would gain an ad: lead · (anchor - (anchor · ad) ad)
            gains = (leads - along * ads) @ anchors.T
            rows, own = edges.gather(self.linked)
            shares = np.bincount(own, minlength=len(anchors)) / len(own)
            gains -= (gains @ shares)[:, None]  # of the mean anchor
            for times in TIMES:
                self.deal(regularizer.name, times, gains, rows, own, needed)
            if epoch == EPOCHS[-1] or epoch == EPOCHS[0]:
                self.compare(epoch, regularizer.name, gains, edges)

    @property
    def clicked_by_queries(self) -> int:
        return len(self.data.query_ids)

    def leads(self, queries: Floats, ads: Floats, draw: np.random.Generator) -> Floats:
        """Return own query minus rival (n, D) for each linked ad."""
        own = self.clicked_by.draw(self.linked, draw.random(len(self.linked)))
        leads = np.empty_like(ads)
        for start in range(0, len(ads), POOL):
            part = slice(start, start + POOL)
            pool = draw.integers(0, len(queries), POOL)
            similarity = ads[part] @ queries[pool].T
            row, clicked = self.clicked_by.gather(self.linked[part])
            for place in np.flatnonzero(np.isin(pool, clicked)):
                similarity[row[clicked == pool[place]], place] = -np.inf
            leads[part] = queries[own[part]] - queries[pool[similarity.argmax(axis=1)]]
        return leads

    def deal(
        self, name: str, times: int, gains: Floats, rows: Int64s, own: Int64s, needed: float
    ) -> None:
        """Deal anchors to that many ads like each, for each shuffled graph, and note its z."""
        degrees = np.bincount(rows, minlength=len(gains))
        has_any = degrees > 0
        largest = self.largest.setdefault((name, times), np.full(self.num_graphs, -np.inf))
        for graph in range(self.num_graphs):
            draw = np.random.default_rng([SEED, graph])  # the same anchors after each epoch
            total = squares = 0.0
            for _ in range(times):
                dealt = gains[rows, draw.permutation(own)]
                of_ads = np.bincount(rows, dealt, len(gains))[has_any] / degrees[has_any]
                total += of_ads.sum()
                squares += np.square(of_ads).sum()
            largest[graph] = max(largest[graph], total / np.sqrt(squares) / needed)

    def compare(self, epoch: int, name: str, gains: Floats, edges: Csr) -> None:
        """Note what gains of ads made cold, and of others, are over their root mean square."""
        for kind in ("good", "half-random", "80 % random"):
            changed = KINDS[kind](edges, np.random.default_rng(SEED))
            ratios: Mapping[str, float] = {}
            for group, members in self.groups.items():
                places = np.searchsorted(self.linked, members)
                rows, own = changed.gather(members)
                degrees = np.bincount(rows, minlength=len(members))
                sums = np.bincount(rows, gains[places[rows], own], len(members))
                of_ads = sums[degrees > 0] / degrees[degrees > 0]
                ratios = {**ratios, group: of_ads.mean() / np.sqrt(np.square(of_ads).mean())}
            needed = needed_z(LAST_LOOK, len(self.graphs))
            line = {"dataset": self.name, "anchor set": name, "graph": kind, "epoch": str(epoch)}
            line["ads of each kind"] = str(len(self.groups["cold"]))
            for group, value in ratios.items():
                line[f"{group}: mean to root mean square"] = f"{value:.2f}"
                line[f"{group}: ads needed"] = f"{(needed / value) ** 2:.0f}" if value > 0 else ""
            self.cold_lines.append(line)

    def size_lines(self) -> list[dict[str, str]]:
        return [
            {
                "dataset": self.name,
                "anchor set": name,
                "times the queries": str(times),
                "graphs": str(self.num_graphs),
                "pull": str(int((ratios > 1).sum())),
                "largest z to needed": f"{ratios.max():.2f}",
            }
            for (name, times), ratios in self.largest.items()
        ]


if __name__ == "__main__":
    main()
