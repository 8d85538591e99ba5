"""The training step on a GPU: share of the bf16 matmul rate, time by part, memory. Needs no Ray.

A DistilBERT-size encoder with random weights, generated texts of 3 to 12 tokens, two anchor sets,
bf16 autocast. `ratio` compares the step's useful operations (6 per token and encoder weight, plus
attention; no padding) per second with those of a large bf16 matrix product. `step_with_all` also
has classifiers, losses from ads to queries and adaptive λ; `--compiled` adds an encoder that
torch.compile compiled; `--profile` prints where the time of a step goes, by operation.
By part: `host_` is how long the processor was at it, and `device_` how long the GPU was. The host
is ahead of the GPU if `ms_per_step` is the GPU's sum.

    python -m benchmarks.gpu_step [--rounds 3] [--steps 20] [--compiled] [--profile]
        [--smoke: tiny sizes, on the CPU]
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.profiler import profile
from transformers import BertTokenizer, DistilBertConfig, DistilBertModel

from benchmarks.common import alternate, finish, medians, options
from ramen_ray.data.arrays import hash_texts
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import TransformerEncoder
from ramen_ray.method.model.heads import Classifiers, Head
from ramen_ray.method.objectives import terms
from ramen_ray.method.objectives.adaptation import AdaptiveWeights
from ramen_ray.method.objectives.losses import SoftmaxLoss, TripletLoss
from ramen_ray.method.sampling.batches import Sampler, SamplingSources
from ramen_ray.method.sampling.encoded import EncodedBatch, StepPart
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.sampling.training_data import (
    ADS,
    QUERIES,
    Regularizer,
    TrainingData,
    anchor_table,
)
from ramen_ray.method.training import step as step_module
from ramen_ray.method.training.classifier_training import ClassifierPart, ClassifierTraining
from ramen_ray.method.training.state import TrainState, build_optimizer, build_schedule
from ramen_ray.method.training.step import step_inputs, train_steps

NUM_TEXTS, BATCH_SIZE, VOCABULARY = 200_000, 1024, 30_000
WARMUP_STEPS, PROFILED_STEPS, PRODUCTS = 2, 3, 10
scheduled = partial(build_schedule, warmup_steps=10, total_steps=10_000)
WEIGHTS = dict.fromkeys(("links", "categories"), 0.1)
SOFTMAX = SoftmaxLoss(0.05)
OF_CLASSIFIERS = (terms.classifier_term, terms.classifier_reverse_term)
TASK = [terms.task_term(SOFTMAX), terms.reverse_term(SOFTMAX, 0.5), terms.bce_term(1.0, 0.5)]
TASK += [build(SoftmaxLoss(1.0), 0.5) for build in OF_CLASSIFIERS]


def main() -> int:
    asked = options(__doc__, rounds=3, steps=20, compiled=False, profile=False, smoke=False)
    if not asked.smoke and not torch.cuda.is_available():
        print("there is no GPU here; --smoke tries the code on the CPU", file=sys.stderr)
        return 2
    torch.set_float32_matmul_precision("high")  # as workers do, and the next line
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    device = torch.device("cpu" if asked.smoke else "cuda")
    build = partial(_build, device, asked.smoke)
    runs = {"step": build(), "step_with_all": build(has_all=True)}
    runs["step_without_graph"] = build(weights={})
    if asked.compiled:
        runs["step_compiled"] = build()
        runs["step_compiled"].state.model.encoder.backbone.compile(dynamic=True)  # as runs do
    if asked.profile:
        print(_profiled(runs["step"]))
    sides = {name: partial(_steps, run, asked.steps) for name, run in runs.items()}
    sides["matmul"] = partial(_matmul, 512 if asked.smoke else 8192, device)
    found = {side: medians(rows) for side, rows in alternate(asked.rounds, sides).items()}
    finish(found["step"]["flops_per_s"] / found["matmul"]["flops_per_s"], found)
    return 0


class Clock(StepPart):
    """Takes the time of the host and of the device at the ends of some parts of a step."""

    name = "clock"

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"
        self._marks: list[tuple[str, float, Any]] = []

    def mark(self, part: str) -> None:
        """Note that ``part`` has been done by the host, and be told when the device has."""
        event = torch.cuda.Event(enable_timing=True) if self._is_gpu else None
        if event is not None:
            event.record()
        self._marks.append((part, time.perf_counter(), event))

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        self.mark("encode")
        return encoded

    def ms(self, steps: int) -> dict[str, float]:
        """Return ms a step of the host and of the device by part, and forget them."""
        found: dict[str, float] = {}
        for (_, since, event), (part, until, next_event) in pairwise(self._marks):
            times = {"host": 1000 * (until - since)}
            if event is not None:
                times["device"] = event.elapsed_time(next_event)
            for name, ms in times.items():
                found[f"{name}_{part}_ms"] = found.get(f"{name}_{part}_ms", 0.0) + ms / steps
        self._marks.clear()
        return found


class LastPart(StepPart):
    """Stands behind all other parts, to mark the ends of losses and update."""

    name = "last"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def weigh(self, weights: Tensor, encoded: EncodedBatch) -> Tensor:
        self._clock.mark("losses")
        return weights

    def after(self, encoded: EncodedBatch) -> None:
        self._clock.mark("update")


class Watched:
    """Takes the place of ``step_inputs``: counts what steps compute on, and marks their inputs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.texts, self.tokens, self.squares = 0, 0, 0

    def __call__(self, *arguments: Any) -> Iterator[StepInputs]:
        for one in step_inputs(*arguments):
            self._clock.mark("inputs")
            lengths = one.tokens.lengths
            self.texts += len(lengths)
            self.tokens += int(lengths.sum())
            self.squares += int((lengths**2).sum())
            yield one


@dataclass
class Run:
    """What is trained, and the clock among its parts."""

    state: TrainState
    sampler: Sampler
    objective: terms.Objective
    clock: Clock


def _build(
    device: torch.device, smoke: bool, has_all: bool = False, weights: Mapping[str, float] = WEIGHTS
) -> Run:
    num_texts, batch = (2_000, 32) if smoke else (NUM_TEXTS, BATCH_SIZE)
    sizes = {"n_layers": 1, "dim": 64, "hidden_dim": 128, "n_heads": 4} if smoke else {}
    backbone = DistilBertModel(DistilBertConfig(vocab_size=VOCABULARY, **sizes))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    model = DualEncoder(TransformerEncoder(backbone, tokenizer)).to(device)
    objective = terms.ramen_objective(TripletLoss(0.3, 10), weights, weights, task=TASK * has_all)
    data = made_data(num_texts, 3, dict.fromkeys(objective.regularizers, 3))
    clock = Clock(device)
    parts: list[StepPart] = [clock]
    if has_all:
        dim = model.encoder.dim // 2
        model.classifier_head = Head.orthogonal(2 * dim, dim, False, 0).to(device)
        vectors = torch.randn(num_texts, dim, device=device)
        classifiers = Classifiers(vectors, 0, np.ones(num_texts, dtype=bool))
        parts += [
            ClassifierPart(ClassifierTraining(classifiers, 1e-3, scheduled)),
            AdaptiveWeights(objective, 0.02, num_texts // batch, device),
        ]
    optimizer = build_optimizer(model.encoder, 2e-4, 0.01)
    optimizer.register_step_pre_hook(lambda *_: clock.mark("backward"))
    state = TrainState(model, optimizer, scheduled(optimizer), SamplingSources(data.graphs))
    state.parts = [*parts, LastPart(clock)]
    sampler = Sampler(data, batch, seed=0, num_positives=3 if has_all else 1)
    return Run(state, sampler, objective, clock)


def made_data(num_rows: int, clicks: int, degrees: Mapping[Regularizer, int]) -> TrainingData:
    """Make data of so many queries, ads and anchors, with so many clicks and edges of each node."""
    draw = np.random.default_rng(0)
    graphs = {one: made_edges(draw, num_rows, degree) for one, degree in degrees.items()}
    names = [QUERIES, ADS, *dict.fromkeys(anchor_table(one.anchor_set) for one in degrees)]
    return TrainingData(
        np.arange(num_rows),
        made_edges(draw, num_rows, clicks),
        graphs,
        {one: [edges] for one, edges in graphs.items()},
        {name: made_texts(draw, num_rows) for name in names},
    )


def made_edges(draw: np.random.Generator, num_rows: int, degree: int) -> Csr:
    """Make ``degree`` edges of each row to as many columns."""
    columns = np.sort(draw.integers(0, num_rows, (num_rows, degree), np.int32), axis=1)
    return Csr(np.arange(num_rows + 1) * degree, columns.reshape(-1))


def made_texts(draw: np.random.Generator, count: int) -> TokenTable:
    """Make texts of 3 to 12 tokens."""
    offsets = np.concatenate([[0], np.cumsum(draw.integers(3, 13, count))])
    token_ids = draw.integers(5, VOCABULARY, offsets[-1]).astype(np.uint16)
    return TokenTable(token_ids, offsets, hash_texts(token_ids, offsets))


def _steps(run: Run, steps: int) -> dict[str, float]:
    """Time ``steps`` steps after two untimed ones, and count the encoder's operations."""
    state, device = run.state, run.state.model.device
    list(train_steps(state, run.sampler, run.objective, state.step + WARMUP_STEPS, use_bf16=True))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    watched = Watched(run.clock)
    _wait(device)
    run.clock.ms(steps)
    started = time.perf_counter()
    with patch.object(step_module, "step_inputs", watched):
        stop = state.step + steps
        list(train_steps(state, run.sampler, run.objective, stop, use_bf16=True))
    _wait(device)
    seconds = time.perf_counter() - started
    encoder = state.model.encoder
    embeddings = sum(p.numel() for n, p in encoder.named_parameters() if "embeddings" in n)
    weights = sum(p.numel() for p in encoder.parameters()) - embeddings
    config = encoder.backbone.config
    attention = 12 * config.num_hidden_layers * config.hidden_size * watched.squares
    figures = {
        "ms_per_step": 1000 * seconds / steps,
        **run.clock.ms(steps),
        "tokens_per_s": watched.tokens / seconds,
        "texts_per_step": watched.texts / steps,
        "flops_per_s": (6 * weights * watched.tokens + attention) / seconds,
    }
    if device.type == "cuda":
        figures["peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return figures


def _profiled(run: Run) -> str:
    """Return a table of the operations in which some steps spend most time."""
    with profile() as profiled:  # of the device too, if there is one
        _steps(run, PROFILED_STEPS)
    device = "device" if run.state.model.device.type == "cuda" else "cpu"
    table = profiled.key_averages().table(sort_by=f"self_{device}_time_total", row_limit=25)
    return str(table)


def _matmul(size: int, device: torch.device) -> dict[str, float]:
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    _wait(device)
    started = time.perf_counter()
    for _ in range(PRODUCTS):
        left @ right
    _wait(device)
    return {"flops_per_s": PRODUCTS * 2 * size**3 / (time.perf_counter() - started)}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
