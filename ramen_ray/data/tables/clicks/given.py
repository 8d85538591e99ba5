"""Tables that say more of queries and ads: given splits, and pairs to drop from predictions."""

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans
from ramen_ray.data.engine import count, run
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.data.tables.clicks.numbering import Kind, numbered
from ramen_ray.data.tables.clicks.splits import TRAIN
from ramen_ray.data.tables.reading.cells import as_strings
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.loading import UserTable

PAIR: dict[Kind, str] = {"query": "query", "ad": "ad"}


def split_column(name: str) -> Column:
    """Read a column of splits, as their numbers in SPLITS."""

    def convert(cells: pa.ChunkedArray) -> tuple[Any, Booleans]:
        texts, _ = as_strings(cells)
        place = pc.index_in(pc.utf8_trim_whitespace(texts), pa.array(SPLITS))
        numbers = pc.fill_null(place, -1).to_numpy(zero_copy_only=False)
        return numbers.astype(np.int8), numbers < 0

    return Column(name, convert, f"are not one of {', '.join(SPLITS)}", pa.int8())


def load_splits(connection: duckdb.DuckDBPyConnection, table: UserTable) -> None:
    """Read the user's splits into ``given``; queries have been numbered."""
    table.load(connection, "given", numbered({"query": "query"}, "place, split,", "source"))


def load_filters(connection: duckdb.DuckDBPyConnection, table: UserTable) -> None:
    """Read the user's filter pairs into ``given_filters``; queries and ads have been numbered."""
    table.load(connection, "given_filters", numbered(PAIR, "place,", "source"))


def find_filters(
    connection: duckdb.DuckDBPyConnection, *, given: bool, own_text: bool
) -> dict[str, int]:
    """Make ``filters`` (split, query_id, ad_id), the pairs of held-out queries and kept ads.

    Args:
        connection: the engine, with what is kept.
        given: whether there are ``given_filters``.
        own_text: whether the ads of a query's own text are dropped.

    Returns:
        how many pairs each split has, and how many given ones are of no use.
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


_OWN_TEXT = f"""SELECT held_out.number AS query, ads.number AS ad
    FROM (SELECT queries.number, folded FROM queries JOIN kept_queries USING (number)
          WHERE split > {TRAIN}) AS held_out
    JOIN ads ON fold(ads.text) = held_out.folded"""

_UNUSED = f"""SELECT count(*) FROM given_filters
    LEFT JOIN kept_queries ON kept_queries.number = query
    LEFT JOIN kept_ads ON kept_ads.number = ad
    WHERE query IS NOT NULL AND ad IS NOT NULL
        AND (kept_ads.number IS NULL OR coalesce(split, {TRAIN}) = {TRAIN})"""
