"""A checkpoint: the model as it is deployed, and the rest of the training state."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ramen_ray.errors import UserError
from ramen_ray.method.model.dual_encoder import CLASSIFIER_FOLDER, DualEncoder
from ramen_ray.method.training.classifier_training import ClassifierTraining
from ramen_ray.method.training.step import TrainState

STATE_FILE, CURRICULUM_FILE = "state.pt", "curriculum.pt"
MOMENTS_FOLDER, BANK_MOMENTS_FOLDER = "classifier_moments", "bank_moments"


class CheckpointError(UserError):
    """A folder is not a checkpoint, or is not one of this run."""


def save_checkpoint(
    folder: Path, model: DualEncoder, state: TrainState, max_length: int, progress: dict[str, Any]
) -> None:
    """Write model, training state and ``progress`` (plain values) into ``folder``.

    Classifiers are left to :func:`save_classifiers`, as several workers can hold them.
    All draws are functions of the seed and the step, so no state of random generators is needed.
    Graphs and shortlists are not saved: ``progress`` says which ones were in use.
    """
    model.save(folder, max_length)
    bank = state.augmentation.bank if state.augmentation else None
    if bank is not None:
        bank.save(folder / BANK_MOMENTS_FOLDER)
    content = {
        "optimizer": state.optimizer.state_dict(),
        "schedule": state.schedule.state_dict(),
        "step": state.step,
        "adaptive": state.adaptive.state_dict() if state.adaptive else None,
        "classifiers": state.classifiers.state_dict() if state.classifiers else None,
        "bank": bank.state_dict() if bank else None,
        "progress": progress,
    }
    torch.save(content, folder / STATE_FILE)
    if state.curriculum is not None:
        torch.save(state.curriculum.state_dict(), folder / CURRICULUM_FILE)


def save_classifiers(folder: Path, training: ClassifierTraining) -> None:
    """Write the classifiers that this worker holds, and their moments, into ``folder``."""
    training.classifiers.save(folder / CLASSIFIER_FOLDER)
    training.save(folder / MOMENTS_FOLDER)


def restore_checkpoint(folder: Path, state: TrainState) -> dict[str, Any]:
    """Restore optimiser, schedule, step, weights and order; the model is loaded before.

    Returns:
        The ``progress`` that was given to :func:`save_checkpoint`.

    Raises:
        CheckpointError: the folder has no training state.
    """
    content = _read(folder / STATE_FILE)
    state.optimizer.load_state_dict(content["optimizer"])
    state.schedule.load_state_dict(content["schedule"])
    state.step = content["step"]
    if state.adaptive is not None:
        state.adaptive.load_state_dict(content["adaptive"])
    if state.classifiers is not None:
        state.classifiers.restore(folder / MOMENTS_FOLDER, content["classifiers"])
    if state.augmentation is not None and state.augmentation.bank is not None:
        state.augmentation.bank.restore(folder / BANK_MOMENTS_FOLDER, content["bank"])
    if state.curriculum is not None:
        state.curriculum.load_state_dict(_read(folder / CURRICULUM_FILE))
        state.sources = replace(state.sources, clusters=state.curriculum.clusters)
    progress: dict[str, Any] = content["progress"]
    return progress


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(f"{file.parent} is not a checkpoint: it has no {file.name}")
    content: dict[str, Any] = torch.load(file, weights_only=True, map_location="cpu")
    return content
