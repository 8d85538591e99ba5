"""Compare two retrievers on the test queries of a dataset, whatever each of them was made from."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.store.dataset import Dataset, DatasetError, open_unchanged
from ramen_ray.data.store.predictions import users_ids
from ramen_ray.data.store.texts import fold
from ramen_ray.method.metrics.comparison import Difference, paired_differences
from ramen_ray.method.metrics.judgement import Judgement, Propensity, read_test_queries
from ramen_ray.method.metrics.ranking import PerQuery, clicks_on, ratios
from ramen_ray.method.retrieval.search import TopK, search_index
from ramen_ray.told import told_of
from ramen_ray.tracking.registry import LoggedRetriever, Registry

QUERIES_PER_PASS = 4096


@dataclass(frozen=True)
class Compared:
    """How much better a candidate is than the champion, on some queries and ads."""

    of: str  # which they are, in words
    candidate: dict[str, float]  # its metrics
    differences: dict[str, Difference]  # by how much these exceed the champion's


@dataclass(frozen=True)
class Answering:
    """A retriever that is loaded, and what is known of it."""

    logged: LoggedRetriever
    model: Any

    @classmethod
    def load(cls, registry: Registry, uri: str) -> "Answering":
        """Load the retriever at ``uri``."""
        return cls(registry.look_up(uri), registry.load(uri))

    def is_made_from(self, dataset: Dataset) -> bool:
        """Say whether it was trained on a dataset as it is now."""
        return bool(self.logged.metadata["dataset_fingerprint"] == dataset.fingerprint)

    def ads_of_rows(self, dataset: Dataset) -> Int64s:
        """Return which ad of a dataset is in each row (rows,) of its index; -1 for none.

        Ads of another dataset are found by the user's ids, or by texts if it has none.
        """
        own = self.model.unwrap_python_model()
        ads = dataset.read("ads").sort_by("ad_id").combine_chunks()
        if "source_id" in ads.column_names or self.is_made_from(dataset):
            names, known = own.ad_ids, users_ids(ads)
        else:
            names, known = own.ad_texts, ads["text"]
        found = pc.index_in(names, known.cast(names.type).combine_chunks())
        return np.asarray(pc.fill_null(found, -1), dtype=np.int64)

    def retrieve(
        self, texts: list[str], depth: int, ads: Int64s, among: Booleans | None = None
    ) -> TopK:
        """Return the best ads (queries, k) of a dataset for each query; k is at most ``depth``.

        What :meth:`ads_of_rows` returns are the ``ads``; ``among`` flags the rows (rows,) of the
        index to search, None those of the dataset's ads.
        """
        own, rows = (
            self.model.unwrap_python_model(),
            np.flatnonzero(ads >= 0 if among is None else among),
        )
        starts = range(0, len(texts), QUERIES_PER_PASS)
        embedded = [
            own.encode(texts[start : start + QUERIES_PER_PASS])
            for start in told_of("answering", starts, lambda _: QUERIES_PER_PASS, len(texts))
        ]
        k = min(depth, len(rows))
        found, scores = search_index(own.index, np.concatenate(embedded), k, rows=rows)
        return np.append(ads, -1)[found], scores


def compare(
    registry: Registry, candidate: Answering, champion: Answering, test: str | None = None
) -> list[Compared]:
    """Compare two retrievers on the candidate's test queries; the first result decides.

    Retrievers of one dataset are compared on all its test queries and ads. Otherwise, the first
    result is of the ads that both have, and of queries that the champion was not trained on; then
    come the others, and all ads of each. ``test`` is another dataset with the test queries.

    Raises:
        DatasetError: the dataset is missing, or has changed since the candidate was trained on it.
    """
    dataset, (texts, judgement) = open_test_queries(registry, candidate.logged, test)
    both = [(one, one.ads_of_rows(dataset)) for one in (candidate, champion)]
    if all(one.is_made_from(dataset) for one, _ in both):
        measured = [_measure(one, texts, judgement, ads) for one, ads in both]
        return [_compared("the test split", *measured)]
    seen = _seen(registry, champion.logged, texts)
    return _apart(texts, judgement, both, seen, dataset.name)


def _apart(
    texts: list[str],
    judgement: Judgement,
    both: list[tuple[Answering, Int64s]],
    seen: Booleans | None,
    name: str,
) -> list[Compared]:
    has = [np.isin(np.arange(len(judgement.inverse)), ads) for _, ads in both]
    shared = has[0] & has[1]
    of_shared = replace(judgement, truth=clicks_on(judgement.truth, shared))
    measured = [
        _measure(one, texts, of_shared, ads, np.append(shared, False)[ads]) for one, ads in both
    ]
    among = f"test queries of {name}, among the {int(shared.sum()):,} ads that both have"
    if seen is None or not seen.any():
        note = "" if seen is not None else "; whether the champion was trained on some is not known"
        found = [_compared(f"{len(texts):,} {among}{note}", *measured)]
    else:
        new, known = ([_some(one, flags) for one in measured] for flags in (~seen, seen))
        found = [_compared(f"{int((~seen).sum()):,} {among}, that are new to the champion", *new)]
        found += [_compared(f"{int(seen.sum()):,} that the champion was trained on", *known)]
    if all(np.append(shared, False)[ads].all() for _, ads in both):
        return found  # neither has any other ad
    whole = [_measure(one, texts, judgement, ads, np.full(len(ads), True)) for one, ads in both]
    return [*found, _compared("all of these queries, with all ads that each has", *whole)]


def _measure(
    one: Answering,
    texts: list[str],
    judgement: Judgement,
    ads: Int64s,
    among: Booleans | None = None,
) -> dict[str, PerQuery]:
    return judgement.measure(one.retrieve(texts, judgement.depth, ads, among))


def _some(measured: dict[str, PerQuery], flags: Booleans) -> dict[str, PerQuery]:
    return {name: (gained[flags], possible[flags]) for name, (gained, possible) in measured.items()}


def _compared(of: str, candidate: dict[str, PerQuery], champion: dict[str, PerQuery]) -> Compared:
    return Compared(of, ratios(candidate), paired_differences(candidate, champion))


def open_test_queries(
    registry: Registry, retriever: LoggedRetriever, test: str | None = None
) -> tuple[Dataset, tuple[list[str], Judgement]]:
    """Read the test split of a retriever's dataset, or of the dataset directory ``test``.

    Raises:
        DatasetError: the dataset is missing, or has changed since.
    """
    parameters = registry.parameters(retriever.run_id)
    since = f"since {retriever.uri} was trained on it; train again"
    fingerprint = retriever.metadata["dataset_fingerprint"]
    if test is None:
        dataset = open_unchanged(parameters["dataset"], fingerprint, since)
    else:
        dataset = Dataset(test)
    constants = (float(parameters[f"evaluation.propensity_{name}"]) for name in "ab")
    with dataset.unchanged(since):
        return dataset, read_test_queries(dataset, Propensity(*constants))


def _seen(registry: Registry, champion: LoggedRetriever, texts: list[str]) -> Booleans | None:
    """Flag the texts that a retriever was trained on; None if its dataset has gone or changed."""
    path = registry.parameters(champion.run_id)["dataset"]
    try:
        dataset = open_unchanged(path, champion.metadata["dataset_fingerprint"], "since")
    except DatasetError:
        return None
    trained = fold(dataset.read("queries/train")["text"].combine_chunks())
    return np.asarray(pc.is_in(fold(pa.array(texts)), trained))
