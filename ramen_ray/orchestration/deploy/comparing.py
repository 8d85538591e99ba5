"""Compare two retrievers on the same test queries.

The two may be of different datasets, such as those of two weeks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.answering.retriever import Retriever
from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.store.dataset import Dataset, DatasetError, open_unchanged
from ramen_ray.data.store.predictions import users_ids
from ramen_ray.data.store.same_texts import alike, fold
from ramen_ray.data.store.schemas import TRAIN
from ramen_ray.long_work import logged_blocks, logged_progress
from ramen_ray.method.metrics.comparison import (
    Difference,
    by_piece,
    paired_differences,
)
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity, read_test_queries
from ramen_ray.method.metrics.ranking import PerQuery, ratios
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.orchestration.deploy.promotion_rules import PromotionRules
from ramen_ray.orchestration.run.identity import NOT_KNOWN, training_data
from ramen_ray.tracking.registry import LoggedRetriever, Registry, RegistryError

QUERIES_PER_PASS = 4096


@dataclass(frozen=True)
class Compared:
    """How much better a candidate is than the champion, on some queries and ads."""

    queries: str  # which they are, in words
    candidate: dict[str, float]  # its metrics
    differences: dict[str, Difference]  # by how much these exceed the champion's
    # the gains of both by queries, of which those that are alike count as one
    gains: tuple[Mapping[str, PerQuery], Mapping[str, PerQuery]] = ({}, {})
    num_lost_ads: int = 0  # how many ads of the champion the candidate does not have
    kept: Sequence[Sequence[str]] = ()  # rows of a table: ads and filters of both, and what is lost


@dataclass(frozen=True)
class Answering:
    """A retriever that is loaded, and what is known of it."""

    logged: LoggedRetriever
    model: Retriever

    @classmethod
    def load(cls, registry: Registry, uri: str) -> "Answering":
        """Load the retriever at ``uri``."""
        with logged_progress(f"loading {uri}"):
            return cls(registry.look_up(uri), registry.load(uri))

    def is_made_from(self, dataset: Dataset) -> bool:
        """Say whether it was trained on a dataset as it is now."""
        return bool(self.logged.metadata["dataset_fingerprint"] == dataset.fingerprint)

    @property
    def filters(self) -> list[str]:
        """The columns by which its answers can be filtered, sorted, if an ad has a value."""
        columns = self.model.ads.columns
        return sorted(name for name, (values, _) in columns.items() if values)

    def ads_of_rows(self, dataset: Dataset) -> Int64s:
        """Return which ad of a dataset is in each row (rows,) of its index; -1 for none.

        Ads of another dataset are found by the user's ids, or by texts if none has such an id.
        """
        indexed = self.model.ads
        ads = dataset.read("ads").sort_by("ad_id").combine_chunks()
        has_ids = "source_id" in ads.column_names or self.is_made_from(dataset)
        by_ids = (indexed.ids, users_ids(ads))
        by_texts = (indexed.texts, ads["text"])
        for names, known in [by_ids, by_texts] if has_ids else [by_texts]:
            places = pc.index_in(names, known.cast(names.type).combine_chunks())
            if places.null_count < len(places):
                break
        return np.asarray(pc.fill_null(places, -1), dtype=np.int64)

    def retrieve(
        self, texts: list[str], depth: int, ads: Int64s, among: Booleans | None = None
    ) -> TopK:
        """Return the best ads (queries, k) of a dataset for each query; k is at most ``depth``.

        What :meth:`ads_of_rows` returns are the ``ads``; ``among`` flags the rows (rows,) of the
        index to search, None those of the dataset's ads.
        """
        among = ads >= 0 if among is None else among
        starts = range(0, len(texts), QUERIES_PER_PASS)
        embedded = [
            self.model.embed(texts[start : start + QUERIES_PER_PASS])
            for start in logged_blocks("answering", starts, lambda _: QUERIES_PER_PASS, len(texts))
        ]
        k = min(depth, int(among.sum()))
        rows, scores = self.model.nearest(np.concatenate(embedded), k, among)
        return np.append(ads, -1)[rows], scores


def compare(
    registry: Registry, candidate: Answering, champion: Answering, rules: PromotionRules
) -> list[Compared]:
    """Compare two retrievers on the candidate's test queries; the first result decides.

    It is of the queries that neither was trained on, and the ads that both have. Then come the
    other queries, all queries with all ads of each, and clicks on ads that only the candidate has.
    Queries of the same words are one piece of evidence.

    Raises:
        DatasetError: the dataset is missing, or has changed since the candidate was trained on it.
        RegistryError: no ad is in both, no test query is new to both, or it is not known which are.
    """
    dataset, (texts, ground_truth) = open_test_queries(registry, candidate.logged, rules.test)
    seen, unknown = seen_queries(registry, [candidate.logged, champion.logged], texts)
    note = f"which of the test queries are new to both is not known: {'; '.join(unknown)}"
    if unknown and not rules.allow_unknown_training:
        raise RegistryError(f"{note}; bring it back, or compare with --allow-unknown-training")
    both = [(side, side.ads_of_rows(dataset)) for side in (candidate, champion)]
    has = [np.isin(np.arange(len(ground_truth.inverse)), ads) for _, ads in both]
    shared = has[0] & has[1]
    if not shared.any():
        raise RegistryError(f"they have no ad of {dataset.path} in common, by id or by text")
    of_both = [np.append(shared, False)[ads] for _, ads in both]  # rows of each index
    of_shared = ground_truth.among(shared)
    measured = [
        of_shared.measure(side.retrieve(texts, ground_truth.depth, ads, rows))
        for (side, ads), rows in zip(both, of_both, strict=True)
    ]
    title = "the test split"
    if not shared.all() or not all(side.is_made_from(dataset) for side, _ in both):
        among = f"among the {int(shared.sum()):,} ads that both have"
        title = f"{int((~seen).sum()):,} test queries of {dataset.name}, {among}"
    pieces = alike(pa.array(texts))
    title = f"{title}; {note}" if unknown else title
    decisive, *others = _by_novelty(title, measured, pieces, seen)
    num_lost = _num_lost_ads(*both[0], *both[1])
    kept = _kept(candidate, champion, num_lost)
    comparisons = [replace(decisive, num_lost_ads=num_lost, kept=kept), *others]
    if all(rows.all() for rows in of_both):
        return comparisons  # neither has any other ad
    whole = [
        side.retrieve(texts, ground_truth.depth, ads, np.full(len(ads), True)) for side, ads in both
    ]
    by_all = list(map(ground_truth.measure, whole))
    everything = "all of these queries, with all ads that each has"
    comparisons.append(_compared(everything, by_all, pieces, np.ones_like(seen)))
    of_new = ground_truth.among(has[0] & ~has[1])
    asks_new = (np.diff(of_new.truth.indptr) > 0) & ~seen
    if asks_new.any():
        title = f"clicks on new ads, which the champion lacks, of {int(asks_new.sum()):,} queries"
        by_new = list(map(of_new.measure, whole))
        comparisons.append(_compared(title, by_new, pieces, asks_new))
    return comparisons


def _num_lost_ads(ours: Answering, own_ads: Int64s, base: Answering, base_ads: Int64s) -> int:
    """Count the champion's ads that the candidate has neither as ads of the dataset nor by text."""
    has_text = np.asarray(pc.is_in(base.model.ads.texts, ours.model.ads.texts))
    return int((~np.isin(base_ads, own_ads[own_ads >= 0]) & ~has_text).sum())


def _kept(ours: Answering, base: Answering, num_lost: int) -> list[list[str]]:
    """Lay out the ads and filters of candidate and champion, and what is lost, as a table does."""
    rows = [
        ["ads", f"{len(ours.model.ads):,}", f"{len(base.model.ads):,}", f"{num_lost:,} lost", ""]
    ]
    if base.filters or ours.filters:
        lost = lost_filters(ours, base)
        shown = [", ".join(names) or "none" for names in (ours.filters, base.filters, lost)]
        rows.append(["filters", *shown[:2], f"{shown[2]} lost", ""])
    return rows


def lost_filters(ours: Answering, base: Answering) -> list[str]:
    """Name the columns by which only the answers of ``base`` can be filtered."""
    return sorted({*base.filters} - {*ours.filters})


def _by_novelty(
    queries: str, measured: list[dict[str, PerQuery]], pieces: Int64s, seen: Booleans
) -> list[Compared]:
    """Compare what two get on queries that neither has ``seen`` (queries,), then on the others."""
    if seen.all():
        raise RegistryError(
            "one of them was trained on all of the test queries; --test names a dataset with others"
        )
    if not seen.any():
        return [_compared(queries, measured, pieces, ~seen)]
    others = f"{int(seen.sum()):,} that one of the two was trained on"
    return [
        _compared(f"{queries}, that neither was trained on", measured, pieces, ~seen),
        _compared(others, measured, pieces, seen),
    ]


def _compared(
    queries: str, measured: list[dict[str, PerQuery]], pieces: Int64s, flags: Booleans
) -> Compared:
    """Compare what candidate and champion get on the queries that are flagged."""
    flagged = (
        {name: (gained[flags], possible[flags]) for name, (gained, possible) in metrics.items()}
        for metrics in measured
    )
    ours, theirs = (by_piece(metrics, pieces[flags]) for metrics in flagged)
    return Compared(queries, ratios(ours), paired_differences(ours, theirs), (ours, theirs))


def open_test_queries(
    registry: Registry, retriever: LoggedRetriever, test: str | None = None
) -> tuple[Dataset, tuple[list[str], GroundTruth]]:
    """Read the test split of a retriever's dataset, or of another, ``test``; or a DatasetError."""
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


def seen_queries(
    registry: Registry, retrievers: Iterable[LoggedRetriever], texts: list[str]
) -> tuple[Booleans, list[str]]:
    """Flag the texts (n,) that are train queries of a retriever, up to case and white space.

    Returns also the runs whose train queries are not known, each with the reason.
    """
    folded = fold(pa.array(texts))
    seen = np.zeros(len(texts), dtype=bool)
    unknown = []
    source_of = {
        data: retriever for retriever in retrievers for data in training_data(registry, retriever)
    }
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
