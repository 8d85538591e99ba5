"""One training step: draw, encode the distinct texts once, triplet terms, optimiser.

Shapes: b local rows, U distinct texts, D width of an embedding, L candidates of a pool.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.objectives.adaptation import Adaptation, total_gains
from ramen_ray.method.objectives.losses import triplet_loss
from ramen_ray.method.sampling.batches import Batches, Pool
from ramen_ray.method.sampling.distinct import distinct_texts, encode_distinct
from ramen_ray.method.sampling.draws import Regularizer
from ramen_ray.method.training.devices import to_device
from ramen_ray.method.training.distributed import gather_rows, sum_over_workers, world


@dataclass(frozen=True)
class Objective:
    """The triplet objective's constants; λ per anchor set, 0 where a set is absent.

    Of ``every_steps`` steps only the first draws anchors, and its regularisers count that many
    times: what is optimised stays the same on average, for a part of the texts to encode.
    """

    margin: float
    num_negatives: int
    softmax_weighting: bool
    lambda_x: Mapping[str, float]
    lambda_z: Mapping[str, float]
    every_steps: int = 1

    def draws_anchors(self, step: int) -> bool:
        """Tell whether a step is one with anchors."""
        return step % self.every_steps == 0

    @property
    def regularizers(self) -> dict[Regularizer, float]:
        """The regularisers whose weight is not 0, by anchor set, and their weights.

        What has no weight is no part of a run: it is neither drawn nor encoded.
        """
        weights: dict[Regularizer, float] = {}
        for anchor_set in sorted({*self.lambda_x, *self.lambda_z}):
            weights[Regularizer(anchor_set, "query")] = self.lambda_x.get(anchor_set, 0.0)
            weights[Regularizer(anchor_set, "ad")] = self.lambda_z.get(anchor_set, 0.0)
        return {regularizer: weight for regularizer, weight in weights.items() if weight}

    @property
    def terms(self) -> list[str]:
        """Names of the loss terms in the order that :func:`step_losses` gives them."""
        return ["task", *(regularizer.term for regularizer in self.regularizers)]

    @property
    def weights(self) -> list[float]:
        """The terms' weights: 1 for the task, then the regularisers'."""
        return [1.0, *self.regularizers.values()]


def step_losses(
    encoder: nn.Module,
    batches: Batches,
    step: int,
    objective: Objective,
    use_bf16: bool = False,
    adaptation: Adaptation | None = None,
) -> Tensor:
    """Return this worker's share of a step's loss terms (terms,) in ``objective.terms``' order.

    Each term is a sum over this worker's rows divided by the global batch size, so that the sum
    over the workers is the mean over the global batch, whatever their number. The regularisers'
    terms are 0 in steps without anchors, and ``objective.every_steps`` times that mean in others.
    An ``adaptation`` sees how the terms agree.
    """
    device = next(encoder.parameters()).device
    with_anchors = objective.draws_anchors(step)
    local = batches.draw(step, with_anchors)
    draws = gather_rows(local, device)
    texts = distinct_texts(draws, batches.tables)
    embeddings_UD = encode_distinct(encoder, texts, batches.tables, device, use_bf16)
    if batches.seen is not None:
        queries = to_device(texts.position[:, 0], device)
        kept = embeddings_UD.detach()[queries].to(batches.seen.dtype)
        batches.seen[to_device(draws[:, 0], device)] = kept
    start = world()[0] * len(local)
    here = texts.position[start : start + len(local)]

    def term(row_column: int, drawn_column: int, pool: Pool, truths: Iterable[Csr]) -> Tensor:
        if not len(pool.ids):
            return embeddings_UD.new_zeros(())
        rows_bD = embeddings_UD[to_device(here[:, row_column], device)]
        pool_LD = embeddings_UD[to_device(pool.positions, device)]
        losses = triplet_loss(
            rows_bD @ pool_LD.T,
            to_device(pool.find(local[:, drawn_column]), device),
            to_device(pool.is_positive(truths, local[:, row_column]), device),
            objective.margin,
            objective.num_negatives,
            objective.softmax_weighting,
        )
        return losses.sum() / batches.batch_size

    ads = Pool.of(draws, texts.position, [1, *batches.hard_columns])
    terms = [term(0, 1, ads, [batches.clicks])]
    for column, (regularizer, truths) in enumerate(batches.truths.items(), start=2):
        columns = batches.anchor_columns(regularizer.anchor_set)
        pool = Pool.of(draws, texts.position, columns)
        mean = term(regularizer.node_column, column, pool, truths)
        terms.append(objective.every_steps * mean)
    if adaptation is not None and with_anchors:
        mine = slice(start, start + len(local))
        gains = total_gains(embeddings_UD.detach(), batches, draws, texts.position, mine)
        adaptation.observe(objective.every_steps * gains)
    return torch.stack(terms)


@dataclass
class TrainState:
    """What a run changes as it goes; ``step`` is also the position of every random draw.

    Without an ``adaptation`` the terms' weights stay the objective's.
    """

    encoder: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    step: int = 0
    adaptation: Adaptation | None = None


def train_steps(
    state: TrainState,
    batches: Batches,
    objective: Objective,
    stop: int,
    *,
    use_bf16: bool = False,
    max_gradient_norm: float | None = None,
) -> Iterator[Tensor]:
    """Train from ``state.step`` up to step ``stop``, yielding each step's (terms,) of this worker.

    The yielded losses stay on the device and are not waited for.
    """
    adaptation = state.adaptation
    device = next(state.encoder.parameters()).device
    num_workers = world()[1]
    weights = torch.tensor(objective.weights, device=device)
    while state.step < stop:
        terms = step_losses(state.encoder, batches, state.step, objective, use_bf16, adaptation)
        if adaptation is not None:
            weights = adaptation.weights
        loss = (terms * weights).sum() * num_workers  # DDP averages gradients over the workers
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(state.encoder.parameters(), max_gradient_norm)
        state.optimizer.step()
        state.schedule.step()
        state.step += 1
        yield terms.detach()


def global_losses(steps: list[Tensor]) -> NDArray[np.float32]:
    """Turn the workers' shares of several steps' terms into their global values (steps, terms)."""
    return sum_over_workers(torch.stack(steps)).float().cpu().numpy()
