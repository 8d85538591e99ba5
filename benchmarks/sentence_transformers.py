"""Training throughput of the project's step against sentence-transformers' own trainer.

Both sides train all-MiniLM-L6-v2 (all six layers, fp32, at most 32 tokens, 2 CPU threads, fused
AdamW) on the same batches of 256 query-ad pairs: ours by `train_steps` with the triplet loss
and no graph, theirs by `SentenceTransformerTrainer` with `MultipleNegativesRankingLoss` and with
saving, evaluation, logging and gradient clipping off. Rounds alternate; the first steps of each
round are not timed. `ratio` is our queries per second over theirs on foldoc; the figures for debian
(longer texts) are printed too, and so are the tokens that each side encodes, which explain it.
`--precision bf16` puts both sides under bf16 autocast instead.

    python -m benchmarks.sentence_transformers [--rounds 3] [--steps 6] [--no-debian]
"""

import argparse
import tempfile
import time
from dataclasses import dataclass, field
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

from benchmarks.common import NUM_THREADS, ROOT, alternate, finish, medians, prepared
from datasets import Dataset as Pairs
from ramen_ray.config import EncoderConfig
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.model.packing import packed
from ramen_ray.method.model.pretrained import resolve_pretrained
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import Objective, task_term
from ramen_ray.method.sampling.batches import Batch, DrawState, Sampler
from ramen_ray.method.sampling.step_inputs import BatchTexts, gather_tokens
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.optimization import build_optimizer, build_schedule
from ramen_ray.method.training.step import TrainState, train_steps
from ramen_ray.orchestration.run.build import build_encoder
from ramen_ray.presets import MINILM

BATCH_SIZE = 256
WARMUP_STEPS = 2
LEARNING_RATE = 1e-4
ENCODER = EncoderConfig(pretrained=MINILM, max_length=32)
OBJECTIVE = Objective((task_term(TripletLoss(0.3, 10)),))
SOURCES = DrawState(graphs={})


def main() -> None:
    """Measure foldoc, then debian."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6, help="timed steps of a round")
    parser.add_argument("--no-debian", action="store_true")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    disable_progress_bar()
    use_bf16 = options.precision == "bf16"
    figures = {"foldoc": compare("foldoc", options.rounds, options.steps, use_bf16)}
    if not options.no_debian:
        steps = max(options.steps // 2, 1)
        figures["debian"] = compare("debian", options.rounds, steps, use_bf16)
    finish(figures["foldoc"]["ratio"], {"precision": options.precision, **figures})


def compare(name: str, rounds: int, steps: int, use_bf16: bool) -> dict[str, float]:
    """Measure both sides on one dataset."""
    dataset = Dataset(ROOT / "datasets" / name)
    found = prepared(str(dataset.path), ENCODER)
    sampler = Sampler(TrainingData.from_prepared(found, []), BATCH_SIZE, seed=0)
    pairs = same_pairs(dataset, sampler, WARMUP_STEPS + steps)
    print(f"{name}: {len(pairs)} pairs in {WARMUP_STEPS + steps} steps, {steps} of them timed")
    results = alternate(
        rounds,
        {
            "ours": lambda: run_ours(sampler, found.occurring_tokens, steps, use_bf16),
            "theirs": lambda: run_theirs(pairs, use_bf16),
        },
    )
    ours, theirs = medians(results["ours"]), medians(results["theirs"])
    return {
        "ratio": ours["queries_per_s"] / theirs["queries_per_s"],
        **{f"ours_{key}": value for key, value in ours.items()},
        **{f"theirs_{key}": value for key, value in theirs.items()},
        "token_ratio": theirs["tokens_per_step"] / ours["tokens_per_step"],
    }


def same_pairs(dataset: Dataset, sampler: Sampler, steps: int) -> Pairs:
    """Return the texts of the query-ad pairs that our first ``steps`` steps draw, in order."""
    batches = [draw(sampler, step) for step in range(steps)]
    query_ids = sampler.data.query_ids[np.concatenate([batch.queries for batch in batches])]
    ad_ids = np.concatenate([batch.ads[:, 0] for batch in batches])
    queries = dataset.read("queries/train").sort_by("query_id")["text"].to_pylist()
    ads = dataset.read("ads").sort_by("ad_id")["text"].to_pylist()
    columns = {"query": [queries[q] for q in query_ids], "ad": [ads[ad] for ad in ad_ids]}
    return Pairs.from_dict(columns)


def draw(sampler: Sampler, step: int) -> Batch:
    """Return what a step of ours draws."""
    return sampler.draw(step, SOURCES, [])


def run_ours(sampler: Sampler, tokens: Int64s, steps: int, use_bf16: bool) -> dict[str, float]:
    """Train one round with the project's step, as runs do: on the dataset's ``tokens`` only."""
    model, stop = DualEncoder(build_encoder(ENCODER)), WARMUP_STEPS + steps
    keep_tokens(model.encoder, tokens)
    optimizer = build_optimizer(model.encoder, LEARNING_RATE, weight_decay=0.0)
    state = TrainState(model, optimizer, build_schedule(optimizer, 0, stop), SOURCES)
    ends = []
    for _ in train_steps(state, sampler, OBJECTIVE, stop, use_bf16=use_bf16):
        ends.append(time.perf_counter())
    real, encoded, texts = np.mean([count_ours(sampler, step) for step in range(stop)], axis=0)
    return _figures(ends, real, encoded, texts)


def count_ours(sampler: Sampler, step: int) -> tuple[int, int, int]:
    """Count a step's tokens, the same with padding, and texts."""
    tables = sampler.data.tables
    texts = BatchTexts.from_batch(draw(sampler, step), tables)
    batch = gather_tokens(texts.tables, texts.rows, list(tables.values()))
    return len(batch.token_ids), sum(pack.token_ids.size for pack in packed(batch)), len(texts.rows)


def run_theirs(pairs: Pairs, use_bf16: bool) -> dict[str, float]:
    """Train one round with sentence-transformers."""
    model = SentenceTransformer(resolve_pretrained(ENCODER.pretrained), device="cpu")
    model.max_seq_length = ENCODER.max_length
    clock = StepClock()
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
    return _figures(clock.ends, real, encoded, 2.0 * BATCH_SIZE)


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


@dataclass
class StepClock(TrainerCallback):
    """Records when the steps of sentence-transformers end."""

    ends: list[float] = field(default_factory=list)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Note the time."""
        self.ends.append(time.perf_counter())


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
