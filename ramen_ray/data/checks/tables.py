"""Rules about tables as a whole and against each other, as SQL over tables in the engine.

There, tables have the names of the dataset directory; ``rowid`` is a row's number, and texts are
there also as ``folded``. Wrong ids join nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ramen_ray.data.engine import name_literal
from ramen_ray.data.findings import Kind, Severity
from ramen_ray.data.leaks import HELD_OUT
from ramen_ray.data.store.schemas import TRAIN, ZERO_SHOT, schema_of


@dataclass(frozen=True)
class TableRule:
    """What is wrong with some rows of a table, and the SQL that finds them.

    Attributes:
        kind: what is wrong.
        table: the table that has the rows.
        sql: selects ``row``, a row's number in the table, and ``value``, what is wrong there.
        out_of: the relation whose rows are counted for the share; by default the table.
    """

    kind: Kind
    table: str
    sql: str
    out_of: str = ""


def warning(table: str, column: str, message: str, advice: str, sql: str) -> TableRule:
    """Return a rule for a ``column`` of ``table`` that training can do without."""
    return TableRule(Kind(message, advice, column, "warning"), table, sql)


def repeat_rules(table: str, columns: Collection[str], ascends: bool) -> list[TableRule]:
    """Forbid that rows repeat ids, pairs of ids, users' own ids, or texts of ads.

    ``columns`` are those that the table has in the engine. If its ids, or pairs, ascend, none
    repeats.
    """
    is_pair = table.startswith(("edges/", "filters/"))
    keys = schema_of(table).names[: 1 + is_pair]
    what, advice = ("pair", "leave one") if is_pair else ("id", "give every row its own")
    severity: Severity = "warning" if table.startswith("filters/") else "error"
    kind = Kind(f"{what} that an earlier row has", advice, keys[-1], severity)
    rules = [] if ascends else [TableRule(kind, table, _repeats(table, keys))]
    if "source_id" in columns:
        what = "source_id that an earlier row has"
        advice = "predictions cannot tell these rows apart; give each its own"
        rules.append(warning(table, "source_id", what, advice, _repeats(table, ["source_id"])))
    if table == "ads" and "text" in columns:
        rules += [
            warning(
                table,
                "text",
                "text that an earlier ad has",
                "ads of equal text cannot be told apart; merge them, or make their texts differ",
                _repeats(table, ["text"]),
            ),
            warning(
                table,
                "text",
                "text that an earlier ad has, up to case and white space",
                "users cannot tell these ads apart; merge them, or make their texts differ",
                """
                SELECT min(rowid) AS row, text AS value FROM ads
                WHERE text IS NOT NULL GROUP BY text, folded
                QUALIFY row > min(row) OVER (PARTITION BY folded)
                """,
            ),
        ]
    return rules


def cross_rules(tables: Mapping[str, Collection[str]]) -> list[TableRule]:
    """List the rules that compare tables that are in the engine, given with their columns."""
    held_out = [split for split in HELD_OUT if f"queries/{split}" in tables]
    rules = []
    if TRAIN in tables:
        rules += [_seen_in_training(f"queries/{split}") for split in held_out]
    if "ads" not in tables:
        return rules
    if {"novel_ads", f"queries/{ZERO_SHOT}"} <= set(tables):
        rules.append(_SEEN_ADS)
    if TRAIN in tables:
        shown_id = "source_id" if "source_id" in tables["ads"] else "ad_id"
        rules.append(_unclicked_ads(shown_id, without_novel="novel_ads" in tables))
    return rules + [_filtered_answers(split) for split in held_out if f"filters/{split}" in tables]


UNLINKED = warning(
    TRAIN,
    "query_id",
    "train query without a click or an edge",
    "nothing is learnt from it; add edges for it, or leave it out",
    "SELECT row, query_id AS value FROM unlinked",
)

_SEEN_ADS = TableRule(
    Kind(
        "ad that is not in novel_ads",
        "zero-shot queries are answered from the novel ads only; drop the ad, or list it there",
        "ad_ids",
    ),
    f"queries/{ZERO_SHOT}",
    f"""
    SELECT row, ad_id AS value
    FROM (SELECT rowid AS row, unnest(ad_ids) AS ad_id FROM {name_literal(f"queries/{ZERO_SHOT}")})
    WHERE ad_id BETWEEN 0 AND (SELECT count(*) - 1 FROM ads)
        AND ad_id NOT IN (SELECT ad_id FROM novel_ads WHERE ad_id IS NOT NULL)
    """,
)


def _seen_in_training(table: str) -> TableRule:
    return warning(
        table,
        "text",
        f"query that {TRAIN} has too, up to case and white space",
        "metrics on it are too good, unless its clicks here are later ones; leave it out of one of"
        " the two, or read seen/ and new/ metrics apart",
        f"""
        SELECT rowid AS row, text AS value FROM {name_literal(table)}
        WHERE folded IN (SELECT folded FROM {name_literal(TRAIN)} WHERE folded IS NOT NULL)
        """,
    )


def _unclicked_ads(shown_id: str, without_novel: bool) -> TableRule:
    """Novel ads have no clicks by design."""
    novel = "UNION ALL SELECT ad_id FROM novel_ads" if without_novel else ""
    return warning(
        "ads",
        shown_id,
        "ad without a train click",
        "it is found by its text and its edges; leave ads out that are no longer shown",
        f"""
        SELECT ads.rowid AS row, ads.{shown_id} AS value FROM ads
        ANTI JOIN (SELECT unnest(ad_ids) AS ad_id FROM {name_literal(TRAIN)} {novel}) USING (ad_id)
        WHERE ads.ad_id BETWEEN 0 AND (SELECT count(*) - 1 FROM ads)
        """,
    )


def _filtered_answers(split: str) -> TableRule:
    return warning(
        f"filters/{split}",
        "ad_id",
        f"pair that is a right answer in queries/{split}",
        "a right answer would be dropped from the predictions; take the pair out of the filter",
        f"""
        SELECT filter.rowid AS row, {{'query_id': query_id, 'ad_id': ad_id}} AS value
        FROM {name_literal(f"filters/{split}")} AS filter
        SEMI JOIN (
            SELECT query_id, unnest(ad_ids) AS ad_id FROM {name_literal(f"queries/{split}")})
        USING (query_id, ad_id)
        """,
    )


def _repeats(table: str, columns: list[str]) -> str:
    """Select the rows whose ``columns`` are those of an earlier row."""
    keys = ", ".join(columns)
    struct = ", ".join(f"'{name}': {name}" for name in columns)
    value = f"{{{struct}}}" if len(columns) > 1 else keys
    known = " AND ".join(f"{name} IS NOT NULL" for name in columns)
    return f"""
        SELECT row, value FROM (
            SELECT rowid AS row, {keys}, {value} AS value FROM {name_literal(table)})
        JOIN (
            SELECT {keys}, min(rowid) AS first FROM {name_literal(table)}
            WHERE {known} GROUP BY {keys} HAVING count(*) > 1)
        USING ({keys})
        WHERE row > first
        """
