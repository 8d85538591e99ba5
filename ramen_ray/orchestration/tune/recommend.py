"""Find what is best for some data within some minutes, on the validation split only.

First all bases, each with and without the graph, with the recipe's constants; then what is near the
best of them. What lags behind is stopped early. The recipe is recommended unless something is
better by more than noise.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
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
from ramen_ray.method.metrics.comparison import Difference, paired_differences
from ramen_ray.method.metrics.judgement import HEADLINES
from ramen_ray.method.metrics.ranking import PerQuery
from ramen_ray.naming import joined_name, short_hash
from ramen_ray.orchestration.evaluate import scores_of_run
from ramen_ray.orchestration.run.checks import check_config
from ramen_ray.orchestration.run.directory import (
    RunDirectory,
    RunError,
    deciding_settings,
    experiment_hash,
)
from ramen_ray.orchestration.run.made_from import check_meanwhile, identity_of, prepared_for
from ramen_ray.orchestration.run.processes import VALIDATION
from ramen_ray.orchestration.tune.records import Records, failures
from ramen_ray.orchestration.tune.settings import SEARCHES, WORKERS, RecommendConfig
from ramen_ray.orchestration.tune.trials import halving, parent_run, run_trials
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
MEAN = "mean of the headlines"


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
        data = prepared_for(first, dataset)  # what is wrong with it is told once
        search = _Search(settings, directory, run, dataset)
        search.train(search.bases(), FIRST_STAGE)
        search.train(search.near() or search.bases(), 1.0)
        if not search.validated:
            why = search.failed or f"{settings.minutes:g} minutes are too few"
            raise RunError(f"no candidate was validated: {why}")
        now = identity_of(first, Dataset(first.dataset))
        check_meanwhile(made_from, now, first.dataset)
        return _report(search, data, whole)


def _report(search: "_Search", data: Prepared, whole: Dataset) -> Recommendation:
    """Choose among the validated candidates, and log what was found on ``data``."""
    settings, validated, chosen = search.settings, search.validated, search.choice(data)
    gains, num_queries = search.gains(chosen, data), len(data.queries["validation"])
    table = candidates_table(validated, gains)
    named = {one: gains[one] for one in search.rungs(chosen) if one in gains}
    sentences = verdict(validated, chosen, named, num_queries)
    if search.dataset is not whole:
        sentences.append(_on_sample(search.dataset, whole))
    report, run = search.directory.path / "report", search.run
    write_recommendation(report, validated, table, sentences)
    run.log_artifacts(report)
    run.describe("\n\n".join([table, *sentences]))
    reached = validated[chosen].metrics
    run.log_metrics({f"best/{name}": reached[name] for name in HEADLINES})
    workers = WorkersConfig() if settings.workers == WORKERS else settings.workers
    config = overlay(search.config_of(chosen), {"dataset": str(whole.path), "workers": workers})
    return Recommendation(config, table, sentences, report, run)


def _num_queries(settings: RecommendConfig, first: RunConfig, whole: Dataset) -> int:
    """Return how many train queries candidates are trained on; a ConfigError if too few."""
    size, batch = min(settings.max_queries, whole.num_rows(TRAIN)), first.training.global_batch_size
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
    own = settings.model_dump(include={"seed", "output", "experiment", "workers"})
    decides = {"training.selection_metric": "R@10"}
    return with_absolute_paths(overlay(PRESETS[encoder](dataset), {**own, **decides}))


@dataclass
class _Search:
    """A search in progress: its candidates by name, and what has become of them."""

    settings: RecommendConfig
    directory: RunDirectory
    run: Run
    dataset: Dataset

    def __post_init__(self) -> None:
        self.candidates: dict[str, RunConfig] = {}
        self.began = time.monotonic() - self.used_seconds
        self.failed = ""  # what has failed, in words
        training = _start(self.settings, self.settings.encoders[0], self.settings.dataset).training
        self.records = Records(
            self.directory.path / "trials",
            training,
            value_of=lambda metrics: sum(metrics[name] for name in HEADLINES) / len(HEADLINES),
            on_end=self.note_time,
        )

    @property
    def used_seconds(self) -> float:
        """Seconds that all trials have taken, also in earlier calls."""
        return float(self.directory.notes.get("used_seconds", 0.0))

    def note_time(self, *_: object) -> None:
        """Note how long trials have run by now."""
        self.directory.note(used_seconds=time.monotonic() - self.began)

    def name_of(self, candidate: str) -> str:
        """Return the name of a candidate's run."""
        return joined_name(self.directory.name, candidate)

    @property
    def validated(self) -> dict[str, TrialRecord]:
        """The records of the candidates that were validated, best first."""
        kept = self.records.all()
        known = ((name, kept.get(self.name_of(name))) for name in self.candidates)
        found = [(one.value, name, one) for name, one in known if one and one.value is not None]
        return {name: one for _, name, one in sorted(found, key=lambda it: (-it[0], it[1]))}

    def bases(self) -> dict[str, RunConfig]:
        found = {}
        for encoder in self.settings.encoders:
            start = _start(self.settings, encoder, str(self.dataset.path))
            for base in BASES:
                own = with_base(start, {"base.kind": base})
                if used_sets(start):
                    found[f"{encoder}-{base}-graph"] = own
                found[f"{encoder}-{base}"] = overlay(own, WITHOUT_GRAPH)
        return found

    def near(self) -> dict[str, RunConfig]:
        """Return what is near the best: more epochs, learning rates, anchor sets, highest λ."""
        if not self.validated:
            return {}
        name = next(iter(self.validated))
        best = self.config_of(name)
        found = {}
        for longer in (name, f"{name}-graph"):  # a graph has to earn its weight first
            if longer in self.candidates:
                twice = {"training.epochs": 2 * best.training.epochs}
                found[f"{longer}-{LONGER}"] = overlay(self.config_of(longer), twice)
        changes: dict[str, dict[str, Any]] = {}
        for word, factor in FACTORS.items():
            changes[f"{word}-rate"] = {"optimizer.lr": _scaled(best.optimizer.lr, factor)}
            if best.base.parts.heads == "classifier":
                changes[f"{word}-classifier-rate"] = {
                    "classifier.lr": _scaled(best.classifier.lr, factor)
                }
        sets = used_sets(best)
        for one in sets if len(sets) > 1 else ():
            kept = {one: lambdas(best)["lambda_z"][one]}
            changes[f"only-{one}"] = {"regularization.lambda_z": kept}
        for word, factor in FACTORS.items() if sets else ():
            highest = _scaled(best.regularization.adaptive_max, factor)
            changes[f"{word}-highest-lambda"] = {"regularization.adaptive_max": highest}
        return found | {f"{name}-{what}": overlay(best, of) for what, of in changes.items()}

    def train(self, candidates: Mapping[str, RunConfig], share: float) -> None:
        self.candidates |= candidates
        left = 60 * self.settings.minutes * share - self.used_seconds
        self.records.forget_failures()
        ended = {name for name, one in self.records.all().items() if one.end}
        names = {self.name_of(of): of for of in candidates}
        configs = {
            name: overlay(candidates[of], {"name": name})
            for name, of in names.items()
            if name not in ended
        }
        if not configs or left < 1:
            return
        self.records.total = len(ended) + len(configs)
        self.records.ends_at = time.monotonic() + left
        self.began = time.monotonic() - self.used_seconds
        first = next(iter(configs.values()))
        grace = max(round(GRACE * self.records.training.epochs), 1)
        errors = run_trials(
            configs,
            self.run,
            self.directory.path,
            {str(self.dataset.path): identity_of(first, self.dataset)},
            self.records,
            metric=VALIDATION + first.training.selection_metric,
            mode="max",
            time_budget_s=left,
            scheduler=halving(grace, self.spared),
        )
        self.note_time()
        if errors:
            self.failed = failures(errors, len(configs))
            logger.warning(self.failed)

    @property
    def spared(self) -> set[str]:
        """The names of runs that are never stopped early, as others are compared with them."""
        encoder = self.settings.encoders[0]
        ladder = {f"{encoder}-{one}" for one in ("unidec-graph", "unidec", "in_batch")}
        names = [one for one in self.candidates if one in ladder or one.endswith(LONGER)]
        return set(map(self.name_of, names))

    def config_of(self, candidate: str) -> RunConfig:
        return overlay(self.candidates[candidate], {"name": None})

    def choice(self, data: Prepared) -> str:
        """Return the first candidate, the recipe's, unless the best beats it beyond noise."""
        validated = self.validated
        best, recipe = next(iter(validated)), next(iter(self.candidates))
        if recipe not in validated or not validated[recipe].is_whole:
            return best
        if best == recipe or not validated[best].is_whole:
            return recipe
        gains = paired_differences(self._scores(best, data), self._scores(recipe, data))
        return best if gains[MEAN].low > 0 else recipe

    def gains(self, chosen: str, data: Prepared) -> dict[str, dict[str, Difference]]:
        """Compare what is chosen with all others that were trained to the end."""
        whole = [name for name, one in self.validated.items() if one.is_whole]
        if chosen not in whole:
            return {}
        ours = self._scores(chosen, data)
        return {
            one: paired_differences(ours, self._scores(one, data)) for one in whole if one != chosen
        }

    def rungs(self, chosen: str) -> list[str]:
        """Name what tells why: the best, plain batches, and the base with and without graph."""
        encoder = max(
            (one for one in self.settings.encoders if chosen.startswith(f"{one}-")), key=len
        )
        base = f"{encoder}-{self.candidates[chosen].base.kind}"
        best = next(iter(self.validated))
        return list(dict.fromkeys([best, f"{encoder}-in_batch", base, f"{base}-graph"]))

    def _scores(self, name: str, data: Prepared) -> dict[str, PerQuery]:
        config = self.candidates[name]
        folder = RunDirectory.of(config.output, self.name_of(name)).path
        scores = scores_of_run(folder, config, data, "validation")
        gains, possible = zip(*(scores[one] for one in HEADLINES), strict=True)
        return {**scores, MEAN: (sum(gains), sum(possible))}
