"""Evaluate retrievers on the test queries of their dataset."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ramen_ray.data.store.dataset import open_unchanged
from ramen_ray.method.metrics.held_out import HeldOutQueries
from ramen_ray.method.metrics.judgement import Propensity
from ramen_ray.method.retrieval.index import search_first
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.tracking.registry import LoggedRetriever, Registry

QUERIES_PER_PASS = 4096
UNTIMED_QUERIES = 10


def open_test_queries(registry: Registry, retriever: LoggedRetriever) -> HeldOutQueries:
    """Open the test split of a retriever's dataset.

    Raises:
        DatasetError: the dataset is missing, or has changed since.
    """
    parameters = registry.parameters(retriever.run_id)
    since = f"since {retriever.uri} was trained on it; train again"
    fingerprint = retriever.metadata["dataset_fingerprint"]
    dataset = open_unchanged(parameters["dataset"], fingerprint, since)
    constants = (float(parameters[f"evaluation.propensity_{name}"]) for name in "ab")
    with dataset.unchanged(since):
        return HeldOutQueries(dataset, Propensity(*constants))


def retrieve(model: Any, queries: HeldOutQueries) -> TopK:
    """Return each query's best ads of the dataset (queries, k), as many as the metrics need.

    The model's own encoder and index are used; ads that were added later are ignored.

    Args:
        model: the retriever, as MLflow loads it.
        queries: the test queries.

    Returns:
        ad ids int64, best first, -1 after the last that the index finds, and their scores.
    """
    retriever, texts = model.unwrap_python_model(), queries.texts
    k = min(queries.num_searched, queries.num_ads)
    passes = (
        retriever.encode(texts[start : start + QUERIES_PER_PASS])
        for start in range(0, len(texts), QUERIES_PER_PASS)
    )
    found = [search_first(retriever.index, embedded, k, queries.num_ads) for embedded in passes]
    ads, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return ads, scores


def time_alone(models: Sequence[Any], texts: Sequence[str]) -> list[float]:
    """Return each model's median time for a single query, in milliseconds.

    The models take turns, so that a machine that is busy for a while slows all of them.

    Args:
        models: retrievers, as MLflow loads them.
        texts: queries; the first ones are answered once before timing starts.
    """
    timed_texts = [*texts[:UNTIMED_QUERIES], *texts]
    seconds = np.empty((len(timed_texts), len(models)))
    for row, text in zip(seconds, timed_texts, strict=True):
        for column, model in enumerate(models):
            started = time.perf_counter()
            model.predict([text])
            row[column] = time.perf_counter() - started
    timed = seconds[len(timed_texts) - len(texts) :]
    return [1000 * float(median) for median in np.median(timed, axis=0)]
