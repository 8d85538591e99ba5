"""Read a table of ads to add after training."""

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Booleans, UInt64s
from ramen_ray.data.findings import raise_errors
from ramen_ray.data.prepared.hashing import hash_strings
from ramen_ray.data.sources import as_strings, find_pieces, read_piece
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.texts import normalized

COLUMNS = ("ad_id", "text")


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
    for batch in (batch for piece in find_pieces(source, COLUMNS) for batch in read_piece(piece)):
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
    raise_errors(f"the table of ads {source}", findings)
    if not tables:
        raise DatasetError(f"{source} holds no ads")
    return pa.concat_tables(tables)


def _repeats(hashes: UInt64s, taken: UInt64s) -> Booleans:
    """Flag the rows (n,) whose hash is that of an earlier row or is in ``taken`` (m,)."""
    repeats = np.isin(hashes, taken)
    first = np.unique(hashes, return_index=True)[1]
    repeats[np.setdiff1d(np.arange(len(hashes)), first)] = True
    return repeats
