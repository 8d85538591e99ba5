"""The settings of sweeps, ablations and searches, to be parsed before libraries are loaded."""

from typing import Annotated, Literal

from pydantic import Field

from ramen_ray.bases import BaseName
from ramen_ray.config import (
    DEFAULT_EXPERIMENT,
    DatasetPath,
    Name,
    Positive,
    PositiveFloat,
    Section,
    WorkersConfig,
)

SWEEPS = "sweeps"
OF_ONE_CALL = {"num_samples", "finalists", "time_budget", "at_once", "from_sweep"}
"""Settings that may change from one call of a sweep to the next."""
FURTHER_SEEDS = 2  # of finalists
ABLATIONS = "ablations"
SEARCHES = "recommendations"
WORKERS = WorkersConfig(cpus_per_worker=1)  # of a search, unless others are set
MINUTES_FOR_A_LAYER = 60  # of a transformer, whose trainings take minutes

Encoder = Literal["bag", "minilm", "minilm-6"]


class SweepConfig(Section):
    """How to sweep."""

    space: str = "regularization"
    """The search space: a function of tune_spaces/."""
    num_samples: Positive = 16
    """Number of trials, with those of earlier calls. The first takes the configuration's own
    values, if the space has them."""
    finalists: Annotated[int, Field(ge=0)] = 3
    """After more than as many trials the best of them, and the configuration's own settings, are
    trained again with two further seeds, which decide: 8 more trainings for 3. 0 for none."""
    from_sweep: Name | None = None
    """Another sweep in the same output, such as last week's: its trials show where to search."""
    search: Literal["tpe", "random"] = "tpe"
    """Optuna's tree of Parzen estimators, or random values."""
    stop_early: bool = True
    """Stop trials that lag behind the others after the same number of epochs (ASHA)."""
    grace_epochs: Positive = 2
    """Epochs that every trial gets before it may be stopped."""
    time_budget: PositiveFloat | None = None
    """Seconds for trials in this call; the next one goes on."""
    at_once: Positive | None = None
    """Trials that train at once; None for as many as there is room for, also on machines that join,
    or, of trials with several workers each, as there was room for when the call began."""


class AblationConfig(Section):
    """What to compare."""

    seeds: Positive = 3
    """Number of seeds for each variant, counted up from the configuration's seed."""
    bases: tuple[BaseName, ...] = ()
    """Bases that are compared, and that the graph is added to; with the first one, parts are also
    removed one by one. If none is named: the configuration's own, and unidec (or in_batch, if its
    own is unidec)."""


class RecommendConfig(Section):
    """What to look for, and for how long."""

    dataset: DatasetPath
    """The dataset directory; or rdocs, foldoc or debian, which are built in."""
    minutes: PositiveFloat = 10.0
    """Minutes to train candidates; what is found by then counts."""
    encoders: tuple[Encoder, ...] | None = None
    """Presets whose encoders are compared. None takes the bag, in an hour or more also minilm, and
    on GPUs minilm-6."""
    max_queries: Positive = 20_000
    """Train queries that candidates are trained on. Of more, these are a sample of queries that
    share ads, with their clicks and edges."""
    seed: int = 0
    """Seed of every run, and of the sample."""
    output: str = "outputs"
    """Folder of prepared data, runs, and the MLflow store."""
    name: Name | None = None
    """Name of the search; None makes one from its settings. The same command resumes it."""
    experiment: Name = DEFAULT_EXPERIMENT
    """MLflow experiment."""
    workers: WorkersConfig = WORKERS
    """The workers of a run; as many runs train at once as there is room for."""

    @property
    def compared(self) -> tuple[Encoder, ...]:
        """The presets whose encoders are compared."""
        if self.encoders is not None:
            return self.encoders
        if self.workers.use_gpu:
            return "bag", "minilm-6"
        return ("bag", "minilm") if self.minutes >= MINUTES_FOR_A_LAYER else ("bag",)
