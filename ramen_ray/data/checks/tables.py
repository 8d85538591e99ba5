"""Rules about tables as a whole, and against each other; wrong ids join nothing.

Those about edges and clicks that give answers away, or repeat clicks, read the table ``leaks`` of
:mod:`ramen_ray.data.leaks`.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from ramen_ray.data.checks.loading import Rule, Tables, error, warning
from ramen_ray.data.engine import name_literal
from ramen_ray.data.findings import Finding
from ramen_ray.data.leaks import HELD_OUT, REVERSED, find_leaks, find_repeats, texts_of
from ramen_ray.data.prepared.tokens import TextFigures
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN, ZERO_SHOT, schema_of

MANY_REPEATS = 0.1
"""Share of a table's edges that repeat train clicks, from which on it is worth a warning."""
MANY_TEXTS = 0.01
"""Share of its tokens or texts from which on those that an encoder loses are."""


def repeat_rules(table: str, columns: Collection[str]) -> list[Rule]:
    """Forbid that rows repeat ids, pairs of ids, users' own ids, or texts of ads.

    ``columns`` are those that the table has in the engine.
    """
    is_pair = table.startswith(("edges/", "filters/"))
    keys = schema_of(table).names[: 1 + is_pair]
    what, advice = ("pair", "leave one") if is_pair else ("id", "give every row its own")
    harm = warning if table.startswith("filters/") else error
    rules = [harm(keys[-1], f"{what} that an earlier row has", advice, _repeats(keys))]
    if "source_id" in columns:
        what = "source_id that an earlier row has"
        advice = "predictions cannot tell these rows apart; give each its own"
        rules.append(warning("source_id", what, advice, _repeats(["source_id"])))
    return rules + ([_SAME_TEXT, _SAME_FOLDED] if table == "ads" and "text" in columns else [])


def ascend(table: str) -> str:
    """Return the SQL that says whether ids, or pairs of ids, ascend, so that none repeats."""
    keys = schema_of(table).names[: 1 + table.startswith(("edges/", "filters/"))]
    before = ", ".join(f"lag({key}) OVER () AS before_{key}" for key in keys)
    first, *second = (f"{key} > before_{key}" for key in keys)
    also = f" OR {keys[0]} = before_{keys[0]} AND {second[0]}" if second else ""
    return f"""
        SELECT bool_and(coalesce({first}{also}, rowid = 0))
        FROM (SELECT rowid, {", ".join(keys)}, {before} FROM {name_literal(table)})
        """


def cross_rules(tables: Mapping[str, Collection[str]]) -> list[tuple[str, Rule]]:
    """List rules that compare tables in the engine, given with columns; each with its table."""
    held_out = [split for split in HELD_OUT if f"queries/{split}" in tables]
    rules = []
    if TRAIN in tables:
        rules += [(f"queries/{split}", _SEEN_IN_TRAINING) for split in held_out]
    if "ads" not in tables:
        return rules
    if {"novel_ads", f"queries/{ZERO_SHOT}"} <= set(tables):
        rules.append((f"queries/{ZERO_SHOT}", _SEEN_ADS))
    if TRAIN in tables:
        shown_id = "source_id" if "source_id" in tables["ads"] else "ad_id"
        rules.append(("ads", _unclicked_ads(shown_id, without_novel="novel_ads" in tables)))
    of_filters = ((f"filters/{split}", _filtered_answers(split)) for split in held_out)
    return rules + [(table, rule) for table, rule in of_filters if table in tables]


UNLINKED = warning(
    "query_id",
    "train query without a click or an edge",
    "nothing is learnt from it; add edges for it, or leave it out",
    "SELECT row, query_id AS value FROM unlinked",
)


def _repeats(columns: list[str]) -> str:
    """Select the rows whose ``columns`` are those of an earlier row."""
    keys = ", ".join(columns)
    struct = ", ".join(f"'{name}': {name}" for name in columns)
    value = f"{{{struct}}}" if len(columns) > 1 else keys
    known = " AND ".join(f"{name} IS NOT NULL" for name in columns)
    return f"""
        SELECT row, value FROM (SELECT row, {keys}, {value} AS value FROM this)
        JOIN (
            SELECT {keys}, min(row) AS first FROM this
            WHERE {known} GROUP BY {keys} HAVING count(*) > 1)
        USING ({keys})
        WHERE row > first
        """


_SAME_TEXT = warning(
    "text",
    "text that an earlier ad has",
    "ads of equal text cannot be told apart; merge them, or make their texts differ",
    _repeats(["text"]),
)
_SAME_FOLDED = warning(
    "text",
    "text that an earlier ad has, up to case and white space",
    "users cannot tell these ads apart; merge them, or make their texts differ",
    """
    SELECT min(this.row) AS row, text AS value FROM this WHERE text IS NOT NULL
    GROUP BY text, folded QUALIFY min(this.row) > min(min(this.row)) OVER (PARTITION BY folded)
    """,
)
_SEEN_IN_TRAINING = warning(
    "text",
    f"query that {TRAIN} has too, up to case and white space",
    "metrics on it are too good, unless its clicks here are later ones; leave it out of one of the"
    " two, or read seen/ and new/ metrics apart",
    f"""
    SELECT row, text AS value FROM this
    WHERE folded IN (SELECT folded FROM {name_literal(TRAIN)} WHERE folded IS NOT NULL)
    """,
)
_SEEN_ADS = error(
    "ad_ids",
    "ad that is not in novel_ads",
    "zero-shot queries are answered from the novel ads only; drop the ad, or list it there",
    """
    SELECT row, value FROM (SELECT row, unnest(ad_ids) AS value FROM this)
    WHERE value BETWEEN 0 AND (SELECT count(*) - 1 FROM ads)
        AND value NOT IN (SELECT ad_id FROM novel_ads WHERE ad_id IS NOT NULL)
    """,
)


def _unclicked_ads(shown_id: str, without_novel: bool) -> Rule:
    """Novel ads have no clicks by design."""
    novel = "UNION ALL SELECT ad_id FROM novel_ads" if without_novel else ""
    return warning(
        shown_id,
        "ad without a train click",
        "it is found by its text and its edges; leave ads out that are no longer shown",
        f"""
        SELECT row, {shown_id} AS value FROM this
        ANTI JOIN (SELECT unnest(ad_ids) AS ad_id FROM {name_literal(TRAIN)} {novel}) USING (ad_id)
        WHERE ad_id BETWEEN 0 AND (SELECT count(*) - 1 FROM ads)
        """,
    )


def _filtered_answers(split: str) -> Rule:
    return warning(
        "ad_id",
        f"pair that is a right answer in queries/{split}",
        "a right answer would be dropped from the predictions; take the pair out of the filter",
        f"""
        SELECT row, {{'query_id': query_id, 'ad_id': ad_id}} AS value FROM this
        SEMI JOIN (
            SELECT query_id, unnest(ad_ids) AS ad_id FROM {name_literal(f"queries/{split}")})
        USING (query_id, ad_id)
        """,
    )


def edge_leaks(tables: Tables, table: str) -> list[Finding]:
    """Warn about edges of ``edges/<set>/<side>`` that join a held-out query to its answer.

    Warn also about those that repeat train clicks, if they are many. Call
    :func:`~ramen_ray.data.leaks.find_answers` before.
    """
    _, anchor_set, side = table.split("/")
    nodes, anchors = name_literal(NODE_TABLES[side]), name_literal(f"anchors/{anchor_set}")
    in_leaks = f"""
        SELECT row, {{'{side}': one.text, 'anchor': other.text}} AS value
        FROM this JOIN leaks ON node = {side}_id AND anchor = anchor_id
        JOIN {nodes} AS one USING ({side}_id) JOIN {anchors} AS other USING (anchor_id)
        """
    joins_answers = warning(
        "anchor_id",
        "edge that joins a held-out query to its answer",
        "training sees the answer in the graph; leave these edges out (jobs/graph.py edges does),"
        " or call the figures as published",
        in_leaks,
    )
    repeats_clicks = warning(
        "anchor_id",
        "edge that repeats a train click",
        "the graph says again what training sees, and may get a weight for that alone; compare it"
        " with a graph without these edges (jobs/graph.py edges --protocol unclicked)",
        in_leaks,
    )
    anchor_texts = texts_of(f"anchors/{anchor_set}")
    find_leaks(tables.connection, texts_of(NODE_TABLES[side]), anchor_texts)
    found = tables.broken(table, [joins_answers])
    find_repeats(tables.connection, side, anchor_texts)
    return found + tables.broken(table, [replace(repeats_clicks, least=MANY_REPEATS)])


def click_leaks(tables: Tables) -> list[Finding]:
    """Warn about train clicks that are held-out clicks reversed; see :func:`edge_leaks`."""
    find_leaks(tables.connection, texts_of(TRAIN), texts_of("ads"), REVERSED)
    rule = warning(
        "ad_ids",
        "train click that is a held-out click reversed",
        "the answer can be learnt from it; leave these clicks out of the train split"
        " (jobs/ingest.py tables --drop-reversed-clicks does)",
        """
        SELECT row, {'query': clicks.text, 'ad': ads.text} AS value
        FROM (SELECT row, text, query_id, unnest(ad_ids) AS ad_id FROM this) AS clicks
        JOIN leaks ON query_id = node AND ad_id = anchor JOIN ads USING (ad_id)
        """,
    )
    return tables.broken(TRAIN, [replace(rule, whole="sum(len(ad_ids))")])


def text_findings(figures: Mapping[str, TextFigures]) -> list[Finding]:
    """Warn of the tables with many unknown tokens, or many texts of the same tokens."""
    found = []
    for table, of_table in figures.items():
        if of_table.share_unknown >= MANY_TEXTS:
            message = (
                f"{of_table.share_unknown:.1%} of the tokens are unknown to the encoder's "
                f"vocabulary"
            )
            found.append(Finding("warning", table, message, "take an encoder for these texts"))
        if of_table.share_repeated >= MANY_TEXTS:
            message = (
                f"{of_table.share_repeated:.1%} of the texts have the tokens of an earlier one, so "
                f"the encoder cannot tell them apart"
            )
            advice = "raise encoder.max_length if their ends differ, or drop repeated texts"
            found.append(Finding("warning", table, message, advice))
    return found
