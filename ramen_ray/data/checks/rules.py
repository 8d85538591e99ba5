"""Rules for a dataset's tables: what is wrong with some rows, and the SQL that finds them.

First what finds edges and clicks that give held-out answers away, by their texts as
:func:`~ramen_ray.data.store.same_texts.fold` makes them; it starts from the few answers. Then rules
that a row breaks by itself, those of a table as a whole, and against the tables loaded before it.
Wrong ids join nothing.
"""

from collections.abc import Collection, Iterator, Mapping

from ramen_ray.data.engine import Connection, name_literal, run
from ramen_ray.data.findings import FaultKind
from ramen_ray.data.store.schemas import (
    FILTER,
    HELD_OUT,
    MAY_BE_NULL,
    NODE_TABLES,
    TRAIN,
    ZERO_SHOT,
    ids_in,
    schema_of,
)

LISTS = ("ad_ids", "weights")
BOTH_WAYS = "SELECT query AS node, ad AS anchor FROM answers UNION SELECT ad, query FROM answers"
REVERSED = "SELECT ad AS node, query AS anchor FROM answers"
"""Pairs of a train query and an ad whose click is a held-out one reversed."""


def find_answers(connection: Connection, tables: Collection[str]) -> None:
    """Create ``answers`` of the dataset's ``tables``: ``query`` and ``ad``, both folded texts."""
    held_out = [
        f"SELECT folded AS query, ad_ids FROM {name_literal(table)}"
        for table in (f"queries/{split}" for split in HELD_OUT)
        if table in tables
    ]
    nothing = "SELECT NULL::VARCHAR AS query, NULL::BIGINT[] AS ad_ids WHERE false"
    answers = f"""CREATE TABLE IF NOT EXISTS answers AS -- a connection serves one dataset
        WITH
            clicks AS (
                SELECT query, unnest(ad_ids) AS ad_id
                FROM ({" UNION ALL ".join([nothing, *held_out])})),
            clicked AS (
                SELECT ad_id, folded AS ad FROM ads WHERE ad_id IN (SELECT ad_id FROM clicks))
        SELECT DISTINCT query, ad FROM clicks JOIN clicked USING (ad_id)
        WHERE query IS NOT NULL AND ad IS NOT NULL"""
    run(connection, "reading the held-out clicks", answers)


def leaking(nodes: str, anchors: str, pairs: str = BOTH_WAYS) -> str:
    """Return the SQL that selects all pairs ``node`` and ``anchor`` that would leak as an edge.

    Call :func:`find_answers` before. ``nodes`` and ``anchors`` are SQL that selects ``id`` and
    ``folded``; ``pairs`` selects folded texts, and by default either can be the held-out query's.
    """
    return f"""SELECT DISTINCT one.id AS node, other.id AS anchor
        FROM ({pairs}) AS answered
        JOIN ({nodes}) AS one ON one.folded = answered.node
        JOIN ({anchors}) AS other ON other.folded = answered.anchor"""


def texts_of(table: str) -> str:
    """Return the SQL that selects ``id``, ``text`` and ``folded`` of a dataset's table."""
    return f"SELECT {schema_of(table).names[0]} AS id, text, folded FROM {name_literal(table)}"


def error(column: str, message: str, advice: str, sql: str) -> FaultKind:
    """Return a rule that training needs to hold for a ``column``."""
    return FaultKind(message, advice, column, sql=sql)


def warning(column: str, message: str, advice: str, sql: str, whole: str = "") -> FaultKind:
    """Return a rule that training can do without."""
    return FaultKind(message, advice, column, "warning", sql=sql, whole=whole)


def row_rules(table: str, columns: Collection[str], num_rows: Mapping[str, int]) -> list[FaultKind]:
    """List the rules for rows of ``table``, which has ``columns``; ids are below ``num_rows``."""
    rules = []
    for column in columns:
        if column not in MAY_BE_NULL and not column.startswith(FILTER):
            inside = f"OR list_count({column}) < len({column})" if column in LISTS else ""
            broken = f"SELECT row, {column} AS value FROM this WHERE {column} IS NULL {inside}"
            advice = "give every row one, or leave the row out"
            rules.append(error(column, "no value", advice, broken))
    for column, target in ids_in(table).items():
        if limit := num_rows.get(target):  # else that table has a finding of its own
            # the ids that number a table's own rows
            is_own = column not in LISTS and table.startswith(("queries/", "ads", "anchors/"))
            advice = "number the rows from 0 without gaps" if is_own else _DANGLING
            broken = f"""SELECT row, value FROM (SELECT row, {_each(column)} AS value FROM this)
                WHERE value < 0 OR value >= {limit}"""
            rules.append(error(column, f"id outside 0..{limit - 1}", advice, broken))
    if table.startswith("queries/") and table != TRAIN:
        rules.append(_UNANSWERED)
    return rules + [rule for rule in _OF_COLUMNS if rule.column in columns]


def _each(column: str) -> str:
    return f"unnest({column})" if column in LISTS else column


_DANGLING = "drop it, or add what it names"
_NOT_POSITIVE = "weight that is not a positive number", "give it a positive number, or leave it out"
_UNANSWERED = error(
    "ad_ids",
    "no ads for query_id",
    "leave these queries out",
    "SELECT row, query_id AS value FROM this WHERE len(ad_ids) = 0",
)
_OF_COLUMNS = [
    error(
        "text",
        "empty text",
        "give it a text, or leave it out",
        "SELECT row, text AS value FROM this WHERE trimmed(text) = ''",
    ),
    error(
        "ad_ids",
        "one ad twice",
        "name each ad once",
        """SELECT row, value
        FROM (SELECT row, unnest(ad_ids) AS value FROM this WHERE list_unique(ad_ids) < len(ad_ids))
        WHERE value IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY row, value) > 1""",
    ),
    *(
        error(
            column,
            *_NOT_POSITIVE,
            f"""SELECT row, value FROM (SELECT row, {_each(column)} AS value FROM this)
            WHERE NOT (isfinite(value) AND value > 0)""",
        )
        for column in ("weight", "weights")
    ),
    error(
        "weights",
        "other number of weights than of ad_ids",
        "give each ad one",
        "SELECT row, len(weights) AS value FROM this WHERE len(weights) <> len(ad_ids)",
    ),
    error(
        "grade",
        "grade outside 0..1",
        "scale the grades",
        "SELECT row, grade AS value FROM this WHERE NOT grade BETWEEN 0 AND 1",
    ),
    # replacement character, byte order mark; UTF-8 read as Latin-1 or Windows-1252; control signs
    warning(
        "text",
        "text that looks damaged by a wrong encoding",
        "look at how the source was decoded; it may be Latin-1, or UTF-8 decoded twice",
        r"""SELECT row, text AS value FROM this WHERE regexp_matches(text,
            '\x{FFFD}|\x{FEFF}|[ÃÂ][\x{80}-\x{BF}ŒœŠšŸŽžƒ]|â€|[\x00-\x08\x0E-\x1F\x7F-\x{9F}]')""",
    ),
    warning(
        "text",
        "text without a visible character",
        "give it a text, or leave it out",
        r"""SELECT row, text AS value FROM this
        WHERE regexp_full_match(text, '[\s\pZ\p{Cf}]*\p{Cf}[\s\pZ\p{Cf}]*')""",
    ),
    warning(
        "source_id",
        "no source_id",
        "predictions cannot name these rows; give each its own",
        "SELECT row, source_id AS value FROM this WHERE source_id IS NULL",
    ),
]


def keys_of(table: str) -> list[str]:
    """Name the columns that no two rows of ``table`` share: an id, a pair, or also a source."""
    names: list[str] = schema_of(table).names
    of_kind = {"edges": 2, "filters": 2, "judged": 3}
    return names[: of_kind.get(table.split("/")[0], 1)]


def repeat_rules(table: str, columns: Collection[str], *, ascends: bool) -> list[FaultKind]:
    """Forbid that rows repeat ids, pairs of ids, users' own ids, or texts of ads."""
    keys = keys_of(table)
    advice = "give every row its own" if len(keys) == 1 else "leave one"
    what = ("id", "pair", "judgement")[len(keys) - 1]
    harm = warning if table.startswith("filters/") else error  # to filter a pair twice is no harm
    of_keys = harm(keys[-1], f"{what} that an earlier row has", advice, _repeats(keys))
    rules = [] if ascends else [of_keys]  # which takes memory for all ids
    rules += [_SAME_SOURCE_ID] if "source_id" in columns else []
    return rules + ([_SAME_TEXT, _SAME_FOLDED] if table == "ads" else [])


def _repeats(columns: list[str]) -> str:
    """Select the rows whose ``columns`` are those of an earlier row."""
    keys = ", ".join(columns)
    struct = ", ".join(f"'{name}': {name}" for name in columns)
    value = f"{{{struct}}}" if len(columns) > 1 else keys
    known = " AND ".join(f"{name} IS NOT NULL" for name in columns)
    return f"""SELECT row, value FROM (SELECT row, {keys}, {value} AS value FROM this)
        JOIN (
            SELECT {keys}, min(row) AS first FROM this
            WHERE {known} GROUP BY {keys} HAVING count(*) > 1)
        USING ({keys})
        WHERE row > first"""


_SAME_SOURCE_ID = warning(
    "source_id",
    "source_id that an earlier row has",
    "predictions cannot tell these rows apart; give each its own",
    _repeats(["source_id"]),
)
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
    """SELECT min(this.row) AS row, text AS value FROM this WHERE text IS NOT NULL
    GROUP BY text, folded QUALIFY min(this.row) > min(min(this.row)) OVER (PARTITION BY folded)""",
)


def cross_rules(
    table: str, columns: Collection[str], loaded: Collection[str]
) -> Iterator[FaultKind]:
    """List the rules that compare a table of nodes, or of filters, with those ``loaded`` before."""
    folder, _, split = table.partition("/")
    if folder == "queries" and split in HELD_OUT and TRAIN in loaded:
        yield _SEEN_IN_TRAINING
    if table == f"queries/{ZERO_SHOT}" and {"ads", "novel_ads"} <= {*loaded}:
        yield _SEEN_ADS
    if table == "ads" and TRAIN in loaded:
        shown = "source_id" if "source_id" in columns else "ad_id"
        # novel ads have no clicks by design
        novel = "UNION ALL SELECT ad_id FROM novel_ads" if "novel_ads" in loaded else ""
        yield warning(
            shown,
            "ad without a train click",
            "it is found by its text and its edges; leave ads out that are no longer shown",
            f"""SELECT row, {shown} AS value FROM this
            ANTI JOIN (SELECT unnest(ad_ids) AS ad_id FROM {name_literal(TRAIN)} {novel})
            USING (ad_id)
            WHERE ad_id BETWEEN 0 AND (SELECT count(*) - 1 FROM ads)""",
        )
    if folder == "judged" and split == "train" and TRAIN in loaded:
        held_out = [f"queries/{name}" for name in HELD_OUT if f"queries/{name}" in loaded]
        texts = " UNION ALL ".join(f"SELECT folded FROM {name_literal(name)}" for name in held_out)
        if texts:
            yield error(
                "query_id",
                "judgement of a query that is held out too, up to case and white space",
                "training sees what the model is measured by; leave these judgements out",
                f"""SELECT row, text AS value FROM this JOIN {name_literal(TRAIN)} USING (query_id)
                WHERE folded IN ({texts})""",
            )
    if folder == "filters" and {"ads", f"queries/{split}"} <= {*loaded}:
        yield warning(
            "ad_id",
            f"pair that is a right answer in queries/{split}",
            "a right answer would be dropped from the predictions; take the pair out of the filter",
            f"""SELECT row, {{'query_id': query_id, 'ad_id': ad_id}} AS value FROM this
            SEMI JOIN (
                SELECT query_id, unnest(ad_ids) AS ad_id FROM {name_literal(f"queries/{split}")})
            USING (query_id, ad_id)""",
        )


_SEEN_IN_TRAINING = warning(
    "text",
    f"query that {TRAIN} has too, up to case and white space",
    "metrics on it are too good, unless its clicks here are later ones; leave it out of one of the"
    " two, or read seen/ and new/ metrics apart",
    f"""SELECT row, text AS value FROM this
    WHERE folded IN (SELECT folded FROM {name_literal(TRAIN)} WHERE folded IS NOT NULL)""",
)
_SEEN_ADS = error(
    "ad_ids",
    "ad that is not in novel_ads",
    "zero-shot queries are answered from the novel ads only; drop the ad, or list it there",
    """SELECT row, value FROM (SELECT row, unnest(ad_ids) AS value FROM this)
    WHERE value BETWEEN 0 AND (SELECT count(*) - 1 FROM ads) -- others are no ids
        AND value NOT IN (SELECT ad_id FROM novel_ads WHERE ad_id IS NOT NULL)""",
)


def leak_rule(table: str) -> FaultKind:
    """Warn of edges that join a pair of ``answers``."""
    _, anchor_set, side = table.split("/")
    nodes = name_literal(NODE_TABLES[side])
    anchors = name_literal(f"anchors/{anchor_set}")
    pairs = leaking(texts_of(NODE_TABLES[side]), texts_of(f"anchors/{anchor_set}"))
    return warning(
        "anchor_id",
        "edge that joins a held-out query to its answer",
        "training sees the answer in the graph; leave these edges out (jobs/graph.py edges"
        " does), or call the figures as published",
        f"""SELECT row, {{'{side}': one.text, 'anchor': other.text}} AS value
        FROM this JOIN ({pairs}) AS found ON node = {side}_id AND anchor = anchor_id
        JOIN {nodes} AS one USING ({side}_id) JOIN {anchors} AS other USING (anchor_id)""",
    )


UNLINKED = warning(
    "query_id",
    "train query without a click or an edge",
    "nothing is learnt from it; add edges for it, or leave it out",
    "SELECT row, query_id AS value FROM unlinked",
)
REVERSED_CLICKS = warning(
    "ad_ids",
    "train click that is a held-out click reversed",
    "the answer can be learnt from it; leave these clicks out of the train split"
    " (jobs/ingest.py tables --drop-reversed-clicks does)",
    f"""SELECT row, {{'query': clicks.text, 'ad': ads.text}} AS value
    FROM (SELECT row, text, query_id, unnest(ad_ids) AS ad_id FROM this) AS clicks
    JOIN ({leaking(texts_of(TRAIN), texts_of("ads"), REVERSED)}) AS found
        ON query_id = node AND ad_id = anchor
    JOIN ads USING (ad_id)""",
    whole="sum(len(ad_ids))",
)
