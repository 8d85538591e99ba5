"""Settings that act only beside others: one that is given where it does nothing is an error."""

from collections.abc import Iterable

from ramen_ray.config import ConfigError, RunConfig
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.presets import used_sets

GRAPH_ADVICE = "give an anchor set a weight, --regularization.lambda-z.SET 0.3"
JUDGED_ADVICE = "import judgements of train queries with jobs/ingest.py tables --judged"


def advice_on_idle(config: RunConfig, key: str) -> str | None:
    """Say what would make a setting act, by its dotted key; None if it does, as far as is known."""
    parts = config.base.parts
    has_graph = bool(used_sets(config))
    is_adaptive = config.regularization.adaptive
    walks = config.walk.enabled
    prunes = config.pruning.mode != "never"
    has_softmax = parts.loss != "triplet"
    has_shortlists = parts.hard_negatives == "shortlists"
    is_clustered = parts.order != "random"
    # whether settings act, the beginnings of their keys, and what makes them act
    conditions: list[tuple[bool, tuple[str, ...], str]] = [
        (has_graph, ("regularization.nodes", "regularization.every_steps"), GRAPH_ADVICE),
        (has_graph or not is_adaptive, ("regularization.adaptive",), GRAPH_ADVICE),
        (has_graph or not walks, ("walk.",), GRAPH_ADVICE),
        (has_graph or not prunes, ("pruning.",), GRAPH_ADVICE),
        (is_adaptive, ("regularization.adaptive_step",), "set --regularization.adaptive"),
        (
            walks,
            ("walk.num_hops", "walk.restart", "walk.max_anchor", "walk.top_k"),
            "set --walk.enabled",
        ),
        (
            prunes,
            ("pruning.prune_threshold", "pruning.warmup_epochs", "pruning.every_epochs"),
            "set --pruning.mode",
        ),
        (
            has_graph or not has_softmax,
            ("loss.margin", "loss.num_negatives", "loss.softmax_weighting"),
            f"set --base.loss triplet, or {GRAPH_ADVICE}",
        ),
        (has_softmax, ("loss.temperature", "loss.reverse_share"), "set --base.loss decoupled"),
        (parts.heads == "classifier", ("classifier.",), "set --base.heads classifier"),
        (
            has_softmax or config.classifier.bce > 0,
            ("classifier.temperature",),
            "set --base.loss decoupled",
        ),
        (
            has_shortlists,
            (
                *("base.refresh_mode", "base.num_hard_negatives", "base.shortlist_size"),
                "classifier.own_hard_negatives",
            ),
            "set --base.hard-negatives shortlists",
        ),
        (
            has_shortlists or is_clustered,
            ("base.refresh_every",),
            "set --base.hard-negatives shortlists, or --base.order",
        ),
        (is_clustered, ("base.first_clustered_epoch",), "set --base.order clustered"),
        (
            parts.order == "clustered",
            ("base.cluster_size", "base.double_cluster_size_at"),
            "set --base.order clustered",
        ),
        (
            config.encoder.kind == "transformer",
            ("encoder.num_layers", "encoder.pooling", "encoder.compile"),
            "set --encoder.kind transformer",
        ),
        (config.workers.use_gpu, ("workers.gpus_per_worker",), "set --workers.use-gpu"),
    ]
    for acts, keys, advice in conditions:
        if key.startswith(keys) and not acts:
            return advice
    if key.startswith("judged.") and not Dataset(config.dataset).has("judged/train"):
        return JUDGED_ADVICE
    return None


def refuse_idle(config: RunConfig, given: Iterable[str]) -> None:
    """Raise a ConfigError if one of the ``given`` settings, by dotted key, does nothing."""
    for key in given:
        if (advice := advice_on_idle(config, key)) is not None:
            raise ConfigError(f"{key} does nothing with the other settings; {advice}, or leave it")
