"""Rules for a dataset's tables: what is wrong with some rows, and the SQL that finds them.

Here are those that a row breaks by itself.
"""

from collections.abc import Collection, Mapping

from ramen_ray.data.findings import FaultKind
from ramen_ray.data.store.schemas import FILTER, MAY_BE_NULL, TRAIN, ids_in

LISTS = ("ad_ids", "weights")


def error(column: str, message: str, advice: str, sql: str) -> FaultKind:
    """Return a rule that training needs to hold for a ``column``."""
    return FaultKind(message, advice, column, sql=sql)


def warning(
    column: str, message: str, advice: str, sql: str, whole: str = "", least: float = 0.0
) -> FaultKind:
    """Return a rule that training can do without."""
    return FaultKind(message, advice, column, "warning", sql=sql, whole=whole, least=least)


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
    if table.startswith("queries/"):
        rules.append(_UNCLICKED if table == TRAIN else _UNANSWERED)
    return rules + [rule for rule in _OF_COLUMNS if rule.column in columns]


def _each(column: str) -> str:
    return f"unnest({column})" if column in LISTS else column


_DANGLING = "drop it, or add what it names"
_NOT_POSITIVE = "weight that is not a positive number", "give it a positive number, or leave it out"
_WITHOUT_ADS = "SELECT row, query_id AS value FROM this WHERE len(ad_ids) = 0"
_UNANSWERED = error("ad_ids", "no ads for query_id", "leave these queries out", _WITHOUT_ADS)
_UNCLICKED = warning(
    "ad_ids",
    "train query without a click",
    "batches leave it out; it takes part in the graph by its edges",
    _WITHOUT_ADS,
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
