"""Short runs of every kind, on one and two workers, give the recorded results.

The record holds losses, gradients and final metrics to the bit. They repeat on the kind of CPU that
the record was made on, which it names; on other kinds they are compared within rounding. After a
change that is meant to change the numbers, record them again:

    pytest tests/method/training/test_record.py --record
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from short_runs import Run, build_encoder, run_two_workers
from torch import distributed

from ramen_ray.bases import NodeChoice
from ramen_ray.data.arrays import map_array
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.graph.pruning import prune
from ramen_ray.method.graph.walk import WalkGraph, WalkSettings, most_visited
from ramen_ray.method.metrics.ground_truth import Propensity, evaluate
from ramen_ray.method.model.dual_encoder import TextEmbeddings, number_distinct
from ramen_ray.method.objectives.adaptation import AdaptiveWeights
from ramen_ray.method.objectives.losses import SoftmaxLoss, TripletLoss
from ramen_ray.method.objectives.terms import ramen_objective, task_term
from ramen_ray.method.retrieval.shortlists import write_shortlists
from ramen_ray.method.sampling.batches import Sampler
from ramen_ray.method.sampling.curriculum import ClusterSchedule, Curriculum
from ramen_ray.method.sampling.training_data import TrainingData, open_graphs
from ramen_ray.method.training.step import global_losses, train_steps

RECORD = Path(__file__).parent / "record.json"
BATCH_SIZE = 16
STEPS_PER_EPOCH = 3
EPOCHS = 4
WALK = WalkSettings(num_hops=200, restart_probability=0.7, max_anchor_degree=50, top_k=4)
LAMBDAS = ({"links": 0.3, "topics": 0.2}, {"links": 0.2, "topics": 0.1})


@dataclass(frozen=True)
class Case:
    """The parts of a recorded run."""

    base: str = "in_batch"
    kind: str = "bag"
    walked: bool = False
    pruned: bool = False
    softmax_weighting: bool = False
    every_steps: int = 1
    adaptive: bool = False
    nodes: NodeChoice = "clicked"


CASES = {
    "in_batch": Case(),
    "all_nodes": Case(nodes="all"),
    "transformer": Case(kind="transformer", softmax_weighting=True),
    "ance": Case(base="ance"),
    "ngame": Case(base="ngame", softmax_weighting=True),
    "depsl": Case(base="depsl", nodes="all"),
    "walked": Case(walked=True),
    "pruned": Case(walked=True, pruned=True),
    "adaptive": Case(base="ance", every_steps=2, adaptive=True, nodes="all"),
}


class RecordedRun:
    """One recorded run on this worker; ``folder`` has the files that workers share."""

    def __init__(self, case, encoder, prepared, folder):
        self.case = case
        self.folder = folder
        self.data = Prepared(prepared[case.kind])
        loss = TripletLoss(0.3, 4, case.softmax_weighting)
        task = [task_term(SoftmaxLoss(0.05))] if case.base == "depsl" else []
        objective = ramen_objective(loss, *LAMBDAS, case.every_steps, task)
        self.regularizers = objective.regularizers
        self.edges = self._walked() if case.walked else self.data.path / "edges"
        training_data = TrainingData.from_prepared(self.data, self.regularizers, self.edges)
        num_hard_negatives = 2 if case.base in {"ance", "depsl"} else 0
        num_ads = 2 if case.base == "depsl" else 1
        sampler = Sampler(
            training_data, BATCH_SIZE, 3, None, num_hard_negatives, case.nodes, num_ads
        )
        made = build_encoder(case.kind, encoder)
        schedule = (2, STEPS_PER_EPOCH * EPOCHS)
        self.run = Run(made, sampler, objective, (), (2e-2, 0.01, 5e-2), schedule)
        self.model = self.run.model
        self.state = self.run.state
        if case.adaptive:
            self.state.parts = [
                AdaptiveWeights(
                    objective, 0.5, STEPS_PER_EPOCH, self.model.device, objective.regularizers
                )
            ]
        if case.base in {"ngame", "depsl"}:
            size, double_at = (4, (2,)) if case.base == "ngame" else (BATCH_SIZE, ())
            clusters = ClusterSchedule(1, 1, size, double_at, EPOCHS)
            self.state.parts = [Curriculum(clusters, sampler, self.model.dim, self.model.device)]
            self.state.prepare_next_steps()

    def __call__(self):
        losses = []
        gradients = []
        for epoch in range(EPOCHS):
            self._renew(epoch)
            stop = STEPS_PER_EPOCH * (epoch + 1)
            for terms in train_steps(
                self.state, self.run.sampler, self.run.objective, stop, max_gradient_norm=1.0
            ):
                losses.append(terms)
                gradients.append(self._gradient())
            self.state.prepare_next_steps()
        metrics, _ = evaluate(self.model, self.data, "test", Propensity())
        weights = self.state.weights.tolist() if self.case.adaptive else None
        return {
            "losses": global_losses(losses).tolist(),
            "gradients": gradients,
            "weights": weights,
            "metrics": metrics,
        }

    def _gradient(self):
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        digest = hashlib.blake2b(flat.numpy().tobytes(), digest_size=8).hexdigest()
        return {"digest": digest, "norm": flat.norm().item()}

    def _renew(self, epoch):
        if epoch == 0:
            return
        made = self.folder / f"epoch_{epoch}"
        if not distributed.is_initialized() or distributed.get_rank() == 0:
            made.mkdir()
            write_shortlists(self.model, self.data, 20, made / "shortlists.npy")
            self._prune(made / "edges")
        if distributed.is_initialized():
            distributed.barrier()
        sources = self.state.sources
        if self.case.base in {"ance", "depsl"}:
            sources = replace(sources, shortlists=map_array(made / "shortlists.npy"))
        if self.case.pruned and epoch >= 2:
            pruned = open_graphs(made / "edges", self.regularizers)
            sources = replace(sources, graphs=pruned)
        self.state.sources = sources

    def _prune(self, folder):
        for one in self.regularizers:
            nodes = self.data.queries["train"] if one.side == "query" else self.data.ads
            tables = [nodes, self.data.anchors(one.anchor_set)]
            rows, positions = number_distinct(tables)
            embedded = [
                self.model.embed_texts(table, of) for table, of in zip(tables, rows, strict=True)
            ]
            found = [TextEmbeddings(np.concatenate(embedded), part) for part in positions]
            prune(Csr.open(self.edges / one.path), *found, 0.2, folder / one.path)

    def _walked(self):
        walked = self.folder / "walked"
        if not distributed.is_initialized() or distributed.get_rank() == 0:
            for one in self.regularizers:
                edges = self.data.edges(one.anchor_set, one.side)
                graph = WalkGraph.from_edges(edges, WALK.max_anchor_degree)
                most_visited(graph, 0, edges.num_rows, WALK, seed=3).save(walked / one.path)
        if distributed.is_initialized():
            distributed.barrier()
        return walked


def _run_all(folder, encoder, prepared):
    for name, case in CASES.items():
        own = folder / name
        own.mkdir(exist_ok=True)
        yield name, RecordedRun(case, encoder, prepared, own)()


def _worker(rank, folder, encoder, prepared):
    found = dict(_run_all(folder, encoder, prepared))
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))


def _found(folder, encoder, prepared):
    """Return the results of every run, by number of workers and case."""
    two = folder / "two"
    two.mkdir()
    run_two_workers(_worker, two, encoder, prepared)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one = dict(_run_all(folder, encoder, prepared))
    finally:
        torch.set_num_threads(threads)
    return {"1": one, "2": json.loads((two / "found.json").read_text())}


def _cpu():
    """Name the kind of CPU, on which the rounding of sums depends."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "?")
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


@pytest.fixture(scope="module")
def found(request, prepared, prepared_bag, encoder_path, tmp_path_factory):
    """The current results of every run; ``--record`` makes them the record."""
    paths = {"transformer": prepared.path, "bag": prepared_bag.path}
    runs = _found(tmp_path_factory.mktemp("record"), encoder_path, paths)
    if request.config.getoption("--record"):
        RECORD.write_text(json.dumps({"cpu": _cpu(), "runs": runs}, indent=1) + "\n")
    return runs


@pytest.mark.parametrize("num_workers", ["1", "2"])
@pytest.mark.parametrize("case", CASES)
def test_a_run_gives_what_was_recorded(num_workers, case, found):
    record = json.loads(RECORD.read_text())
    known = record["runs"][num_workers][case]
    now = found[num_workers][case]
    if record["cpu"] == _cpu():
        assert now == known
    else:
        _assert_close(now, known)


@pytest.mark.parametrize("case", CASES)
def test_two_workers_give_what_one_gives(case, found):
    one, two = (found[num_workers][case] for num_workers in ("1", "2"))
    _assert_close(two, one)
    assert two["metrics"] == pytest.approx(one["metrics"])


def _assert_close(run, other):
    for name in ("losses", "weights"):
        values, expected = (np.array(one[name], dtype=float) for one in (run, other))
        np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-5)  # None: NaN
