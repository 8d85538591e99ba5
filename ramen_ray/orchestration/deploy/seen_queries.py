"""Which queries retrievers were trained on, or the encoders that they began with."""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.same_texts import fold
from ramen_ray.data.store.schemas import TRAIN
from ramen_ray.orchestration.run.identity import NOT_KNOWN, training_data
from ramen_ray.tracking.registry import LoggedRetriever, Registry


def seen_queries(
    registry: Registry, retrievers: Iterable[LoggedRetriever], texts: list[str]
) -> tuple[Booleans, list[str]]:
    """Flag the texts (n,) that are train queries of a retriever, up to case and white space.

    Returns also the runs whose train queries are not known, each with the reason.
    """
    folded = fold(pa.array(texts))
    seen = np.zeros(len(texts), dtype=bool)
    unknown = []
    source_of = {data: its for its in retrievers for data in training_data(registry, its)}
    for (path, content), retriever in source_of.items():
        try:
            seen |= _train_queries_among(folded, path, content)
        except DatasetError as error:
            run = registry.name_of_run(registry.trained_by(retriever))
            unknown.append(f"run {run}: {error}")
    return seen, unknown


def _train_queries_among(folded: pa.Array, path: str, content: str) -> Booleans:
    """Flag the texts (n,) that a dataset has as train queries; a DatasetError if it has changed."""
    if content == NOT_KNOWN:
        raise DatasetError(f"the run that trained its encoder {path} is gone")
    dataset = Dataset(path)
    flags = np.zeros(len(folded), dtype=bool)
    for batch in dataset.batches(TRAIN, ["text"]):
        flags |= np.asarray(pc.is_in(folded, fold(batch["text"])))
    if content not in (dataset.content_of([TRAIN]), dataset.fingerprint):
        raise DatasetError(f"{path} has changed since")
    return flags
