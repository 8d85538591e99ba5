"""A few rows of a dataset as text: seeded samples, and the texts of given ids.

The dataset must be free of errors (:func:`ramen_ray.data.checks.check`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ramen_ray.data.store.dataset import Dataset


@dataclass(frozen=True)
class SampleQuery:
    """A train query and what training knows about it, as text.

    Attributes:
        text: the query.
        ads: the ads clicked for it.
        anchors: its anchors, by anchor set.
    """

    text: str
    ads: list[str]
    anchors: dict[str, list[str]]


def sample_rows(num_rows: int, size: int, seed: int) -> list[int]:
    """Draw ``size`` row numbers, or all if there are fewer; ascending."""
    if num_rows <= size:
        return list(range(num_rows))
    draw = np.random.default_rng(seed)
    return np.sort(draw.choice(num_rows, size, replace=False)).tolist()


def sample_texts(dataset: Dataset, table: str, size: int, seed: int) -> list[str]:
    """Read ``size`` texts of a table, drawn by ``seed``, or all if there are fewer."""
    rows = dataset.rows(table, sample_rows(dataset.num_rows(table), size, seed))
    return rows["text"].to_pylist()


def texts_of(dataset: Dataset, table: str, ids: Iterable[int]) -> dict[int, str]:
    """Return the texts of the rows with these ids, in a table of queries, ads or anchors."""
    rows = dataset.rows_with_ids(table, ids)
    return dict(zip(rows[0].to_pylist(), rows["text"].to_pylist(), strict=True))


def sample_queries(dataset: Dataset, size: int, seed: int) -> list[SampleQuery]:
    """Read ``size`` train queries, drawn by ``seed``, with their ads and anchors, as text."""
    table = "queries/train"
    rows = dataset.rows(table, sample_rows(dataset.num_rows(table), size, seed)).to_pylist()
    ads = texts_of(dataset, "ads", {ad for row in rows for ad in row["ad_ids"]})
    query_ids = [row["query_id"] for row in rows]
    anchors = {
        name: _anchors_of(dataset, name, query_ids)
        for name in dataset.anchor_sets
        if dataset.has(f"edges/{name}/query")
    }
    return [
        SampleQuery(
            row["text"],
            [ads[ad] for ad in row["ad_ids"]],
            {name: of_query[row["query_id"]] for name, of_query in anchors.items()},
        )
        for row in rows
    ]


def _anchors_of(dataset: Dataset, anchor_set: str, query_ids: list[int]) -> dict[int, list[str]]:
    edges = dataset.rows_with_ids(f"edges/{anchor_set}/query", query_ids).to_pylist()
    texts = texts_of(dataset, f"anchors/{anchor_set}", {edge["anchor_id"] for edge in edges})
    of_query: dict[int, list[str]] = {query: [] for query in query_ids}
    for edge in edges:
        of_query[edge["query_id"]].append(texts[edge["anchor_id"]])
    return of_query
