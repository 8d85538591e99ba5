"""Rules that a row breaks by itself."""

from collections.abc import Collection, Mapping

from ramen_ray.data.checks.loading import Rule, error, in_bytes, warning
from ramen_ray.data.engine import name_literal
from ramen_ray.data.store.schemas import FILTER, MAY_BE_NULL, TRAIN, ids_in

TEXTS = ("text", "source_id", "name", "of")
LISTS = ("ad_ids", "weights")
_NOT_POSITIVE = "weight that is not a positive number", "give it a positive number, or leave it out"
_WITHOUT_ADS = "SELECT row, query_id AS value FROM this WHERE len(ad_ids) = 0"
_UNANSWERED = error("ad_ids", "no ads for query_id", "leave these queries out", _WITHOUT_ADS)
_UNCLICKED = warning(
    "ad_ids",
    "train query without a click",
    "batches leave it out; it takes part in the graph by its edges",
    _WITHOUT_ADS,
)
_RULES = [
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
        """
        SELECT row, value
        FROM (SELECT row, unnest(ad_ids) AS value FROM this WHERE list_unique(ad_ids) < len(ad_ids))
        WHERE value IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY row, value) > 1
        """,
    ),
    error(
        "weight",
        *_NOT_POSITIVE,
        "SELECT row, weight AS value FROM this WHERE NOT (isfinite(weight) AND weight > 0)",
    ),
    error(
        "weights",
        *_NOT_POSITIVE,
        """
        SELECT row, value FROM (SELECT row, unnest(weights) AS value FROM this)
        WHERE NOT (isfinite(value) AND value > 0)
        """,
    ),
    error(
        "weights",
        "other number of weights than of ad_ids",
        "give each ad one",
        "SELECT row, len(weights) AS value FROM this WHERE len(weights) <> len(ad_ids)",
    ),
    # replacement character, byte order mark; UTF-8 read as Latin-1 or Windows-1252; control signs
    warning(
        "text",
        "text that looks damaged by a wrong encoding",
        "look at how the source was decoded; it may be Latin-1, or UTF-8 decoded twice",
        r"""
        SELECT row, text AS value FROM this WHERE regexp_matches(text,
            '\x{FFFD}|\x{FEFF}|[ÃÂ][\x{80}-\x{BF}ŒœŠšŸŽžƒ]|â€|[\x00-\x08\x0E-\x1F\x7F-\x{9F}]')
        """,
    ),
    warning(
        "text",
        "text without a visible character",
        "give it a text, or leave it out",
        r"""
        SELECT row, text AS value FROM this
        WHERE regexp_full_match(text, '[\s\pZ\p{Cf}]*\p{Cf}[\s\pZ\p{Cf}]*')
        """,
    ),
    warning(
        "source_id",
        "no source_id",
        "predictions cannot name these rows; give each its own",
        f"""
        SELECT row, source_id AS value FROM this
        WHERE source_id IS NULL AND {name_literal(in_bytes("source_id"))} IS NULL
        """,
    ),
]


def row_rules(table: str, columns: Collection[str], num_rows: Mapping[str, int]) -> list[Rule]:
    """List the rules for rows of ``table``, which has ``columns``; ids are below ``num_rows``."""
    filters = [name for name in columns if name.startswith(FILTER)]
    texts = [name for name in columns if name in (*TEXTS, *filters)]
    needed = [name for name in columns if name not in (*MAY_BE_NULL, *filters)]
    limits = {name: num_rows.get(of) for name, of in ids_in(table).items()}
    rules = [
        *(_no_value(name, name in texts) for name in needed),
        *(_outside(table, name, limit) for name, limit in limits.items() if limit),
        *map(_not_utf8, texts),
    ]
    if table.startswith("queries/"):
        rules.append(_UNCLICKED if table == TRAIN else _UNANSWERED)
    return rules + [rule for rule in _RULES if rule.kind.column in columns]


def _no_value(column: str, is_text: bool) -> Rule:
    name = name_literal(column)
    also = f"OR list_count({name}) < len({name})" if column in LISTS else ""
    also = f"AND {name_literal(in_bytes(column))} IS NULL" if is_text else also
    found = f"SELECT row, {name} AS value FROM this WHERE {name} IS NULL {also}"
    return error(column, "no value", "give every row one, or leave the row out", found)


def _outside(table: str, column: str, limit: int) -> Rule:
    is_own = table.split("/")[0] in ("queries", "ads", "anchors") and column not in LISTS
    advice = "number the rows from 0 without gaps" if is_own else "drop it, or add what it names"
    ids = f"unnest({column})" if column in LISTS else column
    found = f"""
        SELECT row, value FROM (SELECT row, {ids} AS value FROM this)
        WHERE value < 0 OR value >= {limit}
        """
    return error(column, f"id outside 0..{limit - 1}", advice, found)


def _not_utf8(column: str) -> Rule:
    name = name_literal(in_bytes(column))
    found = f"SELECT row, {name} AS value FROM this WHERE {name} IS NOT NULL"
    return error(column, "bytes that are not UTF-8", "convert the source", found)
