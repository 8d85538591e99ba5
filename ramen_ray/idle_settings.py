"""Settings that act only beside others: one that is given where it does nothing is an error."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ramen_ray.config import ConfigError, RunConfig
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.presets import used_sets


class Condition(NamedTuple):
    """When settings act, which begin with some dotted keys, and what makes them act."""

    keys: tuple[str, ...]
    holds: Callable[[RunConfig], bool]
    advice: str


def _has_graph(config: RunConfig) -> bool:
    return bool(used_sets(config))


def _has_triplets(config: RunConfig) -> bool:
    return config.base.parts.loss == "triplet" or _has_graph(config)


def _has_softmax(config: RunConfig) -> bool:
    return config.base.parts.loss != "triplet"


def _has_shortlists(config: RunConfig) -> bool:
    return config.base.parts.hard_negatives == "shortlists"


def _is_clustered(config: RunConfig) -> bool:
    return config.base.parts.order != "random"


def _has_judgements(config: RunConfig) -> bool:
    return Dataset(config.dataset).has("judged/train")


GRAPH_ADVICE = "give an anchor set a weight, --regularization.lambda-z.SET 0.3"
CONDITIONS = (
    Condition(("regularization.nodes", "regularization.every_steps"), _has_graph, GRAPH_ADVICE),
    Condition(
        ("regularization.adaptive",),
        lambda config: _has_graph(config) or not config.regularization.adaptive,
        GRAPH_ADVICE,
    ),
    Condition(
        ("walk.",), lambda config: _has_graph(config) or not config.walk.enabled, GRAPH_ADVICE
    ),
    Condition(
        ("pruning.",),
        lambda config: _has_graph(config) or config.pruning.mode == "never",
        GRAPH_ADVICE,
    ),
    Condition(
        ("regularization.adaptive_step",),
        lambda config: config.regularization.adaptive,
        "set --regularization.adaptive",
    ),
    Condition(
        tuple(f"walk.{name}" for name in ("num_hops", "restart", "max_anchor", "top_k")),
        lambda config: config.walk.enabled,
        "set --walk.enabled",
    ),
    Condition(
        ("pruning.prune_threshold", "pruning.warmup_epochs", "pruning.every_epochs"),
        lambda config: config.pruning.mode != "never",
        "set --pruning.mode",
    ),
    Condition(
        ("loss.margin", "loss.num_negatives", "loss.softmax_weighting"),
        _has_triplets,
        f"set --base.loss triplet, or {GRAPH_ADVICE}",
    ),
    Condition(
        ("loss.temperature", "loss.reverse_share"), _has_softmax, "set --base.loss decoupled"
    ),
    Condition(
        ("classifier.",),
        lambda config: config.base.parts.heads == "classifier",
        "set --base.heads classifier",
    ),
    Condition(
        ("classifier.temperature",),
        lambda config: _has_softmax(config) or config.classifier.bce > 0,
        "set --base.loss decoupled",
    ),
    Condition(
        (
            *("base.refresh_mode", "base.num_hard_negatives", "base.shortlist_size"),
            "classifier.own_hard_negatives",
        ),
        _has_shortlists,
        "set --base.hard-negatives shortlists",
    ),
    Condition(
        ("base.refresh_every",),
        lambda config: _has_shortlists(config) or _is_clustered(config),
        "set --base.hard-negatives shortlists, or --base.order",
    ),
    Condition(
        ("judged.",),
        _has_judgements,
        "import judgements of train queries with jobs/ingest.py tables --judged",
    ),
    Condition(("base.first_clustered_epoch",), _is_clustered, "set --base.order clustered"),
    Condition(
        ("base.cluster_size", "base.double_cluster_size_at"),
        lambda config: config.base.parts.order == "clustered",
        "set --base.order clustered",
    ),
    Condition(
        ("encoder.num_layers", "encoder.pooling", "encoder.compile"),
        lambda config: config.encoder.kind == "transformer",
        "set --encoder.kind transformer",
    ),
    Condition(
        ("workers.gpus_per_worker",), lambda config: config.workers.use_gpu, "set --workers.use-gpu"
    ),
)


def advice_on_idle(config: RunConfig, key: str) -> str | None:
    """Say what would make a setting act, by its dotted key; None if it does, as far as is known."""
    for condition in CONDITIONS:
        if key.startswith(condition.keys) and not condition.holds(config):
            return condition.advice
    return None


def refuse_idle(config: RunConfig, given: Iterable[str]) -> None:
    """Raise a ConfigError if one of the ``given`` settings, by dotted key, does nothing."""
    for key in given:
        if (advice := advice_on_idle(config, key)) is not None:
            raise ConfigError(f"{key} does nothing with the other settings; {advice}, or leave it")
