"""Find what is best for some data within some minutes, on the validation split only."""

from dataclasses import dataclass, replace
from pathlib import Path

from ramen_ray.config import ConfigError, RunConfig, WorkersConfig, flatten, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.splits.sample import sample_dataset
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import TRAIN
from ramen_ray.method.metrics.ranking import HEADLINES
from ramen_ray.naming import joined_name, short_hash
from ramen_ray.orchestration.run.checks import check_config
from ramen_ray.orchestration.run.directory import (
    RunDirectory,
    RunError,
    deciding_settings,
    experiment_hash,
)
from ramen_ray.orchestration.run.identity import check_meanwhile, identity_of
from ramen_ray.orchestration.run.inputs import prepared_data
from ramen_ray.orchestration.tune.choice import mean
from ramen_ray.orchestration.tune.settings import SEARCHES, WORKERS, RecommendConfig
from ramen_ray.orchestration.tune.timed_search import MEAN, TimedSearch, start_of
from ramen_ray.orchestration.tune.trials import parent_run
from ramen_ray.reports.search_report import candidates_table, verdict, write_recommendation
from ramen_ray.tracking.runs import Run


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
    first = start_of(settings, settings.encoders[0], settings.dataset)
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
        search = TimedSearch(settings, directory, dataset)
        search.explore(run)
        if not search.validated:
            why = search.failed or f"{settings.minutes:g} minutes are too few"
            raise RunError(f"no candidate was validated: {why}")
        now = identity_of(first, Dataset(first.dataset))
        check_meanwhile(made_from, now, first.dataset)
        return _report(search, data, whole, run)


def _report(search: TimedSearch, data: Prepared, whole: Dataset, run: Run) -> Recommendation:
    """Choose among the validated candidates, and log what was found on ``data``."""
    settings = search.settings
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
    shown = {rung: gains[rung] for rung in search.rungs(chosen) if rung in gains}
    sentences = verdict(measured, chosen, said, shown)
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
