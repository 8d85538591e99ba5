"""Read which ads come and go after training."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.same_texts import nearly, normalized
from ramen_ray.data.store.schemas import FILTER
from ramen_ray.data.tables.reading.columns import (
    AdColumns,
    Column,
    NullWords,
    filter_columns,
    listed_id_column,
    text_column,
)
from ramen_ray.data.tables.reading.loading import UserTable

NO_VALUE = "\0"

logger = logging.getLogger(__name__)


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
    allow_lost_ads: bool = False
    """Remove ads even if that is most of them."""
    allow_lost_filters: bool = False
    """Change the ads even if a column that they are filtered by loses most of its values."""
    columns: AdColumns = field(default_factory=AdColumns)
    """Names of the columns in the tables."""
    null_words: NullWords = "refuse"
    """What to do with rows whose id or text is a word for nothing, such as NULL or N/A, if there
    are more than a few."""
    encoding: str = "utf-8"
    """Encoding of text files, such as windows-1252."""


@dataclass(frozen=True)
class Changes:
    """What becomes of a retriever's ads: ``ad_id``, ``text`` and columns to filter by."""

    rows: Int64s  # (n,) of the ads that stay, ascending
    kept: pa.Table  # these ads, with what they are filtered by from now on
    added: pa.Table  # those that are embedded
    num_changed: int = 0  # of the added, those that replace an ad of the same id
    num_refiltered: int = 0  # of those that stay, those filtered by other values
    num_unknown: int = 0  # ids that are to be removed, but no ad has


def check_given(given: NewAds) -> None:
    """Look at flags and headers only; a DatasetError if a table or a column is not there.

    So, too, if no table is given, or one beside ``sync``.
    """
    if given.sync is not None and (given.ads or given.remove):
        raise DatasetError("--sync lists all ads; leave out --ads and --remove")
    if not (given.ads or given.remove or given.sync):
        raise DatasetError("give --ads, --remove or --sync")
    ads = _ad_columns(given, given.columns.ad_filters)
    tables = [
        (given.ads, ads),
        (given.sync, ads),
        (given.remove, {"ad_id": ads["ad_id"]}),
    ]
    for source, columns in tables:
        if source:
            UserTable(source, columns, encoding=given.encoding)


def read_changes(given: NewAds, known: pa.Table) -> Changes:
    """Read which ads come and go; ``known`` ads have ``ad_id``, ``text`` and columns to filter by.

    Raises a DatasetError if no table is given, or one beside ``sync``; a table cannot be read, or
    an id is in use; ids are spelt in another way; or, unless it is allowed, most ads would be
    removed, or lose their value of a column to filter by.
    """
    check_given(given)
    ids = known["ad_id"].cast(pa.string()).combine_chunks()
    changes = _changes(given, known, ids)
    tables = (changes.kept, changes.added)
    left = pa.concat_arrays([table["ad_id"].cast(pa.string()).combine_chunks() for table in tables])
    num_gone = int((~_among(ids, left)).sum())
    if not len(left):
        raise DatasetError(f"{given.remove} names all ads; a retriever needs one")
    if 2 * num_gone > len(ids) and not given.allow_lost_ads:
        raise DatasetError(
            f"{given.sync or given.remove} would remove {num_gone:,} of {len(ids):,} ads; is it "
            f"whole? If this is meant, give --allow-lost-ads"
        )
    return changes


def _changes(given: NewAds, known: pa.Table, ids: pa.Array) -> Changes:
    filters = [name.removeprefix(FILTER) for name in known.column_names if name.startswith(FILTER)]
    wanted = given.columns.ad_filters
    if given.sync is not None:
        return _all_ads(given, known, ids, wanted or filters)
    if wanted and {*wanted} != {*filters}:
        raise DatasetError(
            f"the retriever's ads are filtered by {', '.join(filters) or 'nothing'}; other columns "
            f"than these need --sync, which lists all ads"
        )
    ended = pa.array([], pa.string())
    if given.remove:
        columns = {"ad_id": listed_id_column(given.columns.ad_id, given.null_words)}
        table = UserTable(given.remove, columns, encoding=given.encoding)
        removed = table.read()
        _report_other_spellings(table, removed, ids)
        _check(table)
        ended = pc.unique(removed["ad_id"])
    stays = ~_among(ids, ended)
    rows = np.flatnonzero(stays)
    added = known.slice(0, 0)
    if given.ads:
        in_use = ids.filter(pa.array(stays))
        added = _read_ads(given, given.ads, filters, in_use, ids).select(known.column_names)
    num_unknown = len(ended) - int((~stays).sum())
    return Changes(rows, known.take(pa.array(rows)), added, num_unknown=num_unknown)


def _all_ads(given: NewAds, known: pa.Table, ids: pa.Array, filters: Sequence[str]) -> Changes:
    listed = _read_ads(given, str(given.sync), filters, pa.array([], pa.string()), ids)
    columns = [name for name in known.column_names if name.startswith(FILTER)]
    lost = [name for name in columns if _share_with(name, listed) < _share_with(name, known) / 2]
    if lost and not given.allow_lost_filters:
        names = ", ".join(name.removeprefix(FILTER) for name in lost)
        raise DatasetError(
            f"{given.sync}: most ads that are filtered by {names} would have no value of it; is "
            f"the column there and full? If this is meant, give --allow-lost-filters"
        )
    places = pc.index_in(ids, listed["ad_id"].combine_chunks())
    texts = listed["text"].combine_chunks().take(places)
    before = normalized(known["text"].cast(pa.string()).combine_chunks())
    is_same = np.asarray(pc.fill_null(pc.equal(texts, before), False))
    added = listed.filter(pa.array(~_among(listed["ad_id"], ids.filter(pa.array(is_same)))))
    rows = np.flatnonzero(is_same)
    had = known.take(pa.array(rows))
    kept = listed.take(places.take(pa.array(rows))).set_column(1, "text", had["text"])
    num_changed = int((np.asarray(pc.is_valid(places)) & ~is_same).sum())
    other_columns = {*had.column_names} != {*kept.column_names}
    differs = np.full(len(kept), other_columns)
    for name in [] if other_columns else kept.column_names[2:]:
        values = (pc.fill_null(ads[name], NO_VALUE) for ads in (had, kept))
        differs |= np.asarray(pc.not_equal(*values))
    return Changes(rows, kept, added, num_changed, int(differs.sum()))


def _share_with(column: str, ads: pa.Table) -> float:
    """Return the share of ads that have a value in a column, 0 without the column."""
    return 1 - ads[column].null_count / len(ads) if column in ads.column_names else 0.0


def _read_ads(
    given: NewAds, source: str, filters: Sequence[str], in_use: pa.Array, known: pa.Array
) -> pa.Table:
    """Read ads as strings; refuses ids ``in_use``, repeated, or mostly ``known`` ones misspelt."""
    columns = _ad_columns(given, filters)
    table = UserTable(source, columns, encoding=given.encoding)
    ads = table.read()
    twice = ads.filter(pa.array(_repeats(ads["ad_id"]) | _among(ads["ad_id"], in_use)))
    advice = "give each ad once; to replace an ad, name it in --remove, too"
    table.report_rows("ad_id", "ids are in use or repeated", advice, twice)
    _report_other_spellings(table, ads, known)
    _check(table)
    if not len(ads):
        raise DatasetError(f"{source} holds no ads")
    return ads.select([*columns])


def _report_other_spellings(table: UserTable, rows: pa.Table, known: pa.Array) -> None:
    """Report unknown ids that are known ones in another spelling; refuse them if most are so."""
    unknown = rows.filter(pa.array(~_among(rows["ad_id"], known)))
    missed = known.filter(pa.array(~_among(known, rows["ad_id"])))
    is_near = _among(nearly(unknown["ad_id"].combine_chunks()), nearly(missed))
    table.report_rows(
        "ad_id",
        "ids are those of ads but for case, spaces, leading zeros or a final .0",
        f"write ids as the retriever has them, such as {known[0].as_py()!r}",
        unknown.filter(pa.array(is_near)),
        most=len(unknown) // 2,
    )


def _ad_columns(given: NewAds, filters: Sequence[str]) -> dict[str, Column]:
    return {
        "ad_id": listed_id_column(given.columns.ad_id, given.null_words),
        "text": text_column(given.columns.ad_text, given.null_words, normalized),
        **filter_columns(filters),
    }


def _check(table: UserTable) -> None:
    """Refuse bad rows; log how many are left out, and why."""
    table.check()
    for reason, number in (+table.left_out).items():
        logger.warning("%s: %d rows left out: %s", table.source, number, reason)


def _repeats(cells: pa.ChunkedArray) -> Booleans:
    """Flag the cells (n,) that an earlier one equals."""
    return np.asarray(pc.index_in(cells, cells.combine_chunks())) != np.arange(len(cells))


def _among(cells: pa.ChunkedArray, known: pa.Array) -> Booleans:
    return np.asarray(pc.is_in(cells, known))
