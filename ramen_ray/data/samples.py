"""A few rows of a dataset as text: seeded samples, and the texts of given ids."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.dataset import Dataset, DatasetError
from ramen_ray.data.schemas import schema_of


@dataclass(frozen=True)
class SampleQuery:
    """A train query with what training sees of it, as text.

    Attributes:
        text: the query.
        ads: the ads clicked for it.
        anchors: its anchors, by anchor set.
    """

    text: str
    ads: list[str]
    anchors: dict[str, list[str]]


def sample_rows(num_rows: int, size: int, seed: int) -> list[int]:
    """Draw ``size`` row numbers, or all if there are no more; ascending."""
    if num_rows <= size:
        return list(range(num_rows))
    draw = np.random.default_rng(seed)
    return np.sort(draw.choice(num_rows, size, replace=False)).tolist()


def sample_texts(dataset: Dataset, table: str, size: int, seed: int) -> list[str]:
    """Read ``size`` texts of a table, drawn by ``seed``, or all if there are no more.

    Raises:
        DatasetError: a text is missing or not UTF-8.
    """
    rows = dataset.rows(table, sample_rows(dataset.num_rows(table), size, seed))
    return _strings(dataset, table, rows["text"])


def texts_of(dataset: Dataset, table: str, ids: Iterable[int]) -> dict[int, str]:
    """Return the texts of the rows of a table (queries, ads or anchors) that have these ids.

    Raises:
        DatasetError: an id is not there, or a text is missing or not UTF-8.
    """
    key = schema_of(table).names[0]
    found: dict[int, str] = {}
    wanted = set(ids)
    for rows in _where(dataset, table, [key, "text"], wanted):
        texts = _strings(dataset, table, rows.column("text"))
        found |= dict(zip(rows.column(key).to_pylist(), texts, strict=True))
    if missing := wanted - found.keys():
        raise DatasetError(f"{dataset.path}, table {table!r}: no row has the {key} {min(missing)}")
    return found


def sample_queries(dataset: Dataset, size: int, seed: int) -> list[SampleQuery]:
    """Spell out ``size`` train queries, drawn by ``seed``, with their ads and anchors.

    Raises:
        DatasetError: an ad or anchor is not there, or a text is missing or not UTF-8.
    """
    table = "queries/train"
    rows = dataset.rows(table, sample_rows(dataset.num_rows(table), size, seed))
    query_ids, clicks = rows["query_id"].to_pylist(), rows["ad_ids"].to_pylist()
    ads = texts_of(dataset, "ads", {ad for ad_ids in clicks for ad in ad_ids})
    anchors = {
        name: _anchors_of(dataset, name, query_ids)
        for name in dataset.anchor_sets
        if dataset.has(f"edges/{name}/query")
    }
    return [
        SampleQuery(
            text,
            [ads[ad] for ad in ad_ids],
            {name: of_query[query] for name, of_query in anchors.items()},
        )
        for query, text, ad_ids in zip(
            query_ids, _strings(dataset, table, rows["text"]), clicks, strict=True
        )
    ]


def _anchors_of(dataset: Dataset, anchor_set: str, query_ids: list[int]) -> dict[int, list[str]]:
    table = f"edges/{anchor_set}/query"
    pairs = [
        (edge["query_id"], edge["anchor_id"])
        for rows in _where(dataset, table, ["query_id", "anchor_id"], query_ids)
        for edge in rows.to_pylist()
    ]
    texts = texts_of(dataset, f"anchors/{anchor_set}", {anchor for _, anchor in pairs})
    of_query: dict[int, list[str]] = {query: [] for query in query_ids}
    for query, anchor in pairs:
        of_query[query].append(texts[anchor])
    return of_query


def _where(
    dataset: Dataset, table: str, columns: list[str], ids: Iterable[int]
) -> Iterator[pa.RecordBatch]:
    """Stream the rows whose first column is among ``ids``."""
    wanted = pa.array(sorted(ids), pa.int64())
    for batch in dataset.batches(table, columns):
        chosen = batch.filter(pc.is_in(batch.column(columns[0]), wanted))
        if len(chosen):
            yield chosen


def _strings(dataset: Dataset, table: str, texts: pa.Array | pa.ChunkedArray) -> list[str]:
    if texts.null_count:
        raise DatasetError(f"{dataset.path}, table {table!r}: a row has no text (null)")
    try:
        return list(texts.to_pylist())
    except UnicodeDecodeError as error:
        raise DatasetError(f"{dataset.path}, table {table!r}: a text is not UTF-8") from error
