"""The hand-written side of `epoch_overhead`: a plain PyTorch loop over batches in memory.

It imports neither Ray nor MLflow. The token ids, positions and positive masks of every step are in
memory before the clock starts. Draws, pools, model, loss and optimiser are the project's, so that
both sides do the same steps and end at the same losses.

    python -m benchmarks.bare_epochs PREPARED_FOLDER CONFIG_FILE    (prints one JSON object)
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding

from ramen_ray.config import read_config
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.objectives.losses import Loss, TripletLoss
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.sampling.batches import DrawState, Sampler
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.sampling.training_data import QUERIES, TrainingData, node_table
from ramen_ray.method.training.optimization import build_optimizer, build_schedule
from ramen_ray.orchestration.run.build import build_model, build_objective, build_sampler


@dataclass
class Comparison:
    """What a term compares: rows and candidates among the distinct texts, positives, weight."""

    rows: Tensor
    candidates: Tensor
    positives: Tensor
    is_positive: Tensor
    weight: float


@dataclass
class Step:
    """A step's distinct texts, and what its terms compare."""

    texts: TokenBatch
    comparisons: list[Comparison]


def main() -> None:
    """Build all steps, train, and print the seconds and the losses."""
    data, config = Prepared(Path(sys.argv[1])), read_config(Path(sys.argv[2]))
    torch.set_num_threads(config.workers.cpus_per_worker)
    torch.set_float32_matmul_precision("high")
    objective, model = build_objective(config), build_model(config)
    keep_tokens(model.encoder, data.occurring_tokens)
    training_data = TrainingData.from_prepared(data, objective.regularizers)
    sampler = build_sampler(config, data, training_data)
    num_steps = sampler.steps_per_epoch * config.training.epochs
    steps = [build_step(sampler, objective, step) for step in range(num_steps)]
    loss = TripletLoss(config.loss.margin, config.loss.num_negatives)
    rates = config.optimizer
    optimizer = build_optimizer(model.encoder, rates.lr, rates.weight_decay, rates.embedding_lr)
    warmup = round(rates.warmup_fraction * num_steps)
    schedule = build_schedule(optimizer, warmup, num_steps)
    losses = []
    started = time.perf_counter()
    for step in steps:
        total = step_loss(model, step, loss)
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        optimizer.step()
        schedule.step()
        losses.append(total.item())
    seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "losses": losses}))


def build_step(sampler: Sampler, objective: Objective, step: int) -> Step:
    """Draw a step and turn everything it needs into tensors."""
    batch = sampler.draw(step, DrawState(sampler.data.graphs), objective.regularizers)
    inputs = StepInputs.from_local(sampler.data, batch, torch.device("cpu"))
    # Embeddings are replaced by the texts' positions, so that "vectors" returns positions.
    places = EncodedBatch(inputs, torch.arange(len(inputs.texts.rows))[:, None])
    comparisons = []
    for term in objective.terms:
        if term.regularizer is None:
            rows, drawn, pool = (QUERIES, batch.queries), batch.ads, places.ad_pool
            is_positive = places.own_clicked_in_pool
        else:
            nodes, anchors = batch.anchors[term.regularizer]
            rows, drawn = (node_table(term.regularizer), nodes), anchors[:, None]
            pool = places.anchor_pool(term.regularizer.anchor_set)
            is_positive = places.own_linked_in_pool(term.regularizer)
        comparisons.append(
            Comparison(
                places.vectors(*rows)[:, 0],
                places.vectors(pool.table, pool.ids)[:, 0],
                places.places(pool, drawn),
                is_positive,
                term.weight,
            )
        )
    return Step(inputs.tokens, comparisons)


def step_loss(model: DualEncoder, step: Step, loss: Loss) -> Tensor:
    """Encode the texts; return the weighted sum of the terms."""
    embeddings_UD = model(step.texts)
    total = embeddings_UD.new_zeros(())
    for one in step.comparisons:
        rows, candidates = (embedding(at, embeddings_UD) for at in (one.rows, one.candidates))
        similarity = rows @ candidates.T
        total = total + one.weight * loss(similarity, one.positives, one.is_positive).mean()
    return total


if __name__ == "__main__":
    main()
