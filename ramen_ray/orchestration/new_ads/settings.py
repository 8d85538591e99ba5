"""The settings of a combiner's training, and IRENE's two variants of it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ramen_ray.config import Fraction, NotNegative, Positive, PositiveFloat, Section, WorkersConfig

if TYPE_CHECKING:
    from ramen_ray.method.new_ads.representation import CombinerKind

VariantName = Literal["draft", "release"]


@dataclass(frozen=True)
class IreneVariant:
    """What IRENE's draft and its released code do differently."""

    kind: "CombinerKind"
    # cross-entropy with frozen classifiers, or a hinge that trains them too
    loss: Literal["bce", "triplet"]
    # in training, of all seen ads or of those that share a train query
    neighbours_by: Literal["text", "clicks"]
    # a classifier that scores a new ad's text above it chooses the ad; None takes the nearest
    threshold: float | None
    classifier_epochs: int
    has_clusters: bool  # whether the combiner's batches are clusters of queries


VARIANTS: dict[VariantName, IreneVariant] = {
    "draft": IreneVariant("attention", "triplet", "clicks", 0.2, 0, True),
    "release": IreneVariant("transformer", "bce", "text", None, 20, False),
}


class ClassifiersConfig(Section):
    """The classifiers of the seen ads: free vectors, trained on the frozen encoder's embeddings."""

    lr: PositiveFloat = 1e-3
    """Peak learning rate, which falls linearly."""
    epochs: Annotated[int, Field(ge=0)] | None = None
    """Epochs before the combiner's training. None takes the variant's, or 0 if the run has
    classifiers; the draft trains both at once."""
    margin: NotNegative = 0.2
    """Margin of their hinge."""
    hard_negatives: Positive = 4
    """How many ads count as a query's hard negatives: the nearest of those not clicked for it."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of a query's dimensions that are dropped in training."""
    min_clicks: Positive = 1
    """Ads with fewer train clicks have no classifier, and are never neighbours."""


class CombinerConfig(Section):
    """The combiner, and the neighbours that it is given."""

    neighbours: Positive = 3
    """Most neighbours of an ad."""
    shortlist: Positive = 200
    """How many of the nearest ads by text classifiers choose from, if they choose."""
    heads: Positive = 4
    """Heads of the attention; must divide the encoder's width."""
    lr: PositiveFloat = 2e-4
    """Peak learning rate, after a linear rise, before a linear fall."""
    warmup_fraction: Fraction = 0.1
    """Share of the steps over which it rises."""
    margin: NotNegative = 0.3
    """Margin of the combined vectors' hinge (triplet)."""
    classifier_margin: NotNegative = 0.1
    """Margin of the classifiers' hinge (triplet)."""
    epochs: Positive = 40
    """Passes over the train queries."""
    batch_size: Positive = 256
    """Queries of a step, over all workers."""


class CombineSettings(Section):
    """Train a combiner on a finished run, and log a retriever that uses it for new ads."""

    run: str
    """The run: its folder, or the URI of its retriever (models:/...)."""
    variant: VariantName = "release"
    """As in IRENE's draft, or as in its released code."""
    output: Path = Path("outputs")
    """Folder of the runs and, unless MLFLOW_TRACKING_URI is set, of the MLflow store."""
    combiner: CombinerConfig = CombinerConfig()
    classifiers: ClassifiersConfig = ClassifiersConfig()
    workers: WorkersConfig = WorkersConfig()
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of every random draw."""
    allow_changed: bool = False
    """Go on with what another version of ramen_ray or its libraries has begun."""

    def chosen_variant(self, has_classifiers: bool = False) -> IreneVariant:
        """Return the variant, with the epochs that are set; a run's own classifiers need none."""
        variant = VARIANTS[self.variant]
        epochs = self.classifiers.epochs
        if epochs is None:
            epochs = 0 if has_classifiers else variant.classifier_epochs
        return replace(variant, classifier_epochs=epochs)
