"""Read which ads come and go after training, and first clicks on those that come."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.schemas import FILTER
from ramen_ray.data.store.texts import normalized
from ramen_ray.data.tables.column_names import NewAdColumns
from ramen_ray.data.tables.reading.columns import filter_columns, id_column, text_column
from ramen_ray.data.tables.reading.loading import UserTable

ADVICE = "correct these rows"
NO_VALUE = "\0"


@dataclass(frozen=True)
class NewAds:
    """Ads that come and go: CSV, TSV, JSON lines or parquet; files, folders or globs."""

    ads: str | None = None
    """Table of new ads: id, text, and the columns that the retriever's ads are filtered by."""
    remove: str | None = None
    """Table of the ids of ads that have ended."""
    sync: str | None = None
    """Table of all ads, likewise: ads that it lacks are removed, those with another text embedded
    anew, and those that are new added. columns.ad_filters changes what they are filtered by."""
    clicks: str | None = None
    """Table of first clicks on some of the ads. Only a retriever with a combiner can use them."""
    columns: NewAdColumns = field(default_factory=NewAdColumns)
    """Names of the columns in the tables."""


@dataclass(frozen=True)
class Changes:
    """What becomes of a retriever's ads; tables have ``ad_id``, ``text`` and columns to filter by.

    Attributes:
        rows: (n,) rows of the ads that stay, ascending.
        kept: these ads, with what they are filtered by from now on.
        added: those that are embedded.
        num_changed: how many of the added replace an ad of the same id.
        num_refiltered: how many of those that stay are filtered by other values.
        num_unknown: how many ids are to be removed that no ad has.
    """

    rows: Int64s
    kept: pa.Table
    added: pa.Table
    num_changed: int = 0
    num_refiltered: int = 0
    num_unknown: int = 0


def read_changes(given: NewAds, known: pa.Table) -> Changes:
    """Read which ads come and go.

    Args:
        given: the tables.
        known: the ads that there are: ``ad_id``, ``text`` and columns to filter by.

    Raises:
        DatasetError: no table is given, or one beside ``sync``; a table cannot be read, or an id is
            in use; or no ad would be left.
    """
    ids = known["ad_id"].cast(pa.string()).combine_chunks()
    filters = [name.removeprefix(FILTER) for name in known.column_names if name.startswith(FILTER)]
    wanted = given.columns.ad_filters
    if given.sync is not None:
        if given.ads or given.remove:
            raise DatasetError("--sync lists all ads; leave out --ads and --remove")
        return _all_ads(given, known, ids, wanted or filters)
    if not (given.ads or given.remove):
        raise DatasetError("give --ads, --remove or --sync")
    if wanted and {*wanted} != {*filters}:
        raise DatasetError(
            f"the retriever's ads are filtered by {', '.join(filters) or 'nothing'}; other columns "
            f"than these need --sync, which lists all ads"
        )
    ended = pa.array([], pa.string())
    if given.remove:
        ended = _read_ids(given.remove, given.columns)
    stays = ~_among(ids, ended)
    rows, added = np.flatnonzero(stays), known.slice(0, 0)
    if given.ads:
        in_use = ids.filter(pa.array(stays))
        added = read_new_ads(given.ads, in_use, given.columns, filters).select(known.column_names)
    if not len(rows) + len(added):
        raise DatasetError(f"{given.remove} names all ads; a retriever needs one")
    num_unknown = len(ended) - int((~stays).sum())
    return Changes(rows, known.take(pa.array(rows)), added, num_unknown=num_unknown)


def _all_ads(given: NewAds, known: pa.Table, ids: pa.Array, filters: Sequence[str]) -> Changes:
    no_ids = pa.array([], pa.string())
    listed = read_new_ads(str(given.sync), no_ids, given.columns, filters)
    places = pc.index_in(ids, listed["ad_id"].combine_chunks())
    texts = listed["text"].combine_chunks().take(places)
    before = normalized(known["text"].cast(pa.string()).combine_chunks())
    is_same = np.asarray(pc.fill_null(pc.equal(texts, before), False))
    added = listed.filter(pa.array(~_among(listed["ad_id"], ids.filter(pa.array(is_same)))))
    rows = np.flatnonzero(is_same)
    had = known.take(pa.array(rows))
    kept = listed.take(places.take(pa.array(rows))).set_column(1, "text", had["text"])
    num_changed = int((np.asarray(pc.is_valid(places)) & ~is_same).sum())
    return Changes(rows, kept, added, num_changed, _num_refiltered(had, kept))


def _num_refiltered(before: pa.Table, after: pa.Table) -> int:
    """Count the rows whose columns to filter by differ; all if there are other columns."""
    if {*before.column_names} != {*after.column_names}:
        return len(after)
    differs = np.zeros(len(after), dtype=bool)
    for name in after.column_names[2:]:
        values = (pc.fill_null(ads[name], NO_VALUE) for ads in (before, after))
        differs |= np.asarray(pc.not_equal(*values))
    return int(differs.sum())


def _read_ids(source: str, named: NewAdColumns) -> pa.Array:
    """Read the distinct ids of a table."""
    table = UserTable(source, {"ad_id": id_column(named.ad_id)}, skip_bad_rows=False, advice=ADVICE)
    ids = table.read()["ad_id"]
    table.check()
    return pc.unique(ids)


def read_new_ads(
    source: str, known: pa.Array, named: NewAdColumns, filters: Sequence[str] = ()
) -> pa.Table:
    """Read a table of new ads, all columns as strings; ``known`` ids are in use.

    Returns ``ad_id``, ``text``, and the columns to filter by.

    Raises:
        DatasetError: the table is missing or empty, or rows have no id, no text, or an id that is
            in use, by an earlier row or a known ad.
    """
    columns = {
        "ad_id": id_column(named.ad_id),
        "text": text_column(named.ad_text, change=normalized),
        **filter_columns(filters),
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
    return ads.select([*columns])


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
    return np.asarray(pc.is_in(cells, known))
