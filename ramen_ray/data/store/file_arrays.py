"""Arrays in files, of which processes are sent the paths: those of a machine share the memory."""

from pathlib import Path
from typing import Any

import numpy as np


class FileArray(np.memmap[Any, np.dtype[Any]]):
    """A mapped ``.npy`` file, pickled as its path; what is computed from it is pickled whole.

    Attributes:
        file: the file; None for a view.
    """

    file: Path | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how to map the file again, or the values of a view."""
        if self.file is None:
            return np.array(self, subok=False).__reduce_ex__(protocol)
        return map_array, (self.file,)


def map_array(file: Path) -> FileArray:
    """Map a ``.npy`` file, which must stay as it is, for reading."""
    mapped = np.load(file, mmap_mode="r").view(FileArray)
    mapped.file = file
    return mapped
