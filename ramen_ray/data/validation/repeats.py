"""Rows that repeat the key of an earlier row, found in bounded memory.

Keys that only ascend, as those of sorted edges do, need none. Others are compared a share of all
possible keys at a time, and the table is read once for each.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramen_ray.data.findings import Tally
from ramen_ray.data.prepared.hashing import find, hash_strings, mix
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.validation.batches import ids, readable, table_batches

Keys = tuple[NDArray[np.int64], NDArray[np.uint64]]
"""Row numbers within the batch (n,) and their keys (n,); rows without a key are left out."""

KEYS_AT_ONCE = 1 << 24


def tally_repeats(
    dataset: Dataset,
    table: str,
    columns: list[str],
    keys_of: Callable[[pa.RecordBatch], Keys],
    tally: Tally,
) -> None:
    """Count in ``tally`` the rows of ``table`` that repeat the key of an earlier row.

    The table's ``columns`` are read once for the keys, and again only if some key repeats.
    """
    repeated = _repeated_keys(dataset, table, columns, keys_of)
    if not len(repeated):
        return
    seen = np.zeros(len(repeated), dtype=np.bool_)
    for batch in table_batches(dataset, table, columns):
        rows, keys = keys_of(batch.rows)
        place = find(keys, repeated)
        rows, place = rows[place >= 0], place[place >= 0]
        met, first = np.unique(place, return_index=True)
        again = np.ones(len(rows), dtype=np.bool_)
        again[first] = seen[met]
        seen[met] = True
        shown = batch.rows.take(pa.array(rows[again]))
        values = shown.column(0) if len(columns) == 1 else shown.to_struct_array()
        tally.add(batch.file, batch.first_row + rows[again], values)


def _repeated_keys(
    dataset: Dataset, table: str, columns: list[str], keys_of: Callable[[pa.RecordBatch], Keys]
) -> NDArray[np.uint64]:
    """Return the keys that occur more than once, sorted."""

    def batches() -> Iterator[NDArray[np.uint64]]:
        return (keys_of(batch.rows)[1] for batch in table_batches(dataset, table, columns))

    if _ascend(batches()):
        return np.empty(0, dtype=np.uint64)
    num_shares = max(-(-dataset.num_rows(table) // KEYS_AT_ONCE), 1)
    shares = [_repeated_in_share(batches(), share, num_shares) for share in range(num_shares)]
    return np.sort(np.concatenate(shares))


def _ascend(batches: Iterable[NDArray[np.uint64]]) -> bool:
    """Say whether every key is above the one before; stops at the first that is not."""
    last = np.empty(0, dtype=np.uint64)
    for keys in batches:
        joined = np.concatenate([last, keys])
        if (joined[1:] <= joined[:-1]).any():
            return False
        last = joined[-1:]
    return True


def _repeated_in_share(
    batches: Iterable[NDArray[np.uint64]], share: int, num_shares: int
) -> NDArray[np.uint64]:
    """Return the keys of a share that occur more than once; their hashes say whose share it is."""
    parts = [np.empty(0, dtype=np.uint64)]
    for keys in batches:
        parts.append(keys if num_shares == 1 else keys[mix(keys) % np.uint64(num_shares) == share])
    found = np.concatenate(parts)
    found.sort()
    return np.unique(found[1:][found[1:] == found[:-1]])


def id_keys(rows: pa.RecordBatch) -> Keys:
    """Use the first column, an id, as the key."""
    column = rows.column(0)
    found = np.flatnonzero(np.asarray(column.is_valid()))
    return found, ids(column)[found].view(np.uint64)


def text_keys(rows: pa.RecordBatch) -> Keys:
    """Use a hash of the first column, a text, as the key."""
    texts = readable(rows.column(0))
    found = np.flatnonzero(np.asarray(texts.is_valid()))
    return found, hash_strings(texts)[found]


def pair_keys(rows: pa.RecordBatch, limits: tuple[int, int]) -> Keys:
    """Number the pairs of two id columns; a pair with an id outside the limits has no key."""
    left, right = ids(rows.column(0)), ids(rows.column(1))
    return number_pairs(left, right, limits)


def number_pairs(
    left: NDArray[np.int64], right: NDArray[np.int64], limits: tuple[int, int]
) -> Keys:
    """Number the pairs (n,) whose ids are within the limits, row by row of their grid."""
    inside = (left >= 0) & (left < limits[0]) & (right >= 0) & (right < limits[1])
    found = np.flatnonzero(inside)
    keys = left[found].astype(np.uint64) * np.uint64(limits[1]) + right[found].astype(np.uint64)
    return found, keys
