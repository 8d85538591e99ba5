"""Training throughput of the project's step against sentence-transformers' own trainer.

Both sides train all-MiniLM-L6-v2 (all six layers, fp32, at most 32 tokens, 2 CPU threads, fused
AdamW) on the same batches of 256 query-ad pairs: ours by `train_steps` with the triplet loss and no
graph, theirs by `SentenceTransformerTrainer` with `MultipleNegativesRankingLoss` and with saving,
evaluation, logging and gradient clipping off. Rounds alternate; the first steps of each round are
not timed. `ratio` is our queries per second over theirs on the last set; debian has longer texts.
The tokens that each side encodes explain it. `--precision bf16` has both sides under bf16 autocast.

    python -m benchmarks.sentence_transformers [--rounds 3] [--steps 6] [--sets debian foldoc]
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets.utils.logging import disable_progress_bar
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch.utils.data import SequentialSampler
from transformers import TrainerCallback

from benchmarks.common import NUM_THREADS, ROOT, alternate, finish, medians, options, prepared
from benchmarks.in_process import Run, begin
from datasets import Dataset as Pairs
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.packing import packed
from ramen_ray.method.model.pretrained import resolve_pretrained
from ramen_ray.method.sampling.batches import Batch
from ramen_ray.method.sampling.step_inputs import BatchTexts, gather_tokens
from ramen_ray.method.training.step import train_steps
from ramen_ray.presets import MINILM, minilm

BATCH_SIZE, WARMUP_STEPS, LEARNING_RATE = 256, 2, 1e-4
OURS = {
    **WITHOUT_GRAPH,
    "base.kind": "in_batch",
    "encoder.num_layers": None,
    "encoder.max_length": 32,
    "optimizer.lr": LEARNING_RATE,
    "optimizer.embedding_lr": None,
    "optimizer.weight_decay": 0.0,
    "training.global_batch_size": BATCH_SIZE,
}


def main() -> None:
    """Measure one dataset after another."""
    asked = options(__doc__, rounds=3, steps=6, sets=["debian", "foldoc"], precision="fp32")
    torch.set_num_threads(NUM_THREADS)
    disable_progress_bar()
    use_bf16 = asked.precision == "bf16"
    figures = {name: compare(name, asked.rounds, asked.steps, use_bf16) for name in asked.sets}
    finish(figures[asked.sets[-1]]["ratio"], {"precision": asked.precision, **figures})


def compare(name: str, rounds: int, steps: int, use_bf16: bool) -> dict[str, float]:
    """Measure both sides on one dataset."""
    dataset = Dataset(ROOT / "datasets" / name)
    config = overlay(minilm("foldoc"), {**OURS, "dataset": str(dataset.path)})
    data = prepared(config.dataset, config.encoder)
    pairs = same_pairs(dataset, begin(config, data), WARMUP_STEPS + steps)
    print(f"{name}: {len(pairs)} pairs in {WARMUP_STEPS + steps} steps, {steps} of them timed")
    sides = {
        "ours": lambda: run_ours(config, data, steps, use_bf16),
        "theirs": lambda: run_theirs(pairs, use_bf16),
    }
    found = {side: medians(rows) for side, rows in alternate(rounds, sides).items()}
    ours, theirs = found["ours"], found["theirs"]
    return {
        "ratio": ours["queries_per_s"] / theirs["queries_per_s"],
        **{f"{side}_{key}": value for side, row in found.items() for key, value in row.items()},
        "token_ratio": theirs["tokens_per_step"] / ours["tokens_per_step"],
    }


def same_pairs(dataset: Dataset, run: Run, steps: int) -> Pairs:
    """Return the texts of the query-ad pairs that our first ``steps`` steps draw, in order."""
    batches = [draw(run, step) for step in range(steps)]
    query_ids = run.sampler.data.query_ids[np.concatenate([batch.queries for batch in batches])]
    ad_ids = np.concatenate([batch.ads[:, 0] for batch in batches])
    queries = dataset.read("queries/train").sort_by("query_id")["text"].to_pylist()
    ads = dataset.read("ads").sort_by("ad_id")["text"].to_pylist()
    columns = {"query": [queries[q] for q in query_ids], "ad": [ads[ad] for ad in ad_ids]}
    return Pairs.from_dict(columns)


def draw(run: Run, step: int) -> Batch:
    """Return what a step of ours draws."""
    return run.sampler.draw(step, run.state.draws, [])


def run_ours(config: RunConfig, data: Prepared, steps: int, use_bf16: bool) -> dict[str, float]:
    """Train one round with the project's step, as runs do: on the dataset's tokens only."""
    run, stop, ends = begin(config, data), WARMUP_STEPS + steps, []
    for _ in train_steps(run.state, run.sampler, run.objective, stop, use_bf16=use_bf16):
        ends.append(time.perf_counter())
    real, encoded, texts = np.mean([count_ours(run, step) for step in range(stop)], axis=0)
    return _figures(ends, real, encoded, texts)


def count_ours(run: Run, step: int) -> tuple[int, int, int]:
    """Count a step's tokens, the same with padding, and texts."""
    tables = run.sampler.data.tables
    texts = BatchTexts.from_batch(draw(run, step), tables)
    batch = gather_tokens(texts.tables, texts.rows, list(tables.values()))
    return len(batch.token_ids), sum(pack.token_ids.size for pack in packed(batch)), len(texts.rows)


def run_theirs(pairs: Pairs, use_bf16: bool) -> dict[str, float]:
    """Train one round with sentence-transformers."""
    model = SentenceTransformer(resolve_pretrained(MINILM), device="cpu")
    model.max_seq_length = OURS["encoder.max_length"]
    ends: list[float] = []
    clock = TrainerCallback()
    clock.on_step_end = lambda *_, **__: ends.append(time.perf_counter())
    with tempfile.TemporaryDirectory() as folder:
        trainer = SentenceTransformerTrainer(
            model=model,
            args=_their_arguments(folder, use_bf16),
            train_dataset=pairs,
            loss=MultipleNegativesRankingLoss(model),
            callbacks=[clock],
        )
        trainer.train()
    steps = range(0, len(pairs), BATCH_SIZE)
    batches = [
        trainer.data_collator(pairs.select(range(s, s + BATCH_SIZE)).to_list()) for s in steps
    ]
    real, encoded = np.mean([count_theirs(batch) for batch in batches], axis=0)
    return _figures(ends, real, encoded, 2.0 * BATCH_SIZE)


def _their_arguments(folder: str, use_bf16: bool) -> SentenceTransformerTrainingArguments:
    return SentenceTransformerTrainingArguments(
        output_dir=str(Path(folder) / "theirs"),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH_SIZE,
        dataloader_drop_last=True,
        batch_sampler=_in_order,
        learning_rate=LEARNING_RATE,
        optim="adamw_torch_fused",
        max_grad_norm=0.0,
        use_cpu=True,
        bf16=use_bf16,
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _in_order(dataset: Pairs, batch_size: int, drop_last: bool, **_: Any) -> DefaultBatchSampler:
    return DefaultBatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def count_theirs(batch: dict[str, Any]) -> tuple[int, int]:
    """Count a collated batch's tokens, and the same with padding."""
    masks = [value for name, value in batch.items() if name.endswith("attention_mask")]
    return sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)


def _figures(ends: list[float], real: float, encoded: float, texts: float) -> dict[str, float]:
    seconds = (ends[-1] - ends[WARMUP_STEPS - 1]) / (len(ends) - WARMUP_STEPS)
    return {
        "queries_per_s": BATCH_SIZE / seconds,
        "seconds_per_step": seconds,
        "texts_per_step": float(texts),
        "tokens_per_step": float(encoded),
        "padding_share": float(1 - real / encoded),
    }


if __name__ == "__main__":
    main()
