"""Write what an import keeps as the tables of a dataset directory.

All rows are written in the order of their ids, so that the same tables give the same bytes on any
machine.
"""

import duckdb

from ramen_ray.data.engine import count, run, stream
from ramen_ray.data.store.dataset import DatasetWriter
from ramen_ray.data.store.schemas import PLURAL, SPLITS, Side

QUERIES_AT_ONCE = 1 << 20
"""Lists of ads are made for so many queries at once, as the engine cannot spill them."""


def write_ads(
    connection: duckdb.DuckDBPyConnection, writer: DatasetWriter, *, with_ids: bool
) -> None:
    """Write the ads; with the user's ids if ``with_ids``."""
    source_id = ", id AS source_id" if with_ids else ""
    rows = f"""SELECT ad_id, text{source_id} FROM kept_ads JOIN ads USING (number) ORDER BY ad_id"""
    writer.write("ads", stream(connection, rows))


def write_queries(
    connection: duckdb.DuckDBPyConnection,
    writer: DatasetWriter,
    *,
    with_ids: bool,
    with_weights: bool,
) -> None:
    """Write the queries of each split with their ads; with the user's ids and clicks' weights."""
    run(
        connection,
        "sorting clicks",
        """CREATE TABLE written AS
        SELECT split, query_id, ad_id, weight FROM counted
        JOIN kept_queries ON kept_queries.number = query JOIN kept_ads ON kept_ads.number = ad
        ORDER BY split, query_id, ad_id""",
    )
    source_id = ", id AS source_id" if with_ids else ""
    weights = ", coalesce(weights, []) AS weights" if with_weights else ""
    for number, split in enumerate(SPLITS):
        batches = (
            batch
            for first in range(0, _num_queries(connection, number), QUERIES_AT_ONCE)
            for batch in stream(
                connection,
                f"""SELECT query_id, text, coalesce(ad_ids, []) AS ad_ids{source_id}{weights}
                FROM kept_queries JOIN queries USING (number) LEFT JOIN (
                    SELECT query_id, list(ad_id ORDER BY ad_id) AS ad_ids,
                        list(weight ORDER BY ad_id) AS weights
                    FROM written WHERE split = {number}
                        AND query_id BETWEEN {first} AND {first + QUERIES_AT_ONCE - 1}
                    GROUP BY query_id) AS lists USING (query_id)
                WHERE split = {number}
                    AND query_id BETWEEN {first} AND {first + QUERIES_AT_ONCE - 1}
                ORDER BY query_id""",
            )
        )
        writer.write(f"queries/{split}", batches)


def write_aliases(connection: duckdb.DuckDBPyConnection, side: Side, writer: DatasetWriter) -> None:
    """Write the names that have no row: with the id that was kept, if they were merged."""
    nodes = PLURAL[side]
    rows = f"""SELECT name, CASE WHEN kept_{nodes}.number IS NOT NULL THEN id END AS of
        FROM {side}_names JOIN {nodes} ON {nodes}.number = {side}_names.number
        LEFT JOIN kept_{nodes} ON kept_{nodes}.number = {nodes}.number
        WHERE kept_{nodes}.number IS NULL OR name <> id ORDER BY name"""
    if count(connection, f"SELECT count(*) FROM ({rows})"):
        writer.write(f"aliases/{side}", stream(connection, rows))


def _num_queries(connection: duckdb.DuckDBPyConnection, split: int) -> int:
    return count(connection, f"SELECT count(*) FROM kept_queries WHERE split = {split}")
