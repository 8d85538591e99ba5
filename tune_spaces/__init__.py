"""Search spaces for jobs/tune.py: functions that draw a trial's settings.

A space is a function that draws settings one after the other, by the dotted keys that are flags of
jobs/train.py; a setting that does nothing beside those drawn before it is left out. So what others
depend on is drawn first.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ramen_ray.config import WITHOUT_GRAPH
from ramen_ray.presets import used_sets

if TYPE_CHECKING:
    from ramen_ray.orchestration.tune.draws import Draw


def regularization(draw: "Draw") -> None:
    """The graph: λ of each anchor set and side, adaptive or fixed, the walk, and the margin.

    Each set and side may be left out. An adaptive λ has the preset's highest value, a fixed one is
    drawn from a thirtieth to three times that.
    """
    for key, highest in draw.lambdas.items():
        draw.changes[key] = highest if draw.option(f"{key} in use") else 0.0
    if used_sets(draw.config):
        draw.choice("regularization.adaptive", [True, False])
        draw.choice("walk.enabled", [False, True])
        draw.choice("walk.restart_probability", [0.5, 0.6, 0.7, 0.8, 0.9])
        if not draw.config.regularization.adaptive:
            for key, highest in draw.lambdas.items():
                if draw.changes[key]:
                    draw.number(key, highest / 30, highest * 3, log=True)
    else:
        draw.changes |= WITHOUT_GRAPH
    draw.number("loss.margin", 0.1, 0.5)


def optimizer(draw: "Draw") -> None:
    """Learning rates around the configured ones, weight decay and warm-up.

    The token embeddings have their own rate if the configuration has one, as rare words are seen in
    few steps.
    """
    settings = draw.config.optimizer
    draw.number("optimizer.lr", settings.lr / 5, settings.lr * 5, log=True)
    draw.choice("optimizer.weight_decay", [0.0, 0.01, 0.1])
    draw.number("optimizer.warmup_fraction", 0.0, 0.2)
    if settings.embedding_lr is not None:
        rate = settings.embedding_lr
        draw.number("optimizer.embedding_lr", rate / 5, rate * 5, log=True)


def mining(draw: "Draw") -> None:
    """The margin, how many negatives of a row count, and hard negatives if the base draws any."""
    draw.number("loss.margin", 0.1, 0.5)
    draw.choice("loss.num_negatives", [1, 3, 10, 30])
    draw.choice("loss.softmax_weighting", [False, True])
    draw.choice("base.num_hard_negatives", [1, 2, 5])
    draw.choice("base.shortlist_size", [20, 50, 100])


def encoder(draw: "Draw") -> None:
    """Text length and learning rate, and for transformers also layers and pooling."""
    length = draw.config.encoder.max_length
    rate = draw.config.optimizer.lr
    draw.choice("encoder.max_length", sorted({max(length // 2, 4), length}))
    draw.number("optimizer.lr", rate / 5, rate * 5, log=True)
    draw.choice("encoder.num_layers", [1, 2, 3])
    draw.choice("encoder.pooling", ["mean", "cls"])


def unidec(draw: "Draw") -> None:
    """Learning rates, temperatures, shares, how many ads are drawn; and the graph."""
    rate = draw.config.optimizer.lr
    draw.number("optimizer.lr", rate / 4, rate * 4, log=True)
    draw.choice("base.num_positives", [1, 2, 3])
    draw.choice("base.num_hard_negatives", [1, 3, 6, 10])
    draw.number("loss.temperature", 0.02, 0.2, log=True)
    draw.choice("loss.reverse_share", [0.0, 0.5])
    draw.number("classifier.share", 0.2, 0.8)
    draw.number("classifier.temperature", 0.05, 1.0, log=True)
    draw.number("classifier.lr", 1e-3, 1e-1, log=True)
    draw.number("classifier.weight", 0.1, 2.0, log=True)
    draw.number("classifier.text_scale", 0.3, 1.0)
    regularization(draw)


def recipe(draw: "Draw") -> None:
    """What another encoder may need: rates, epochs, temperature, and how classifiers answer."""
    settings = draw.config.optimizer
    for name, rate in {"lr": settings.lr, "embedding_lr": settings.embedding_lr}.items():
        if rate is not None:
            draw.number(f"optimizer.{name}", rate / 3, rate * 3, log=True)
    epochs = draw.config.training.epochs
    draw.choice("training.epochs", [epochs, 2 * epochs])
    draw.number("loss.temperature", 0.02, 0.2, log=True)
    draw.number("classifier.lr", 3e-3, 1e-1, log=True)
    draw.number("classifier.weight", 0.1, 2.0, log=True)
    draw.number("classifier.text_scale", 0.3, 1.0)


_FUNCTIONS: list[Callable[["Draw"], None]] = [
    *(regularization, optimizer, mining, encoder, unidec, recipe)
]
SPACES = {space.__name__: space for space in _FUNCTIONS}
