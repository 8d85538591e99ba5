"""What was shown: impressions of an import's log, and the clicks that were to be expected of them.

``expected`` (query, ad, period, clicks, expected)
    the clicks of each pair of ``shown``, and those of as many views at the same positions: the
    period's clicks per view at each position, times the pair's views there.
"""

import logging

from ramen_ray.data.engine import Connection, count, run
from ramen_ray.data.findings import FaultKind
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.tables.clicks.splits import TRAIN
from ramen_ray.data.tables.reading.loading import UserTable

PRIOR = 1.0
"""Expected clicks by which each pair is taken to have been shown more, and clicked as expected."""
SOURCE = "shown"

logger = logging.getLogger(__name__)


def check_views(connection: Connection, table: UserTable) -> None:
    """Note rows with more clicks than views; warn of positions that are all the same."""
    positions = "SELECT count(DISTINCT position) FROM clicks_rows"
    if "position" in table.columns and count(connection, positions) == 1:
        logger.warning("%s: all positions are the same, and say nothing", table.source)
    if "views" not in table.columns:
        return
    table.report(
        connection,
        "views",
        FaultKind(
            "rows have more clicks than views",
            "correct them, or leave them out with --skip-bad-rows",
        ),
        "SELECT place, views FROM clicks_rows WHERE weight > views",
    )
    connection.execute("DELETE FROM clicks_rows WHERE weight > views")


def expect_clicks(connection: Connection) -> None:
    """Make ``expected``; raises a DatasetError if every view was clicked."""
    if not count(connection, "SELECT count(*) FROM shown WHERE views > clicks"):
        raise DatasetError(
            "the log has no impression without a click, so no clicks are to be expected: give it "
            "rows of 0 clicks, or name its column of impressions with --columns.clicks-views"
        )
    # ordered, as a parallel sum of floats would depend on the number of threads
    create = """CREATE TABLE expected AS
        WITH rates AS (
            SELECT period, position,
                sum(clicks ORDER BY query, ad) / sum(views ORDER BY query, ad) AS rate
            FROM shown GROUP BY period, position)
        SELECT query, ad, period, sum(clicks ORDER BY position) AS clicks,
            sum(views * rate ORDER BY position) AS expected
        FROM shown JOIN rates USING (period, position) GROUP BY query, ad, period"""
    run(connection, "expecting clicks", create)


def weigh_by_coec(connection: Connection) -> None:
    """Weigh train clicks by clicks over expected clicks, both plus PRIOR.

    Held-out clicks keep their number, by which metrics weigh queries.
    """
    coec = f"((expected.clicks + {PRIOR}) / (expected + {PRIOR}))::FLOAT"
    connection.execute(
        f"""UPDATE counted SET weight = {coec}
        FROM expected JOIN kept_clicks USING (query, ad, period)
        WHERE split = {TRAIN} AND counted.query = expected.query
            AND counted.ad = expected.ad AND counted.period = expected.period"""
    )


def judge_refused(connection: Connection, min_expected: float) -> dict[str, int]:
    """Judge those ads 0 that had ``min_expected`` clicks to expect, and none; returns counts."""
    judged = """CREATE TABLE IF NOT EXISTS judged (
        place BIGINT, query BIGINT, ad BIGINT, grade DOUBLE, source VARCHAR)"""
    connection.execute(judged)
    refused = f"""FROM expected WHERE expected >= {min_expected!r}
        AND clicks = 0 AND (query, ad) NOT IN (SELECT query, ad FROM counted)"""
    connection.execute(
        f"""INSERT INTO judged BY NAME
        SELECT DISTINCT 0::BIGINT AS place, query, ad, 0.0::DOUBLE AS grade, '{SOURCE}' AS source
        {refused}"""
    )
    return {"pairs shown and refused": count(connection, f"SELECT count(*) {refused}")}
