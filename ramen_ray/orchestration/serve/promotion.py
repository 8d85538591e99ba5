"""Choose the retriever to deploy: a new one must be measurably better on the same test queries."""

from dataclasses import dataclass, field

from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.method.metrics.comparison import in_points
from ramen_ray.method.metrics.judgement import METRICS
from ramen_ray.orchestration.serve.comparing import Answering, Compared, compare
from ramen_ray.orchestration.serve.retrievers import mlflow_run_id
from ramen_ray.tracking.registry import Registry, RegistryError, ask_once, uri_of
from ramen_ray.tracking.runs import TrackingError

CHAMPION = "champion"


class IncomparableError(RegistryError):
    """A candidate cannot be compared with the champion; ``force`` promotes it anyway."""


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
    paired bootstrap over the queries lies above zero (:func:`~.comparing.compare`). The first
    retriever of a name becomes champion without a comparison.

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
