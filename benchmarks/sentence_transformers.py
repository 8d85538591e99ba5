"""Training throughput of the project's step against sentence-transformers' own trainer.

Both sides train all-MiniLM-L6-v2 (all six layers, fp32, at most 32 tokens, 2 CPU threads, fused
AdamW) on the same batches of 256 query-ad pairs: ours by `train_steps` with the triplet loss and no
graph, theirs by `SentenceTransformerTrainer` with `MultipleNegativesRankingLoss`. `ratio` is our
queries per second over theirs on the last set. `--precision bf16` has both under bf16 autocast.

    python -m benchmarks.sentence_transformers [--rounds 3] [--steps 6] [--sets debian foldoc]
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets.utils.logging import disable_progress_bar
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback

from benchmarks.common import NUM_THREADS, ROOT, alternate, finish, medians, options, prepared
from benchmarks.in_process import Run, begin
from benchmarks.peers.rivals import Corpus
from benchmarks.peers.trainer import MAX_LENGTH, minilm, quiet_arguments
from datasets import Dataset as Pairs
from ramen_ray import presets
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.training.step import train_steps

BATCH_SIZE, WARMUP_STEPS, LEARNING_RATE = 256, 2, 1e-4
OURS = {
    **WITHOUT_GRAPH,
    "base.kind": "in_batch",
    "encoder.num_layers": None,
    "encoder.max_length": MAX_LENGTH,
    "optimizer.lr": LEARNING_RATE,
    "optimizer.embedding_lr": None,
    "optimizer.weight_decay": 0.0,
    "training.global_batch_size": BATCH_SIZE,
}


def main() -> None:
    asked = options(__doc__, rounds=3, steps=6, sets=["debian", "foldoc"], precision="fp32")
    torch.set_num_threads(NUM_THREADS)
    disable_progress_bar()
    use_bf16 = asked.precision == "bf16"
    figures = {name: compare(name, asked.rounds, asked.steps, use_bf16) for name in asked.sets}
    finish(figures[asked.sets[-1]]["ratio"], {"precision": asked.precision, **figures})


def compare(name: str, rounds: int, steps: int, use_bf16: bool) -> dict[str, float]:
    folder = ROOT / "datasets" / name
    config = overlay(presets.minilm("foldoc"), {**OURS, "dataset": str(folder)})
    data = prepared(config.dataset, config.encoder)
    pairs = same_pairs(folder, begin(config, data), WARMUP_STEPS + steps)
    sides = {
        "ours": lambda: run_ours(config, data, steps, use_bf16),
        "theirs": lambda: run_theirs(pairs, use_bf16),
    }
    found = {side: medians(rows) for side, rows in alternate(rounds, sides).items()}
    rates = {f"{side}_queries_per_s": row["queries_per_s"] for side, row in found.items()}
    return {"ratio": rates["ours_queries_per_s"] / rates["theirs_queries_per_s"], **rates}


def same_pairs(dataset: Path, run: Run, steps: int) -> Pairs:
    """Return the texts of the query-ad pairs that our first ``steps`` steps draw, in order."""
    corpus = Corpus.read(dataset)
    batches = [run.sampler.draw(step, run.state.sources, []) for step in range(steps)]
    query_ids = run.sampler.data.query_ids[np.concatenate([batch.queries for batch in batches])]
    ad_ids = np.concatenate([batch.ads[:, 0] for batch in batches])
    queries = [corpus.queries["train"][row] for row in query_ids]
    return Pairs.from_dict({"query": queries, "ad": [corpus.ads[ad] for ad in ad_ids]})


def run_ours(config: RunConfig, data: Prepared, steps: int, use_bf16: bool) -> dict[str, float]:
    """Train one round with the project's step, as runs do: on the dataset's tokens only."""
    run, stop, ends = begin(config, data), WARMUP_STEPS + steps, []
    for _ in train_steps(run.state, run.sampler, run.objective, stop, use_bf16=use_bf16):
        ends.append(time.perf_counter())
    return _rate(ends)


def run_theirs(pairs: Pairs, use_bf16: bool) -> dict[str, float]:
    model, ends = minilm(), list[float]()
    clock = TrainerCallback()
    clock.on_step_end = lambda *_, **__: ends.append(time.perf_counter())
    with tempfile.TemporaryDirectory() as folder:
        arguments = quiet_arguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=BATCH_SIZE,
            dataloader_drop_last=True,
            batch_sampler=_in_order,
            learning_rate=LEARNING_RATE,
            optim="adamw_torch_fused",
            max_grad_norm=0.0,
            bf16=use_bf16,
        )
        loss = MultipleNegativesRankingLoss(model)
        SentenceTransformerTrainer(model, arguments, pairs, loss=loss, callbacks=[clock]).train()
    return _rate(ends)


def _in_order(dataset: Pairs, batch_size: int, drop_last: bool, **_: Any) -> DefaultBatchSampler:
    return DefaultBatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def _rate(ends: list[float]) -> dict[str, float]:
    """Return queries per second, of the steps after the first."""
    seconds = ends[-1] - ends[WARMUP_STEPS - 1]
    return {"queries_per_s": BATCH_SIZE * (len(ends) - WARMUP_STEPS) / seconds}


if __name__ == "__main__":
    main()
