"""The training step on a GPU: share of the bf16 matmul rate, waits, memory. Needs no Ray.

A DistilBERT-size encoder with random weights, batch 1024, generated texts of 3 to 12 tokens, two
anchor sets, bf16 autocast. `ratio` compares the step's useful operations (6 per token and encoder
weight, plus attention; tokens of distinct texts, no padding) per second with those of a large bf16
matrix product. Steps whose next batch is made on a thread meanwhile, steps without, and products
are measured in turns. `waited_ms_per_step` is how long a step waited for its batch.

    python -m benchmarks.gpu_step [--rounds 3] [--steps 20] [--smoke: tiny sizes, on the CPU]
"""

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import BertTokenizer, DistilBertConfig, DistilBertModel

from benchmarks.common import alternate, finish, medians, options
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.hashing import hash_texts
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import TransformerEncoder
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import ramen_objective
from ramen_ray.method.sampling.batches import DrawState, Sampler
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.sampling.training_data import ADS, QUERIES, TrainingData, anchor_table
from ramen_ray.method.training import step as step_module
from ramen_ray.method.training.optimization import build_optimizer, build_schedule
from ramen_ray.method.training.prefetching import step_inputs
from ramen_ray.method.training.step import TrainState, train_steps

NUM_TEXTS, BATCH_SIZE, VOCABULARY = 200_000, 1024, 30_000
WARMUP_STEPS = 2
WEIGHTS = dict.fromkeys(("links", "categories"), 0.1)
OBJECTIVE = ramen_objective(TripletLoss(0.3, 10), WEIGHTS, WEIGHTS)


def main() -> int:
    """Alternate steps and matrix products."""
    asked = options(__doc__, rounds=3, steps=20, smoke=False)
    if not asked.smoke and not torch.cuda.is_available():
        print("there is no GPU here; --smoke tries the code on the CPU", file=sys.stderr)
        return 2
    torch.set_float32_matmul_precision("high")  # as workers do
    device = torch.device("cpu" if asked.smoke else "cuda")
    state, sampler = _build(device, asked.smoke)
    sides = {
        "step": lambda: _steps(state, sampler, asked.steps, prefetch=True),
        "step_without_thread": lambda: _steps(state, sampler, asked.steps, prefetch=False),
        "matmul": lambda: _matmul(512 if asked.smoke else 8192, device),
    }
    found = {side: medians(rows) for side, rows in alternate(asked.rounds, sides).items()}
    finish(found["step"]["flops_per_s"] / found["matmul"]["flops_per_s"], found)
    return 0


def _build(device: torch.device, smoke: bool) -> tuple[TrainState, Sampler]:
    num_texts, batch = (2_000, 32) if smoke else (NUM_TEXTS, BATCH_SIZE)
    sizes = {"n_layers": 1, "dim": 64, "hidden_dim": 128, "n_heads": 4} if smoke else {}
    backbone = DistilBertModel(DistilBertConfig(vocab_size=VOCABULARY, **sizes))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    model = DualEncoder(TransformerEncoder(backbone, tokenizer)).to(device)
    optimizer = build_optimizer(model.encoder, 2e-4, 0.01)
    draw = np.random.default_rng(0)
    graphs = {one: _pairs(draw, num_texts) for one in OBJECTIVE.regularizers}
    names = [QUERIES, ADS, *map(anchor_table, WEIGHTS)]
    tables = {name: _texts(draw, num_texts) for name in names}
    known = {one: [edges] for one, edges in graphs.items()}
    clicks = _pairs(draw, num_texts)
    data = TrainingData(np.arange(num_texts), clicks, graphs, known, tables)
    schedule = build_schedule(optimizer, 10, 10_000)
    return TrainState(model, optimizer, schedule, DrawState(graphs)), Sampler(data, batch, seed=0)


def _pairs(draw: np.random.Generator, num_rows: int) -> Csr:
    columns = draw.integers(0, num_rows, (num_rows, 3)).reshape(-1)
    rows = np.repeat(np.arange(num_rows), 3)
    distinct = np.unique(rows * num_rows + columns)
    return Csr.from_pairs(distinct // num_rows, distinct % num_rows, num_rows)


def _texts(draw: np.random.Generator, count: int) -> TokenTable:
    offsets = np.concatenate([[0], np.cumsum(draw.integers(3, 13, count))])
    token_ids = draw.integers(5, VOCABULARY, offsets[-1]).astype(np.uint16)
    return TokenTable(token_ids, offsets, hash_texts(token_ids, offsets))


class Watched:
    """Takes the place of ``step_inputs``: counts what steps compute on, and how long they wait."""

    def __init__(self, prefetch: bool) -> None:
        """Count from zero."""
        self.make: Callable[..., Iterator[StepInputs]] = partial(step_inputs, prefetch=prefetch)
        self.waited_s, self.texts, self.tokens, self.squares = 0.0, 0, 0, 0

    def __call__(self, *arguments: Any) -> Iterator[StepInputs]:
        """Yield what ``step_inputs`` does."""
        inputs = self.make(*arguments)
        while True:
            started = time.perf_counter()
            one = next(inputs, None)
            self.waited_s += time.perf_counter() - started
            if one is None:
                return
            lengths = one.tokens.lengths
            self.texts += len(lengths)
            self.tokens += int(lengths.sum())
            self.squares += int((lengths**2).sum())
            yield one


def _steps(state: TrainState, sampler: Sampler, steps: int, prefetch: bool) -> dict[str, float]:
    """Time ``steps`` steps after two untimed ones, and count the encoder's operations."""
    device = state.model.device
    list(train_steps(state, sampler, OBJECTIVE, state.step + WARMUP_STEPS, use_bf16=True))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    watched = Watched(prefetch)
    _wait(device)
    started = time.perf_counter()
    with patch.object(step_module, "step_inputs", watched):
        list(train_steps(state, sampler, OBJECTIVE, state.step + steps, use_bf16=True))
    _wait(device)
    seconds = time.perf_counter() - started
    encoder = state.model.encoder
    embeddings = sum(p.numel() for n, p in encoder.named_parameters() if "embeddings" in n)
    weights = sum(p.numel() for p in encoder.parameters()) - embeddings
    config = encoder.backbone.config
    attention = 12 * config.num_hidden_layers * config.hidden_size * watched.squares
    figures = {
        "ms_per_step": 1000 * seconds / steps,
        "waited_ms_per_step": 1000 * watched.waited_s / steps,
        "tokens_per_s": watched.tokens / seconds,
        "texts_per_step": watched.texts / steps,
        "flops_per_s": (6 * weights * watched.tokens + attention) / seconds,
    }
    if device.type == "cuda":
        figures["peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return figures


def _matmul(size: int, device: torch.device, repeats: int = 10) -> dict[str, float]:
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    _wait(device)
    started = time.perf_counter()
    for _ in range(repeats):
        left @ right
    _wait(device)
    return {"flops_per_s": repeats * 2 * size**3 / (time.perf_counter() - started)}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
