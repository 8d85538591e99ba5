"""Read a table of ads to add after training, and one of first clicks on them."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.texts import normalized
from ramen_ray.data.tables.column_names import NewAdColumns
from ramen_ray.data.tables.reading.columns import id_column, text_column
from ramen_ray.data.tables.reading.loading import UserTable

ADVICE = "correct these rows"


@dataclass(frozen=True)
class NewAds:
    """New ads: CSV, TSV, JSON lines or parquet; files, folders or globs."""

    ads: str
    """Table of the new ads: id and text."""
    clicks: str | None = None
    """Table of first clicks on some of the ads. Only a retriever with a combiner can use them."""
    columns: NewAdColumns = field(default_factory=NewAdColumns)
    """Names of the columns in the tables."""


def read_new_ads(source: str, known: pa.Array, named: NewAdColumns) -> pa.Table:
    """Read a table of new ads, ``ad_id`` and ``text``, both as strings; ``known`` ids are in use.

    Raises:
        DatasetError: the table is missing or empty, or rows have no id, no text, or an id that is
            in use, by an earlier row or a known ad.
    """
    columns = {
        "ad_id": id_column(named.ad_id),
        "text": text_column(named.ad_text, change=normalized),
    }
    table = UserTable(source, columns, skip_bad_rows=False, advice=ADVICE)
    ads = table.read()
    in_use = _repeats(ads["ad_id"]) | _among(ads["ad_id"], known.cast(pa.string()))
    table.report_rows(
        "ad_id",
        "ids are in use",
        "leave out ads that are indexed already",
        ads.filter(pa.array(in_use)),
    )
    table.check()
    if not len(ads):
        raise DatasetError(f"{source} holds no ads")
    return ads.select(["ad_id", "text"])


def read_first_clicks(source: str, new: pa.Table, named: NewAdColumns) -> tuple[Int64s, list[str]]:
    """Read a first click on each of some new ads.

    Returns rows (clicks,) of ``new``, as :func:`read_new_ads` returns them, and the queries' texts.

    Raises:
        DatasetError: the table is missing, or rows have no query, an ad that is not new, or an ad
            of an earlier row.
    """
    columns = {
        "ad_id": id_column(named.clicks_ad),
        "query": text_column(named.clicks_query, change=normalized),
    }
    table = UserTable(source, columns, skip_bad_rows=False, advice=ADVICE)
    clicks = table.read()
    rows = pc.index_in(clicks["ad_id"], new["ad_id"])
    table.report_rows(
        "ad_id",
        "clicks are on ads that are not new",
        "give clicks of the ads that are added",
        clicks.filter(pc.is_null(rows)),
    )
    table.report_rows(
        "ad_id",
        "clicks are not the first on their ad",
        "give one click of each ad",
        clicks.filter(pa.array(_repeats(clicks["ad_id"]))),
    )
    table.check()
    return rows.to_numpy().astype(np.int64), clicks["query"].to_pylist()


def _repeats(cells: pa.ChunkedArray) -> Booleans:
    """Flag the cells (n,) that an earlier one equals."""
    codes = cells.combine_chunks().dictionary_encode().indices.to_numpy()
    repeats = np.ones(len(codes), dtype=bool)
    repeats[np.unique(codes, return_index=True)[1]] = False
    return repeats


def _among(cells: pa.ChunkedArray, known: pa.Array) -> Booleans:
    return pc.is_in(cells, known).to_numpy()
