"""Find what is best for some data within some minutes, on the validation split only.

First all bases, each with and without the graph, with the recipe's constants; then what is near the
best of them: learning rates, single anchor sets, highest λ. Whatever lags behind is stopped early.
"""

import json
import logging
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from ray import tune
from ray.tune.experiment import Trial

from ramen_ray.bases import BaseName
from ramen_ray.config import (
    DEFAULT_EXPERIMENT,
    WITHOUT_GRAPH,
    DatasetPath,
    Name,
    PositiveFloat,
    RunConfig,
    Section,
    WorkersConfig,
    flatten,
    overlay,
)
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.method.metrics.comparison import Difference, paired_differences
from ramen_ray.method.metrics.judgement import KS, Judgement
from ramen_ray.method.metrics.ranking import PerQuery
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.cluster.resources import check_resources, start_ray
from ramen_ray.orchestration.evaluate import evaluate_checkpoint
from ramen_ray.orchestration.prepare.pipeline import prepare
from ramen_ray.orchestration.run.build import build_propensity
from ramen_ray.orchestration.run.checks import check_config
from ramen_ray.orchestration.run.directory import RunDirectory, RunError, experiment_hash
from ramen_ray.orchestration.run.identity import check_meanwhile, identity_of
from ramen_ray.orchestration.run.start import resolved
from ramen_ray.orchestration.run.task import VALIDATION
from ramen_ray.orchestration.tune.ends import EPOCH, SUMMARY, name_of
from ramen_ray.orchestration.tune.trials import Budget, run_trials
from ramen_ray.orchestration.tune.variants import used_sets
from ramen_ray.presets import PRESETS, lambdas, with_base
from ramen_ray.reports.recommendation import (
    Outcome,
    outcome_table,
    verdict,
    write_recommendation,
)
from ramen_ray.tracking.runs import Run, open_run, tracking_uri

logger = logging.getLogger(__name__)

BASES: tuple[BaseName, ...] = ("unidec", "in_batch", "ance", "depsl")
FIRST_STAGE = 0.55
"""Share of the time for bases; the rest is for what is near the best of them."""
FACTORS = {"third": 1 / 3, "triple": 3.0}
GRACE = 0.3
"""Share of the epochs that each candidate gets: shortlists and clusters need a fifth to begin."""


class RecommendConfig(Section):
    """What to look for, and for how long."""

    dataset: DatasetPath
    """The dataset directory; or rdocs, foldoc or debian, which are built in."""
    minutes: PositiveFloat = 10.0
    """Minutes to train candidates; what is found by then counts."""
    encoders: tuple[Literal["bag", "minilm", "minilm-6"], ...] = ("bag",)
    """Presets whose encoders are compared."""
    seed: int = 0
    """Seed of every run."""
    output: str = "outputs"
    """Folder of prepared data, runs, and the MLflow store."""
    name: Name | None = None
    """Name of the search; None makes one from its settings. The same command resumes it."""
    experiment: Name = DEFAULT_EXPERIMENT
    """MLflow experiment."""
    workers: WorkersConfig = WorkersConfig(cpus_per_worker=1)
    """The workers of a run; as many runs train at once as there is room for."""


@dataclass(frozen=True)
class Recommendation:
    """What was found.

    Attributes:
        config: the best candidate's configuration.
        table: all candidates that were validated, best first.
        sentences: what matters on these data, what does not, and how sure that is.
        report: folder of the table and the plot.
        run: the parent of all runs in MLflow.
    """

    config: RunConfig
    table: str
    sentences: list[str]
    report: Path
    run: Run


def recommend(settings: RecommendConfig) -> Recommendation:
    """Search within the time that is given; the same call resumes a search that was interrupted.

    Raises:
        DatasetError, EncoderError, ConfigError, ClusterError, TrackingError: the input, the store
            or the cluster is not usable; nothing has been trained.
        RunError: no candidate was validated within the time, another process is searching, or the
            dataset has changed meanwhile.
    """
    first = resolved(_start(settings, settings.encoders[0]))
    dataset, output = Dataset(first.dataset), Path(first.output)
    made_from = identity_of(first, dataset)
    tokenizer = check_config(first, dataset)
    key = experiment_hash(first, dataset.fingerprint)
    name = settings.name or joined_name(dataset.name, "recommend", key)
    directory = RunDirectory(output / "recommendations" / name)
    with directory.held():
        directory.refuse_changed(made_from, False)
        start_ray(show_workers=False, for_ray_train=True)
        check_resources(settings.workers)
        data = prepare(dataset, output / "prepared", tokenizer)
        known = directory.notes.get("mlflow_run_id")
        run = open_run(tracking_uri(output), settings.experiment, name, output, known)
        directory.note(mlflow_run_id=run.id, made_from=made_from)
        run.log_parameters(flatten(settings), {"dataset": dataset.name})
        with run.closing():
            search = _Search(settings, directory, run, made_from)
            search.train(search.bases(), FIRST_STAGE)
            search.train(search.near() or search.bases(), 1.0)
            if not search.outcomes:
                raise RunError(
                    f"{settings.minutes:g} minutes are too few: no candidate was validated"
                )
            check_meanwhile(made_from, identity_of(first, Dataset(first.dataset)))
            outcomes, gains = search.outcomes, search.gains(data)
            table = outcome_table(outcomes)
            sentences = verdict(outcomes, gains, len(data.queries["validation"]))
            report = directory.path / "report"
            write_recommendation(report, outcomes, table, sentences)
            run.log_artifacts(report)
            best = next(iter(outcomes.values()))
            run.log_metrics({"best/P@1": best.p_at_1, "best/R@10": best.r_at_10})
            return Recommendation(search.best(), table, sentences, report, run)


def _start(settings: RecommendConfig, encoder: str) -> RunConfig:
    own = settings.model_dump(include={"seed", "output", "experiment", "workers"})
    decides = {"training.selection_metric": "R@10"}
    return overlay(PRESETS[encoder](settings.dataset), {**own, **decides})


@dataclass
class _Search:
    """A search in progress: candidates by name, and what has become of them."""

    settings: RecommendConfig
    directory: RunDirectory
    run: Run
    made_from: Mapping[str, Any]

    def __post_init__(self) -> None:
        self.candidates: dict[str, RunConfig] = {}
        self.kept = _Outcomes(self.directory)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """Those of validated candidates, best first."""
        found = [one for one in self.kept.read().items() if one[0] in self.candidates]
        return dict(sorted(found, key=lambda one: (-one[1].value, one[0])))

    def bases(self) -> dict[str, RunConfig]:
        """Return every base of every encoder, with the graph and without."""
        found = {}
        for encoder in self.settings.encoders:
            start = resolved(_start(self.settings, encoder))
            for base in BASES:
                own = with_base(start, {"base.kind": base})
                if used_sets(start):
                    found[f"{encoder}-{base}-graph"] = own
                found[f"{encoder}-{base}"] = overlay(own, WITHOUT_GRAPH)
        return found

    def near(self) -> dict[str, RunConfig]:
        """Return what is near the best so far: learning rates, anchor sets and highest λ."""
        if not self.outcomes:
            return {}
        name, best = next(iter(self.outcomes)), self.best()
        changes: dict[str, dict[str, Any]] = {}
        for word, factor in FACTORS.items():
            changes[f"{word}-rate"] = {"optimizer.lr": best.optimizer.lr * factor}
            if best.base.parts.heads == "classifier":
                changes[f"{word}-classifier-rate"] = {"classifier.lr": best.classifier.lr * factor}
        sets = used_sets(best)
        for one in sets if len(sets) > 1 else ():
            kept = {one: lambdas(best)["lambda_z"][one]}
            changes[f"only-{one}"] = {"regularization.lambda_z": kept}
        for word, factor in FACTORS.items() if sets else ():
            highest = best.regularization.adaptive_max * factor
            changes[f"{word}-highest-lambda"] = {"regularization.adaptive_max": highest}
        return {f"{name}-{what}": overlay(best, change) for what, change in changes.items()}

    def train(self, candidates: Mapping[str, RunConfig], share: float) -> None:
        """Train candidates until a share of the time is over."""
        self.candidates |= candidates
        before = self.directory.notes.get("used_seconds", 0.0)
        left = 60 * self.settings.minutes * share - before
        missing = {
            name: overlay(one, {"name": joined_name(self.directory.name, name)})
            for name, one in candidates.items()
            if name not in self.kept.ended()
        }
        if not missing or left < 1:
            return
        configs = {str(one.name): one for one in missing.values()}
        self.kept.begin({str(one.name): name for name, one in missing.items()}, before)
        epochs = next(iter(configs.values())).training.epochs
        budget = Budget(left, max(round(GRACE * epochs), 1), (self.kept,))
        expected = {one.dataset: dict(self.made_from) for one in configs.values()}
        errors = run_trials(configs, self.run, self.directory.path, expected, budget)
        self.kept.note_time()
        for name, error in errors.items():
            logger.warning("%s failed: %s", name, error)

    def best(self) -> RunConfig:
        """Return the best candidate's configuration, without a name."""
        return overlay(self.candidates[next(iter(self.outcomes))], {"name": None})

    def gains(self, data: Prepared) -> dict[str, dict[str, Difference]]:
        """Compare the best with plain batches and with itself without the graph, on validation."""
        outcomes = self.outcomes
        best = next(iter(outcomes))
        encoder = max(
            (one for one in self.settings.encoders if best.startswith(f"{one}-")), key=len
        )
        base = f"{encoder}-{self.best().base.kind}"
        others = [one for one in dict.fromkeys([f"{encoder}-in_batch", base]) if one != best]
        finished = {name for name, outcome in outcomes.items() if outcome.finished}
        if best not in finished:
            return {}
        ours = self._scores(best, data)
        return {
            one: paired_differences(ours, self._scores(one, data))
            for one in others
            if one in finished
        }

    def _scores(self, name: str, data: Prepared) -> dict[str, PerQuery]:
        config = self.candidates[name]
        own = joined_name(self.directory.name, name)
        dataset = Dataset(config.dataset)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "predictions.parquet"
            run = RunDirectory.of(config.output, own).path
            evaluate_checkpoint(run, "validation", predictions=file)
            found = pq.read_table(file, columns=["query_id", "ad_id", "rank"])
        rows = {
            column: _rows_of(dataset, table)
            for column, table in (("query_id", "queries/validation"), ("ad_id", "ads"))
        }
        queries, ads = (
            np.array([rows[column][one] for one in found[column].to_pylist()], dtype=np.int64)
            for column in ("query_id", "ad_id")
        )
        topk = np.full((len(data.queries["validation"]), max(KS)), -1)
        topk[queries, found["rank"].to_numpy() - 1] = ads
        judgement = Judgement.from_prepared(data, "validation", build_propensity(config))
        return judgement.by_query(topk)


def _rows_of(dataset: Dataset, table: str) -> dict[str, int]:
    rows = dataset.read(table)
    ids = rows["source_id"] if "source_id" in rows.column_names else rows[0]
    return dict(zip(map(str, ids.to_pylist()), rows[0].to_pylist(), strict=True))


class _Outcomes(tune.Callback):
    """Keeps the best validation of each candidate, in files that outlive this process."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory, self.folder = directory, directory.path / "outcomes"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.begin({}, 0.0)

    def begin(self, names: dict[str, str], seconds_before: float) -> None:
        """Expect trials, whose candidates are ``names``, after other trials of so many seconds."""
        self.names, self.since = names, time.monotonic() - seconds_before

    def note_time(self) -> None:
        """Note the seconds that all trials have taken."""
        self.directory.note(used_seconds=time.monotonic() - self.since)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **_: Any
    ) -> None:
        name, is_last = self.names[name_of(trial)], SUMMARY in result
        now = Outcome(
            result[f"{VALIDATION}P@1"],
            result[f"{VALIDATION}R@10"],
            result[EPOCH],
            result["time_total_s"],
            is_last,
        )
        before = self.read().get(name, now)
        best = max(before, now, key=lambda one: (one.finished, one.value))
        self._write(name, replace(best, epochs=now.epochs, seconds=now.seconds), is_last)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **_: Any
    ) -> None:
        name = self.names[name_of(trial)]
        found = self.read()
        if name in found:
            self._write(name, found[name], True)
        self.note_time()

    def read(self) -> dict[str, Outcome]:
        """Return the outcomes so far, by candidate."""
        return {
            name: Outcome(**{key: value for key, value in kept.items() if key != "ended"})
            for name, kept in self._all().items()
        }

    def ended(self) -> set[str]:
        """Return the candidates that have ended."""
        return {name for name, kept in self._all().items() if kept["ended"]}

    def _all(self) -> dict[str, dict[str, Any]]:
        files = self.folder.glob("[!.]*.json")
        return {file.stem: json.loads(file.read_text()) for file in files}

    def _write(self, name: str, outcome: Outcome, has_ended: bool) -> None:
        with whole_file(self.folder / f"{name}.json") as aside:
            aside.write_text(json.dumps({**asdict(outcome), "ended": has_ended}))
