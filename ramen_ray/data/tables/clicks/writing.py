"""Write what an import keeps as the tables of a dataset directory.

All rows are written in the order of their ids, so that the same tables give the same bytes on any
machine.
"""

from collections.abc import Iterator
from typing import NamedTuple

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
            for some in _blocks(connection, number)
            for batch in stream(
                connection,
                f"""SELECT query_id, text, coalesce(ad_ids, []) AS ad_ids{source_id}{weights}
                FROM kept_queries JOIN (FROM queries WHERE {some.numbers}) USING (number)
                LEFT JOIN (
                    SELECT query_id, list(ad_id ORDER BY ad_id) AS ad_ids,
                        list(weight ORDER BY ad_id) AS weights
                    FROM written WHERE {some.ids} GROUP BY query_id) AS lists USING (query_id)
                WHERE {some.ids} ORDER BY query_id""",
            )
        )
        writer.write(f"queries/{split}", batches)


class _Block(NamedTuple):
    """Conditions for some queries of a split: by their ids, and by their numbers, which ascend."""

    ids: str
    numbers: str


def _blocks(connection: duckdb.DuckDBPyConnection, split: int) -> Iterator[_Block]:
    for first in range(0, _num_queries(connection, split), QUERIES_AT_ONCE):
        last = first + QUERIES_AT_ONCE - 1
        ids = f"split = {split} AND query_id BETWEEN {first} AND {last}"
        bounds = connection.sql(f"SELECT min(number), max(number) FROM kept_queries WHERE {ids}")
        low, high = bounds.fetchall()[0]
        # so that the engine skips all other texts, which it would read again for each block
        yield _Block(ids, f"number BETWEEN {low} AND {high}")


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
