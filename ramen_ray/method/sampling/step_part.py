"""A part of the step: what extends it, without a line of the step; a run has a list of them."""

from pathlib import Path
from typing import Any

from torch import Tensor

from ramen_ray.method.sampling.batches import DrawState
from ramen_ray.method.sampling.encoded import EncodedBatch
from ramen_ray.method.sampling.step_inputs import StepInputs


class StepPart:
    """A part that does nothing; others override what they need."""

    name: str  # of its state in checkpoints
    is_shared: bool = False  # whether each worker saves a share, and not the first worker all

    def prepare(self, inputs: StepInputs) -> StepInputs:
        """Return a step's inputs with what this part needs of them; a thread may call it."""
        return inputs

    def before(self, encoded: EncodedBatch) -> EncodedBatch:
        """Return the batch with what the losses need."""
        return encoded

    def weigh(self, weights: Tensor, encoded: EncodedBatch) -> Tensor:
        """Return the weights (terms,) of a step's losses, known by now, instead of ``weights``."""
        return weights

    def after(self, encoded: EncodedBatch) -> None:
        """Act on a batch by which the model has been updated."""

    def advance(self, step: int, draws: DrawState) -> DrawState:
        """Prepare for ``step`` and those after it; returns what their batches are drawn from.

        Every worker calls this before the first step, and before each checkpoint is written.
        """
        return draws

    def save(self, folder: Path) -> Any:
        """Return plain values and tensors for a checkpoint, and write what is large into it."""

    def restore(self, folder: Path, content: Any, draws: DrawState) -> DrawState:
        """Restore what :meth:`save` returned and wrote; returns what batches are drawn from."""
        return draws
