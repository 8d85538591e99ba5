"""Find what is best for some data within some minutes, on the validation split only.

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
from pathlib import Path

from ramen_ray.config import ConfigError, RunConfig, WorkersConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.splits.sample import sample_dataset
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import TRAIN
from ramen_ray.method.metrics.ranking import HEADLINES, PerQuery
from ramen_ray.orchestration.run.directory import RunDirectory, RunError
from ramen_ray.orchestration.run.identity import Inputs
from ramen_ray.orchestration.run.inputs import check_config, prepared_data
from ramen_ray.orchestration.tune.candidates import bases, earlier_runs, near, settings_of, start_of
from ramen_ray.orchestration.tune.choice import (
    Choice,
    Repeated,
    Runs,
    choose,
    directory_of,
    further_seeds,
    half_of_validation,
    mean,
    scores_of,
    train_all,
    with_seeds,
)
from ramen_ray.orchestration.tune.draws import Halving
from ramen_ray.orchestration.tune.experiment import (
    STOPPED_EARLY,
    Experiment,
    open_experiment,
    record_of,
)
from ramen_ray.orchestration.tune.settings import SEARCHES, WORKERS, RecommendConfig
from ramen_ray.reports.report_tables import ReportTable
from ramen_ray.reports.search_report import TrialRecord, candidates_table, verdict
from ramen_ray.tracking.runs import Run

logger = logging.getLogger(__name__)

FIRST_STAGE = 0.45  # share of the time for bases
SECOND_STAGE = 0.75  # and for what is near the best of them; the rest is for further seeds
MOST_FINALISTS = 2  # besides the recipe
MOST_EARLIER = 5
LADDER = ("unidec-graph", "unidec", "in_batch")
MEAN = "mean of the headlines"
GRACE = 0.35
"""Share of its training that each candidate gets: shortlists and clusters need a fifth to begin. Of
more than a third there is no second halving, just before the end."""


@dataclass(frozen=True)
class Recommendation:
    """What to train, and how that was found."""

    config: RunConfig
    table: ReportTable  # of all candidates that were validated, best first
    sentences: list[str]  # what matters on these data, what does not, and how sure that is
    report: Path  # folder of the table
    run: Run  # the parent of all runs in MLflow


def recommend(settings: RecommendConfig) -> Recommendation:
    """Search within the time that is given; the same call resumes a search that was interrupted.

    Raises:
        DatasetError, EncoderError, ConfigError, ClusterError, TrackingError: the input, the store
            or the cluster is not usable; nothing has been trained.
        RunError: no candidate was validated in time, another process is searching, or the dataset
            has changed meanwhile.
    """
    inputs = Inputs.of(start_of(settings, settings.compared[0], settings.dataset))
    whole = inputs.dataset
    size = _num_queries(settings, inputs.config, whole)
    check_config(inputs.config, whole)
    plan = {"train queries": size}
    with open_experiment(inputs, SEARCHES, "recommend", settings, plan) as experiment:
        if size < whole.num_rows(TRAIN):
            kept = experiment.directory.path / "sample"
            if not kept.is_dir():
                sample_dataset(whole.path, kept, size, settings.seed)
            of_sample = Inputs.of(overlay(inputs.config, {"dataset": str(kept)}))
            experiment = replace(experiment, inputs=of_sample)
        # what is wrong with it is told once
        data = prepared_data(inputs.config, experiment.inputs.dataset)
        search = Search(settings, experiment)
        search.explore()
        if not search.validated:
            why = search.failed or f"{settings.minutes:g} minutes are too few"
            raise RunError(f"no candidate was validated: {why}")
        inputs.check_still()
        return _report(search, data, whole)


@dataclass
class Search:
    """A search in progress: its candidates by name, and what has become of them."""

    settings: RecommendConfig
    experiment: Experiment  # on what candidates are trained on
    candidates: dict[str, RunConfig] = field(default_factory=dict)  # with the names of their runs
    again: Repeated = field(default_factory=dict)  # finished runs of further seeds, which decide
    failed: str = ""  # what has failed, in words
    began: float = 0.0  # when it would have begun without a break, by the monotonic clock

    @property
    def directory(self) -> RunDirectory:
        """The folder of the search."""
        return self.experiment.directory

    @property
    def dataset(self) -> Dataset:
        """What candidates are trained on."""
        return self.experiment.inputs.dataset

    @property
    def used_seconds(self) -> float:
        """Seconds that all trials have taken, also in earlier calls."""
        return self.directory.notes.get("used_seconds", 0.0)

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
            for encoder in self.settings.compared
            for config in earlier_runs(self.start(encoder), self.dataset)
        ]
        if "earlier" not in self.directory.notes:
            self.directory.note(earlier=[config.name for config in runs])
        noted = self.directory.notes["earlier"]
        return {settings_of(config): config for config in runs if config.name in noted}

    def explore(self) -> None:
        """Train candidates until the time is over, or nothing near the best is better."""
        for encoder in self.settings.compared:
            self.add(bases(self.start(encoder), encoder))
        self.add_earlier()
        self.train(self.candidates.values(), FIRST_STAGE)
        if not self.validated:
            self.train(self.candidates.values(), 1.0)
        while self.validated and (new := near(next(iter(self.validated)), self.candidates)):
            self.add(new)
            self.train([self.candidates[name] for name in new], SECOND_STAGE)
        finalists = self.further_seeds()
        last = [again for runs in finalists.values() for again in runs]
        self.train(last, 1.0)
        if all(directory_of(again).is_finished for again in last):
            self.again = finalists

    def start(self, encoder: str) -> RunConfig:
        """Return an encoder's preset on the data that candidates are trained on."""
        return start_of(self.settings, encoder, str(self.dataset.path))

    def add(self, candidates: Mapping[str, RunConfig]) -> None:
        """Add candidates with names for their runs, or the runs that had their settings."""
        for name, config in candidates.items():
            named = self.experiment.named(config, name)
            self.candidates[name] = self.earlier.get(settings_of(config), named)

    def add_earlier(self) -> None:
        """Add the best of the earlier runs that are no candidates yet."""
        ours = [config.name for config in self.candidates.values()]
        others = [config for config in self.earlier.values() if config.name not in ours]
        others.sort(key=lambda config: -(_record(config).value or 0))
        self.candidates |= {str(config.name): config for config in others[:MOST_EARLIER]}

    def further_seeds(self) -> dict[str, list[RunConfig]]:
        """Return runs with further seeds of the best candidates and the default; none if late."""
        whole = [name for name, record in self.validated.items() if record.is_whole]
        others = [name for name in whole if name != self.default][:MOST_FINALISTS]
        if self.default not in whole or not others:
            return {}
        finalists = {name: self.candidates[name] for name in [self.default, *others]}
        return with_seeds(self.experiment, finalists, further_seeds(self.settings.seed))

    def train(self, candidates: Iterable[RunConfig], share: float) -> None:
        """Train what is not finished or stopped, until a share of the time is over."""
        left = 60 * self.settings.minutes * share - self.used_seconds
        configs = {
            str(config.name): config
            for config in candidates
            if config.name not in self.stopped and not directory_of(config).is_finished
        }
        if not configs or left < 1:
            return
        ladder = {self.candidates[name].name for name in self.ladder}
        spared = {
            name
            for name, config in configs.items()
            if name in ladder or config.seed != self.settings.seed
        }
        # what others are compared with is trained first, to the end
        configs = dict(sorted(configs.items(), key=lambda item: item[0] not in spared))
        self.began = time.monotonic() - self.used_seconds
        failed = train_all(
            self.experiment,
            configs,
            HEADLINES,
            {"encoder.pretrained"} if len(self.settings.compared) > 1 else (),
            self.note_end,
            time_budget_s=left,
            scheduler=Halving(GRACE, spared),
        )
        self.note_end([])
        if failed:
            self.failed = failed
            logger.warning(failed)

    @property
    def default(self) -> str:
        """The candidate with the recipe of the first encoder."""
        return next(iter(self.candidates))

    @property
    def ladder(self) -> list[str]:
        """What others are compared with: the recipe, without its graph, and in plain batches."""
        rungs = [f"{self.settings.compared[0]}-{rung}" for rung in LADDER]
        return [name for name in rungs if name in self.candidates]

    def scores(self, data: Prepared) -> dict[str, Runs]:
        """Return what the candidates that were trained to the end reach, by run and query."""
        whole = {
            name: [self.candidates[name]]
            for name, record in self.validated.items()
            if record.is_whole
        }
        return {
            name: [_scores(config, data) for config in runs]
            for name, runs in {**whole, **self.again}.items()
        }

    def choice(self, scores: Mapping[str, Runs]) -> Choice | None:
        """Choose among finalists, or else all that was trained to the end; None if none was."""
        if not scores:
            return None
        half = half_of_validation(self.dataset, self.settings.seed)
        return choose(
            {name: scores[name] for name in self.again or scores}, half, MEAN, self.default
        )


def _record(config: RunConfig) -> TrialRecord:
    return record_of(directory_of(config), HEADLINES)


def _scores(config: RunConfig, data: Prepared) -> dict[str, PerQuery]:
    """Return the headlines of a run by validation query, and their mean."""
    headlines = scores_of(config, data, "validation", HEADLINES)
    gains, possibles = zip(*headlines.values(), strict=True)
    return {**headlines, MEAN: (sum(gains), sum(possibles))}


def _report(search: Search, data: Prepared, whole: Dataset) -> Recommendation:
    """Choose among the validated candidates, and log what was found on ``data``."""
    run = search.experiment.run
    scores = search.scores(data)
    choice = search.choice(scores)
    measured = search.validated
    chosen = choice.chosen if choice else next(iter(measured))
    said = choice.sentences if choice else ["none was trained to the end"]
    gains = {}
    if choice is not None:
        gains = {name: choice.gains(runs) for name, runs in scores.items() if name != chosen}
        figures = {metric: mean(choice.expected, metric) for metric in (*HEADLINES, MEAN)}
        value = figures.pop(MEAN)
        measured[chosen] = replace(measured[chosen], metrics=figures, value=value)
    measured = dict(sorted(measured.items(), key=lambda item: -(item[1].value or 0)))
    table = candidates_table(measured, gains)
    shown = {rung: gains[rung] for rung in search.ladder if rung in gains}
    sentences = verdict(measured, chosen, said, shown)
    if search.dataset is not whole:
        sentences.append(_on_sample(search.dataset, whole))
    search.experiment.publish(sentences, table)
    reached = measured[chosen].metrics
    run.log_metrics({f"best/{name}": reached[name] for name in HEADLINES})
    given = search.settings.workers
    workers = WorkersConfig() if given == WORKERS else given
    trained_as = {"name": None, "dataset": str(whole.path), "workers": workers}
    config = overlay(search.candidates[chosen], trained_as)
    return Recommendation(config, table, sentences, search.experiment.report, run)


def _num_queries(settings: RecommendConfig, first: RunConfig, whole: Dataset) -> int:
    """Return how many train queries candidates are trained on; a ConfigError if too few."""
    size = min(settings.max_queries, whole.num_rows(TRAIN))
    batch = first.training.global_batch_size
    if size < batch:
        raise ConfigError(
            f"{size} train queries are fewer than the {batch} of a candidate's batch; raise "
            f"max_queries, or train on so few by jobs/train.py --training.global-batch-size"
        )
    return size


def _on_sample(dataset: Dataset, whole: Dataset) -> str:
    """Say what candidates were trained on, and what that means."""
    counts = [
        f"{dataset.num_rows(table):,} of {whole.num_rows(table):,} {what}"
        for what, table in (("train queries", TRAIN), ("ads", "ads"))
    ]
    times = whole.num_rows(TRAIN) / dataset.num_rows(TRAIN)
    return (
        f"on a sample: {' and '.join(counts)}, with the clicks and edges among them; with "
        f"fewer ads to choose from, figures are higher than on all data, where a training "
        f"takes about {times:.0f} times the seconds"
    )
