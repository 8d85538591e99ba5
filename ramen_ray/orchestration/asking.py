"""Ask retrievers the test queries of the dataset that they were made from."""

from typing import Any

import pandas as pd

from ramen_ray.data.dataset import Dataset, DatasetError
from ramen_ray.method.answers import AskedQueries
from ramen_ray.method.evaluation import Propensity
from ramen_ray.tracking.registry import LoggedRetriever, Registry

QUERIES_PER_PASS = 1024


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
    """Return the answers to all ``queries``, as many ads each as their metrics look at.

    Args:
        model: the retriever, as MLflow loads it.
        retriever: what is kept with it.
        queries: what is asked.
    """
    top_k = min(queries.num_answers, retriever.facts["num_ads"])
    texts = queries.texts
    starts = range(0, len(texts), QUERIES_PER_PASS)
    passes = (texts[start : start + QUERIES_PER_PASS] for start in starts)
    answers = [model.predict(asked, params={"top_k": top_k}) for asked in passes]
    return pd.concat(answers, ignore_index=True)
