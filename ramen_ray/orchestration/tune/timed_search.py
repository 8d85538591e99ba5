"""A search within some minutes: what it has tried, and what has become of that.

First the bases that were never far behind on other data, each with and without the graph, with the
recipe's constants; then what is near the best of them, as long as a better one is found. What lags
behind is stopped early, and earlier runs of the same data count. The best two and the recipe are
trained again with further seeds.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from ramen_ray.config import RunConfig, overlay, with_absolute_paths
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.ranking import HEADLINES, PerQuery
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.evaluate import scores_of_run
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.identity import identity_of, without_tuned
from ramen_ray.orchestration.run.processes import VALIDATION
from ramen_ray.orchestration.tune.candidates import bases, near, settings_of
from ramen_ray.orchestration.tune.choice import Choice, Runs, choose, half_of_validation
from ramen_ray.orchestration.tune.earlier import earlier_runs
from ramen_ray.orchestration.tune.settings import FURTHER_SEEDS, RecommendConfig
from ramen_ray.orchestration.tune.trial_log import STOPPED_EARLY, TrialLog, failures, record_of
from ramen_ray.orchestration.tune.trials import ERRORS, halving, train_all
from ramen_ray.presets import PRESETS
from ramen_ray.reports.search_report import TrialRecord
from ramen_ray.tracking.runs import Run

logger = logging.getLogger(__name__)

FIRST_STAGE = 0.45  # share of the time for bases
SECOND_STAGE = 0.75  # and for what is near the best of them; the rest is for further seeds
MOST_FINALISTS = 2  # besides the recipe
MOST_EARLIER = 5
MEAN = "mean of the headlines"
GRACE = 0.35
"""Share of its training that each candidate gets: shortlists and clusters need a fifth to begin. Of
more than a third there is no second halving, just before the end."""


def start_of(settings: RecommendConfig, encoder: str, dataset: str) -> RunConfig:
    """Return an encoder's preset on a dataset, with the settings of a search."""
    given = settings.model_dump(include={"seed", "output", "experiment", "workers"})
    decides = {"training.selection_metric": "R@10"}
    return with_absolute_paths(overlay(PRESETS[encoder](dataset), {**given, **decides}))


@dataclass
class TimedSearch:
    """A search in progress: its candidates by name, and what has become of them."""

    settings: RecommendConfig
    directory: RunDirectory
    dataset: Dataset
    candidates: dict[str, RunConfig] = field(default_factory=dict)  # with the names of their runs
    again: dict[str, list[RunConfig]] = field(default_factory=dict)  # runs of further seeds
    failed: str = ""  # what has failed, in words
    began: float = 0.0  # when it would have begun without a break, by the monotonic clock

    @property
    def used_seconds(self) -> float:
        """Seconds that all trials have taken, also in earlier calls."""
        return float(self.directory.notes.get("used_seconds", 0.0))

    @property
    def stopped(self) -> set[str]:
        """The names of the runs that were stopped early, also in earlier calls."""
        return set(self.directory.notes.get("stopped", []))

    def note_end(self, records: list[TrialRecord]) -> None:
        """Note which trials were stopped early by now, and how long all have run."""
        stopped = {record.name for record in records if record.end == STOPPED_EARLY}
        used_seconds = time.monotonic() - self.began
        self.directory.note(stopped=sorted(self.stopped | stopped), used_seconds=used_seconds)

    @property
    def validated(self) -> dict[str, TrialRecord]:
        """The records of the candidates that were validated, best first."""
        records = {}
        for name, config in self.candidates.items():
            record = _record(config)
            end = STOPPED_EARLY if record.name in self.stopped else record.end
            if record.value is not None:
                records[name] = replace(record, end=end)
        return dict(sorted(records.items(), key=lambda item: (-(item[1].value or 0), item[0])))

    @cached_property
    def earlier(self) -> dict[str, RunConfig]:
        """Runs that compare, and were finished when the search began, by their settings."""
        runs = [
            config
            for encoder in self.settings.encoders
            for config in earlier_runs(self.start(encoder), self.dataset)
        ]
        if "earlier" not in self.directory.notes:
            self.directory.note(earlier=[config.name for config in runs])
        noted = self.directory.notes["earlier"]
        return {settings_of(config): config for config in runs if config.name in noted}

    def explore(self, run: Run) -> None:
        """Train candidates until the time is over, or nothing near the best is better."""
        for encoder in self.settings.encoders:
            self.add(bases(self.start(encoder), encoder))
        self.add_earlier()
        self.train(self.candidates.values(), FIRST_STAGE, run)
        if not self.validated:
            self.train(self.candidates.values(), 1.0, run)
        while self.validated and (new := near(next(iter(self.validated)), self.candidates)):
            self.add(new)
            self.train([self.candidates[name] for name in new], SECOND_STAGE, run)
        self.again = self.further_seeds()
        self.train([config for runs in self.again.values() for config in runs], 1.0, run)

    def start(self, encoder: str) -> RunConfig:
        """Return an encoder's preset on the data that candidates are trained on."""
        return start_of(self.settings, encoder, str(self.dataset.path))

    def add(self, candidates: Mapping[str, RunConfig]) -> None:
        """Add candidates with names for their runs, or the runs that had their settings."""
        for name, config in candidates.items():
            named = overlay(config, {"name": self.name_of(name)})
            self.candidates[name] = self.earlier.get(settings_of(config), named)

    def add_earlier(self) -> None:
        """Add the best of the earlier runs that are no candidates yet."""
        ours = [config.name for config in self.candidates.values()]
        others = [config for config in self.earlier.values() if config.name not in ours]
        others.sort(key=lambda config: -(_record(config).value or 0))
        self.candidates |= {str(config.name): config for config in others[:MOST_EARLIER]}

    def name_of(self, candidate: str) -> str:
        """Return the name of a candidate's run."""
        return joined_name(self.directory.name, candidate)

    def further_seeds(self) -> dict[str, list[RunConfig]]:
        """Return runs with further seeds of the best candidates and the default; none if late."""
        whole = [name for name, record in self.validated.items() if record.is_whole]
        others = [name for name in whole if name != self.default][:MOST_FINALISTS]
        if self.default not in whole or not others:
            return {}
        seeds = range(self.settings.seed + 1, self.settings.seed + 1 + FURTHER_SEEDS)
        return {
            name: [
                overlay(
                    self.candidates[name],
                    {"seed": seed, "name": self.name_of(f"{name}-seed{seed}")},
                )
                for seed in seeds
            ]
            for name in [self.default, *others]
        }

    def train(self, candidates: Iterable[RunConfig], share: float, run: Run) -> None:
        """Train what is not finished or stopped, until a share of the time is over."""
        left = 60 * self.settings.minutes * share - self.used_seconds
        configs = {
            str(config.name): config
            for config in candidates
            if config.name not in self.stopped and not _directory(config).is_finished
        }
        if not configs or left < 1:
            return
        # what others are compared with is trained first, to the end
        configs = dict(sorted(configs.items(), key=lambda item: item[0] not in self.spared))
        self.began = time.monotonic() - self.used_seconds
        first = next(iter(configs.values()))
        log = TrialLog(
            output=first.output,
            epochs=self.candidates[self.default].training.epochs,
            decides=HEADLINES,
            errors=self.directory.path / ERRORS,
            with_test=False,
            ends_at=time.monotonic() + left,
            on_end=self.note_end,
        )
        tuned = {"encoder.pretrained"} if len(self.settings.encoders) > 1 else set[str]()
        errors = train_all(
            configs,
            run,
            self.directory.path,
            without_tuned(identity_of(first, self.dataset), tuned),
            log,
            metric=VALIDATION + first.training.selection_metric,
            mode="max",
            time_budget_s=left,
            scheduler=halving(GRACE, self.spared),
        )
        self.note_end([])
        if errors:
            self.failed = failures(errors, len(configs))
            logger.warning(self.failed)

    @property
    def default(self) -> str:
        """The candidate with the recipe of the first encoder."""
        return next(iter(self.candidates))

    @property
    def spared(self) -> set[str]:
        """The names of runs that are never stopped early, as others are compared with them."""
        encoder = self.settings.encoders[0]
        ladder = {f"{encoder}-{rung}" for rung in ("unidec-graph", "unidec", "in_batch")}
        names = [name for name in self.candidates if name in ladder]
        of_finalists = {str(config.name) for runs in self.again.values() for config in runs}
        return {str(self.candidates[name].name) for name in names} | of_finalists

    def config_of(self, candidate: str) -> RunConfig:
        """Return a candidate's configuration, without the name of its run."""
        return overlay(self.candidates[candidate], {"name": None})

    def scores(self, data: Prepared) -> dict[str, Runs]:
        """Return what the candidates that were trained to the end reach, by run and query.

        Finalists have their runs with further seeds, if all of these are finished.
        """
        runs = {
            name: [self.candidates[name]]
            for name, record in self.validated.items()
            if record.is_whole
        }
        if self.decided_by_further_seeds:
            runs |= self.again
        return {name: [_scores(config, data) for config in runs[name]] for name in runs}

    @property
    def decided_by_further_seeds(self) -> bool:
        """Whether all runs with further seeds are finished, and there are any."""
        runs = [config for of_finalist in self.again.values() for config in of_finalist]
        return bool(runs) and all(_directory(config).is_finished for config in runs)

    def choice(self, scores: Mapping[str, Runs]) -> Choice | None:
        """Choose among finalists, or else all that was trained to the end; None if none was."""
        if not scores:
            return None
        names = self.again if self.decided_by_further_seeds else scores
        half = half_of_validation(self.dataset, self.settings.seed)
        return choose({name: scores[name] for name in names}, half, MEAN, self.default)

    def rungs(self, chosen: str) -> list[str]:
        """Name what tells why: the best, plain batches, and the base with and without graph."""
        config = self.candidates[chosen]
        starts = {name: self.start(name).encoder for name in self.settings.encoders}
        encoder = next(name for name, start in starts.items() if start == config.encoder)
        base = f"{encoder}-{config.base.kind}"
        best = next(iter(self.validated))
        return list(dict.fromkeys([best, f"{encoder}-in_batch", base, f"{base}-graph"]))


def _directory(config: RunConfig) -> RunDirectory:
    return RunDirectory.of(config.output, str(config.name))


def _record(config: RunConfig) -> TrialRecord:
    return record_of(_directory(config), {}, HEADLINES, with_test=False)


def _scores(config: RunConfig, data: Prepared) -> dict[str, PerQuery]:
    """Return the headlines of a run by validation query, and their mean."""
    scores = scores_of_run(_directory(config).path, config, data, "validation")
    headlines = {name: scores[name] for name in HEADLINES}
    gains, possibles = zip(*headlines.values(), strict=True)
    return {**headlines, MEAN: (sum(gains), sum(possibles))}
