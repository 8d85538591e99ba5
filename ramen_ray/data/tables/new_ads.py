"""Read which ads come and go after training."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.engine import Connection, add_function, column_literal, count, engine
from ramen_ray.data.findings import FaultKind
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
    with engine(Path(gettempdir())) as connection:
        add_function(connection, "nearly", nearly)
        add_function(connection, "normalized", normalized)
        numbered = known.append_column("row", [np.arange(len(known))])
        connection.register("numbered", numbered)
        connection.execute("CREATE TABLE known AS FROM numbered")
        changes = (_all_ads if given.sync else _ads_and_removed)(given, known, connection)
    left = pa.chunked_array([*changes.kept["ad_id"].chunks, *changes.added["ad_id"].chunks])
    num_gone = len(known) - pc.sum(pc.is_in(known["ad_id"], left)).as_py()
    if not len(left):
        raise DatasetError(f"{given.remove} names all ads; a retriever needs one")
    if 2 * num_gone > len(known) and not given.allow_lost_ads:
        raise DatasetError(
            f"{given.sync or given.remove} would remove {num_gone:,} of {len(known):,} ads; is it "
            f"whole? If this is meant, give --allow-lost-ads"
        )
    return changes


def _ads_and_removed(given: NewAds, known: pa.Table, connection: Connection) -> Changes:
    filters = _filters_of(known)
    wanted = given.columns.ad_filters
    if wanted and {*wanted} != {*filters}:
        raise DatasetError(
            f"the retriever's ads are filtered by {', '.join(filters) or 'nothing'}; other columns "
            f"than these need --sync, which lists all ads"
        )
    connection.execute("CREATE TABLE ended (place BIGINT, ad_id VARCHAR)")
    if given.remove:
        columns = {"ad_id": listed_id_column(given.columns.ad_id, given.null_words)}
        table = UserTable(given.remove, columns, encoding=given.encoding)
        table.load(connection, "ended", "SELECT place, ad_id FROM source")
        _check(connection, table, "ended")
    stays = "FROM known ANTI JOIN ended USING (ad_id)"
    rows = connection.sql(f"SELECT row {stays} ORDER BY row").fetchnumpy()["row"]
    added = known.slice(0, 0)
    if given.ads:
        _load_ads(given, given.ads, filters, connection, in_use=f"SELECT ad_id {stays}")
        added = connection.sql("FROM listed ORDER BY place").to_arrow_table()
    unknown = "SELECT count(DISTINCT ad_id) FROM ended ANTI JOIN known USING (ad_id)"
    kept = known.take(pa.array(rows))
    return Changes(
        rows, kept, added.select(known.column_names), num_unknown=count(connection, unknown)
    )


def _all_ads(given: NewAds, known: pa.Table, connection: Connection) -> Changes:
    filters = given.columns.ad_filters or _filters_of(known)
    _load_ads(given, str(given.sync), filters, connection)
    listed = connection.sql("SELECT * EXCLUDE (place) FROM listed ORDER BY place").to_arrow_table()
    columns = [FILTER + name for name in _filters_of(known)]
    lost = [name for name in columns if _share_with(name, listed) < _share_with(name, known) / 2]
    if lost and not given.allow_lost_filters:
        names = ", ".join(name.removeprefix(FILTER) for name in lost)
        raise DatasetError(
            f"{given.sync}: most ads that are filtered by {names} would have no value of it; is "
            f"the column there and full? If this is meant, give --allow-lost-filters"
        )
    same = """CREATE TABLE same AS SELECT known.row, listed.* REPLACE (known.text AS text)
        FROM known JOIN listed USING (ad_id) WHERE listed.text = normalized(known.text)"""
    connection.execute(same)
    kept = connection.sql("SELECT * EXCLUDE (place) FROM same ORDER BY row").to_arrow_table()
    added = "SELECT * EXCLUDE (place) FROM listed ANTI JOIN same USING (ad_id) ORDER BY place"
    changed = (
        "SELECT count(*) FROM listed SEMI JOIN known USING (ad_id) ANTI JOIN same USING (ad_id)"
    )
    differs = " OR ".join(
        f"same.{name} IS DISTINCT FROM known.{name}" for name in map(column_literal, columns)
    )
    if {*listed.column_names} != {*known.column_names}:
        differs = "true"
    refiltered = f"SELECT count(*) FROM same JOIN known USING (row) WHERE {differs or 'false'}"
    return Changes(
        kept["row"].to_numpy(),
        kept.drop_columns("row"),
        connection.sql(added).to_arrow_table(),
        count(connection, changed),
        count(connection, refiltered),
    )


def _filters_of(known: pa.Table) -> list[str]:
    names = known.column_names
    return [name.removeprefix(FILTER) for name in names if name.startswith(FILTER)]


def _share_with(column: str, ads: pa.Table) -> float:
    """Return the share of ads that have a value in a column, 0 without the column."""
    return 1 - ads[column].null_count / len(ads) if column in ads.column_names else 0.0


def _load_ads(
    given: NewAds,
    source: str,
    filters: Sequence[str],
    connection: Connection,
    in_use: str = "SELECT NULL",
) -> None:
    """Load ads into ``listed``; refuses ids ``in_use``, repeated, or mostly known ones misspelt."""
    columns = _ad_columns(given, filters)
    table = UserTable(source, columns, encoding=given.encoding)
    names = ", ".join(map(column_literal, ["place", *columns]))
    table.load(connection, "listed", f"SELECT {names} FROM source")
    advice = "give each ad once; to replace an ad, name it in --remove, too"
    twice = f"""SELECT place, ad_id FROM listed WHERE ad_id IN ({in_use})
        OR place NOT IN (SELECT min(place) FROM listed GROUP BY ad_id)"""
    kind = FaultKind("ids are in use or repeated", advice)
    table.report(connection, "ad_id", kind, twice)
    _check(connection, table, "listed")
    if not count(connection, "SELECT count(*) FROM listed"):
        raise DatasetError(f"{source} holds no ads")


def _check(connection: Connection, table: UserTable, rows: str) -> None:
    """Refuse bad ``rows``, and known ids in another spelling if most unknown ones are so."""
    unknown = f"FROM {rows} ANTI JOIN known USING (ad_id)"
    missed = f"SELECT nearly(ad_id) FROM known ANTI JOIN {rows} USING (ad_id)"
    first = connection.sql("SELECT ad_id FROM known WHERE row = 0").fetchall()
    kind = FaultKind(
        "ids are those of ads but for case, spaces, leading zeros or a final .0",
        f"write ids as the retriever has them, such as {first[0][0]!r}",
        most=count(connection, f"SELECT count(*) {unknown}") // 2,
    )
    near = f"SELECT place, ad_id {unknown} WHERE nearly(ad_id) IN ({missed})"
    table.report(connection, "ad_id", kind, near)
    table.check()
    for reason, number in (+table.left_out).items():
        logger.warning("%s: %d rows left out: %s", table.source, number, reason)


def _ad_columns(given: NewAds, filters: Sequence[str]) -> dict[str, Column]:
    return {
        "ad_id": listed_id_column(given.columns.ad_id, given.null_words),
        "text": text_column(given.columns.ad_text, given.null_words, normalized),
        **filter_columns(filters),
    }
