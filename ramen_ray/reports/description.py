"""Describe a dataset directory: sentences, tables and figures, for a page and for MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ramen_ray.data.checks.validation import check
from ramen_ray.data.describe.counts import (
    count_clicks,
    count_edges,
    dataset_statistics,
)
from ramen_ray.data.describe.graph_signal import GraphSignal, graph_signals
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import shown_path
from ramen_ray.long_work import logged_progress
from ramen_ray.reports.dataset_report import (
    Section,
    average,
    count,
    distributions,
    hubs,
    popularity,
    samples,
    shares,
    splits,
    summary,
    token_lengths,
)
from ramen_ray.reports.graph_report import reading, signal_table
from ramen_ray.reports.report_tables import ReportTable
from ramen_ray.tracking.addresses import tracking_uri
from ramen_ray.tracking.runs import Run, open_run, prefixed


@dataclass(frozen=True)
class Description:
    """What is in a dataset; small, however large that is."""

    name: str
    note: str  # where the data is from, as far as ``dataset.json`` says so
    words: list[str]  # how large it is, and what its graphs promise
    tables: list[ReportTable]  # summary first
    metrics: dict[str, float]  # all figures by name, the statistics first
    settings: dict[str, str | int]  # by which texts were measured


def describe(dataset: Dataset, encoder: str, max_length: int) -> Description:
    """Describe ``dataset``, whose tables are read as streams.

    The encoder's tokenizer counts tokens; texts with more than ``max_length`` are too long. Raises
    a DatasetError with all errors of the dataset directory, or an EncoderError.
    """
    with logged_progress(f"checking {shown_path(dataset.path)}"):
        check(dataset)
    with logged_progress(f"counting clicks, edges and tokens of {shown_path(dataset.path)}"):
        tokens = token_lengths(dataset, encoder, max_length)
        clicks = {split: count_clicks(dataset, split) for split in dataset.splits}
        edges = {name: count_edges(dataset, name) for name in dataset.anchor_sets}
        statistics = dataset_statistics(dataset, clicks)
        signals = graph_signals(dataset, clicks, edges)
        sections: list[Section] = [
            (summary(statistics, dataset.anchor_sets), {}),
            (splits(statistics, clicks), {}),
            shares(clicks, edges),
            popularity(clicks["train"].per_ad, clicks["test"].per_ad),
            distributions(clicks["train"], edges),
            (hubs(dataset, edges), {}),
            (signal_table(signals), _signal_figures(signals)),
            tokens,
            (samples(dataset), {}),
        ]
    metrics = dict(statistics)
    for _, figures in sections:
        metrics |= figures
    texts = (str(dataset.metadata.get(key) or "") for key in ("source", "licence"))
    return Description(
        dataset.name,
        " · ".join(filter(None, texts)),
        _words(statistics, signals),
        [table for table, _ in sections if table.rows],
        metrics,
        {"tokenizer": encoder, "max_length": max_length},
    )


def log_description(description: Description, page: Path, experiment: str, output: Path) -> Run:
    """Log the numbers and the page as a run of its own in ``experiment``; or a TrackingError."""
    name = description.name
    run = open_run(tracking_uri(output), experiment, f"describe-{name}", output)
    with run.closing():
        run.log_parameters(description.settings, {"dataset": name})
        run.log_metrics(prefixed("dataset.", description.metrics))
        run.log_artifacts(page)
    return run


def _words(numbers: Mapping[str, float], signals: Mapping[str, GraphSignal]) -> list[str]:
    sizes = [count(numbers[f"num_{name}"]) for name in ("train_queries", "ads", "test_queries")]
    words = [
        "{} train queries, {} ads, {} test queries.".format(*sizes),
        f"{average(numbers['clicks_per_query'])} clicks per query, "
        f"{average(numbers['queries_per_ad'])} queries per ad.",
    ]
    words += [f"{name}: {reading(signal)}" for name, signal in signals.items()]
    if not signals:
        words.append("No graph; jobs/graph.py makes one from sessions or from texts.")
    return words


def _signal_figures(signals: Mapping[str, GraphSignal]) -> dict[str, float]:
    return {
        f"signal/{name}/{figure}": value
        for name, signal in signals.items()
        for figure, value in signal.metrics.items()
    }
