"""Predictions as a table in the user's own ids."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ramen_ray.data.store.dataset import WHILE_READ, Dataset
from ramen_ray.data.store.whole_files import whole_file

PREDICTIONS = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("rank", pa.int32()),
        ("ad_id", pa.string()),
        ("ad", pa.string()),
        ("score", pa.float32()),
    ]
)
QUERIES_PER_BATCH = 4096

Predictions = tuple[NDArray[np.int64], NDArray[np.float32]]


def write_predictions(file: Path, dataset: Dataset, split: str, topk: Predictions) -> None:
    """Write a split's predictions as a parquet ``file``, whole or not at all; it is replaced.

    ``topk`` are, by query id, the ads' ids (queries, k), best first and padded with -1, and scores.

    Raises:
        DatasetError: the dataset has changed since its fingerprint was taken.
    """
    ad_ids, scores = topk
    with (
        whole_file(file) as aside,
        dataset.unchanged(WHILE_READ),
        pq.ParquetWriter(aside, PREDICTIONS, compression="zstd") as out,
    ):
        ads = dataset.rows_with_ids("ads", shown_ads(ad_ids))
        for queries in dataset.batches(f"queries/{split}", batch_size=QUERIES_PER_BATCH):
            ids = queries["query_id"].to_numpy()
            out.write_table(spell_out(queries, ads, (ad_ids[ids], scores[ids])))


def spell_out(queries: pa.Table | pa.RecordBatch, ads: pa.Table, topk: Predictions) -> pa.Table:
    """Return one row per prediction, best first, with texts and the user's own ids.

    ``ads`` are those of :func:`shown_ads`, in the order of their ids; ``topk`` is as in
    :func:`write_predictions`, a row for each of ``queries``.
    """
    ad_ids, scores = topk
    query_rows, places = np.nonzero(ad_ids >= 0)
    ad_rows = np.searchsorted(ads["ad_id"].to_numpy(), ad_ids[query_rows, places])
    return pa.table(
        {
            "query_id": users_ids(queries).take(query_rows),
            "query": queries["text"].take(query_rows),
            "rank": np.arange(1, ad_ids.shape[1] + 1)[places],
            "ad_id": users_ids(ads).take(ad_rows),
            "ad": ads["text"].take(ad_rows),
            "score": scores[query_rows, places],
        },
    ).cast(PREDICTIONS)


def shown_ads(ad_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ids of all ads that are predicted, ascending."""
    return np.unique(ad_ids[ad_ids >= 0])


def users_ids(rows: pa.Table | pa.RecordBatch) -> pa.ChunkedArray | pa.Array:
    """Return the ids that a user knows: ``source_id`` if there is one, else the row's id."""
    return rows["source_id"] if "source_id" in rows.column_names else rows[0].cast(pa.string())
