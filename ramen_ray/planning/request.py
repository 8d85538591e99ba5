"""What a user asks the planner."""

from typing import Annotated, Literal

from pydantic import Field

from ramen_ray.config import NotNegative, Positive, PositiveFloat, Section, overlay
from ramen_ray.planning.costs import cost
from ramen_ray.planning.machines import PlanError, parse_cluster
from ramen_ray.planning.plan import Plan, make_plan
from ramen_ray.planning.sizes import ENCODERS, EncoderName, Graph, Sizes, parse_count
from ramen_ray.planning.training_stages import Training
from ramen_ray.presets import PRESETS


class PlanRequest(Section):
    """Sizes of the data, what is trained on it, and on which machines."""

    queries: str
    """Train queries: 5000, 320K, 540M, 1.2B."""
    ads: str
    """Ads."""
    anchors: tuple[str, ...] = ()
    """Anchors of each anchor set; by default one set with as many as there are queries and ads."""
    edges_per_node: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (40.0,)
    """Edges of a query in each anchor set, and of an ad."""
    edges_per_ad: tuple[NotNegative, ...] = ()
    """Edges of an ad in each anchor set, if it does not have as many as a query."""
    clicks_per_query: NotNegative = 2.0
    """Clicks of a query."""
    tokens_per_text: PositiveFloat = 8.0
    """Tokens of a text, special tokens included."""
    encoder: EncoderName = "distilbert"
    """A bag of token embeddings, MiniLM (22M weights), or DistilBERT (66M)."""
    machine: str = "this"
    """Machines, as NAME=COUNT; this is the present one."""
    preset: Literal["ramen-ance", "ramen-ngame", "lf-wikiseealsotitles-320k", "unidec-320k"] = (
        "ramen-ance"
    )
    """The method: base, graph, walks, pruning, and their schedule."""
    epochs: Positive | None = None
    """Epochs; default the preset's."""
    batch_size: Positive | None = None
    """Queries of a step over all workers; default the preset's."""
    session_events: str | None = None
    """Rows of a log of sessions that co-session graphs are made from."""
    show_costs: bool = False
    """Also show the unit costs and where they come from."""


def plan_for(request: PlanRequest) -> Plan:
    """Plan what was asked for.

    Raises:
        PlanError: a count or a machine is not one, or the anchor sets' settings do not match.
    """
    changes = {
        "training.epochs": request.epochs,
        "training.global_batch_size": request.batch_size,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    run = Training(
        _sizes(request),
        ENCODERS[request.encoder],
        overlay(PRESETS[request.preset](), given),
        parse_cluster(request.machine, cost("reference_s")),
    )
    events = request.session_events
    return make_plan(run, 0 if events is None else parse_count(events))


def _sizes(request: PlanRequest) -> Sizes:
    queries, ads = parse_count(request.queries), parse_count(request.ads)
    anchors = [parse_count(count) for count in request.anchors] or [queries + ads]
    per_query = request.edges_per_node
    per_ad = request.edges_per_ad or per_query
    if not len(anchors) == len(per_query) == len(per_ad):
        raise PlanError(
            f"{len(anchors)} anchor sets, but {len(per_query)} numbers of edges of a query and "
            f"{len(per_ad)} of an ad; give one of each for every set"
        )
    graphs = tuple(map(Graph, anchors, per_query, per_ad))
    return Sizes(queries, ads, graphs, request.clicks_per_query, request.tokens_per_text)
