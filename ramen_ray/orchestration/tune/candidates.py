"""What a search for the best tries: bases, earlier runs, and then what is near the best of them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramen_ray.bases import BaseName
from ramen_ray.config import WITHOUT_GRAPH, EncoderConfig, RunConfig, overlay, with_absolute_paths
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import UserError
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    RUNS,
    VALIDATION_ADS_FILE,
    RunDirectory,
    deciding_settings,
    read_run_config,
)
from ramen_ray.orchestration.run.identity import identity_of
from ramen_ray.orchestration.tune.settings import RecommendConfig
from ramen_ray.presets import PRESETS, changes_to_only, lambdas, used_sets, with_base

BASES: tuple[tuple[BaseName, float], ...] = (
    ("unidec", 1.0),
    ("in_batch", 0.5),
    ("in_batch", 1.0),
    ("depsl", 1.0),
)
"""Bases, and shares of the recipe's epochs: one of these was the best on each of eight data sets
(docs/evidence/regret.csv), the first on most."""
SHORTER = "half-the-epochs"
LONGER = "twice-the-epochs"
FACTORS = {"third": 1 / 3, "triple": 3.0}


def start_of(settings: RecommendConfig, encoder: str, dataset: str) -> RunConfig:
    """Return an encoder's preset on a dataset, with the settings of a search."""
    given = settings.model_dump(include={"seed", "output", "name", "experiment", "workers"})
    decides = {"training.selection_metric": "R@10"}
    return with_absolute_paths(overlay(PRESETS[encoder](dataset), {**given, **decides}))


def bases(start: RunConfig, encoder: str) -> dict[str, RunConfig]:
    """Return each base with and without the graph, if there is one, by a name of the encoder."""
    candidates = {}
    for base, share in BASES:
        config = with_base(start, {"base.kind": base})
        epochs = round(share * start.training.epochs)
        whole = overlay(config, {"training.epochs": epochs})
        shorter = f"-{SHORTER}" if share < 1 else ""
        if used_sets(start):
            candidates[f"{encoder}-{base}-graph{shorter}"] = whole
        candidates[f"{encoder}-{base}{shorter}"] = overlay(whole, WITHOUT_GRAPH)
    return candidates


def near(name: str, known: Mapping[str, RunConfig]) -> dict[str, RunConfig]:
    """Return what is near one of the ``known`` candidates, and not known.

    That is more epochs, other learning rates, single anchor sets, other highest λ.
    """
    best = known[name]
    sets = used_sets(best)
    changes: dict[str, dict[str, Any]] = {}
    for word, factor in FACTORS.items():
        changes[f"{word}-rate"] = {"optimizer.lr": _scaled(best.optimizer.lr, factor)}
        if best.base.parts.heads == "classifier":
            changes[f"{word}-classifier-rate"] = {
                "classifier.lr": _scaled(best.classifier.lr, factor)
            }
    for only in sets if len(sets) > 1 else ():
        changes[f"only-{only}"] = changes_to_only(best, only)
    for word, factor in FACTORS.items() if sets else ():
        changes[f"{word}-lambda"] = {
            f"regularization.{side}": {
                name: _scaled(most, factor) for name, most in of_side.items()
            }
            for side, of_side in lambdas(best).items()
        }
    candidates = {}
    for longer in (name, f"{name}-graph"):  # a graph has to earn its weight first
        if longer in known and LONGER not in name:
            twice = {"training.epochs": 2 * best.training.epochs}
            candidates[f"{longer}-{LONGER}"] = overlay(known[longer], twice)
    candidates |= {f"{name}-{what}": overlay(best, change) for what, change in changes.items()}
    taken = {settings_of(config) for config in known.values()}
    return {name: config for name, config in candidates.items() if settings_of(config) not in taken}


def earlier_runs(start: RunConfig, dataset: Dataset) -> Iterator[RunConfig]:
    """Yield the configurations of finished runs that compare with ``start``, with their names.

    They were made from the same ``dataset`` and software, with the same encoder and seed, and
    selected by the same metric.
    """
    for file in sorted((Path(start.output) / RUNS).glob(f"*/{CONFIG_FILE}")):
        directory = RunDirectory(file.parent)
        if not (directory.path / VALIDATION_ADS_FILE).is_file():
            continue
        with suppress(UserError):  # damaged, or of an earlier version
            config = read_run_config(file)
            is_same = directory.notes.get("made_from") == identity_of(config, dataset)
            if directory.is_finished and is_same and _compared(config) == _compared(start):
                here = {"name": directory.name, "dataset": start.dataset, "workers": start.workers}
                yield overlay(config, here)


def _compared(config: RunConfig) -> tuple[EncoderConfig, int, str]:
    return config.encoder, config.seed, config.training.selection_metric


def settings_of(config: RunConfig) -> str:
    """Return all that determines the result of a run, besides the data, as one string."""
    return json.dumps(deciding_settings(config), sort_keys=True)


def _scaled(value: float, factor: float) -> float:
    """Return the product to three digits, as a command shows it."""
    return float(f"{value * factor:.3g}")
