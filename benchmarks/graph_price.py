"""What the graph costs of a training step, and what part of its gain cheaper draws keep.

The recipe of `graph_gain`, in batch, on validation: in every N-th step, with rare nodes, and with
few nodes in each step, which is no option of the library: N times fewer than queries, drawn in
proportion to a power of 1 / (1 + clicks), the same for all graphs or not, and also negatives of the
task or not. Nor are anchors' own vectors, which begin as those of their texts and are moved by
row-wise Adam (as OAK's bank), so that no anchor's text is encoded. Every run is kept. With `--cost
bag`, or a number of layers of MiniLM, it measures instead the processor time of a step, in turns.
`ratio` is R@10, or the time, of the last row over those of no graph, on the last dataset.

    OMP_NUM_THREADS=1 python -m benchmarks.graph_price [--sets rdocs foldoc debian] [--seeds 3]
        [--only WORDS ...] [--cost ""] [--rounds 3] [--into docs/evidence]
"""

import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers.utils.logging import set_verbosity_error

from benchmarks.common import alternate, finish, options
from benchmarks.graph_gain import (
    IN_BATCH,
    RARE,
    STORE,
    UNWALKED,
    VERSION,
    GraphVariant,
    dataset_of,
    measured,
    measured_by_query,
    recipe,
)
from benchmarks.in_process import Run, begin, embedded_texts, train_all_epochs
from benchmarks.tables import ByQuery, Found, compared, kept, mean, write
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, flatten, overlay
from ramen_ray.data.arrays import uniforms
from ramen_ray.data.prepared.csr import Csr, cumulative_sum
from ramen_ray.data.prepared.folder import TokenTable
from ramen_ray.method.model.heads import Classifiers, unit
from ramen_ray.method.sampling.batches import Batch, NodeAnchors, Sampler, SamplingSources, Stream
from ramen_ray.method.sampling.encoded import EncodedBatch, StepPart
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.sampling.training_data import Regularizer, anchor_table
from ramen_ray.method.training.classifier_training import ClassifierTraining
from ramen_ray.method.training.state import build_schedule
from ramen_ray.method.training.step import train_steps
from ramen_ray.presets import minilm

BASE, WHOLE = "no graph", "each step"
ANCHOR_RATE = 1e-2


@dataclass(frozen=True)
class Few:
    """How a step draws few nodes."""

    parts: int = 8  # one node for so many queries
    power: float = 0.0  # of 1 / (1 + clicks)
    are_shared: bool = False  # the same for all graphs, of all ads that have edges in any
    are_negatives: bool = False  # of the task, too
    own_vectors: bool = False  # of the anchors, whose texts are not encoded
    highest_lambda: float | None = None  # in place of the recipe's


Row = tuple[Mapping[str, Any], Few | None]
EVERY = {WHOLE: 1, "every fourth": 4, "every eighth": 8, "every sixteenth": 16}


def rows() -> dict[str, Row]:
    """Return the changes of the recipe by title, and how nodes are drawn; None as the library."""
    with_graph = {**IN_BATCH, **UNWALKED}
    found: dict[str, Row] = {BASE: ({**IN_BATCH, **WITHOUT_GRAPH}, None)}
    for title, steps in EVERY.items():
        changes = {**with_graph, "regularization.every_steps": steps}
        found |= {title: (changes, None), f"{title}, rare nodes": ({**changes, **RARE}, None)}
    tripled, eighth = partial(Few, highest_lambda=0.9), f"{WHOLE}, an eighth of the nodes"
    squared = "by the square of rare, highest λ 0.9"
    shared = f"{squared}, negatives too, one draw for all graphs"
    vectors = "anchors' own vectors"
    found |= {
        eighth: (with_graph, Few()),
        f"{eighth}, rare, highest λ 0.9": (with_graph, tripled(power=1)),
        f"{eighth}, {squared}": (with_graph, tripled(power=2)),
        f"{eighth}, {squared}, negatives too": (with_graph, tripled(power=2, are_negatives=True)),
        f"{eighth}, {shared}": (with_graph, tripled(8, 2, True, True)),
        f"{WHOLE}, a tenth of the nodes, {shared}": (with_graph, tripled(10, 2, True, True)),
        f"{WHOLE}, {vectors}": (with_graph, Few(1, own_vectors=True)),
        f"{WHOLE}, a sixth of the nodes, {shared}, {vectors}": (
            with_graph,
            tripled(6, 2, True, True, own_vectors=True),
        ),
        f"{eighth}, {shared}, nothing pulled": (
            with_graph,
            Few(8, 2, True, True, highest_lambda=1e-6),
        ),
    }
    return found


@dataclass
class FewNodes(Sampler):
    """Draws few nodes of ads."""

    few: Few = Few()

    def draw(
        self, step: int, sources: SamplingSources, regularizers: Collection[Regularizer]
    ) -> Batch:
        """Draw a step's batch."""
        batch = super().draw(step, sources, ())
        places = np.arange(self.batch_size // self.few.parts)
        anchors = {}
        for number, (one, edges) in enumerate(sources.graphs.items()):
            stream = 0 if self.few.are_shared else number
            among = list(sources.graphs.values()) if self.few.are_shared else [edges]
            chances = uniforms((self.seed, step, Stream.NODE, stream), places)
            nodes = self._weighted(among).draw(np.zeros_like(places), chances)
            nodes = nodes[edges.degrees(nodes) > 0]
            key = self.seed, step, Stream.NODE_ANCHOR, number
            drawn = edges.draw(nodes, uniforms(key, places[: len(nodes)]))
            anchors[one] = NodeAnchors(nodes, drawn)
        batch = replace(batch, anchors=anchors)
        if self.few.are_negatives and anchors:
            drawn = np.unique(np.concatenate([nodes for nodes, _ in anchors.values()]))
            negatives = np.full((len(batch.queries), 1), -1)
            negatives[: len(drawn), 0] = drawn
            batch = replace(batch, hard_negatives=negatives)
        return batch

    def _weighted(self, graphs: list[Csr]) -> Csr:
        """Return a single row: the ads with edges in any of the graphs, by their weight."""
        linked = np.unique(np.concatenate([edges.filled_rows for edges in graphs]))
        counts = np.bincount(self.data.clicks.indices, minlength=graphs[0].num_rows)
        weights = (1 / (1 + counts[linked])) ** self.few.power
        return Csr(np.array([0, len(linked)]), linked, cumulative_sum(weights))


class AnchorVectors(StepPart):
    """Compares nodes with vectors of the anchors' own, and moves these."""

    name = "anchors"

    def __init__(self, run: Run) -> None:
        total = run.sampler.steps_per_epoch * run.config.training.epochs
        schedule = partial(build_schedule, warmup_steps=0, total_steps=total)
        self._of: dict[Regularizer, ClassifierTraining] = {}
        for one in run.sampler.data.graphs:
            (texts,) = embedded_texts(run.model, [run.data.anchors(one.anchor_set)])
            vectors = torch.from_numpy(texts.take(np.arange(len(texts.positions))))
            table = Classifiers(vectors, 0, np.ones(len(vectors), dtype=bool))
            self._of[one] = ClassifierTraining(table, ANCHOR_RATE, schedule)

    def prepare(self, inputs: StepInputs) -> StepInputs:
        """Return the inputs with anchors whose vectors lie behind the texts' embeddings."""
        compared, first = {}, len(inputs.texts.rows)
        for one, comparison in inputs.regularizers.items():
            places = torch.arange(first, first + len(comparison.pool.ids))
            compared[one] = replace(comparison, candidates=places)
            first += len(places)
        return replace(inputs, regularizers=compared)

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with the anchors' vectors."""
        compared = encoded.inputs.regularizers
        self._moved = {one: self._of[one].rows(compared[one].pool.ids) for one in compared}
        vectors = [encoded.embeddings_UD, *map(unit, self._moved.values())]
        return replace(encoded, embeddings_UD=torch.cat(vectors))

    def after(self, encoded: EncodedBatch) -> None:
        """Move the vectors that were compared."""
        for one, rows in self._moved.items():
            if rows.grad is not None:
                self._of[one].update(encoded.inputs.regularizers[one].pool.ids, rows.grad)


def begun(config: RunConfig, few: Few | None) -> Run:
    if few is not None and few.highest_lambda is not None:
        sets = dict.fromkeys(config.regularization.lambda_z, few.highest_lambda)
        config = overlay(config, {"regularization.lambda_z": sets})
    run = begin(config, dataset_of(config.dataset, config.encoder))
    if few is None:
        return run
    data = run.sampler.data
    if few.own_vectors:
        run.state.parts = [AnchorVectors(run), *run.state.parts]
        unread = {
            anchor_table(one.anchor_set): _alike(data.tables[anchor_table(one.anchor_set)])
            for one in data.graphs
        }
        data = replace(data, tables={**data.tables, **unread})
    run.sampler = FewNodes(data, run.sampler.batch_size, run.sampler.seed, few=few)
    return run


def _alike(table: TokenTable) -> TokenTable:
    """Return as many texts, all of the same one token: a step encodes it once."""
    count = len(table)
    return TokenTable(
        np.full(count, table.token_ids[0]), np.arange(count + 1), np.zeros(count, dtype=np.uint64)
    )


def main() -> None:
    asked = options(
        __doc__, sets=["rdocs", "foldoc", "debian"], seeds=3, only=[""], cost="", rounds=3, into=""
    )
    torch.set_num_threads(1)
    chosen = {
        title: row
        for title, row in rows().items()
        if title in (BASE, WHOLE) or any(words in title for words in asked.only)
    }
    if asked.cost:
        figures = {name: costs(name, chosen, asked.cost, asked.rounds) for name in asked.sets}
        *_, last = (ms := figures[asked.sets[-1]])
        finish(ms[last] / ms[BASE], figures)
        return
    lines, gain = list[dict[str, str]](), 1.0
    for dataset in asked.sets:
        found = {
            title: [run_of(dataset, row, seed) for seed in range(asked.seeds)]
            for title, row in chosen.items()
        }
        for over in (BASE, WHOLE):
            for title, runs in found.items():
                if title not in (over, BASE):
                    lines += compared(dataset, title, runs, over, found[over])
        gain = mean(runs, "R@10") / mean(found[BASE], "R@10")
    write("graph_price", lines, asked.into)
    finish(gain, {})


def run_of(dataset: str, row: Row, seed: int) -> ByQuery:
    """Return the metrics of a row's run by query, trained now or earlier."""
    changes, few = row
    if few is None:
        return measured(recipe(dataset), GraphVariant(changes), seed, "validation")
    config = overlay(recipe(dataset), {**changes, "seed": seed})
    data = dataset_of(config.dataset, config.encoder)

    def measure() -> Found:
        model = train_all_epochs(begun(config, few))
        return {"run": measured_by_query(model, data, "validation")}, {}

    content = [VERSION, flatten(config), data.path.name, asdict(few)]
    return kept(STORE, content, measure)[0]["run"]


def costs(dataset: str, chosen: Mapping[str, Row], encoder: str, rounds: int) -> dict[str, float]:
    """Return the processor ms of a step of each row, the median of some rounds in turns."""
    set_verbosity_error()  # it would report the layers that are cut off
    start = recipe(dataset)
    if encoder != "bag":
        own = {"regularization.lambda_z": start.regularization.lambda_z}
        start = overlay(minilm(dataset), {"encoder.num_layers": int(encoder), **own})
    runs = {
        title: begun(overlay(start, {"regularization.every_steps": 1, **changes}), few)
        for title, (changes, few) in chosen.items()
    }
    sides = {title: partial(milliseconds, run) for title, run in runs.items()}
    for run in runs.values():
        milliseconds(run)  # the first steps are slower
    return {title: median(values) for title, values in alternate(rounds, sides).items()}


def milliseconds(run: Run) -> float:
    """Train on for as many steps as draw the graph once, or for three; returns ms of each."""
    count = max(3, run.config.regularization.every_steps)
    started = time.process_time()
    list(train_steps(run.state, run.sampler, run.objective, run.state.step + count))
    return 1000 * (time.process_time() - started) / count


if __name__ == "__main__":
    main()
