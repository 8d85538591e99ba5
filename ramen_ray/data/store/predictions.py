"""Predictions as a table that people read: texts, the user's own ids, and what was clicked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans, Int64s, list_entries, to_lists
from ramen_ray.data.store.dataset import WHILE_READ, Dataset
from ramen_ray.data.store.made_folder import whole_file
from ramen_ray.data.store.schemas import FILTER

PREDICTIONS = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("rank", pa.int32()),
        ("ad_id", pa.string()),
        ("ad", pa.string()),
        ("score", pa.float32()),
        ("hit", pa.bool_()),
        ("clicked_ads", pa.list_(pa.string())),
        ("seen", pa.bool_()),
        ("train_clicks", pa.int64()),
        ("group", pa.string()),
    ]
)
CLICKED = "clicked_"
"""Prefix of the values that clicked ads have in a column kept of the ads: clicked_filter_market."""
QUERIES_PER_BATCH = 512  # each row has the texts of all ads that were clicked

Predictions = tuple[Int64s, NDArray[np.float32]]


@dataclass(frozen=True)
class Known:
    """What training knew of queries and ads."""

    seen: Booleans  # (queries,) of a split: whether a train query with clicks has the same text
    train_clicks: Int64s  # (ads,)
    groups: Mapping[str, Booleans]  # (ads,) the ads by popularity: head, torso and tail


def predictions_schema(columns: Iterable[str]) -> pa.Schema:
    """Return PREDICTIONS and, of each column to filter by, the ad's value and the clicked ads'."""
    kept = [name for name in columns if name.startswith(FILTER)]
    kept_columns = [(name, pa.string()) for name in kept]
    of_clicked = [(CLICKED + name, pa.list_(pa.string())) for name in kept]
    return pa.schema([*PREDICTIONS, *kept_columns, *of_clicked])


def write_predictions(
    file: Path, dataset: Dataset, split: str, topk: Predictions, known: Known
) -> None:
    """Write a split's predictions as a parquet ``file``, whole or not at all; it is replaced.

    ``topk`` are, by query id, the ads' ids (queries, k), best first and padded with -1, and scores.
    Raises a DatasetError if the dataset has changed since its fingerprint was taken.
    """
    with whole_file(file) as aside, dataset.unchanged(WHILE_READ):
        table = f"queries/{split}"
        clicks = [batch[0].flatten().to_numpy() for batch in dataset.batches(table, ["ad_ids"])]
        shown = shown_ads(topk[0])
        ads = dataset.rows_with_ids("ads", np.union1d(shown, np.concatenate(clicks)))
        schema = predictions_schema(ads.column_names)
        with pq.ParquetWriter(aside, schema, compression="zstd") as out:
            for queries in dataset.batches(table, batch_size=QUERIES_PER_BATCH):
                out.write_table(spell_out(pa.Table.from_batches([queries]), ads, topk, known))


def spell_out(queries: pa.Table, ads: pa.Table, topk: Predictions, known: Known) -> pa.Table:
    """Return one row per prediction for some of a split's queries, best first.

    ``ads`` has the rows of all ads that these queries are shown or led to, in the order of their
    ids; ``topk`` and ``known`` are as in :func:`write_predictions`.
    """
    rows = queries["query_id"].to_numpy()
    ids = ads["ad_id"].to_numpy()
    ad_ids, scores = (part[rows] for part in topk)
    clicked_by, clicked = list_entries(queries["ad_ids"])
    query_rows, places = np.nonzero(ad_ids >= 0)
    shown = ad_ids[query_rows, places]
    ad_rows = np.searchsorted(ids, shown)
    clicked_rows = np.searchsorted(ids, clicked)
    num_clicked = np.bincount(clicked_by, minlength=len(queries))

    def of_clicked(column: str) -> pa.Array:
        values = ads[column].combine_chunks().take(clicked_rows)
        return to_lists(values, num_clicked).take(query_rows)

    pair_of = len(known.train_clicks)  # queries times this plus ads are numbers of pairs
    group = np.full(len(shown), "", dtype=object)
    for name, has in known.groups.items():
        group[has[shown]] = name
    schema = predictions_schema(ads.column_names)
    kept = [name for name in schema.names if name.startswith(FILTER)]
    columns = pa.table(
        {
            "query_id": users_ids(queries).take(query_rows),
            "query": queries["text"].take(query_rows),
            "rank": np.arange(1, ad_ids.shape[1] + 1)[places],
            "ad_id": users_ids(ads).take(ad_rows),
            "ad": ads["text"].take(ad_rows),
            "score": scores[query_rows, places],
            "hit": np.isin(query_rows * pair_of + shown, clicked_by * pair_of + clicked.to_numpy()),
            "clicked_ads": of_clicked("text"),
            "seen": known.seen[rows][query_rows],
            "train_clicks": known.train_clicks[shown],
            "group": group,
            **{name: ads[name].take(ad_rows) for name in kept},
            **{CLICKED + name: of_clicked(name) for name in kept},
        }
    )
    return columns.cast(schema)


def shown_ads(ad_ids: Int64s) -> Int64s:
    """Return the ids of all ads that are predicted, ascending."""
    return np.unique(ad_ids[ad_ids >= 0])


def users_ids(rows: pa.Table | pa.RecordBatch) -> pa.ChunkedArray | pa.Array:
    """Return the ids that a user knows: ``source_id`` if there is one, else the row's id."""
    return rows["source_id"] if "source_id" in rows.column_names else rows[0].cast(pa.string())
