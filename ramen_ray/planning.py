"""What training on data of given sizes is known to need, and which machines keep its arrays.

Bytes of arrays are computed as they are laid out. Hours are those of a machine that benchmarks were
run on, which ``machines.toml`` keeps. Nothing is run.
"""

import math
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ramen_ray.config import RunConfig
from ramen_ray.errors import UserError
from ramen_ray.method.retrieval.index import DIMENSIONS_PER_CODE, HNSW_LINKS, IndexKind, choose_kind

MACHINES = Path(__file__).with_name("machines.toml")
THIS = "this"
GIB = 2**30
POINTER, HASH, WEIGHT, FLOAT, HALF = 8, 8, 8, 4, 2
LARGEST_INT32 = 2**31 - 1
TOKEN = 2  # vocabularies of up to 65,536 tokens
STATES, MOMENTS = 16, 12  # bytes of a weight and two moments, with and without its gradient
KEPT_CHECKPOINTS, KEPT_RESULTS = 3, 2  # results are of a background task
# Bytes that a token, layer and unit of width saves for backward, in fp32 and under bf16 autocast
ACTIVATIONS, ACTIVATIONS_BF16 = 67, 60
RAY, PROCESS = 2.2e9, 5e8  # bytes of Ray on a machine of two cores; of a worker that has no data
NUMBERED_TEXT = 60  # bytes, while a pruning finds equal texts
STORED_TOKEN, STORED_CLICK, STORED_EDGE = 2.5, 4, 5  # bytes in the dataset directory's parquet

EncoderName = Literal["bag", "minilm", "distilbert"]


class PlanError(UserError):
    """A size or a machine that is asked for cannot be used; the message says why."""


@dataclass(frozen=True)
class Machine:
    """One machine; ``memory`` and ``gpu_memory`` in bytes, ``costs`` of stages in seconds."""

    name: str
    memory: float
    gpus: int = 0
    gpu_memory: float = 0
    costs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class EncoderSize(NamedTuple):
    """An encoder: ``matrices`` and ``embeddings`` count weights; a bag has no layers."""

    layers: int
    dim: int
    matrices: int
    embeddings: int

    @property
    def weights(self) -> int:
        """All weights."""
        return self.matrices + self.embeddings

    def operations(self, texts: float, tokens: float) -> float:
        """Count the operations of training on texts of so many tokens: 6 a weight and token."""
        return 3 * texts * tokens * (2 * self.matrices + 4 * self.layers * self.dim * tokens)


ENCODERS: dict[EncoderName, EncoderSize] = {
    "bag": EncoderSize(0, 384, 0, 11_720_448),  # of MiniLM's token embeddings
    "minilm": EncoderSize(6, 384, 10_646_784, 11_918_592),
    "distilbert": EncoderSize(6, 768, 42_527_232, 23_835_648),
}


class SideSize(NamedTuple):
    """One side of an anchor set: queries or ads, their edges, and the set's anchors."""

    nodes: int
    edges: float
    anchors: int


@dataclass(frozen=True)
class Sizes:
    """What a dataset has; ``sides`` are those of queries and of ads, in turn, for each set."""

    queries: int
    ads: int
    clicks: float
    tokens: float
    sides: tuple[SideSize, ...] = ()

    @property
    def anchors(self) -> list[int]:
        """Anchors of each set."""
        return [side.anchors for side in self.sides[::2]]

    @property
    def texts(self) -> int:
        """Texts of queries, ads and anchors."""
        return self.queries + self.ads + sum(self.anchors)

    @property
    def edges(self) -> float:
        """Edges of all sets and both sides."""
        return sum(side.edges for side in self.sides)


def known_machines() -> dict[str, Machine]:
    """Return the machines of ``machines.toml`` and the present one, whose GPUs are not counted."""
    rows = tomllib.loads(MACHINES.read_text(encoding="utf-8"))
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    known = {THIS: Machine(THIS, present)}
    for name, row in rows.items():
        gpus, of_gpu = row.get("gpus", 0), GIB * row.get("gpu_memory_gib", 0)
        memory = GIB * row["memory_gib"]
        known[name] = Machine(name, memory, gpus, of_gpu, row.get("costs", {}))
    return known


def parse_machines(text: str) -> tuple[Machine, int]:
    """Read ``NAME=COUNT``; NAME alone is one machine."""
    known = known_machines()
    name, given, count = text.partition("=")
    if given and not (count.isdecimal() and int(count)):
        raise PlanError(f"machine {text!r}: {count!r} is not a number of machines; say {name}=8")
    if name not in known:
        raise PlanError(f"there is no machine {name!r}; known are {', '.join(known)}")
    return known[name], int(count or 1)


def csr_bytes(rows: float, entries: float, columns: int, is_weighted: bool) -> float:
    """Row starts, column ids, and running sums of weights if these differ."""
    return rows * POINTER + entries * (_id_bytes(columns) + is_weighted * WEIGHT)


def _id_bytes(limit: float) -> int:
    return 4 if limit <= LARGEST_INT32 else 8


def prepared_bytes(sizes: Sizes) -> float:
    """Token tables, clicks and weighted edges; the held-out splits, which are small, left out."""
    texts = sizes.texts * (sizes.tokens * TOKEN + POINTER + HASH)
    clicks = csr_bytes(sizes.queries, sizes.clicks, sizes.ads, is_weighted=False)
    return texts + clicks + POINTER * (sizes.queries + sizes.ads) + graph_bytes(sizes)


def graph_bytes(sizes: Sizes, walked_to: int | None = None) -> float:
    """Edges of all sets and sides; after walks, those to so many anchors of each linked node."""
    entries = [
        side.edges if walked_to is None else walked_to * min(side.nodes, side.edges)
        for side in sizes.sides
    ]
    sides = zip(sizes.sides, entries, strict=True)
    return sum(csr_bytes(side.nodes, count, side.anchors, True) for side, count in sides)


def index_bytes(ads: int, dim: int, kind: IndexKind) -> float:
    """An index of a retriever."""
    if kind == "ivf_pq":
        centroids = 2 * math.isqrt(ads) + 256  # of cells, and of each code
        return ads * (dim / DIMENSIONS_PER_CODE + 8) + FLOAT * centroids * dim
    return ads * (FLOAT * dim + (2 * 4 * HNSW_LINKS + 16) * (kind == "hnsw"))


class StepSize(NamedTuple):
    """A step: texts that are encoded, and pairs compared; means, if anchors are not in all."""

    distinct: float
    pairs: float


def batch_of(config: RunConfig, sizes: Sizes) -> StepSize:
    """Count what a step of the global batch does, if ads and anchors are drawn equally often."""
    parts, regularization = config.base.parts, config.regularization
    queries = config.training.global_batch_size
    share = 1 / regularization.every_steps
    has_shortlists = parts.hard_negatives == "shortlists"
    ads = queries * (parts.num_positives + has_shortlists * parts.num_hard_negatives)
    own_ads = share * queries * len(sizes.anchors) * (regularization.nodes != "clicked")
    nodes = 2 * queries  # of a set, of both sides: each has an anchor
    anchors = share * sum(_distinct(nodes, count) for count in sizes.anchors)
    return StepSize(
        distinct=queries + _distinct(ads + own_ads, sizes.ads) + anchors,
        pairs=queries * _distinct(ads, sizes.ads) + nodes * anchors,
    )


def _distinct(draws: float, rows: int) -> float:
    return -rows * math.expm1(-draws / rows)


@dataclass(frozen=True)
class PlannedRun:
    """A run to plan: with a worker for each GPU or, without GPUs, for each machine."""

    sizes: Sizes
    encoder: EncoderSize
    config: RunConfig
    machine: Machine
    count: int = 1

    @property
    def on_gpu(self) -> bool:
        """Whether GPUs train; a bag of embeddings, which multiplies nothing, trains on CPUs."""
        return self.machine.gpus > 0 and self.encoder.layers > 0

    @property
    def workers_per_machine(self) -> int:
        """Workers of a machine."""
        return self.machine.gpus if self.on_gpu else 1

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch."""
        return self.sizes.queries // self.config.training.global_batch_size

    @property
    def walks(self) -> bool:
        """Whether walks replace the dataset's graph."""
        return self.config.walk.enabled and bool(self.sizes.sides)


def _prunings(run: PlannedRun) -> int:
    settings, epochs = run.config.pruning, run.config.training.epochs
    if settings.mode == "never" or epochs <= settings.warmup_epochs or not run.sizes.sides:
        return 0
    return 1 + (epochs - 1 - settings.warmup_epochs) // settings.every_epochs


class Need(NamedTuple):
    """Bytes of a thing: of all on disk, of a machine, of a GPU, and of the network in an epoch."""

    what: str
    accuracy: str
    disk: float = 0
    mapped: float = 0
    memory: float = 0
    gpu: float = 0
    network: float = 0


def needs(run: PlannedRun) -> Iterator[Need]:
    """Yield what a run keeps, and what its workers need."""
    sizes, parts, dim = run.sizes, run.config.base.parts, run.encoder.dim
    stored = STORED_TOKEN * sizes.tokens * sizes.texts + STORED_CLICK * sizes.clicks
    yield Need("dataset directory", "half to twice", disk=stored + STORED_EDGE * sizes.edges)
    prepared = prepared_bytes(sizes)
    yield Need("prepared arrays", "1 %", disk=prepared, mapped=prepared)
    graph = graph_bytes(sizes, run.config.walk.top_k if run.walks else None)
    if run.walks:
        yield Need("walked graph", "at most", disk=graph, mapped=graph)
    if _prunings(run):
        yield Need("pruned graphs", "at most", disk=KEPT_RESULTS * graph, mapped=graph)
    first_refresh, epochs = run.config.base.refresh_every, run.config.training.epochs
    if parts.hard_negatives == "shortlists" and epochs > first_refresh:
        lists = FLOAT * sizes.queries * parts.shortlist_size
        yield Need("shortlists", "1 %", disk=KEPT_RESULTS * lists, mapped=lists)
    classifiers = MOMENTS * sizes.ads * dim * (parts.heads == "classifier")
    saved = MOMENTS * run.encoder.weights + classifiers
    yield Need("checkpoints", "at most", disk=KEPT_CHECKPOINTS * saved)
    yield Need("index of the ads", "5 %", disk=index_bytes(sizes.ads, dim, choose_kind(sizes.ads)))
    yield _workers(run, classifiers)
    if run.count > 1:
        # embeddings to all others; gradients of these, and of weights, are summed
        embeddings = batch_of(run.config, sizes).distinct * dim
        numbers = embeddings + 2 * (embeddings + run.encoder.weights)
        exchanged = run.steps_per_epoch * (run.count - 1) * FLOAT * numbers
        yield Need("gradients and embeddings", "10 %", network=exchanged)


def _workers(run: PlannedRun, classifiers: float) -> Need:
    """Weights, moments, activations and classifiers of a machine's workers, and rows of nodes."""
    sizes, encoder = run.sizes, run.encoder
    workers = run.count * run.workers_per_machine
    shares = workers if run.config.classifier.sharded else 1
    per_token = (ACTIVATIONS_BF16 if run.on_gpu else ACTIVATIONS) * encoder.layers * encoder.dim
    texts = batch_of(run.config, sizes).distinct / workers
    states = STATES * encoder.weights + classifiers / shares + per_token * texts * sizes.tokens
    if run.config.base.parts.order != "random":
        states += HALF * sizes.queries * encoder.dim  # embeddings of queries, to be clustered
    # rows of the ads with edges, and of the queries; a worker's part of these is put in order
    linked = sizes.ads * len(sizes.anchors)
    rows = POINTER * (linked + sizes.queries + 3 * sizes.queries / workers)
    own = PROCESS + rows + (0 if run.on_gpu else states)
    memory, gpu = RAY + run.workers_per_machine * own, states if run.on_gpu else 0.0
    return Need("workers", "a fifth; activations 12 %", memory=memory, gpu=gpu)


class Held(NamedTuple):
    """What a machine should hold in memory at once: arrays that are read at random, and others."""

    mapped: float
    memory: float
    gpu: float = 0

    def fits(self, machine: Machine) -> bool:
        """Say whether a machine keeps all of it, so that no page is read twice."""
        in_memory = self.mapped + self.memory <= machine.memory
        return in_memory and self.gpu <= machine.gpu_memory


def held_by_stage(run: PlannedRun) -> dict[str, Held]:
    """Return what training, walks and prunings hold on a machine."""
    total = [sum(column) for column in zip(*(need[2:] for need in needs(run)), strict=True)]
    stages = {"training": Held(*total[1:4])}
    if run.walks:
        graphs = 0.0  # that walks hop through: edges from nodes, and from anchors
        for side in run.sizes.sides:
            ends = _id_bytes(side.anchors) + _id_bytes(side.nodes)
            graphs += (side.nodes + side.anchors) * _id_bytes(side.edges) + side.edges * ends
        stages["walks"] = Held(graphs, RAY)
    if _prunings(run):
        embeddings = HALF * run.sizes.texts * run.encoder.dim
        stages["pruning"] = Held(embeddings, RAY + NUMBERED_TEXT * run.sizes.texts)
    return stages


def machines_by_stage(run: PlannedRun) -> dict[str, list[Machine]]:
    """Return, for each stage, the known machines that keep what it reads, least memory first."""
    found: dict[str, list[Machine]] = {stage: [] for stage in held_by_stage(run)}
    for machine in sorted(known_machines().values(), key=lambda one: one.memory):
        for stage, held in held_by_stage(replace(run, machine=machine)).items():
            # A transformer trains without GPUs only if that was asked for.
            can_train = machine.gpus or not run.encoder.layers or machine == run.machine
            if held.fits(machine) and (can_train or stage != "training"):
                found[stage].append(machine)
    return found


class Duration(NamedTuple):
    """Hours of a stage on one machine; ``beyond`` is its queries over the most measured."""

    stage: str
    hours: float
    beyond: float
    source: str


def durations(run: PlannedRun, session_events: int = 0) -> Iterator[Duration]:
    """Yield the hours of those stages that benchmarks were run for on such a machine.

    They are for one machine, ``gpu_step`` for one GPU, and of ``train`` for one thread.
    """
    counts = _counts(run, session_events)
    for stage, cost in run.machine.costs.items():
        if stage in counts:
            counted = sum(cost.get(f"{unit}_s", 0) * n for unit, n in counts[stage].items())
            seconds = cost.get("start_s", 0) + counted
            beyond = run.sizes.queries / cost["most_queries"]
            yield Duration(stage, seconds / 3600, beyond, cost["source"])


def _counts(run: PlannedRun, events: int) -> dict[str, dict[str, float]]:
    """Count, by stage of ``benchmarks.scale``, what costs time in it."""
    sizes, encoder, batch = run.sizes, run.encoder, batch_of(run.config, run.sizes)
    steps = run.steps_per_epoch * run.config.training.epochs
    rows = sizes.queries + sizes.ads + sizes.clicks
    data = {"row": rows, "text": sizes.texts, "edge": sizes.edges, "event": float(events)}
    counts = dict.fromkeys(("clicks", "edges", "validate", "describe", "prepare"), data)
    if events:
        counts["sessions"] = data
    if run.walks:
        counts["walk"] = {"hop": run.config.walk.num_hops * sum(one.nodes for one in sizes.sides)}
    if encoder.layers:
        operations = encoder.operations(batch.distinct, sizes.tokens)
        return counts | {"gpu_step": {"operation": steps * operations}}
    counts["prune"] = {"edge": _prunings(run) * sizes.edges}
    return counts | {"train": {"text": steps * batch.distinct, "pair": steps * batch.pairs}}
