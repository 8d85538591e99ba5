"""Write what an import keeps as the tables of a dataset directory.

All rows are written in the order of their ids, so that the same tables give the same bytes on any
machine. Filter pairs, which are dropped from the predictions of held-out queries, are given, or
they are the ads of the query's own text.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import to_lists
from ramen_ray.data.engine import (
    ROWS_PER_BATCH,
    TEXTS_PER_BATCH,
    Connection,
    column_literal,
    count,
    run,
    stream,
)
from ramen_ray.data.store.dataset import DatasetWriter
from ramen_ray.data.store.schemas import JUDGED_FOLDER, PLURAL, SPLITS, Side
from ramen_ray.data.tables.clicks.splits import TRAIN

QUERIES_AT_ONCE = 1 << 20
"""Lists of ads are made for so many queries at once, as the engine cannot spill them."""


def write_ads(connection: Connection, writer: DatasetWriter, optional: Sequence[str]) -> None:
    """Write the ads, with these ``optional`` columns."""
    columns = "".join(f", {column_literal(name)}" for name in optional)
    rows = f"""SELECT ad_id, text{columns} FROM kept_ads
        JOIN (SELECT *, id AS source_id FROM ads) USING (number) ORDER BY ad_id"""
    writer.write("ads", stream(connection, rows, TEXTS_PER_BATCH))


def write_queries(connection: Connection, writer: DatasetWriter, optional: Sequence[str]) -> None:
    """Write each split's queries with their ads and ``optional`` columns."""
    written = """CREATE TABLE written AS
        SELECT split, query_id, ad_id, weight FROM kept_clicks
        JOIN kept_ads ON kept_ads.number = ad ORDER BY split, query_id, ad_id"""
    run(connection, "sorting clicks", written)
    columns = ["query_id", "text", "ad_ids", *optional]
    for number, split in enumerate(SPLITS):
        writer.write(f"queries/{split}", _with_ads(connection, number, columns))


def _with_ads(
    connection: Connection, split: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield these columns of a split's queries, in the order of their ids."""
    num_queries = count(connection, f"SELECT count(*) FROM kept_queries WHERE split = {split}")
    for first in range(0, num_queries, QUERIES_AT_ONCE):
        some = f"split = {split} AND query_id BETWEEN {first} AND {first + QUERIES_AT_ONCE - 1}"
        low, high = connection.sql(
            f"SELECT min(number), max(number) FROM kept_queries WHERE {some}"
        ).fetchall()[0]
        # by their numbers, the engine skips all other texts, which it would read for each block
        rows = connection.sql(
            f"""SELECT query_id, text, id AS source_id FROM kept_queries
            JOIN (FROM queries WHERE number BETWEEN {low} AND {high}) USING (number)
            WHERE {some} ORDER BY query_id"""
        ).to_arrow_table(TEXTS_PER_BATCH)
        pairs = connection.sql(  # in the order in which they were written
            f"SELECT query_id, ad_id, weight FROM written WHERE {some}"
        ).fetchnumpy()
        lengths = np.bincount(pairs["query_id"] - first, minlength=len(rows))
        rows = rows.append_column("ad_ids", to_lists(pairs["ad_id"], lengths))
        rows = rows.append_column("weights", to_lists(pairs["weight"], lengths))
        yield from rows.select(columns).to_batches(ROWS_PER_BATCH)


def write_aliases(connection: Connection, side: Side, writer: DatasetWriter) -> None:
    """Write the names that have no row: with the id that was kept, if they were merged."""
    nodes = PLURAL[side]
    rows = f"{side}_rows"
    aliases = f"""CREATE TABLE {side}_aliases AS
        WITH lost AS (SELECT number, id FROM {nodes} ANTI JOIN kept_{nodes} USING (number))
        SELECT id AS name, NULL::VARCHAR AS of FROM lost
        UNION ALL
        SELECT merged.id, CASE WHEN lost.number IS NULL THEN firsts.id END
        FROM {side}_same_text JOIN {rows} AS merged USING (place)
        JOIN {rows} AS firsts ON firsts.place = first LEFT JOIN lost ON lost.number = first"""
    run(connection, f"looking for names without {nodes}", aliases)
    if count(connection, f"SELECT count(*) FROM {side}_aliases"):
        rows = f"SELECT name, of FROM {side}_aliases ORDER BY name"
        writer.write(f"aliases/{side}", stream(connection, rows))


def write_filters(
    connection: Connection, writer: DatasetWriter, *, given: bool, own_text: bool
) -> dict[str, int]:
    """Write the pairs of held-out queries and kept ads; counts these, and given ones of no use."""
    pairs = ["SELECT query, ad FROM filters"] * given + [_OWN_TEXT] * own_text
    filter_pairs = f"""CREATE TABLE filter_pairs AS
        SELECT DISTINCT split, query_id, ad_id
        FROM ({" UNION ALL ".join(pairs)}) AS pairs
        JOIN kept_queries ON kept_queries.number = query
        JOIN kept_ads ON kept_ads.number = ad WHERE split > {TRAIN}"""
    run(connection, "finding filter pairs", filter_pairs)
    counts = {}
    if given:
        used = f"""query IN (SELECT number FROM kept_queries WHERE split > {TRAIN})
            AND ad IN (SELECT number FROM kept_ads)"""
        # rows of unknown names have been told already
        unused = f"SELECT count(*) FROM filters WHERE query + ad IS NOT NULL AND NOT ({used})"
        what = "pairs of train queries, or of queries and ads that the import left out"
        counts[what] = count(connection, unused)
    return counts | write_splits(connection, writer, "filters", "FROM filter_pairs")


def write_judgements(connection: Connection, writer: DatasetWriter) -> dict[str, int]:
    """Write the judgements of kept queries and ads, the mean of a source's; returns counts.

    A query that is in several splits, or whose other spellings are, is judged in the last only:
    nothing is learnt from judgements of what is held out.
    """
    grades = """CREATE TABLE grades AS
        WITH last AS (
            SELECT family, max(split) AS split FROM kept_queries JOIN queries USING (number)
            GROUP BY family)
        SELECT split, query_id, ad_id, source, avg(grade ORDER BY place) AS grade,
            count(*) AS times, min(grade) < max(grade) AS differ
        FROM judged JOIN kept_queries ON kept_queries.number = query
        JOIN queries USING (number) JOIN last USING (family, split)
        JOIN kept_ads ON kept_ads.number = ad
        GROUP BY split, query_id, ad_id, source"""
    run(connection, "averaging judgements", grades)
    used = "SELECT coalesce(sum(times), 0) FROM grades"
    left_out = f"SELECT count(*) - ({used}) FROM judged WHERE query + ad IS NOT NULL"
    return write_splits(connection, writer, JUDGED_FOLDER, "FROM grades") | {
        "contradict each other, and their mean counts": count(
            connection, "SELECT count(*) FROM grades WHERE differ"
        ),
        "rows of queries and ads that the import left out": count(connection, left_out),
    }


def write_splits(
    connection: Connection, writer: DatasetWriter, folder: str, rows: str
) -> dict[str, int]:
    """Write a table ``folder``/split of each split that has ``rows``; returns their row counts.

    ``rows`` is SQL that selects ``split`` and the tables' columns, by which they are sorted.
    """
    written = {}
    for number, split in enumerate(SPLITS):
        table = f"{folder}/{split}"
        of_split = f"FROM ({rows}) WHERE split = {number}"
        if count(connection, f"SELECT count(*) {of_split}"):
            written[table] = writer.write(table, stream(connection, f"{of_split} ORDER BY ALL"))
    return written


_OWN_TEXT = f"""SELECT held_out.number AS query, ads.number AS ad
    FROM (SELECT queries.number, fold(text) AS folded FROM queries JOIN kept_queries USING (number)
          WHERE split > {TRAIN}) AS held_out
    JOIN ads ON fold(ads.text) = held_out.folded"""
