"""Clicks propagated over shared anchors: "AugGT" of the RAMEN paper (section 4, Table 8).

The paper trains on a train query and an ad that share an anchor as if it were a click, and gives no
more detail. Here a query gets the ads with which it shares the most anchors. Hubs, which connect
everything, are left out, and no query gets the ad that has its own text.

    python -m experiments.auggt --dataset datasets/foldoc --output outputs/propagated --top-k 3
"""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import tyro

from experiments.edges import edges_of_sets
from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.config import Section
from ramen_ray.data.arrays import UInt64s, keyed_hash
from ramen_ray.data.checks.structure import read_tables
from ramen_ray.data.engine import Connection, add_function, engine, name_literal, run, stream
from ramen_ray.data.splits.kept import new_dataset_from
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.schemas import TRAIN

QUERIES = name_literal(TRAIN)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PropagationSettings:
    """Which ads are added to a query.

    Attributes:
        via: Which ads an anchor leads to: ad-edges, those with an edge to it (as in the paper); or
            clicks, those clicked for the train queries with an edge to it.
        anchor_sets: Anchor sets whose anchors count; default all, and only the strict one where
            there is a second set as published.
        max_anchor_degree: Anchors with more edges, to train queries and ads together, are left out.
        top_k: Largest number of ads that a query gets: those with which it shares most anchors,
            each weighted by the product of its two edges' weights (clicks: summed over queries).
        seed: Seed of the draw among ads with equal scores.
    """

    via: Literal["ad-edges", "clicks"] = "ad-edges"
    anchor_sets: tuple[str, ...] = ()
    max_anchor_degree: int = 500
    top_k: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that would add no clicks."""
        if self.top_k < 1 or self.max_anchor_degree < 2:
            raise DatasetError("top_k must be 1 or more, and max_anchor_degree 2 or more")


def propagate_clicks(parent: Dataset, output: Path, settings: PropagationSettings) -> Dataset:
    """Write a dataset directory whose train queries have more ads, propagated over shared anchors.

    No held-out click influences the result; all other tables stay as they are. Where clicks have
    weights, an added one gets its query's lowest, or 1 if the query had none. Raises a DatasetError
    if the dataset is not usable, changes meanwhile, nothing would be added, or ``output`` exists.
    """
    chosen = settings.anchor_sets or parent.strict_anchor_sets
    if unknown := sorted(set(chosen) - set(parent.anchor_sets)):
        raise DatasetError(
            f"{parent.path} has no anchor set {', '.join(map(repr, unknown))}; "
            f"it has {', '.join(map(repr, parent.anchor_sets)) or 'none'}"
        )
    if not chosen:
        raise DatasetError(f"{parent.path} has no anchor sets to propagate clicks over")
    how = "propagated_clicks"
    with (
        new_dataset_from(parent, output, "propagated", how, asdict(settings)) as writer,
        engine(writer.folder, dataset=parent) as connection,
    ):
        _find_ads(connection, parent, sorted(set(chosen)), settings)
        added = "SELECT count(*), count(DISTINCT query_id) FROM added"
        before = f"SELECT count(*), sum(len(ad_ids)) FROM {QUERIES}"
        counts = *connection.sql(added).fetchall()[0], *connection.sql(before).fetchall()[0]
        if not counts[0]:
            raise DatasetError(
                f"no train query of {parent.path} shares an anchor of at most "
                f"{settings.max_anchor_degree} edges with an ad that it does not already have"
            )
        is_weighted = "weights" in parent.schema(TRAIN).names
        writer.write(TRAIN, stream(connection, _extended(is_weighted)))
        for table in read_tables(parent):
            if table != TRAIN:
                writer.write(table, parent.batches(table))
    message = "added %s clicks to %s of %s train queries, which had %s"
    logger.info(message, *(f"{number:,}" for number in counts))
    return Dataset(output)


def _find_ads(
    connection: Connection, parent: Dataset, sets: list[str], settings: PropagationSettings
) -> None:
    """Create ``added``: each ``query_id`` with its ``ad_id`` by ``rank``, from 1."""

    # the upper 16 bits, as earlier versions drew, so that a seed gives the same clicks as then
    def draws(pairs: pa.Array) -> UInt64s:
        return keyed_hash((settings.seed,), pairs) >> np.uint64(48)

    add_function(connection, "draw", draws, "BIGINT", "UBIGINT")
    reached = {
        "ad-edges": "SELECT node AS ad_id, anchor, weight FROM ad_edges",
        "clicks": """SELECT ad_id, anchor, sum(weight) AS weight
            FROM query_edges JOIN clicks ON query_id = node GROUP BY ALL""",
    }
    added = f"""CREATE TABLE added AS
        WITH
            query_edges AS ({edges_of_sets(parent, sets, "query")}),
            ad_edges AS ({edges_of_sets(parent, sets, "ad")}),
            no_hubs AS (
                SELECT anchor FROM (
                    SELECT anchor FROM query_edges UNION ALL SELECT anchor FROM ad_edges)
                GROUP BY ALL HAVING count(*) <= {settings.max_anchor_degree}),
            clicks AS (SELECT query_id, unnest(ad_ids) AS ad_id FROM {QUERIES}),
            same_text AS (SELECT query_id, ad_id FROM {QUERIES} JOIN ads USING (folded)),
            reached AS ({reached[settings.via]}),
            scores AS (  -- as FLOAT, in which the order of a sum does not show
                SELECT node AS query_id, ad_id,
                    sum(query_edges.weight::DOUBLE * reached.weight)::FLOAT AS score
                FROM query_edges JOIN no_hubs USING (anchor) JOIN reached USING (anchor)
                GROUP BY ALL)
        SELECT query_id, ad_id, row_number() OVER (
            PARTITION BY query_id
            ORDER BY score DESC, draw(query_id * {parent.num_rows("ads")} + ad_id), ad_id) AS rank
        FROM scores
        ANTI JOIN (FROM clicks UNION ALL FROM same_text) USING (query_id, ad_id)
        QUALIFY rank <= {settings.top_k}"""
    run(connection, "looking for shared anchors", added)


def _extended(is_weighted: bool) -> str:
    """Select the train queries with their ads and the added ones, highest scores first."""
    longer = "list_concat(ad_ids, more) AS ad_ids"
    if is_weighted:
        lightest = "coalesce(list_min(weights), 1)"
        longer += f", list_resize(weights, len(ad_ids) + len(more), {lightest}) AS weights"
    return f"""SELECT * EXCLUDE (folded, more) REPLACE ({longer}) FROM (
            SELECT queries.*, coalesce(more, []) AS more FROM {QUERIES} AS queries
            LEFT JOIN (
                SELECT query_id, list(ad_id ORDER BY rank) AS more FROM added GROUP BY query_id)
            USING (query_id))
        ORDER BY query_id"""


class Propagation(Section):
    """Give train queries the ads that they share anchors with."""

    dataset: Path
    """Dataset directory to start from."""
    output: Path
    """Dataset directory to write; must not exist."""
    settings: Annotated[PropagationSettings, tyro.conf.arg(name="")]


def main() -> None:
    """Write the dataset directory."""
    flags = parse_settings(Propagation, str(__doc__))
    dataset = propagate_clicks(Dataset(flags.dataset), flags.output, flags.settings)
    print(f"wrote {dataset.name} to {dataset.path}")


if __name__ == "__main__":
    run_job(main)
