"""Token tables: every text tokenised once, unpadded, memory-mapped."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.prepared.csr import ragged_positions


@dataclass(frozen=True)
class TokenTable:
    """The tokens of a table's texts.

    Attributes:
        token_ids: (tokens,) uint16 or int32, one text after another.
        offsets: (texts + 1,) int64, where each text starts.
        hashes: (texts,) uint64, equal for equal texts of all of a dataset's tables, and no others.
    """

    token_ids: NDArray[Any]
    offsets: NDArray[np.int64]
    hashes: NDArray[np.uint64]

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
        """Return the number of texts."""
        return len(self.hashes)

    def lengths(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Return the token counts (n,) of ``rows`` (n,)."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def gather(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Return the tokens of ``rows`` (n,), one text after another, as int64."""
        positions = ragged_positions(self.offsets[rows], self.lengths(rows))
        return self.token_ids[positions].astype(np.int64)
