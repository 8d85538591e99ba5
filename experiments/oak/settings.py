"""The settings of OAK."""

from typing import Annotated

from pydantic import Field

from experiments.oak.augmentation import Pooling
from ramen_ray.config import NotNegative, Positive, Section


class OakSettings(Section):
    """What OAK adds to a run: queries are enriched by their anchors (docs/evidence/oak.md)."""

    anchor_sets: tuple[str, ...]
    """Anchor sets that queries are enriched by."""
    max_links: Positive = 15
    """Most of a query's edges that a step uses, drawn anew each time."""
    links_at_test: Positive = 3
    """Anchors that the linker gives a validation or test query."""
    encoder_weight: NotNegative = 1.0
    """Weight of the task with queries that are not enriched; with them it is 1."""
    calibration_weight: NotNegative = 0.1
    """Weight of the calibration: enriched scores beat the others for the right ads only."""
    calibration_margin: NotNegative = 0.05
    """Margin of the calibration."""
    bank_lr: NotNegative = 0.02
    """Peak learning rate of the anchors' vectors, which get Adam row by row; 0 keeps them as they
    start, at the embeddings of the anchors' texts."""
    pooling: Pooling = "attention"
    """How the vectors of a query's anchors become one."""
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the attention's weights that are dropped in training."""
