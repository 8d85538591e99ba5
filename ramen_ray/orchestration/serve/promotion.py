"""Choose the retriever to deploy: a new one must be measurably better on the same test queries.

The two may be of different datasets, such as those of two weeks.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.store.dataset import Dataset, DatasetError, open_unchanged
from ramen_ray.data.store.predictions import users_ids
from ramen_ray.data.store.same_texts import fold
from ramen_ray.method.metrics.comparison import Difference, in_points, paired_differences
from ramen_ray.method.metrics.judgement import METRICS, Judgement, Propensity, read_test_queries
from ramen_ray.method.metrics.ranking import PerQuery, clicks_on, ratios
from ramen_ray.method.retrieval.search import TopK, search_index
from ramen_ray.orchestration.serve.retrievers import mlflow_run_id
from ramen_ray.told import told, told_of
from ramen_ray.tracking.registry import LoggedRetriever, Registry, RegistryError, ask_once, uri_of
from ramen_ray.tracking.runs import TrackingError

CHAMPION = "champion"
QUERIES_PER_PASS = 4096


class IncomparableError(RegistryError):
    """A candidate cannot be compared with the champion; ``force`` promotes it anyway."""


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
        with told(f"loading {uri}"):
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
    come the others, and all ads of each. ``test`` is another dataset with the test queries. Raises
    a DatasetError if the dataset is missing, or has changed since the candidate was trained on it.
    """
    dataset, (texts, judgement) = open_test_queries(registry, candidate.logged, test)
    both = [(one, one.ads_of_rows(dataset)) for one in (candidate, champion)]
    if all(one.is_made_from(dataset) for one, _ in both):
        answers = [one.retrieve(texts, judgement.depth, ads) for one, ads in both]
        return [_compared("the test split", [judgement.measure(found) for found in answers])]
    has = [np.isin(np.arange(len(judgement.inverse)), ads) for _, ads in both]
    shared = has[0] & has[1]
    of_both = [np.append(shared, False)[ads] for _, ads in both]  # rows of each index
    of_shared = replace(judgement, truth=clicks_on(judgement.truth, shared))
    measured = [
        of_shared.measure(one.retrieve(texts, judgement.depth, ads, rows))
        for (one, ads), rows in zip(both, of_both, strict=True)
    ]
    among = f"test queries of {dataset.name}, among the {int(shared.sum()):,} ads that both have"
    seen = _seen(registry, champion.logged, texts)
    if seen is None or not seen.any():
        note = "" if seen is not None else "; whether the champion was trained on some is not known"
        found = [_compared(f"{len(texts):,} {among}{note}", measured)]
    else:
        parts = {
            f"{int((~seen).sum()):,} {among}, that are new to the champion": ~seen,
            f"{int(seen.sum()):,} that the champion was trained on": seen,
        }
        found = [_compared(of, measured, flags) for of, flags in parts.items()]
    if all(rows.all() for rows in of_both):
        return found  # neither has any other ad
    whole = [
        judgement.measure(one.retrieve(texts, judgement.depth, ads, np.full(len(ads), True)))
        for one, ads in both
    ]
    return [*found, _compared("all of these queries, with all ads that each has", whole)]


def _compared(
    of: str, measured: list[dict[str, PerQuery]], flags: Booleans | slice = slice(None)
) -> Compared:
    """Compare what candidate and champion get on the queries that are flagged, or on all."""
    ours, theirs = (
        {name: (gained[flags], possible[flags]) for name, (gained, possible) in one.items()}
        for one in measured
    )
    return Compared(of, ratios(ours), paired_differences(ours, theirs))


def open_test_queries(
    registry: Registry, retriever: LoggedRetriever, test: str | None = None
) -> tuple[Dataset, tuple[list[str], Judgement]]:
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


def _seen(registry: Registry, champion: LoggedRetriever, texts: list[str]) -> Booleans | None:
    """Flag the texts that a retriever was trained on; None if its dataset has gone or changed."""
    path = registry.parameters(champion.run_id)["dataset"]
    try:
        dataset = open_unchanged(path, champion.metadata["dataset_fingerprint"], "since")
    except DatasetError:
        return None
    trained = fold(dataset.read("queries/train")["text"].combine_chunks())
    return np.asarray(pc.is_in(fold(pa.array(texts)), trained))


@dataclass(frozen=True)
class Promotion:
    """What was decided about a candidate, and why."""

    version: str  # its registered version
    champion: str | None  # the version that was champion before; None if there was none
    metric: str  # the metric that decides
    promoted: bool  # whether it has the alias now
    origin: str | None = None  # the run of a sweep that it comes from, and why that one
    # how they compare, what decided first; empty if nothing was compared
    compared: list[Compared] = field(default_factory=list)
    num_lost_ads: int = 0  # how many more ads the champion has, added since its training
    obstacle: str | None = None  # why it was promoted by force without a comparison, if so

    @property
    def verdict(self) -> str:
        """Describe in one line what decided."""
        if self.champion is None:
            return "the first of its name"
        if self.obstacle is not None:
            return f"not compared with version {self.champion}: {self.obstacle}"
        decisive = self.compared[0]
        by = in_points(decisive.differences[self.metric])
        found = f"{self.metric} {by} against version {self.champion} on {decisive.of}"
        if self.num_lost_ads > 0:
            found += f"; version {self.champion} has {self.num_lost_ads} more ads, added since"
        return found


def promote(
    registry: Registry,
    run: str,
    named: str,
    metric: str | None = None,
    force: bool = False,
    test: str | None = None,
) -> Promotion:
    """Register a run's retriever, and give it an alias if it beats the current champion.

    It does if its metric on test queries is higher by more than noise: the 95 % interval of a
    paired bootstrap over the queries lies above zero. The first of a name is not compared.

    Args:
        registry: of the run's store.
        run: folder of a finished run, or an MLflow run id; for that of a sweep, its best child by
            the metric on the validation split is taken.
        named: name of the registered model, and, after an @, the alias to give if it is not
            ``champion``, such as ``shop@challenger``.
        metric: such as ``R@10``; None for the one that selected the run's best checkpoint.
        force: give the alias in any case, even if the champion cannot be compared.
        test: a dataset with the test queries; None for the one that the run was trained on.

    Raises:
        RegistryError: a name is not valid, there is no such metric or no retriever, it is the
            champion already, or it does not answer.
        IncomparableError: the champion is no retriever or cannot be loaded, without ``force``.
        DatasetError: the dataset that the run was trained on is missing, or has changed since.
    """
    name, at, given = named.partition("@")
    alias = given if at else CHAMPION
    if metric is not None and metric not in METRICS:
        raise RegistryError(f"the metric {metric!r} is not one of {', '.join(METRICS)}")
    registry.check_name(name, alias)
    run_id = mlflow_run_id(run)
    source, model_id = registry.find_logged(run_id, metric)
    metric = metric or registry.parameters(source)["training.selection_metric"]
    champion = registry.chosen(name, CHAMPION)
    if champion is not None and champion.source == uri_of(model_id):
        raise RegistryError(f"this retriever is the champion already: version {champion.version}")
    compared: list[Compared] = []
    lost, obstacle = 0, None
    ours = Answering.load(registry, uri_of(model_id))
    ask_once(ours.model)
    if champion is not None:
        try:
            base = Answering.load(registry, f"models:/{name}/{champion.version}")
            compared = compare(registry, ours, base, test)
            if len(compared) == 1:
                lost = base.logged.metadata["num_ads"] - ours.logged.metadata["num_ads"]
        except (RegistryError, TrackingError, DatasetError) as error:
            if not force:
                raise IncomparableError(
                    f"cannot compare with the champion, version {champion.version}: {error}"
                ) from error
            obstacle = str(error)
    version = registry.register(name, source, model_id)
    promotion = Promotion(
        str(version.version),
        None if champion is None else str(champion.version),
        metric,
        promoted=force or champion is None or compared[0].differences[metric].low > 0,
        origin=registry.explain_choice(run_id, source, metric),
        compared=compared,
        num_lost_ads=lost,
        obstacle=obstacle,
    )
    registry.describe(version, promotion.verdict)
    if promotion.promoted:
        registry.choose(version, alias)
    return promotion
