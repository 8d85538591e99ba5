"""Write what an import keeps as the tables of a dataset directory.

All rows are written in the order of their ids, so that the same tables give the same bytes on any
machine.
"""

from collections.abc import Iterator, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from ramen_ray.data.engine import ROWS_PER_BATCH, count, run, stream
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
    all_periods: bool,
) -> None:
    """Write the queries of each split with their ads; with the user's ids and clicks' weights.

    With ``all_periods``, each has those of its split's period.
    """
    own = "kept_queries.number = query" + (" AND split = period" if all_periods else "")
    run(
        connection,
        "sorting clicks",
        f"""CREATE TABLE written AS
        SELECT split, query_id, ad_id, weight FROM counted
        JOIN kept_queries ON {own} JOIN kept_ads ON kept_ads.number = ad
        ORDER BY split, query_id, ad_id""",
    )
    columns = ["query_id", "text", "ad_ids"]
    columns += ["source_id"] * with_ids + ["weights"] * with_weights
    for number, split in enumerate(SPLITS):
        writer.write(f"queries/{split}", _with_ads(connection, number, columns))


def _with_ads(
    connection: duckdb.DuckDBPyConnection, split: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of a split's queries, in the order of their ids."""
    for first in range(0, _num_queries(connection, split), QUERIES_AT_ONCE):
        some = f"split = {split} AND query_id BETWEEN {first} AND {first + QUERIES_AT_ONCE - 1}"
        low, high = connection.sql(
            f"SELECT min(number), max(number) FROM kept_queries WHERE {some}"
        ).fetchall()[0]
        # by their numbers, the engine skips all other texts, which it would read for each block
        rows = connection.sql(
            f"""SELECT query_id, text, id AS source_id FROM kept_queries
            JOIN (FROM queries WHERE number BETWEEN {low} AND {high}) USING (number)
            WHERE {some} ORDER BY query_id"""
        ).to_arrow_table()
        pairs = connection.sql(
            f"SELECT query_id, ad_id, weight FROM written WHERE {some} ORDER BY query_id, ad_id"
        ).fetchnumpy()
        ends = np.bincount(pairs["query_id"] - first, minlength=len(rows)).cumsum()
        offsets = pa.array(np.append(0, ends), pa.int32())
        rows = rows.append_column("ad_ids", pa.ListArray.from_arrays(offsets, pairs["ad_id"]))
        rows = rows.append_column("weights", pa.ListArray.from_arrays(offsets, pairs["weight"]))
        yield from rows.select(columns).to_batches(ROWS_PER_BATCH)


def write_aliases(connection: duckdb.DuckDBPyConnection, side: Side, writer: DatasetWriter) -> None:
    """Write the names that have no row: with the id that was kept, if they were merged."""
    nodes = PLURAL[side]
    rows = f"""SELECT id AS name, NULL::VARCHAR AS of
        FROM {nodes} ANTI JOIN kept_{nodes} USING (number)"""
    merged = f"SELECT (SELECT count(*) FROM {side}_names) - (SELECT count(*) FROM {nodes})"
    if count(connection, merged):
        rows = f"""SELECT DISTINCT name, CASE WHEN kept.number IS NOT NULL THEN id END AS of
            FROM {side}_names AS names JOIN {nodes} AS nodes USING (number)
            LEFT JOIN kept_{nodes} AS kept USING (number)
            WHERE kept.number IS NULL OR name <> id"""
    if count(connection, f"SELECT count(*) FROM ({rows})"):
        writer.write(f"aliases/{side}", stream(connection, f"{rows} ORDER BY name"))


def _num_queries(connection: duckdb.DuckDBPyConnection, split: int) -> int:
    return count(connection, f"SELECT count(*) FROM kept_queries WHERE split = {split}")
