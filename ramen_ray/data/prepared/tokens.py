"""Token tables: every text tokenised once, unpadded, memory-mapped, with a hash of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s, UInt64s, map_new_array, ragged_positions
from ramen_ray.data.prepared.hashing import hash_texts

TOKENS_AT_ONCE = 1 << 24
TEXTS_AT_ONCE = 1 << 16
TEXTS_PER_SHARE = 1 << 22


@dataclass(frozen=True)
class TokenTable:
    """The tokens of a table's texts."""

    token_ids: NDArray[Any]  # (tokens,) uint16 or int32, one text after another
    offsets: Int64s  # (texts + 1,) where each text starts
    hashes: UInt64s  # (texts,) equal for equal texts of all of a dataset's tables, and no others

    @classmethod
    def open(cls, folder: Path) -> "TokenTable":
        """Memory-map the table in ``folder``; processes on one machine share its pages."""
        names = ("token_ids", "offsets", "hashes")
        return cls(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in names))

    def save(self, folder: Path) -> None:
        """Write the table into a new ``folder``, for :meth:`open`."""
        folder.mkdir()
        for name, array in vars(self).items():
            np.save(folder / f"{name}.npy", array)

    def __len__(self) -> int:
        return len(self.hashes)

    def lengths(self, rows: NDArray[Any]) -> Int64s:
        """Return the token counts (n,) of ``rows`` (n,)."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def gather(self, rows: NDArray[Any]) -> Int64s:
        """Return the tokens of ``rows`` (n,), one text after another, as int64."""
        positions = ragged_positions(self.offsets[rows], self.lengths(rows))
        return self.token_ids[positions].astype(np.int64)


@dataclass(frozen=True)
class TextFigures:
    """Counts of a table's texts and tokens."""

    texts: int
    distinct: int  # as the encoder gets them: after truncation
    tokens: int  # without special ones such as [CLS]
    unknown: int  # tokens that stand for what the vocabulary does not have, such as [UNK]

    @property
    def share_unknown(self) -> float:
        """Share of the tokens that are unknown."""
        return self.unknown / self.tokens if self.tokens else 0.0

    @property
    def share_repeated(self) -> float:
        """Share of the texts that the encoder cannot tell from an earlier one."""
        return 1 - self.distinct / self.texts if self.texts else 0.0


def measure_texts(
    folder: Path, tables: list[str], unknown: int | None, num_special: int
) -> dict[str, TextFigures]:
    """Count the texts, and tokens but ``num_special`` a text, of prepared ``tables`` in ``folder``.

    ``unknown`` is the token for what the vocabulary does not have, if there is one.
    """
    figures = {}
    for name in tables:
        table = TokenTable.open(folder / "tokens" / name)
        tokens, texts = table.token_ids, len(table)
        starts = [] if unknown is None else range(0, len(tokens), TOKENS_AT_ONCE)
        unknowns = [np.count_nonzero(tokens[at : at + TOKENS_AT_ONCE] == unknown) for at in starts]
        distinct = len(np.unique(table.hashes))
        content = len(tokens) - num_special * texts
        figures[name] = TextFigures(texts, distinct, content, int(sum(unknowns)))
    return figures


def write_hashes(folders: Sequence[Path]) -> None:
    """Write ``hashes.npy`` beside the tokens in each of the folders, for all tables at once."""
    for key in count():  # anybody can make texts of one hash, but not under the next key
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
    hashes = np.concatenate([table.hashes[part] for table, part in zip(tables, rows, strict=True)])
    table_of, row = np.repeat(np.arange(len(rows)), [*map(len, rows)]), np.concatenate(rows)
    order = np.argsort(hashes)
    twins = np.flatnonzero(np.diff(hashes[order]) == 0)
    for start in range(0, len(twins), TEXTS_AT_ONCE):
        some = twins[start : start + TEXTS_AT_ONCE]
        left, right = order[some], order[some + 1]
        for pair in np.unique(np.stack([table_of[left], table_of[right]]), axis=1).T:
            chosen = (table_of[left] == pair[0]) & (table_of[right] == pair[1])
            left_rows, right_rows = row[left[chosen]], row[right[chosen]]
            if not _are_equal(tables[pair[0]], left_rows, tables[pair[1]], right_rows):
                return False
    return True


def _are_equal(left: TokenTable, left_rows: Int64s, right: TokenTable, right_rows: Int64s) -> bool:
    """Compare some rows (n,) of a table with as many of another."""
    same_lengths = np.array_equal(left.lengths(left_rows), right.lengths(right_rows))
    return same_lengths and np.array_equal(left.gather(left_rows), right.gather(right_rows))
