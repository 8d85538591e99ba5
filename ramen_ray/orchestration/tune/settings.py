"""The settings of sweeps and ablations, to be parsed before libraries are loaded."""

from typing import Literal

from ramen_ray.bases import BaseName
from ramen_ray.config import Positive, PositiveFloat, Section


class SweepConfig(Section):
    """How to sweep."""

    space: str = "regularization"
    """The search space: a function of tune_spaces/."""
    num_samples: Positive = 16
    """Number of trials. The first takes the configuration's own values, if the space has them."""
    search: Literal["tpe", "random", "grid"] = "tpe"
    """Optuna's tree of Parzen estimators; random values; or three values of every setting, in all
    combinations, whatever num_samples is."""
    stop_early: bool = True
    """Stop trials that lag behind the others after the same number of epochs (ASHA)."""
    grace_epochs: Positive = 2
    """Epochs that every trial gets before it may be stopped."""
    time_budget: PositiveFloat | None = None
    """Seconds after which the sweep ends."""
    at_once: Positive | None = None
    """Trials that train at once; None for as many as the current machines have room for, so set it
    if an autoscaler adds more."""


class AblationConfig(Section):
    """What to compare."""

    seeds: Positive = 3
    """Number of seeds for each variant, counted up from the configuration's seed."""
    bases: tuple[BaseName, ...] = ()
    """Bases that are compared, and that the graph is added to; with the first one, parts are also
    removed one by one. If none is named: the configuration's own, and unidec (or in_batch, if its
    own is unidec)."""
