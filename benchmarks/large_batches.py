"""Memory and time of a step of MiniLM by the size of its batch, whole and in parts.

An encoder of MiniLM's sizes with random weights, steps in batch with two anchor sets, generated
texts of 3 to 12 tokens. Each row is a fresh process; on a CPU its memory is what the process grew
by, on a GPU what torch took. `ratio` is the time in parts over the time of the whole, of the
largest batch that was done both ways.

    python -m benchmarks.large_batches [--batches 512 1024 4096] [--whole 1024: no larger one]
        [--texts-at-once 512] [--layers 6] [--steps 2] [--device cpu]
"""

import resource
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from transformers import BertConfig, BertModel, BertTokenizer

from benchmarks.common import finish, in_fresh_process, options
from benchmarks.gpu_step import NUM_TEXTS, VOCABULARY, made_data
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import TransformerEncoder
from ramen_ray.method.objectives.losses import SoftmaxLoss
from ramen_ray.method.objectives.terms import ramen_objective
from ramen_ray.method.sampling.batches import Sampler, SamplingSources
from ramen_ray.method.training.state import TrainState, build_optimizer, build_schedule
from ramen_ray.method.training.step import train_steps

MINILM = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12}
WEIGHTS = dict.fromkeys(("links", "categories"), 0.1)


def main() -> None:
    asked = options(
        __doc__,
        batches=[512, 1024, 4096],
        whole=1024,
        texts_at_once=512,
        layers=6,
        steps=2,
        device="cpu",
    )
    figures: dict[str, Any] = {}
    ratio = 1.0
    for batch in asked.batches:
        measure = partial(in_fresh_process, measured, asked.device, asked.layers, asked.steps)
        parts = figures[f"{batch} in parts"] = measure(batch, asked.texts_at_once)
        print(f"{batch} in parts: {parts}", flush=True)
        if batch <= asked.whole:
            whole = figures[f"{batch} whole"] = measure(batch, None)
            print(f"{batch} whole: {whole}", flush=True)
            ratio = parts["s_per_step"] / whole["s_per_step"]
    finish(ratio, figures)


def measured(
    device_name: str, layers: int, steps: int, batch: int, texts_at_once: int | None
) -> dict[str, float]:
    """Train some steps after a first one, whose time counts if it is the only one."""
    device = torch.device(device_name)
    is_gpu = device.type == "cuda"
    backbone = BertModel(BertConfig(vocab_size=VOCABULARY, num_hidden_layers=layers, **MINILM))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    model = DualEncoder(TransformerEncoder(backbone, tokenizer)).to(device)
    model.texts_at_once = texts_at_once
    objective = replace(
        ramen_objective(SoftmaxLoss(0.05), WEIGHTS, WEIGHTS), is_frugal=texts_at_once is not None
    )
    data = made_data(NUM_TEXTS, 3, dict.fromkeys(objective.regularizers, 3))
    optimizer = build_optimizer(model.encoder, 2e-4, 0.01)
    schedule = build_schedule(optimizer, warmup_steps=10, total_steps=10_000)
    state = TrainState(model, optimizer, schedule, SamplingSources(data.graphs))
    sampler = Sampler(data, batch, seed=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = 0.0
    for stop in (1, 1 + steps) if steps else (1,):
        started, first = time.perf_counter(), state.step
        for losses in train_steps(state, sampler, objective, stop, use_bf16=is_gpu):
            last = losses
        float(last.sum())  # a GPU has done the steps then
        seconds = (time.perf_counter() - started) / (stop - first)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    peak_mb = torch.cuda.max_memory_allocated() / 1e6 if is_gpu else grown_kb / 1e3
    return {"s_per_step": seconds, "peak_mb": peak_mb}


if __name__ == "__main__":
    main()
