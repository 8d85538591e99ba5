"""The hand-written side of `epoch_overhead`: a plain PyTorch loop over batches held in memory.

It imports neither Ray nor MLflow. The token ids, positions and positive masks of every step are in
memory before the clock starts. Encoder, loss, optimiser and draws are the project's, so that both
sides do the same steps and end at the same losses.

    python -m benchmarks.bare_epochs PREPARED_FOLDER CONFIG_FILE    (prints one JSON object)
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ramen_ray.config import RunConfig, read_config
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.encoder import Encoder
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.objectives.losses import triplet_loss
from ramen_ray.method.sampling.batches import Batches, Pool
from ramen_ray.method.sampling.distinct import distinct_texts, gather_tokens
from ramen_ray.method.sampling.draws import Regularizer
from ramen_ray.method.training.optimization import build_optimizer, build_schedule
from ramen_ray.orchestration.training.components import build_encoder, build_objective


@dataclass
class Term:
    """One triplet term: rows and candidates among the distinct texts, positives, weight."""

    rows: Tensor
    pool: Tensor
    positive: Tensor
    is_positive: Tensor
    weight: float


@dataclass
class Step:
    """A step's distinct texts and its terms."""

    texts: TokenBatch
    terms: list[Term]


def main() -> None:
    """Build all steps, train, and print the seconds and the losses."""
    data, config = Prepared(Path(sys.argv[1])), read_config(Path(sys.argv[2]))
    torch.set_num_threads(config.workers.cpus_per_worker)
    torch.set_float32_matmul_precision("high")
    regularizers = build_objective(config).regularizers
    batches = Batches.of(data, regularizers, config.training.global_batch_size, config.seed)
    num_steps = batches.steps_per_epoch * config.training.epochs
    steps = [build_step(batches, step, regularizers) for step in range(num_steps)]
    encoder = build_encoder(config.encoder)
    rates = config.optimizer
    optimizer = build_optimizer(encoder, rates.lr, rates.weight_decay, rates.embedding_lr)
    warmup = round(rates.warmup_fraction * num_steps)
    schedule = build_schedule(optimizer, warmup, num_steps)
    losses = []
    started = time.perf_counter()
    for step in steps:
        loss = step_loss(encoder, step, config)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "losses": losses}))


def build_step(batches: Batches, step: int, weights: dict[Regularizer, float]) -> Step:
    """Draw a step and turn everything it needs into tensors."""
    drawn = batches.draw(step)
    texts = distinct_texts(drawn, batches.tables)
    tokens = gather_tokens(texts.columns, texts.rows, batches.tables)

    def term(row: int, column: int, pool: Pool, truths: list[Csr], weight: float) -> Term:
        arrays = (
            texts.position[:, row],
            pool.positions,
            pool.find(drawn[:, column]),
            pool.is_positive(truths, drawn[:, row]),
        )
        return Term(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays), weight)

    terms = [term(0, 1, Pool.of(drawn, texts.position, [1]), [batches.clicks], 1.0)]
    for column, (one, truths) in enumerate(batches.truths.items(), start=2):
        pool = Pool.of(drawn, texts.position, batches.anchor_columns(one.anchor_set))
        terms.append(term(one.node_column, column, pool, truths, weights[one]))
    return Step(tokens, terms)


def step_loss(encoder: Encoder, step: Step, config: RunConfig) -> Tensor:
    """Encode the texts; return the weighted sum of the triplet terms."""
    embeddings_UD = encoder(step.texts)
    loss = embeddings_UD.new_zeros(())
    for term in step.terms:
        similarity = embeddings_UD[term.rows] @ embeddings_UD[term.pool].T
        constants = (config.loss.margin, config.loss.num_negatives)
        losses = triplet_loss(similarity, term.positive, term.is_positive, *constants)
        loss = loss + term.weight * losses.mean()
    return loss


if __name__ == "__main__":
    main()
