"""Find the queries and ads of a dataset directory that a user's cells name.

A cell names a node by the user's id, else by its text, else, if the dataset has no user ids, by its
number. Names that the import has merged or left out (the tables ``aliases``) count as ids.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from ramen_ray.data.engine import Connection, count, name_literal, run, text_literal
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.same_texts import normalized
from ramen_ray.data.store.schemas import HELD_OUT, NODE_TABLES, PLURAL, Side, schema_of
from ramen_ray.data.tables.reading.columns import Column, NullWords, text_column

HELD_OUT_NODE = -1
LEFT_OUT_NODE = -2
NUMBER = "0|[1-9][0-9]{0,17}"


def node_names(metadata: Mapping[str, Any], side: Side, name: str, null_words: NullWords) -> Column:
    """Read a column that names nodes of ``side``; texts are normalised if the dataset's were."""
    imported = metadata.get("imported", {})
    if imported.get(PLURAL[side]):
        return text_column(name, null_words, are_ids=True)
    is_normal = imported.get("normalize_texts")
    return text_column(name, null_words, normalized if is_normal else pc.utf8_trim_whitespace)


def create_names(connection: Connection, dataset: Dataset, side: str) -> None:
    """Create what names the nodes of ``side``, unless an earlier table of the user has needed it.

    * ``{side}_names`` (``name``, ``node``): all nodes that a name stands for, each a train query's
      or an ad's number, HELD_OUT_NODE or LEFT_OUT_NODE. A query also held out is a train query.
    * ``{side}_texts`` (``node``, ``text``): of the train queries or ads, trimmed.
    * ``{side}_held_out`` (``folded``): the different texts of held-out queries.
    """
    nodes = NODE_TABLES[side]
    held_out = _held_out(dataset, side)
    number = schema_of(nodes).names[0]
    texts = ["SELECT NULL::VARCHAR AS folded WHERE false"]
    texts += [f"SELECT folded FROM {name_literal(table)}" for table in held_out]
    ids = ["SELECT NULL::VARCHAR AS name, NULL::BIGINT AS node WHERE false"]
    for table, node in {nodes: number, **dict.fromkeys(held_out, str(HELD_OUT_NODE))}.items():
        if _has_ids(dataset, table):
            ids.append(f"SELECT trimmed(source_id), {node} FROM {name_literal(table)}")
    aliases = f"""UNION ALL
        SELECT trimmed(alias.name), coalesce(own.node, {LEFT_OUT_NODE})
        FROM {name_literal(f"aliases/{side}")} AS alias
        LEFT JOIN own ON own.name = trimmed(alias.of)"""
    tables = {
        "texts": f"SELECT {number} AS node, trimmed(text) AS text FROM {name_literal(nodes)}",
        "held_out": f"SELECT DISTINCT folded FROM ({' UNION ALL '.join(texts)})",
        "ids": f"""WITH own AS ({" UNION ALL ".join(ids)})
            SELECT name, max(node) AS node
            FROM (FROM own {aliases if dataset.has(f"aliases/{side}") else ""})
            WHERE name IS NOT NULL GROUP BY name""",
        "names": f"""FROM {side}_ids
            UNION ALL
            SELECT text, node FROM {side}_texts AS texts
            ANTI JOIN {side}_ids AS ids ON ids.name = texts.text""",
    }
    for what, sql in tables.items():
        create = f"CREATE TABLE IF NOT EXISTS {side}_{what} AS {sql}"
        run(connection, f"reading the names of {side} nodes", create)


def named(side: str, columns: str, source: str = "source") -> str:
    """Return the SQL that finds the nodes of the rows of ``source``, by their column ``name``.

    It selects ``columns``, ``node`` (null if there is none) and ``unknown``, the name that stands
    for no node. A row of a name of several nodes is there once for each. Call :func:`create_names`
    before, and :func:`read_numbers` after.
    """
    return f"""SELECT {columns}, node, CASE WHEN node IS NULL THEN name END AS unknown
        FROM (
            SELECT
                source.*,
                coalesce(names.node, CASE WHEN held_out.folded IS NOT NULL THEN {HELD_OUT_NODE} END)
                    AS node
            FROM {source} AS source
            LEFT JOIN {side}_names AS names ON names.name = source.name
            LEFT JOIN {side}_held_out AS held_out
                ON held_out.folded = CASE WHEN names.node IS NULL THEN fold(source.name) END)"""


def read_numbers(connection: Connection, dataset: Dataset, side: str, rows: str) -> None:
    """Read the unknown names in ``rows`` as nodes' numbers, if most look so."""
    if has_ids(dataset, side):
        return
    is_number = f"regexp_full_match(unknown, {text_literal(NUMBER)})"
    names = f"(SELECT DISTINCT unknown FROM {rows} WHERE unknown IS NOT NULL)"
    # among unknown texts, "2048" is a text too
    are_most = f"SELECT 2 * count(*) FILTER (WHERE {is_number}) > count(*) FROM {names}"
    if not count(connection, are_most):
        return
    num_nodes = dataset.num_rows(NODE_TABLES[side])
    update = f"""UPDATE {rows} SET node = unknown::BIGINT, unknown = NULL
        WHERE {is_number} AND try_cast(unknown AS BIGINT) < {num_nodes}"""
    connection.execute(update)


def has_ids(dataset: Dataset, side: str) -> bool:
    """Return whether the nodes of ``side`` have the user's own ids."""
    return any(_has_ids(dataset, table) for table in (NODE_TABLES[side], *_held_out(dataset, side)))


def _has_ids(dataset: Dataset, table: str) -> bool:
    return "source_id" in dataset.schema(table).names


def _held_out(dataset: Dataset, side: str) -> list[str]:
    """Name the tables of held-out nodes, which only queries have."""
    tables = [f"queries/{split}" for split in HELD_OUT] if side == "query" else []
    return list(filter(dataset.has, tables))
