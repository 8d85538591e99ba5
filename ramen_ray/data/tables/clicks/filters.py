"""Pairs to drop from the predictions of held-out queries: given, or ads of the query's own text."""

import duckdb

from ramen_ray.data.engine import count, run, stream
from ramen_ray.data.store.dataset import DatasetWriter
from ramen_ray.data.store.schemas import SIDES, SPLITS
from ramen_ray.data.tables.clicks.numbering import numbered
from ramen_ray.data.tables.clicks.splits import TRAIN
from ramen_ray.data.tables.reading.loading import UserTable


def load_filters(connection: duckdb.DuckDBPyConnection, table: UserTable) -> None:
    """Read the user's filter pairs into ``given_filters``; queries and ads have been numbered."""
    table.load(connection, "given_filters", numbered(SIDES, "place,", "source"))


def find_filters(
    connection: duckdb.DuckDBPyConnection, *, given: bool, own_text: bool
) -> dict[str, int]:
    """Make ``filters`` (split, query_id, ad_id), the pairs of held-out queries and kept ads.

    They are those of ``given_filters``, if any, and the ads of a query's ``own_text``. Returns how
    many each split has, and how many given ones are of no use.
    """
    pairs = [
        *(["SELECT query, ad FROM given_filters"] if given else []),
        *([_OWN_TEXT] if own_text else []),
    ]
    run(
        connection,
        "finding filter pairs",
        f"""CREATE TABLE filters AS
        SELECT DISTINCT split, query_id, ad_id
        FROM ({" UNION ALL ".join(pairs)}) AS pairs
        JOIN kept_queries ON kept_queries.number = query
        JOIN kept_ads ON kept_ads.number = ad WHERE split > {TRAIN}""",
    )
    counts = {
        f"pairs of {split} queries": count(
            connection, f"SELECT count(*) FROM filters WHERE split = {number}"
        )
        for number, split in enumerate(SPLITS)
        if number > TRAIN
    }
    unused = count(connection, _UNUSED) if given else 0
    return {
        "pairs of train queries, or of queries and ads that the import left out": unused
    } | counts


def write_filters(connection: duckdb.DuckDBPyConnection, writer: DatasetWriter) -> None:
    """Write the filter pairs of the splits that have any."""
    for number, split in enumerate(SPLITS):
        rows = f"""SELECT query_id, ad_id FROM filters WHERE split = {number}
            ORDER BY query_id, ad_id"""
        if count(connection, f"SELECT count(*) FROM filters WHERE split = {number}"):
            writer.write(f"filters/{split}", stream(connection, rows))


_OWN_TEXT = f"""SELECT held_out.number AS query, ads.number AS ad
    FROM (SELECT queries.number, fold(text) AS folded FROM queries JOIN kept_queries USING (number)
          WHERE split > {TRAIN}) AS held_out
    JOIN ads ON fold(ads.text) = held_out.folded"""

_UNUSED = f"""SELECT count(*) FROM given_filters
    LEFT JOIN (SELECT number, max(split) AS split FROM kept_queries GROUP BY number) AS kept
        ON kept.number = query
    LEFT JOIN kept_ads ON kept_ads.number = ad
    WHERE query IS NOT NULL AND ad IS NOT NULL
        AND (kept_ads.number IS NULL OR coalesce(split, {TRAIN}) = {TRAIN})"""
