"""Find the queries and ads of a dataset directory that a user's cells name.

A cell names a node by the user's id, else by its text, else, if the dataset has no user ids, by its
number. Names that the import has merged or left out (the tables ``aliases``) count as ids.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc
from duckdb import DuckDBPyConnection

from ramen_ray.data.engine import files_of, run, text_literal
from ramen_ray.data.leaks import HELD_OUT, NODE_TABLES
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import schema_of
from ramen_ray.data.store.texts import normalized
from ramen_ray.data.tables.reading.columns import Column, NullWords, text_column

HELD_OUT_NODE = -1
LEFT_OUT_NODE = -2
NUMBER = "[0-9]{1,18}"


def node_names(
    metadata: Mapping[str, Any],
    side: str,
    name: str,
    null_words: NullWords,
    *,
    skip_bad_rows: bool,
) -> Column:
    """Read a column that names nodes of ``side``; texts are normalised if the dataset's were.

    ``metadata`` is the content of the dataset's ``dataset.json``.
    """
    imported = metadata.get("imported", {})
    by_text = not imported.get({"query": "queries", "ad": "ads"}[side])
    is_normal = by_text and imported.get("normalize_texts")
    return text_column(
        name,
        null_words,
        skip_bad_rows=skip_bad_rows,
        change=normalized if is_normal else pc.utf8_trim_whitespace,
    )


def create_ids(connection: DuckDBPyConnection, dataset: Dataset, side: str) -> None:
    """Create the table ``{side}_ids``: ``name`` and ``node``, the user's ids and aliases.

    A node is a train query's or an ad's number, HELD_OUT_NODE, or LEFT_OUT_NODE.
    """
    nothing = "SELECT NULL::VARCHAR AS name, NULL::BIGINT AS node WHERE false"
    of_tables = {NODE_TABLES[side]: schema_of(NODE_TABLES[side]).names[0]}
    of_tables |= dict.fromkeys(_held_out(dataset, side), str(HELD_OUT_NODE))
    own = [
        f"SELECT trimmed(source_id), {node} FROM {files_of(dataset, table)}"
        for table, node in of_tables.items()
        if _has_ids(dataset, table)
    ]
    run(
        connection,
        f"reading the ids of {side} nodes",
        f"""
        CREATE TABLE IF NOT EXISTS {side}_ids AS
        WITH own AS ({" UNION ALL ".join([nothing, *own])})
        SELECT name, min(node) AS node FROM (FROM own {_with_aliases(dataset, side)})
        WHERE name IS NOT NULL GROUP BY name
        """,
    )


def _with_aliases(dataset: Dataset, side: str) -> str:
    """Return the SQL that adds aliases, and their nodes, to ``own``, the names that have a row.

    It is empty if there are none.
    """
    table = f"aliases/{side}"
    if not dataset.has(table):
        return ""
    return f"""
        UNION ALL
        SELECT trimmed(alias.name), coalesce(own.node, {LEFT_OUT_NODE})
        FROM {files_of(dataset, table)} AS alias
        LEFT JOIN own ON own.name = trimmed(alias.of)
    """


def create_texts(connection: DuckDBPyConnection, dataset: Dataset, side: str) -> None:
    """Create ``{side}_texts``: ``node`` and ``text``; and ``{side}_held_out``: ``folded``.

    The first has the train queries or ads, without the white space around their texts; the second
    the different folded texts of validation and test queries, and none on the side of ads.
    """
    table = NODE_TABLES[side]
    run(
        connection,
        f"reading the texts of {side} nodes",
        f"""
        CREATE TABLE IF NOT EXISTS {side}_texts AS
        SELECT {schema_of(table).names[0]} AS node, trimmed(text) AS text
        FROM {files_of(dataset, table)}
        """,
    )
    nothing = "SELECT NULL::VARCHAR AS text WHERE false"
    texts = [f"SELECT text FROM {files_of(dataset, one)}" for one in _held_out(dataset, side)]
    run(
        connection,
        "reading the texts of held-out queries",
        f"""
        CREATE TABLE IF NOT EXISTS {side}_held_out AS
        SELECT DISTINCT fold(text) AS folded FROM ({" UNION ALL ".join([nothing, *texts])})
        """,
    )


def create_names(connection: DuckDBPyConnection, dataset: Dataset, side: str) -> None:
    """Create ``{side}_names``: ``name`` and ``node``, all nodes that a name stands for.

    It also creates the tables of :func:`create_ids` and :func:`create_texts`. Those that exist are
    kept, so that several tables of a user can be named.
    """
    create_ids(connection, dataset, side)
    create_texts(connection, dataset, side)
    run(
        connection,
        f"indexing the names of {side} nodes",
        f"""
        CREATE TABLE IF NOT EXISTS {side}_names AS
        FROM {side}_ids
        UNION ALL
        SELECT text, node FROM {side}_texts AS texts
        ANTI JOIN {side}_ids AS ids ON ids.name = texts.text
        """,
    )


def named(dataset: Dataset, side: str, columns: str) -> str:
    """Return the SQL that finds the nodes of the rows of ``source``, by their column ``name``.

    Args:
        dataset: the dataset directory, after :func:`create_names`.
        side: ``query`` or ``ad``.
        columns: other columns of ``source`` to select.

    Returns:
        SQL that selects ``columns``, ``node`` (null if there is none) and ``unknown``, the name
        that stands for no node. A row of a name of several nodes is there once for each.
    """
    return f"""
        SELECT {columns}, node, CASE WHEN node IS NULL THEN name END AS unknown
        FROM (
            SELECT
                source.*,
                coalesce(names.node,
                         CASE WHEN held_out.folded IS NOT NULL THEN {HELD_OUT_NODE} END,
                         {number_of("source.name", dataset, side)}) AS node
            FROM source
            LEFT JOIN {side}_names AS names ON names.name = source.name
            LEFT JOIN {side}_held_out AS held_out
                ON held_out.folded = CASE WHEN names.node IS NULL THEN fold(source.name) END)
    """


def has_ids(dataset: Dataset, side: str) -> bool:
    """Return whether the nodes of ``side`` have the user's own ids."""
    return any(_has_ids(dataset, table) for table in (NODE_TABLES[side], *_held_out(dataset, side)))


def number_of(name: str, dataset: Dataset, side: str) -> str:
    """Return the SQL that reads ``name``, an expression, as a node's number; else it is null."""
    if has_ids(dataset, side):
        return "NULL"
    num_nodes = dataset.num_rows(NODE_TABLES[side])
    is_number = f"regexp_full_match({name}, {text_literal(NUMBER)})"
    number = f"try_cast({name} AS BIGINT)"
    return f"CASE WHEN {is_number} AND {number} < {num_nodes} THEN {number} END"


def _has_ids(dataset: Dataset, table: str) -> bool:
    return "source_id" in dataset.schema(table).names


def _held_out(dataset: Dataset, side: str) -> list[str]:
    """Name the tables of held-out nodes, which only queries have."""
    tables = [f"queries/{split}" for split in HELD_OUT] if side == "query" else []
    return list(filter(dataset.has, tables))
