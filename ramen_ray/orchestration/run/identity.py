"""What a run is made from besides its settings: the content of its data and encoder, the code."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ramen_ray
from ramen_ray.config import RunConfig
from ramen_ray.data.store.checksums import content_digest
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import CLASSIFIER_FOLDER
from ramen_ray.method.model.pretrained import content_of
from ramen_ray.orchestration.run.directory import (
    Identity,
    RunError,
    differences,
)

CHANGE_NUMBERS = ("torch", "transformers")
"""Libraries whose other versions compute other numbers."""
SETTINGS = {"dataset": "dataset", "encoder": "encoder.pretrained"}
"""The setting that says where each part is that has no version."""


def identity_of(config: RunConfig, dataset: Dataset) -> Identity:
    """Return what a run is made from; take it before any of that is read.

    Raises:
        EncoderError: there is no such encoder.
    """
    parts = {"dataset": dataset.fingerprint, "encoder": content_of(config.encoder.pretrained)}
    classifiers = Path(config.encoder.pretrained).parent / CLASSIFIER_FOLDER
    if config.base.parts.heads == "classifier" and classifiers.is_dir():
        parts["classifiers"] = content_of(str(classifiers))
    return {**parts, **software()}


def software() -> Identity:
    """Return the versions of the project with its source, and of libraries, whatever their build.

    Builds such as those for GPUs belong to the machine, which is no part of a run.
    """
    versions = {name: version(name).partition("+")[0] for name in CHANGE_NUMBERS}
    return {"ramen_ray": f"{ramen_ray.__version__}, source {_source_digest()}", **versions}


def check_meanwhile(expected: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that what has been used is what was expected, or a later run's what an earlier one's.

    Args:
        expected: what a run is made from, or a part of it, when it or the first of several began.
        now: what has been used, or will be.

    Raises:
        RunError: something has changed meanwhile.
    """
    changed = differences(expected, {key: now.get(key) for key in expected})
    if changed:
        raise RunError(
            f"what is trained on has changed meanwhile: {changed}; put it back, and run the same "
            f"command again"
        )


@cache
def _source_digest() -> str:
    root = Path(ramen_ray.__file__).parent
    files = sorted((file.relative_to(root).as_posix(), file) for file in root.rglob("*.py"))
    return content_digest(files)
