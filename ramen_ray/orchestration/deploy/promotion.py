"""Choose the retriever to deploy: a new one must be measurably better on the same test queries."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.errors import UserError
from ramen_ray.method.metrics.comparison import Evidence, in_points
from ramen_ray.orchestration.deploy.comparing import Answering, Compared, compare, lost_filters
from ramen_ray.orchestration.deploy.promotion_rules import PromotionRules
from ramen_ray.orchestration.deploy.retrievers import find_candidate
from ramen_ray.tracking.addresses import TrackingError
from ramen_ray.tracking.aliases import (
    CHAMPION,
    Holder,
    give,
    holder_of,
    name_and_alias,
    note_asked,
    time_asked,
)
from ramen_ray.tracking.registry import (
    Registry,
    RegistryError,
    ask_once,
    registry_errors,
    uri_of,
)
from ramen_ray.tracking.runs import Run


class IncomparableError(RegistryError):
    """A candidate cannot be compared with the champion; ``force`` promotes it anyway."""


class LostFiltersError(UserError):
    """Clients would have fewer columns to filter by; ``allow_lost_filters`` promotes it anyway."""


@dataclass(frozen=True)
class Promotion:
    """What was decided about a candidate, and why."""

    version: str  # its registered version
    champion: Holder  # what was champion before
    metric: str  # the metric that decides
    promoted: bool  # whether it has the alias now
    origin: str | None = None  # the run of a sweep that it comes from, and why that one
    # how they compare, what decided first; empty if nothing was compared
    compared: list[Compared] = field(default_factory=list)
    obstacle: str | None = None  # why it was promoted by force without a comparison, if so
    evidence: Evidence | None = None  # whether that is noise; None if nothing was compared
    not_worse_by: float = 0.0  # points of the metric that it may be worse by
    veto: str | None = None  # why judgements speak against it, if they do

    @property
    def verdict(self) -> str:
        """Describe in one line what decided."""
        if self.obstacle is not None:
            return f"by force: {self.obstacle}"
        if not self.compared:
            is_same = self.champion.version == self.version
            return "as before" if is_same else "the first of its name"
        decisive = self.compared[0]
        before = f"version {self.champion.version}"
        by = in_points(decisive.differences[self.metric])
        sentence = f"{self.metric} {by} against {before} on {decisive.queries}; {self.evidence}"
        if self.not_worse_by:
            sentence += f"; it may be worse by {self.not_worse_by:g}"
        if self.veto:
            sentence += f"; vetoed: {self.veto}"
        if decisive.num_lost_ads:
            sentence += f"; {decisive.num_lost_ads:,} ads of {before} are not in it"
        if not self.champion.has_alias:
            sentence += f"; no version had the alias, {before} was the last (--restore)"
        return sentence


def promote(
    registry: Registry, run: str, named: str, rules: PromotionRules | None = None
) -> Promotion:
    """Register a run's retriever, and give it an alias if it beats the current champion.

    It does if its metric on test queries is higher by more than noise, or, with
    ``rules.not_worse_by``, is not lower than that by more than noise; and ``rules.veto`` allows it
    (:func:`~ramen_ray.orchestration.deploy.promotion.objection`). The more candidates of a name
    were compared, the more is noise (:mod:`~ramen_ray.method.metrics.comparison`). If no version is
    champion, the last that was and is still there is to be beaten; only the first of a name is not
    compared.

    Args:
        registry: of the run's store.
        run: folder of a finished run, or an MLflow run id; for that of a sweep, its best child by
            the metric on the validation split is taken.
        named: name of the registered model, and, after an @, the alias to give if it is not
            ``champion``, such as ``shop@challenger``.
        rules: by default, nothing is forced or allowed.

    Raises:
        RegistryError: a name is not valid, there is no such metric or no retriever, it is the
            champion already and would get another alias, it does not answer, or there is another
            champion by the time that the two are compared.
        IncomparableError: the champion is no retriever, is gone or cannot be loaded, or it is not
            known what the two were trained on, without ``rules.force``.
        LostFiltersError: the champion has more columns to filter by.
        DatasetError: the dataset that the run was trained on is missing, or has changed since.
    """
    rules = rules or PromotionRules()
    name, alias = name_and_alias(named)
    champion = holder_of(registry, name, CHAMPION)
    run_id, (source, model_id) = find_candidate(registry, run, named, rules.metric)
    metric = rules.metric or registry.parameters(source)["training.selection_metric"]
    if champion.has_alias and champion.source == uri_of(model_id):
        number = str(champion.version)
        if alias != CHAMPION:
            raise RegistryError(f"this retriever is the champion already: version {number}")
        return Promotion(number, champion, metric, promoted=True)
    ours = Answering.load(registry, uri_of(model_id))
    ask_once(ours.model)
    compared = list[Compared]()
    obstacle = None
    evidence = None
    time = time_asked(registry, name, model_id)
    try:
        compared = _compare_with_champion(registry, ours, champion, rules)
    except IncomparableError as error:
        if not rules.force:
            raise
        obstacle = str(error)
    if compared:
        ours_by_query, theirs = compared[0].gains
        evidence = Evidence.measured(ours_by_query[metric], theirs[metric], time)
    veto = objection(rules.veto, compared)
    is_better = evidence is None or evidence.value + rules.not_worse_by / 100 > evidence.noise
    promoted = rules.force or (is_better and veto is None)
    if promoted:
        number = give(registry, alias, source, model_id, champion)
    else:
        number = registry.register(name, source, model_id)
    if compared:
        note_asked(registry, name, model_id, time)
    origin = registry.explain_choice(run_id, source, metric)
    _link_from_sweep(registry, run_id, source, name, number)
    promotion = Promotion(
        number,
        champion,
        metric,
        promoted,
        origin,
        compared,
        obstacle,
        evidence,
        rules.not_worse_by,
        veto,
    )
    registry.describe(name, number, promotion.verdict)
    return promotion


def _link_from_sweep(registry: Registry, run_id: str, source: str, name: str, number: str) -> None:
    """Let the description of a sweep link to the version that was registered from it."""
    if run_id != source:
        with registry_errors(registry.uri):
            Run(registry.uri, run_id).add_registered(name, number)


def _compare_with_champion(
    registry: Registry, ours: Answering, champion: Holder, rules: PromotionRules
) -> list[Compared]:
    """Return what :func:`compare` does, or nothing if there has never been a champion.

    Raises an IncomparableError, or a LostFiltersError.
    """
    if champion.version is None:
        if champion.gone:
            gone = ", ".join(champion.gone)
            raise IncomparableError(f"what was champion is deleted: version {gone}")
        return []
    try:
        base = Answering.load(registry, champion.uri)
        lost = lost_filters(ours, base)
        if lost and not rules.allow_lost_filters:
            raise LostFiltersError(
                f"version {champion.version} can be filtered by {', '.join(lost)}, and this "
                f"retriever cannot; import its ads with --columns.ad-filters, or give "
                f"--allow-lost-filters"
            )
        return compare(registry, ours, base, rules)
    except (RegistryError, TrackingError, DatasetError) as error:
        raise IncomparableError(
            f"cannot compare with the champion, version {champion.version}: {error}"
        ) from error


DETECTED = 0.05
"""The difference that judgements must be many enough to show: with 80 % power, at 95 %."""
STANDARD_ERRORS = 1.96 + 0.84


def objection(metric: str | None, compared: Sequence[Compared]) -> str | None:
    """Say why a candidate must not be promoted by a ``bad@k``; None if it may be.

    It must not if its share of bad answers is higher by more than noise, or if too few answers are
    judged to show that, unless its share is lower by more than noise.
    """
    if metric is None or not compared:
        return None
    decisive = compared[0]
    if metric not in decisive.differences:
        return f"{metric} needs judgements of test queries"
    difference = decisive.differences[metric]
    if difference.low > 0:
        return f"its {metric} is higher: {in_points(difference)}"
    both = [gains[metric] for gains in decisive.gains]
    fewest = min(int(possible.sum()) for _, possible in both)
    needed = _num_needed(*(sum(gains[kind].sum() for gains in both) for kind in (0, 1)))
    if fewest >= needed or difference.high < 0:
        return None
    return (
        f"{metric} is not known well enough: {fewest:,} answers are judged, and to show a"
        f" difference of {100 * DETECTED:g} points takes about {needed:,}"
    )


def _num_needed(num_bad: float, num_judged: float) -> int:
    """Return how many judged answers of each model show DETECTED; a share of 0 is never certain."""
    share = (num_bad + 1) / (num_judged + 2)
    return ceil(2 * share * (1 - share) * (STANDARD_ERRORS / DETECTED) ** 2)
