"""Choose the retriever to deploy: a new one must be measurably better on the same test split."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ramen_ray.data.store.dataset import DatasetError, open_unchanged
from ramen_ray.method.metrics.comparison import Difference, paired_differences
from ramen_ray.method.metrics.judgement import (
    METRICS,
    JudgedQueries,
    Propensity,
    read_test_queries,
)
from ramen_ray.method.metrics.ranking import ratios
from ramen_ray.method.retrieval.search import TopK, search_index
from ramen_ray.orchestration.run.finished import mlflow_run_id
from ramen_ray.tracking.registry import LoggedRetriever, Registry, RegistryError, ask_once, uri_of
from ramen_ray.tracking.runs import TrackingError

CHAMPION = "champion"
QUERIES_PER_PASS = 4096


class IncomparableError(RegistryError):
    """A candidate cannot be compared with the champion; ``force`` promotes it anyway."""


@dataclass(frozen=True)
class Promotion:
    """What was decided about a candidate, and why.

    Attributes:
        version: its registered version.
        champion: the version that was champion before; None if there was none.
        metric: the metric that decides.
        promoted: whether it has the alias now.
        origin: the run of a sweep that it comes from, and why that one.
        candidate: its metrics on the test split; empty if nothing was compared.
        differences: by how much they exceed the champion's.
        num_lost_ads: how many more ads the champion has, added since its training.
        obstacle: why it was promoted by force without a comparison, if so.
    """

    version: str
    champion: str | None
    metric: str
    promoted: bool
    origin: str | None = None
    candidate: dict[str, float] = field(default_factory=dict)
    differences: dict[str, Difference] = field(default_factory=dict)
    num_lost_ads: int = 0
    obstacle: str | None = None

    @property
    def verdict(self) -> str:
        """Describe in one line what decided."""
        if self.champion is None:
            return "the first of its name"
        if self.obstacle is not None:
            return f"not compared with version {self.champion}: {self.obstacle}"
        by, low, high = (100 * value for value in self.differences[self.metric])
        found = f"{self.metric} {by:+.2f} [{low:+.2f}, {high:+.2f}] against version {self.champion}"
        found += " on the test split"
        if self.num_lost_ads > 0:
            found += f"; version {self.champion} has {self.num_lost_ads} more ads, added since"
        return found


def promote(
    registry: Registry,
    run: str,
    name: str,
    alias: str = CHAMPION,
    metric: str | None = None,
    force: bool = False,
) -> Promotion:
    """Register a run's retriever, and give it ``alias`` if it beats the current champion.

    It does if its metric on the test split is higher by more than noise: the 95 % interval of a
    paired bootstrap over the queries lies above zero. Both retrievers answer as deployed, with
    their index. The first retriever of a name becomes champion without a comparison.

    Args:
        registry: the registry of the run's store.
        run: folder of a finished run, or an MLflow run id; for that of a sweep, its best child by
            the metric on the validation split is taken.
        name: name of the registered model.
        alias: the alias to give, such as ``champion`` or ``challenger``.
        metric: such as ``R@10``; None for the one that selected the run's best checkpoint.
        force: give the alias in any case, even if the champion cannot be compared.

    Raises:
        RegistryError: ``name`` or ``alias`` is not a valid name, there is no such metric or no
            retriever, it is the champion already, or it does not answer.
        IncomparableError: the champion is not a retriever, or was trained on another version of the
            dataset, and ``force`` is not given.
        DatasetError: the dataset that the run was trained on is missing, or has changed since.
    """
    if metric is not None and metric not in METRICS:
        raise RegistryError(f"the metric {metric!r} is not one of {', '.join(METRICS)}")
    registry.check_name(name, alias)
    run_id = mlflow_run_id(run)
    source, model_id = registry.find_logged(run_id, metric)
    metric = metric or registry.parameters(source)["training.selection_metric"]
    champion = registry.chosen(name, CHAMPION)
    if champion is not None and champion.source == uri_of(model_id):
        raise RegistryError(f"this retriever is the champion already: version {champion.version}")
    compared: dict[str, Any] = {}
    model = registry.load(uri_of(model_id))
    ask_once(model)
    if champion is not None:
        ours = registry.look_up(uri_of(model_id))
        try:
            compared = _compare(registry, ours, model, f"models:/{name}/{champion.version}")
        except (RegistryError, TrackingError, DatasetError) as error:
            if not force:
                raise IncomparableError(
                    f"cannot compare with the champion, version {champion.version}: {error}"
                ) from error
            compared = {"obstacle": str(error)}
    version = registry.register(name, source, model_id)
    promotion = Promotion(
        str(version.version),
        None if champion is None else str(champion.version),
        metric,
        promoted=force or champion is None or compared["differences"][metric].low > 0,
        origin=registry.explain_choice(run_id, source, metric),
        **compared,
    )
    registry.describe(version, promotion.verdict)
    if promotion.promoted:
        registry.choose(version, alias)
    return promotion


def _compare(
    registry: Registry, ours: LoggedRetriever, model: Any, champion_uri: str
) -> dict[str, Any]:
    """Evaluate both on the test split; ``model`` is ours, loaded."""
    base = registry.look_up(champion_uri)
    if ours.metadata["dataset_fingerprint"] != base.metadata["dataset_fingerprint"]:
        raise RegistryError(
            f"{champion_uri} was made from another version of the dataset than this retriever; "
            f"train it again on the current one"
        )
    queries = open_test_queries(registry, ours)
    candidate, champion = (
        queries.judgement.measure(retrieve(one, queries))
        for one in (model, registry.load(base.uri))
    )
    return {
        "candidate": ratios(candidate),
        "differences": paired_differences(candidate, champion),
        "num_lost_ads": base.metadata["num_ads"] - ours.metadata["num_ads"],
    }


def open_test_queries(registry: Registry, retriever: LoggedRetriever) -> JudgedQueries:
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
        return read_test_queries(dataset, Propensity(*constants))


def retrieve(model: Any, queries: JudgedQueries) -> TopK:
    """Return each query's best ads of the dataset (queries, k), as many as the metrics need.

    The model's own encoder and index are used; ads that were added later are ignored.

    Args:
        model: the retriever, as MLflow loads it.
        queries: the test queries.
    """
    retriever, (texts, judgement) = model.unwrap_python_model(), queries
    num_ads = len(judgement.inverse)
    embedded = [
        retriever.encode(texts[start : start + QUERIES_PER_PASS])
        for start in range(0, len(texts), QUERIES_PER_PASS)
    ]
    k = min(judgement.depth, num_ads)
    return search_index(retriever.index, np.concatenate(embedded), k, num_ads=num_ads)
