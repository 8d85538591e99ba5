"""The hand-written side of `epoch_overhead`: a plain PyTorch loop over batches in memory.

It imports neither Ray nor MLflow; several processes train with DDP on gloo. The token ids,
positions and positive masks of every step are in memory before the clock starts. Draws, pools,
model, loss and optimiser are the project's, so that both sides do the same steps and end at the
same losses.

    python -m benchmarks.bare_epochs PREPARED_FOLDER CONFIG_FILE [RANK STORE_FILE]

The first process prints one JSON object.
"""

import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import embedding

from benchmarks.in_process import Run, begin
from ramen_ray.config import read_config
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.distributed import gather_dealt, sum_over_workers, world
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.objectives.losses import Loss, TripletLoss
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.step_inputs import StepInputs

CPU = torch.device("cpu")


class Comparison(NamedTuple):
    """What a term compares: own rows and all candidates among the distinct texts, positives.

    The ``share`` is the term's weight over its rows in the global batch.
    """

    rows: Tensor
    candidates: Tensor
    positives: Tensor
    is_positive: Tensor
    share: float


Step = tuple[TokenBatch, int, list[Comparison]]
"""This process's share of a step's distinct texts, the number of all, what its terms compare."""


def main() -> None:
    prepared, config_file, *group = sys.argv[1:]
    config = read_config(Path(config_file))
    torch.set_num_threads(config.workers.cpus_per_worker)
    torch.set_float32_matmul_precision("high")
    if group:
        rank, store = int(group[0]), f"file://{group[1]}"
        size = config.workers.num_workers
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    rank, num_processes = world()
    run = begin(config, Prepared(Path(prepared)))
    model = nn.parallel.DistributedDataParallel(run.model) if group else run.model
    steps = [
        build_step(run, step)
        for step in range(run.sampler.steps_per_epoch * config.training.epochs)
    ]
    loss, state = TripletLoss(config.loss.margin, config.loss.num_negatives), run.state
    losses = []
    sum_over_workers(torch.zeros(1))  # so that all begin together
    started = time.perf_counter()
    for step in steps:
        own = step_loss(model, step, loss)
        state.optimizer.zero_grad(set_to_none=True)
        (own * num_processes).backward()  # DDP averages
        state.optimizer.step()
        state.schedule.step()
        losses.append(own.detach())
    total = sum_over_workers(torch.stack(losses)).tolist()
    seconds = time.perf_counter() - started
    if rank == 0:
        print(json.dumps({"seconds": seconds, "losses": total}))


def build_step(run: Run, step: int) -> Step:
    """Draw a step and turn everything it needs into tensors."""
    data = run.sampler.data
    drawn = run.sampler.draw(step, run.state.sources, run.objective.regularizers)
    inputs = StepInputs.from_local(data, drawn, run.sampler.batch_size, CPU)
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
    return inputs.tokens, len(inputs.texts.rows), comparisons


def step_loss(model: nn.Module, step: Step, loss: Loss) -> Tensor:
    """Encode the texts; return this process's part of the weighted sum of the terms."""
    texts, num_texts, comparisons = step
    embeddings_UD = gather_dealt(model(texts), num_texts)
    total = embeddings_UD.new_zeros(())
    for rows, candidates, positives, is_positive, share in comparisons:
        similarity = embedding(rows, embeddings_UD) @ embedding(candidates, embeddings_UD).T
        total = total + share * loss(similarity, positives, is_positive).sum()
    return total


if __name__ == "__main__":
    main()
