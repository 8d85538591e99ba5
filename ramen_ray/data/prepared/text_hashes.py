"""Hashes of a dataset's texts, equal exactly where the texts' tokens are.

Anybody can make a text that has the hash of another, by sums of a few million words. So texts of
one hash are compared, and if two differ, all texts are hashed under another key.
"""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import numpy as np

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.hashing import hash_texts
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.data.store.mapped_files import map_new_array

TEXTS_AT_ONCE = 1 << 16
TEXTS_PER_SHARE = 1 << 22


def write_hashes(folders: Sequence[Path]) -> None:
    """Write ``hashes.npy`` beside the tokens in each of the folders, for all tables at once."""
    for key in count():
        tables = [_hashed(folder, key) for folder in folders]
        num_shares = 1 + sum(map(len, tables)) // TEXTS_PER_SHARE
        if all(_tell_apart(tables, share, num_shares) for share in range(num_shares)):
            return


def _hashed(folder: Path, key: int) -> TokenTable:
    token_ids, offsets = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("token_ids", "offsets")
    )
    hashes = map_new_array(folder / "hashes.npy", np.uint64, (len(offsets) - 1,))
    for start in range(0, len(hashes), TEXTS_AT_ONCE):
        bounds = offsets[start : start + TEXTS_AT_ONCE + 1]
        tokens = token_ids[bounds[0] : bounds[-1]]
        hashes[start : start + TEXTS_AT_ONCE] = hash_texts(tokens, bounds, key)
    hashes.flush()
    return TokenTable(token_ids, offsets, hashes)


def _tell_apart(tables: list[TokenTable], share: int, num_shares: int) -> bool:
    """Say whether texts of equal hashes are equal, in one of ``num_shares`` shares of them."""
    rows = [np.flatnonzero(table.hashes % num_shares == share) for table in tables]
    hashes = np.concatenate([table.hashes[own] for table, own in zip(tables, rows, strict=True)])
    table_of, row = np.repeat(np.arange(len(rows)), [*map(len, rows)]), np.concatenate(rows)
    order = np.argsort(hashes)
    twins = np.flatnonzero(np.diff(hashes[order]) == 0)
    for start in range(0, len(twins), TEXTS_AT_ONCE):
        some = twins[start : start + TEXTS_AT_ONCE]
        one, other = order[some], order[some + 1]
        for pair in np.unique(np.stack([table_of[one], table_of[other]]), axis=1).T:
            chosen = (table_of[one] == pair[0]) & (table_of[other] == pair[1])
            texts = zip(pair, (row[one[chosen]], row[other[chosen]]), strict=True)
            if not _are_equal(*((tables[table], own) for table, own in texts)):
                return False
    return True


def _are_equal(one: tuple[TokenTable, Int64s], other: tuple[TokenTable, Int64s]) -> bool:
    """Compare some rows (n,) of a table with as many of another."""
    (table, rows), (other_table, other_rows) = one, other
    return np.array_equal(table.lengths(rows), other_table.lengths(other_rows)) and np.array_equal(
        table.gather(rows), other_table.gather(other_rows)
    )
