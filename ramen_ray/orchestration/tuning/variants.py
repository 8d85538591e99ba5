"""The variants of an ablation: bases, the whole method, and the method without each part."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramen_ray.bases import BASES, BaseName
from ramen_ray.config import WITHOUT_GRAPH, ConfigError, Positive, RunConfig, Section, overlay


class AblationConfig(Section):
    """What to compare."""

    seeds: Positive = 3
    """Number of seeds for each variant, counted up from the configuration's seed."""
    bases: tuple[BaseName, ...] = ("ance", "ngame")
    """Bases that the graph is added to; with the first one, parts are also removed one by one."""


@dataclass(frozen=True)
class Variant:
    """One row of the comparison.

    Attributes:
        base: name of the variant that it is compared with.
        changes: changes to the configuration, by dotted key.
        propagated: whether it trains on clicks propagated over the graph (AugGT).
    """

    base: str
    changes: Mapping[str, Any]
    propagated: bool = False


def variants_of(config: RunConfig, bases: tuple[BaseName, ...]) -> dict[str, Variant]:
    """Return the variants of ``config`` by name: those of the paper's Tables 6 and 8, and more.

    Only parts that ``config`` uses are removed: without pruning there is no ``no-pruning``.

    Raises:
        ConfigError: ``config`` uses no graph, or there is no base.
    """
    if not used_sets(config):
        raise ConfigError("all of regularization.lambda_x and lambda_z are 0: no graph is used")
    if not bases:
        raise ConfigError("bases: name at least one")
    variants: dict[str, Variant] = {}
    for base in bases:
        own = softmax_changes(config, base)
        variants[base] = Variant(base, {**own, **WITHOUT_GRAPH})
        variants[f"{base}-ramen"] = Variant(base, own)
    first: str = bases[0]
    own = softmax_changes(config, bases[0])
    for part, changes in _parts(overlay(config, own)).items():
        variants[f"{first}-ramen-{part}"] = Variant(first, {**own, **changes})
    variants[f"{first}-auggt"] = Variant(first, variants[first].changes, propagated=True)
    return variants


def softmax_changes(config: RunConfig, base: BaseName) -> dict[str, Any]:
    """Return the changes that put ``base`` in place of a base with the triplet loss.

    A softmax of cosines over 0.05 has larger gradients and a larger loss than the hinge: it needs
    half the learning rate, and ten times the λ.
    """
    changes: dict[str, Any] = {"base.kind": base}
    is_triplet = config.base.parts.loss == "triplet"
    if is_triplet and BASES[base].loss != "triplet" and config.base.loss is None:
        rates, graph = config.optimizer, config.regularization
        changes["optimizer.lr"] = rates.lr / 2
        if rates.embedding_lr is not None:
            changes["optimizer.embedding_lr"] = rates.embedding_lr / 2
        changes["regularization.adaptive_max"] = 10 * graph.adaptive_max
        for side in ("lambda_x", "lambda_z"):
            weights = getattr(graph, side)
            changes[f"regularization.{side}"] = {name: 10 * w for name, w in weights.items()}
    return changes


def used_sets(config: RunConfig) -> list[str]:
    """Return the anchor sets that have a weight in ``config``, sorted."""
    sides = config.regularization.lambda_x, config.regularization.lambda_z
    return sorted({name for side in sides for name, weight in side.items() if weight})


def _parts(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return the changes that remove a part of the method, or keep only one anchor set."""
    used = config.regularization
    sides = {"lambda_x": used.lambda_x, "lambda_z": used.lambda_z}
    parts: dict[str, dict[str, Any]] = {}
    if config.pruning.mode != "never":
        parts["no-pruning"] = {"pruning.mode": "never"}
    if config.walk.enabled:
        parts["no-walk"] = {"walk.enabled": False}
    if all(any(weights.values()) for weights in sides.values()):
        parts["no-query-graph"] = {"regularization.lambda_x": {}}
        parts["no-ad-graph"] = {"regularization.lambda_z": {}}
    parts["fixed-lambda" if used.adaptive else "adaptive-lambda"] = {
        "regularization.adaptive": not used.adaptive
    }
    names = used_sets(config)
    if len(names) > 1:
        for name in names:
            parts[f"only-{name}"] = {
                f"regularization.{side}": {one: w for one, w in weights.items() if one == name}
                for side, weights in sides.items()
            }
    return parts
