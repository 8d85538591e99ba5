"""The variants of an ablation: bases, the whole method, and the method without each part."""

from dataclasses import dataclass
from typing import Any

from ramen_ray.bases import BaseName
from ramen_ray.config import WITHOUT_GRAPH, ConfigError, Positive, RunConfig, Section, overlay
from ramen_ray.presets import lambdas, used_sets, with_base


class AblationConfig(Section):
    """What to compare."""

    seeds: Positive = 3
    """Number of seeds for each variant, counted up from the configuration's seed."""
    bases: tuple[BaseName, ...] = ()
    """Bases that are compared, and that the graph is added to; with the first one, parts are also
    removed one by one. If none is named: the configuration's own, and unidec (or in_batch, if its
    own is unidec)."""


@dataclass(frozen=True)
class Variant:
    """One row of the comparison; the first base is compared with itself.

    If ``propagated``, it trains on clicks propagated over the graph (AugGT).
    """

    base: str
    config: RunConfig
    propagated: bool = False


def variants_of(config: RunConfig, bases: tuple[BaseName, ...] = ()) -> dict[str, Variant]:
    """Return the variants of ``config`` by name: those of the paper's Tables 6 and 8, and more.

    Each base has the constants of its loss. Only parts that ``config`` uses are removed: without
    pruning there is no ``no-pruning``.

    Raises:
        ConfigError: ``config`` uses no graph.
    """
    if not used_sets(config):
        raise ConfigError("all of regularization.lambda_x and lambda_z are 0: no graph is used")
    bases = bases or tuple(dict.fromkeys((config.base.kind, "unidec", "in_batch")))[:2]
    first: str = bases[0]
    variants: dict[str, Variant] = {}
    for base in bases:
        own = with_base(config, {"base.kind": base})
        variants[base] = Variant(first, overlay(own, WITHOUT_GRAPH))
        variants[f"{base}-ramen"] = Variant(base, own)
    whole = variants[f"{first}-ramen"].config
    for part, changes in _parts(whole).items():
        variants[f"{first}-ramen-{part}"] = Variant(first, overlay(whole, changes))
    variants[f"{first}-auggt"] = Variant(first, variants[first].config, propagated=True)
    return variants


def _parts(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return the changes that remove a part of the method, or keep only one anchor set."""
    sides, is_adaptive = lambdas(config), config.regularization.adaptive
    parts: dict[str, dict[str, Any]] = {}
    if config.pruning.mode != "never":
        parts["no-pruning"] = {"pruning.mode": "never"}
    if config.walk.enabled:
        parts["no-walk"] = {"walk.enabled": False}
    if all(sides.values()):
        parts["no-query-graph"] = {"regularization.lambda_x": {}}
        parts["no-ad-graph"] = {"regularization.lambda_z": {}}
    name = "fixed-lambda" if is_adaptive else "adaptive-lambda"
    parts[name] = {"regularization.adaptive": not is_adaptive}
    names = used_sets(config)
    for one in names if len(names) > 1 else ():
        parts[f"only-{one}"] = {
            f"regularization.{side}": {one: weights[one]} if one in weights else {}
            for side, weights in sides.items()
        }
    return parts
