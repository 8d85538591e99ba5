"""Ask retrievers the test queries of the dataset that they were made from."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ramen_ray.data.dataset import Dataset, DatasetError
from ramen_ray.method.answers import AskedQueries
from ramen_ray.method.evaluation import Propensity
from ramen_ray.tracking.registry import LoggedRetriever, Registry

ADS_PER_PASS = 1 << 17
UNTIMED_QUERIES = 10


def asked_queries(registry: Registry, retriever: LoggedRetriever) -> AskedQueries:
    """Open the test split of a retriever's dataset.

    Raises:
        DatasetError: the dataset is gone, or has changed since.
    """
    parameters = registry.parameters(retriever.run_id)
    dataset = Dataset(parameters["dataset"])
    if dataset.fingerprint != retriever.facts["dataset_fingerprint"]:
        raise DatasetError(
            f"{dataset.path} has changed since {retriever.uri} was made from it; train again"
        )
    constants = (float(parameters[f"evaluation.propensity_{name}"]) for name in "ab")
    return AskedQueries(dataset, Propensity(*constants))


def ask(model: Any, retriever: LoggedRetriever, queries: AskedQueries) -> pd.DataFrame:
    """Return ``ad_ids`` and ``scores`` for all ``queries``, as many as their metrics look at.

    Ads that the dataset does not have, which were added since, come on top.

    Args:
        model: the retriever, as MLflow loads it.
        retriever: what is kept with it.
        queries: what is asked.
    """
    num_ads, texts = retriever.facts["num_ads"], queries.texts
    top_k = min(queries.num_answers + num_ads - queries.num_ads, num_ads)
    at_once = max(ADS_PER_PASS // top_k, 1)
    passes = (texts[start : start + at_once] for start in range(0, len(texts), at_once))
    answers = (model.predict(asked, params={"top_k": top_k}) for asked in passes)
    return pd.concat([found[["ad_ids", "scores"]] for found in answers], ignore_index=True)


def time_alone(models: Sequence[Any], texts: Sequence[str]) -> list[float]:
    """Return each model's median time for one query alone, in milliseconds.

    The models take turns, so that a machine which is busy for a while slows them alike.

    Args:
        models: retrievers, as MLflow loads them.
        texts: queries; the first ones are asked once more before, untimed.
    """
    asked = [*texts[:UNTIMED_QUERIES], *texts]
    seconds = np.empty((len(asked), len(models)))
    for row, text in zip(seconds, asked, strict=True):
        for column, model in enumerate(models):
            started = time.perf_counter()
            model.predict([text])
            row[column] = time.perf_counter() - started
    timed = seconds[len(asked) - len(texts) :]
    return [1000 * float(median) for median in np.median(timed, axis=0)]
