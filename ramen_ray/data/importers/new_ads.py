"""Read a table of ads to add after training, and one of first clicks on them."""

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Booleans, Int64s, UInt64s
from ramen_ray.data.findings import raise_errors
from ramen_ray.data.prepared.hashing import HashIndex, hash_strings
from ramen_ray.data.sources import as_strings, find_pieces, located, read_piece
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.texts import normalized

COLUMNS = ("ad_id", "text")
CLICK_COLUMNS = ("ad_id", "query")


def read_new_ads(source: str, known: pa.Array) -> pa.Table:
    """Read the columns ``ad_id`` and ``text``, both as strings.

    Args:
        source: CSV, TSV, JSON lines or parquet.
        known: ids (ads,) that are already in use.

    Raises:
        DatasetError: the table is missing or empty, or rows have no id, no text, or an id that is
            in use, by an earlier row or a known ad.
    """
    tables, findings, taken = [], [], hash_strings(known.cast(pa.string()))
    pieces = find_pieces(source, COLUMNS)
    for batch in (batch for piece in pieces for batch in read_piece(piece)):
        (ids, no_id), (texts, no_text) = (batch.cells(name, as_strings) for name in COLUMNS)
        hashes = hash_strings(ids)
        repeated = ~no_id & _repeats(hashes, taken)
        problems = (
            ("ad_id", no_id, "no id", "give each ad an id"),
            ("text", no_text, "no text", "ads are found by their text"),
            ("ad_id", repeated, "an id that is in use", "leave out ads that are indexed already"),
        )
        findings += batch.findings
        findings += [batch.finding(*problem) for problem in problems if problem[1].any()]
        tables.append(pa.table({"ad_id": ids, "text": normalized(texts)}))
        taken = np.append(taken, hashes)
    raise_errors(f"the table of ads {source}", located(findings, pieces))
    if not tables:
        raise DatasetError(f"{source} holds no ads")
    return pa.concat_tables(tables)


def read_first_clicks(source: str, new: pa.Table) -> tuple[Int64s, list[str]]:
    """Read the columns ``ad_id`` and ``query``: a first click on each of some new ads.

    Args:
        source: CSV, TSV, JSON lines or parquet.
        new: the new ads, as :func:`read_new_ads` returns them.

    Returns:
        Rows (clicks,) of ``new``, and the queries' texts.

    Raises:
        DatasetError: the table is missing, or rows have no query, an ad that is not new, or an ad
            of an earlier row.
    """
    rows, queries, findings = [], [], []
    index = HashIndex.from_hashes(hash_strings(new["ad_id"].combine_chunks()))
    taken = np.empty(0, dtype=np.uint64)
    pieces = find_pieces(source, CLICK_COLUMNS)
    for batch in (batch for piece in pieces for batch in read_piece(piece)):
        (ids, _), (texts, no_text) = (batch.cells(name, as_strings) for name in CLICK_COLUMNS)
        hashes = hash_strings(ids)
        found = index.first(hashes)
        problems = (
            ("ad_id", found < 0, "no new ad has this id", "give clicks of the ads that are added"),
            ("query", no_text, "no query", "a click needs the text of its query"),
            ("ad_id", _repeats(hashes, taken), "a second click", "give one click of each ad"),
        )
        findings += batch.findings
        findings += [batch.finding(*problem) for problem in problems if problem[1].any()]
        rows.append(found)
        queries += normalized(texts).to_pylist()
        taken = np.append(taken, hashes)
    raise_errors(f"the table of clicks {source}", located(findings, pieces))
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64), queries


def _repeats(hashes: UInt64s, taken: UInt64s) -> Booleans:
    """Flag the rows (n,) whose hash is that of an earlier row or is in ``taken`` (m,)."""
    repeats = np.isin(hashes, taken)
    first = np.unique(hashes, return_index=True)[1]
    repeats[np.setdiff1d(np.arange(len(hashes)), first)] = True
    return repeats
