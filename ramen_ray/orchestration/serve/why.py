"""Why an ad answers a query: the train queries that led to it, and the anchors that reach it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from ramen_ray.answering.encoding import Embeddings
from ramen_ray.data.engine import Connection, engine, name_literal
from ramen_ray.data.store.dataset import Dataset

MEMORY = "1GB"
MOST_EMBEDDED = 200  # train queries, those that have most words of the query, then letters
MOST_SHOWN = 5
LIKE_FIRST = f"""
    len(list_intersect(string_split(lower(text), ' '), string_split(lower($query), ' '))) DESC,
    jaro_winkler_similarity(text, $query) DESC, query_id LIMIT {MOST_EMBEDDED}"""

Embed = Callable[[Sequence[str]], Embeddings]
Reason = dict[str, Any]


def reasons(dataset: Dataset, ad_id: str, query: str, embed: Embed) -> list[Reason]:
    """Return what joins an ad, by the user's id, with a dataset's train queries.

    First come clicks, ``by`` of None, then ``by`` each anchor set ``anchors``, the ad's heaviest.
    ``queries`` are those that led to the ad, or have one of these anchors, in all ``number`` of
    them; most similar to the ``query`` first: ``text``, ``score``, and ``ads``, to which they led.
    An ad that the dataset does not have has no reasons.
    """
    with engine(Path(gettempdir()), MEMORY, dataset) as connection:
        names = dataset.schema("ads").names
        users_id = "source_id" if "source_id" in names else "ad_id::VARCHAR"
        ads = _rows(connection, f"SELECT ad_id FROM ads WHERE {users_id} = $id", id=ad_id)
        joins: list[tuple[str | None, list[str], str, Any]] = [
            (None, [], "list_contains(ad_ids, $joins)", ad) for (ad,) in ads
        ]
        for name in dataset.strict_anchor_sets if ads else []:
            if dataset.has(f"edges/{name}/ad"):
                anchors = _rows(
                    connection,
                    f"""SELECT anchor_id, text FROM {name_literal(f"edges/{name}/ad")}
                    JOIN {name_literal(f"anchors/{name}")} USING (anchor_id)
                    WHERE ad_id = $ad ORDER BY weight DESC, anchor_id LIMIT {MOST_SHOWN}""",
                    ad=ads[0][0],
                )
                ids, texts = [[row[place] for row in anchors] for place in (0, 1)]
                joins.append((name, texts, _have_one(dataset, name), ids))
        return [
            {"by": by, "anchors": anchors, **_nearest(connection, embed, query, which, value)}
            for by, anchors, which, value in joins
        ]


def _have_one(dataset: Dataset, name: str) -> str:
    """Return the condition that a query has one of the anchors of a set."""
    if not dataset.has(f"edges/{name}/query"):
        return "list_contains($joins, -1)"
    edges = name_literal(f"edges/{name}/query")
    return f"query_id IN (SELECT query_id FROM {edges} WHERE list_contains($joins, anchor_id))"


def _nearest(
    connection: Connection, embed: Embed, query: str, which: str, joins: Any
) -> dict[str, Any]:
    """Return how many train queries a condition of SQL is true of, and the nearest."""
    alike = _rows(
        connection,
        f"""SELECT text, ad_ids, count(*) OVER () FROM "queries/train" WHERE {which}
        ORDER BY {LIKE_FIRST}""",
        joins=joins,
        query=query,
    )
    scores = embed([text for text, *_ in alike]) @ embed([query])[0]
    best_first = (-scores).argsort(kind="stable")[:MOST_SHOWN]
    shown = f"SELECT text FROM ads WHERE list_contains($ads, ad_id) LIMIT {MOST_SHOWN}"
    nearest = [
        {
            "text": alike[row][0],
            "score": float(scores[row]),
            "ads": [text for (text,) in _rows(connection, shown, ads=alike[row][1])],
        }
        for row in best_first
    ]
    return {"number": alike[0][2] if alike else 0, "queries": nearest}


def _rows(connection: Connection, sql: str, **values: Any) -> list[tuple[Any, ...]]:
    return connection.execute(sql, values).fetchall()
