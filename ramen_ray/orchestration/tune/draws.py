"""What Tune asks: what to try next, and which trials to stop.

Only settings that act are tried, none twice, learning from earlier trials.
"""

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import optuna
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import BaseTrial, FixedTrial, TrialState, create_trial
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import Searcher

from ramen_ray.config import ConfigError, RunConfig, flatten, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.idle_settings import advice_on_idle
from ramen_ray.naming import name_like, short_hash
from ramen_ray.orchestration.run.directory import deciding_settings
from ramen_ray.orchestration.run.inputs import check_config
from ramen_ray.orchestration.run.loop import IS_LAST, SHARE_DONE
from ramen_ray.presets import highest_lambdas
from ramen_ray.reports.search_report import TrialRecord

MOST_REPEATS = 200  # draws in a row of what is known, after which a space has nothing else
MOST_CHECKED = 40
REDUCTION_FACTOR = 3
NAME = "name"  # key of what a trial is given


@dataclass
class Draw:
    """Draws a trial's settings one after the other; what does nothing beside them is not drawn."""

    start: RunConfig  # the configuration that is tuned
    lambdas: Mapping[str, float]  # the highest weight of each anchor set and side, by dotted key
    trial: BaseTrial
    changes: dict[str, Any] = field(default_factory=dict)  # of the configuration, by dotted key

    @property
    def config(self) -> RunConfig:
        """The configuration with what is drawn so far."""
        return overlay(self.start, self.changes)

    def option(self, name: str) -> bool:
        """Draw yes or no, which is no setting."""
        return bool(self.trial.suggest_categorical(name, [True, False]))

    def choice(self, key: str, choices: Sequence[Any]) -> None:
        """Draw one of several values of a setting, if it acts."""
        if self._acts(key):
            self.changes[key] = self.trial.suggest_categorical(key, choices)

    def number(self, key: str, low: float, high: float, log: bool = False) -> None:
        """Draw a setting between bounds, evenly or on a log scale, if it acts."""
        if self._acts(key):
            self.changes[key] = self.trial.suggest_float(key, low, high, log=log)

    def _acts(self, key: str) -> bool:
        return advice_on_idle(self.config, key) is None


Space = Callable[[Draw], None]


@dataclass(frozen=True)
class Drawing:
    """A space around a configuration."""

    config: RunConfig
    space: Space
    lambdas: Mapping[str, float]

    @classmethod
    def of(cls, config: RunConfig, space: Space, dataset: Dataset) -> "Drawing":
        """Draw from ``space`` with the anchor sets of ``dataset``."""
        return cls(config, space, highest_lambdas(config, dataset))

    def changes(self, trial: BaseTrial) -> dict[str, Any]:
        """Return a trial's changes of the configuration, by dotted key."""
        draw = Draw(self.config, self.lambdas, trial)
        self.space(draw)
        return draw.changes

    def own(self) -> dict[str, Any] | None:
        """Return what a trial of the configuration itself draws; None if the space lacks it."""
        values = flatten(self.config)
        values |= {f"base.{name}": part for name, part in asdict(self.config.base.parts).items()}
        values |= {in_use(key): values.get(key, 0) > 0 for key in self.lambdas}
        drawn = self.replayed(values)
        return None if drawn is None else dict(drawn.params)

    def replayed(
        self, values: Mapping[str, Any], value: float = 0.0
    ) -> optuna.trial.FrozenTrial | None:
        """Return a finished trial that drew these values; None if the space does not have them."""
        fixed = FixedTrial(dict(values))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # values out of bounds, refused below
            try:
                self.changes(fixed)
                return create_trial(
                    params=fixed.params, distributions=fixed.distributions, value=value
                )
            except ValueError:
                return None


def in_use(key: str) -> str:
    """Name the option whether an anchor set's weight, by dotted key, is above 0."""
    return f"{key} in use"


class _EveryValue(FixedTrial):
    """Draws of each parameter one value after the other: all choices, or both bounds."""

    def __init__(self) -> None:
        super().__init__({})
        self.values: dict[str, Sequence[Any]] = {}
        self.drawn = Counter[str]()

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._next(name, choices)

    def suggest_float(self, name: str, low: float, high: float, **_: Any) -> float:
        return float(self._next(name, (low, high)))

    def _next(self, name: str, values: Sequence[Any]) -> Any:
        value = values[self.drawn[name] % len(values)]
        self.values[name] = values
        self.drawn[name] += 1
        return value


def check_space(drawing: Drawing, dataset: Dataset) -> set[str]:
    """Check that training accepts every choice and bound of a space, and return what is tuned.

    Raises:
        ConfigError, DatasetError, EncoderError: the space is empty, or a key does not fit the
            configuration or a value training.
    """
    tuned = set[str]()
    trial = _EveryValue()
    for _ in range(MOST_CHECKED):
        changes = drawing.changes(trial)
        check_config(overlay(drawing.config, changes), dataset)
        tuned |= changes.keys()
        if all(trial.drawn[key] >= len(values) for key, values in trial.values.items()):
            break
    if not tuned:
        raise ConfigError(
            "the search space is empty: none of its settings acts here, as those of regularisers "
            "do not without a graph; give another --space, or an anchor set a weight"
        )
    return tuned


class TrialSearch(Searcher):
    """What Tune asks for the next trial; no two trials train the same.

    ``records`` are the trials so far, by name. Those without an end come first; the others are
    known to the sampler. ``noted`` is called when a trial is added.
    """

    def __init__(
        self,
        drawing: Drawing,
        sampler: BaseSampler,
        records: dict[str, TrialRecord],
        metric: str,
        noted: Callable[[], None],
    ) -> None:
        super().__init__(metric=metric, mode="max")
        self.drawing = drawing
        self.records = records
        self.noted = noted
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        self.asked: dict[str, optuna.Trial] = {}  # by the id that Tune gives a trial
        self.names = {self._what_acts(record.params): name for name, record in records.items()}
        begun = [record for record in records.values() if not record.end]
        self.first = [dict(record.drawn) for record in begun]
        self.taken = set(self.names) - {self._what_acts(record.params) for record in begun}
        for record in records.values():
            self.learn(record)

    def learn(self, record: TrialRecord) -> bool:
        """Let the sampler know a trial that has ended; returns whether the space has its values."""
        if not record.end or record.value is None:
            return True
        known = self.drawing.replayed(record.drawn, record.value)
        if known is None or known.params != dict(record.drawn):
            return False
        self.study.add_trial(known)
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return the changes of a trial, with its name; or that the space has no others."""
        for _ in range(MOST_REPEATS):
            if self.first:
                self.study.enqueue_trial(self.first.pop(0))
            asked = self.study.ask()
            changes = self.drawing.changes(asked)
            acting = self._what_acts(changes)
            if acting in self.taken:
                self._tell(asked, self.records[self.names[acting]].value)
                continue
            name = self.names.setdefault(acting, self._name(changes))
            self.taken.add(acting)
            self.asked[trial_id] = asked
            begun = self.records.get(name) or TrialRecord(name, changes)
            self.records[name] = replace(begun, drawn=asked.params)
            self.noted()
            return {NAME: name, **changes}
        return Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Let the sampler know how a trial has ended."""
        value = None if error or not result else result.get(self.metric)
        self._tell(self.asked.pop(trial_id), value)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: what is kept is the table of trials."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: a search goes on from the table of trials."""

    def _tell(self, asked: optuna.Trial, value: float | None) -> None:
        self.study.tell(asked, value, TrialState.FAIL if value is None else None)

    def _what_acts(self, changes: Mapping[str, Any]) -> str:
        """Hash the settings that act: trials that have the same train the same."""
        start = self.drawing.config
        config = overlay(start, {**changes, "dataset": start.dataset})  # a trial's may be missing
        settings = {**deciding_settings(config), "dataset": changes.get("dataset")}
        acting = {key: settings[key] for key in settings if advice_on_idle(config, key) is None}
        return short_hash(json.dumps(acting, sort_keys=True))

    def _name(self, changes: Mapping[str, Any]) -> str:
        """Name a trial for its number and what it changes."""
        number = f"{len(self.records):03d}"
        before = flatten(self.drawing.config)
        tried = [
            f"{key.partition('.')[2] or key}-{_short(value)}"
            for key, value in changes.items()
            if before.get(key, 0.0) != value
        ]
        return name_like("-".join([number, *(tried or ["own"])]), number)


def name_of(trial: Trial) -> str:
    """Return the name that a trial was given."""
    return str(trial.config[NAME])


def tree_of_estimators(seed: int) -> TPESampler:
    """Return the sampler that a sweep searches by; settings are drawn together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(seed=seed, multivariate=True, group=True)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


class Halving(ASHAScheduler):
    """Stops trials that lag behind after the same share of their training, but not at their end.

    None is stopped before the share ``grace``, nor those named in ``spared``. They are compared
    with those of an ``earlier`` call, too.
    """

    def __init__(
        self, grace: float, spared: Collection[str] = (), earlier: Collection[TrialRecord] = ()
    ) -> None:
        super().__init__(
            time_attr=SHARE_DONE,
            max_t=sys.maxsize,  # trials end by themselves
            grace_period=grace,
            reduction_factor=REDUCTION_FACTOR,
        )
        self.spared = spared
        self.earlier = earlier

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take what decides, by which trials of earlier calls are compared with, too."""
        is_set: bool = super().set_search_properties(metric, mode, **spec)
        for record in self.earlier:
            trial = SimpleNamespace(trial_id=record.name, config={NAME: record.name})
            self.on_trial_add(None, trial)
            for share, value in record.course:
                self.on_trial_result(None, trial, {SHARE_DONE: share, str(metric): value})
        return is_set

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Take a result into account; returns what becomes of the trial."""
        action: str = super().on_trial_result(tune_controller, trial, result)
        goes_on = result.get(IS_LAST) or name_of(trial) in self.spared
        return self.CONTINUE if goes_on else action
