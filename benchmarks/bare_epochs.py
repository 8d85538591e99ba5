"""The hand-written side of `epoch_overhead`: a plain PyTorch loop over batches in memory.

It imports neither Ray nor MLflow. The token ids, positions and positive masks of every step are in
memory before the clock starts. Draws, pools, model, loss and optimiser are the project's, so that
both sides do the same steps and end at the same losses.
"""

import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from benchmarks.in_process import Run, begin
from ramen_ray.config import RunConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.objectives.losses import Loss, TripletLoss
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.step_inputs import StepInputs

CPU = torch.device("cpu")


class Comparison(NamedTuple):
    """What a term compares: rows and all candidates among the distinct texts, positives."""

    rows: Tensor
    candidates: Tensor
    positives: Tensor
    is_positive: Tensor
    share: float  # the term's weight over its rows


Step = tuple[TokenBatch, list[Comparison]]
"""A step's distinct texts, and what its terms compare."""


def train(prepared: Path, config: RunConfig) -> tuple[float, list[float]]:
    """Return the seconds of all steps, and the loss of each."""
    torch.set_num_threads(config.workers.cpus_per_worker)
    torch.set_float32_matmul_precision("high")
    run = begin(config, Prepared(prepared))
    steps = [
        build_step(run, step)
        for step in range(run.sampler.steps_per_epoch * config.training.epochs)
    ]
    loss, state = TripletLoss(config.loss.margin, config.loss.num_negatives), run.state
    losses = []
    started = time.perf_counter()
    for step in steps:
        total = step_loss(run.model, step, loss)
        state.optimizer.zero_grad(set_to_none=True)
        total.backward()
        state.optimizer.step()
        state.schedule.step()
        losses.append(total.detach())
    values = torch.stack(losses).tolist()
    return time.perf_counter() - started, values


def build_step(run: Run, step: int) -> Step:
    """Draw a step and turn everything it needs into tensors."""
    data = run.sampler.data
    drawn = run.sampler.draw(step, run.state.draws, run.objective.regularizers)
    inputs = StepInputs.from_local(data, drawn, CPU)
    encoded = EncodedBatch(inputs, torch.empty(0))
    comparisons = []
    for term in run.objective.terms:
        compared, count = inputs.task, len(inputs.batch.queries)
        if term.regularizer is not None:
            compared = inputs.regularizers[term.regularizer]
            count = len(inputs.batch.anchors[term.regularizer].nodes)
        is_positive, share = encoded.is_positive(compared), term.weight / count
        comparisons.append(
            Comparison(compared.rows, compared.candidates, compared.drawn, is_positive, share)
        )
    return inputs.tokens, comparisons


def step_loss(model: DualEncoder, step: Step, loss: Loss) -> Tensor:
    """Encode the texts; return the weighted sum of the terms."""
    texts, comparisons = step
    embeddings_UD = model(texts)
    total = embeddings_UD.new_zeros(())
    for rows, candidates, positives, is_positive, share in comparisons:
        similarity = embedding(rows, embeddings_UD) @ embedding(candidates, embeddings_UD).T
        total = total + share * loss(similarity, positives, is_positive).sum()
    return total
