"""Choose the retriever to deploy: a new one must be measurably better on the same test queries.

The two may be of different datasets, such as those of two weeks.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.answering.retriever import Retriever
from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.store.dataset import Dataset, DatasetError, open_unchanged
from ramen_ray.data.store.predictions import users_ids
from ramen_ray.data.store.same_texts import fold
from ramen_ray.data.store.schemas import TRAIN
from ramen_ray.method.metrics.comparison import Difference, in_points, paired_differences
from ramen_ray.method.metrics.judgement import METRICS, Judgement, Propensity, read_test_queries
from ramen_ray.method.metrics.ranking import PerQuery, clicks_on, ratios
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.orchestration.run.made_from import trained_on
from ramen_ray.orchestration.serve.retrievers import find_logged
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
    model: Retriever

    @classmethod
    def load(cls, registry: Registry, uri: str) -> "Answering":
        """Load the retriever at ``uri``."""
        with told(f"loading {uri}"):
            return cls(registry.look_up(uri), registry.load(uri))

    def is_made_from(self, dataset: Dataset) -> bool:
        """Say whether it was trained on a dataset as it is now."""
        return bool(self.logged.metadata["dataset_fingerprint"] == dataset.fingerprint)

    def num_lost_to(self, other: "Answering") -> int:
        """Return how many more ads another retriever of the same dataset has, added since."""
        own, others = self.logged.metadata, other.logged.metadata
        is_same = own["dataset_fingerprint"] == others["dataset_fingerprint"]
        return int(others["num_ads"] - own["num_ads"]) if is_same else 0

    def ads_of_rows(self, dataset: Dataset) -> Int64s:
        """Return which ad of a dataset is in each row (rows,) of its index; -1 for none.

        Ads of another dataset are found by the user's ids, or by texts if none has such an id.
        """
        own = self.model.ads
        ads = dataset.read("ads").sort_by("ad_id").combine_chunks()
        has_ids = "source_id" in ads.column_names or self.is_made_from(dataset)
        by_ids, by_texts = (own.ids, users_ids(ads)), (own.texts, ads["text"])
        for names, known in [by_ids, by_texts] if has_ids else [by_texts]:
            found = pc.index_in(names, known.cast(names.type).combine_chunks())
            if found.null_count < len(found):
                break
        return np.asarray(pc.fill_null(found, -1), dtype=np.int64)

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
            for start in told_of("answering", starts, lambda _: QUERIES_PER_PASS, len(texts))
        ]
        k = min(depth, int(among.sum()))
        rows, scores = self.model.nearest(np.concatenate(embedded), k, among)
        return np.append(ads, -1)[rows], scores


def compare(
    registry: Registry, candidate: Answering, champion: Answering, test: str | None = None
) -> list[Compared]:
    """Compare two retrievers on the candidate's test queries; the first result decides.

    It is of the queries that neither was trained on; then come the others. Retrievers of one
    dataset are compared on all of its ads; else on those that both have, and at last on all ads of
    each. ``test`` is another dataset with the test queries.

    Raises:
        DatasetError: the dataset is missing, or has changed since the candidate was trained on it.
        RegistryError: no ad is in both, or no test query is new to both.
    """
    dataset, (texts, judgement) = open_test_queries(registry, candidate.logged, test)
    seen, is_known = _seen(registry, [candidate, champion], dataset, texts)
    note = "" if is_known else "; whether one of the two was trained on some is not known"
    both = [(one, one.ads_of_rows(dataset)) for one in (candidate, champion)]
    if all(one.is_made_from(dataset) for one, _ in both):
        answers = [one.retrieve(texts, judgement.depth, ads) for one, ads in both]
        measured = [judgement.measure(found) for found in answers]
        return _by_novelty(f"the test split{note}", measured, seen)
    has = [np.isin(np.arange(len(judgement.inverse)), ads) for _, ads in both]
    shared = has[0] & has[1]
    if not shared.any():
        raise RegistryError(f"they have no ad of {dataset.path} in common, by id or by text")
    of_both = [np.append(shared, False)[ads] for _, ads in both]  # rows of each index
    of_shared = replace(judgement, truth=clicks_on(judgement.truth, shared))
    measured = [
        of_shared.measure(one.retrieve(texts, judgement.depth, ads, rows))
        for (one, ads), rows in zip(both, of_both, strict=True)
    ]
    among = f"test queries of {dataset.name}, among the {int(shared.sum()):,} ads that both have"
    found = _by_novelty(f"{int((~seen).sum()):,} {among}{note}", measured, seen)
    if all(rows.all() for rows in of_both):
        return found  # neither has any other ad
    whole = [
        judgement.measure(one.retrieve(texts, judgement.depth, ads, np.full(len(ads), True)))
        for one, ads in both
    ]
    return [*found, _compared("all of these queries, with all ads that each has", whole)]


def _by_novelty(of: str, measured: list[dict[str, PerQuery]], seen: Booleans) -> list[Compared]:
    """Compare what two get on queries that neither has ``seen`` (queries,), then on the others."""
    if seen.all():
        raise RegistryError(
            "one of them was trained on all of the test queries; --test names a dataset with others"
        )
    if not seen.any():
        return [_compared(of, measured)]
    others = f"{int(seen.sum()):,} that one of the two was trained on"
    return [
        _compared(f"{of}, that neither was trained on", measured, ~seen),
        _compared(others, measured, seen),
    ]


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


def _seen(
    registry: Registry, both: list[Answering], dataset: Dataset, texts: list[str]
) -> tuple[Booleans, bool]:
    """Flag the texts (n,) that one of two was trained on, or the encoders that it began with.

    Of the ``dataset`` itself, train queries are no test queries. Returns also whether all data that
    they were trained on are still there.
    """
    trained = {
        of
        for one in both
        for of in trained_on(
            registry.parameters(one.logged.run_id), one.logged.metadata["dataset_fingerprint"]
        )
        if of[1] != dataset.fingerprint
    }
    folded, is_known = fold(pa.array(texts)), True
    seen = np.zeros(len(texts), dtype=bool)
    for path, fingerprint in sorted(trained):
        try:
            queries = open_unchanged(path, fingerprint, "since").read(TRAIN)
        except DatasetError:
            is_known = False
        else:
            seen |= np.asarray(pc.is_in(folded, fold(queries["text"].combine_chunks())))
    return seen, is_known


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
        if self.champion == self.version:
            return "as before"
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
            champion already and would get another alias, or it does not answer.
        IncomparableError: the champion is no retriever or cannot be loaded, without ``force``.
        DatasetError: the dataset that the run was trained on is missing, or has changed since.
    """
    name, at, given = named.partition("@")
    alias = given if at else CHAMPION
    if metric is not None and metric not in METRICS:
        raise RegistryError(f"the metric {metric!r} is not one of {', '.join(METRICS)}")
    registry.check_name(name, alias)
    run_id, (source, model_id) = find_logged(registry, run, metric)
    metric = metric or registry.parameters(source)["training.selection_metric"]
    champion = registry.chosen(name, CHAMPION)
    if champion is not None and champion.source == uri_of(model_id):
        number = str(champion.version)
        if alias != CHAMPION:
            raise RegistryError(f"this retriever is the champion already: version {number}")
        return Promotion(number, number, metric, promoted=True)
    compared: list[Compared] = []
    lost, obstacle = 0, None
    ours = Answering.load(registry, uri_of(model_id))
    ask_once(ours.model)
    if champion is not None:
        try:
            base = Answering.load(registry, f"models:/{name}/{champion.version}")
            compared, lost = compare(registry, ours, base, test), ours.num_lost_to(base)
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
