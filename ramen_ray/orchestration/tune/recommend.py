"""Find what is best for some data within some minutes, on the validation split only.

First all bases, each with and without the graph, with the recipe's constants; then what is near the
best of them. What lags behind is stopped early. One half of the validation queries chooses among
what was trained to the end. The recipe is recommended unless that choice is better by more than
noise on the other half, of which all figures are.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ramen_ray.bases import BaseName
from ramen_ray.config import (
    WITHOUT_GRAPH,
    ConfigError,
    RunConfig,
    WorkersConfig,
    flatten,
    overlay,
    with_absolute_paths,
)
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.splits.sample import sample_dataset
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import TRAIN
from ramen_ray.method.metrics.ground_truth import HEADLINES
from ramen_ray.naming import joined_name, short_hash
from ramen_ray.orchestration.evaluate import scores_of_run
from ramen_ray.orchestration.run.checks import check_config
from ramen_ray.orchestration.run.directory import (
    RunDirectory,
    RunError,
    deciding_settings,
    experiment_hash,
)
from ramen_ray.orchestration.run.identity import check_meanwhile, identity_of, without_tuned
from ramen_ray.orchestration.run.inputs import prepared_data
from ramen_ray.orchestration.run.processes import VALIDATION
from ramen_ray.orchestration.tune.halves import MEAN, Halves, choosing_queries
from ramen_ray.orchestration.tune.settings import SEARCHES, WORKERS, RecommendConfig
from ramen_ray.orchestration.tune.trial_log import STOPPED_EARLY, TrialLog, failures, record_of
from ramen_ray.orchestration.tune.trials import ERRORS, halving, parent_run, train_all
from ramen_ray.presets import PRESETS, lambdas, used_sets, with_base
from ramen_ray.reports.search_report import (
    TrialRecord,
    candidates_table,
    verdict,
    write_recommendation,
)
from ramen_ray.tracking.runs import Run

logger = logging.getLogger(__name__)

BASES: tuple[BaseName, ...] = ("unidec", "in_batch", "ance", "depsl")
FIRST_STAGE = 0.55  # share of the time for bases; the rest is for what is near the best of them
LONGER = "twice-the-epochs"
FACTORS = {"third": 1 / 3, "triple": 3.0}
GRACE = 0.35
"""Share of the epochs that each candidate gets: shortlists and clusters need a fifth to begin. Of
more than a third there is no second halving, just before the end."""


def _scaled(value: float, factor: float) -> float:
    """Return the product to three digits, as a command shows it."""
    return float(f"{value * factor:.3g}")


@dataclass(frozen=True)
class Recommendation:
    """What to train, and how that was found."""

    config: RunConfig
    table: str  # of all candidates that were validated, best first
    sentences: list[str]  # what matters on these data, what does not, and how sure that is
    report: Path  # folder of the table and the plot
    run: Run  # the parent of all runs in MLflow


def recommend(settings: RecommendConfig) -> Recommendation:
    """Search within the time that is given; the same call resumes a search that was interrupted.

    Raises:
        DatasetError, EncoderError, ConfigError, ClusterError, TrackingError: the input, the store
            or the cluster is not usable; nothing has been trained.
        RunError: no candidate was validated in time, another process is searching, or the dataset
            has changed meanwhile.
    """
    first = _start(settings, settings.encoders[0], settings.dataset)
    whole = Dataset(first.dataset)
    made_from = identity_of(first, whole)
    size = _num_queries(settings, first, whole)
    check_config(first, whole)
    plan = {**deciding_settings(first), "train queries": size}
    key = short_hash(f"{experiment_hash(first, whole.fingerprint)}{size}")
    name = settings.name or joined_name(whole.name, "recommend", key)
    directory = RunDirectory.of(first.output, name, SEARCHES)
    directory.refuse_another(plan, "search")
    with parent_run(directory, first, made_from) as run:
        directory.note(plan=plan)
        run.log_parameters(flatten(settings), {"dataset": whole.name})
        dataset = whole
        if size < whole.num_rows(TRAIN):
            kept = directory.path / "sample"
            is_made = kept.is_dir()
            dataset = (
                Dataset(kept) if is_made else sample_dataset(whole.path, kept, size, settings.seed)
            )
        data = prepared_data(first, dataset)  # what is wrong with it is told once
        search = _Search(settings, directory, dataset)
        search.train(search.bases(), FIRST_STAGE, run)
        search.train(search.near() or search.bases(), 1.0, run)
        if not search.validated:
            why = search.failed or f"{settings.minutes:g} minutes are too few"
            raise RunError(f"no candidate was validated: {why}")
        now = identity_of(first, Dataset(first.dataset))
        check_meanwhile(made_from, now, first.dataset)
        return _report(search, data, whole, run)


def _report(search: "_Search", data: Prepared, whole: Dataset, run: Run) -> Recommendation:
    """Choose among the validated candidates, and log what was found on ``data``."""
    settings = search.settings
    halves = search.halves(data)
    measured = search.measured(halves)
    chosen, why = search.choice(halves)
    others = [name for name in halves.scores if name != chosen and chosen in halves.scores]
    gains = {name: halves.gains(chosen, name) for name in others}
    table = candidates_table(measured, gains)
    shown = {rung: gains[rung] for rung in search.rungs(chosen) if rung in gains}
    sentences = verdict(measured, f"{chosen}, {why}", shown, halves.num_measuring)
    if search.dataset is not whole:
        sentences.append(_on_sample(search.dataset, whole))
    report = search.directory.path / "report"
    write_recommendation(report, measured, table, sentences)
    run.log_artifacts(report)
    run.describe("\n\n".join([table, *sentences]))
    reached = measured[chosen].metrics
    run.log_metrics({f"best/{name}": reached[name] for name in HEADLINES})
    workers = WorkersConfig() if settings.workers == WORKERS else settings.workers
    config = overlay(search.config_of(chosen), {"dataset": str(whole.path), "workers": workers})
    return Recommendation(config, table, sentences, report, run)


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


def _start(settings: RecommendConfig, encoder: str, dataset: str) -> RunConfig:
    given = settings.model_dump(include={"seed", "output", "experiment", "workers"})
    decides = {"training.selection_metric": "R@10"}
    return with_absolute_paths(overlay(PRESETS[encoder](dataset), {**given, **decides}))


@dataclass
class _Search:
    """A search in progress: its candidates by name, and what has become of them."""

    settings: RecommendConfig
    directory: RunDirectory
    dataset: Dataset
    candidates: dict[str, RunConfig] = field(default_factory=dict)
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

    def name_of(self, candidate: str) -> str:
        """Return the name of a candidate's run."""
        return joined_name(self.directory.name, candidate)

    @property
    def validated(self) -> dict[str, TrialRecord]:
        """The records of the candidates that were validated, best first."""
        records = {}
        for name, config in self.candidates.items():
            directory = RunDirectory.of(config.output, self.name_of(name))
            record = record_of(directory, {}, HEADLINES, with_test=False)
            end = STOPPED_EARLY if directory.name in self.stopped else record.end
            if record.value is not None:
                records[name] = replace(record, end=end)
        return dict(sorted(records.items(), key=lambda item: (-(item[1].value or 0), item[0])))

    def bases(self) -> dict[str, RunConfig]:
        candidates = {}
        for encoder in self.settings.encoders:
            start = _start(self.settings, encoder, str(self.dataset.path))
            for base in BASES:
                with_graph = with_base(start, {"base.kind": base})
                if used_sets(start):
                    candidates[f"{encoder}-{base}-graph"] = with_graph
                candidates[f"{encoder}-{base}"] = overlay(with_graph, WITHOUT_GRAPH)
        return candidates

    def near(self) -> dict[str, RunConfig]:
        """Return what is near the best: more epochs, learning rates, anchor sets, highest λ."""
        if not self.validated:
            return {}
        name = next(iter(self.validated))
        best = self.config_of(name)
        candidates = {}
        for longer in (name, f"{name}-graph"):  # a graph has to earn its weight first
            if longer in self.candidates:
                twice = {"training.epochs": 2 * best.training.epochs}
                candidates[f"{longer}-{LONGER}"] = overlay(self.config_of(longer), twice)
        changes: dict[str, dict[str, Any]] = {}
        for word, factor in FACTORS.items():
            changes[f"{word}-rate"] = {"optimizer.lr": _scaled(best.optimizer.lr, factor)}
            if best.base.parts.heads == "classifier":
                changes[f"{word}-classifier-rate"] = {
                    "classifier.lr": _scaled(best.classifier.lr, factor)
                }
        sets = used_sets(best)
        for only in sets if len(sets) > 1 else ():
            kept = {only: lambdas(best)["lambda_z"][only]}
            changes[f"only-{only}"] = {"regularization.lambda_z": kept}
        for word, factor in FACTORS.items() if sets else ():
            changes[f"{word}-lambda"] = {
                f"regularization.{side}": {
                    name: _scaled(most, factor) for name, most in of_side.items()
                }
                for side, of_side in lambdas(best).items()
            }
        near = {f"{name}-{what}": overlay(best, change) for what, change in changes.items()}
        return candidates | near

    def train(self, candidates: Mapping[str, RunConfig], share: float, run: Run) -> None:
        self.candidates |= candidates
        left = 60 * self.settings.minutes * share - self.used_seconds
        named = {self.name_of(name): config for name, config in candidates.items()}
        configs = {
            name: overlay(config, {"name": name})
            for name, config in named.items()
            if name not in self.stopped and not RunDirectory.of(config.output, name).is_finished
        }
        if not configs or left < 1:
            return
        # what others are compared with is trained first, to the end
        configs = dict(sorted(configs.items(), key=lambda item: item[0] not in self.spared))
        self.began = time.monotonic() - self.used_seconds
        first = next(iter(configs.values()))
        epochs = next(iter(self.candidates.values())).training.epochs
        log = TrialLog(
            output=first.output,
            epochs=epochs,
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
            scheduler=halving(max(round(GRACE * epochs), 1), self.spared),
        )
        self.note_end([])
        if errors:
            self.failed = failures(errors, len(configs))
            logger.warning(self.failed)

    @property
    def spared(self) -> set[str]:
        """The names of runs that are never stopped early, as others are compared with them."""
        encoder = self.settings.encoders[0]
        ladder = {f"{encoder}-{rung}" for rung in ("unidec-graph", "unidec", "in_batch")}
        names = [name for name in self.candidates if name in ladder or name.endswith(LONGER)]
        return set(map(self.name_of, names))

    def config_of(self, candidate: str) -> RunConfig:
        return overlay(self.candidates[candidate], {"name": None})

    def halves(self, data: Prepared) -> Halves:
        """Return the candidates that were trained to the end, judged by halves of validation."""
        scores = {
            name: scores_of_run(
                RunDirectory.of(self.candidates[name].output, self.name_of(name)).path,
                self.candidates[name],
                data,
                "validation",
            )
            for name, record in self.validated.items()
            if record.is_whole
        }
        return Halves(scores, choosing_queries(self.dataset, self.settings.seed))

    def measured(self, halves: Halves) -> dict[str, TrialRecord]:
        """Return what was validated, best first, by the half that does not choose where it can.

        What was stopped keeps no answers: its figures are of all validation queries.
        """
        measured = self.validated
        for name in halves.scores:
            reached = halves.reached(name)
            metrics = {metric: reached[metric] for metric in HEADLINES}
            measured[name] = replace(measured[name], metrics=metrics, value=reached[MEAN])
        return dict(sorted(measured.items(), key=lambda item: -(item[1].value or 0)))

    def choice(self, halves: Halves) -> tuple[str, str]:
        """Return the recipe's candidate, or one that is better beyond noise; and why, in words."""
        if not halves.scores:
            return next(iter(self.validated)), "as none was trained to the end"
        return halves.choice(next(iter(self.candidates)))

    def rungs(self, chosen: str) -> list[str]:
        """Name what tells why: the best, plain batches, and the base with and without graph."""
        encoders = [name for name in self.settings.encoders if chosen.startswith(f"{name}-")]
        encoder = max(encoders, key=len)
        base = f"{encoder}-{self.candidates[chosen].base.kind}"
        best = next(iter(self.validated))
        return list(dict.fromkeys([best, f"{encoder}-in_batch", base, f"{base}-graph"]))
