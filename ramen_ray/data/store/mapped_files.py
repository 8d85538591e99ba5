"""Arrays in files that are written through memory."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import DTypeLike


def map_new_array(
    file: Path, dtype: DTypeLike, shape: tuple[int, ...]
) -> np.memmap[Any, np.dtype[Any]]:
    """Map a new ``.npy`` file that has all its room on the disk; it holds zeros.

    Raises:
        OSError: the disk has no room. Without the check, a write would end the process by SIGBUS.
    """
    array = open_memmap(file, "w+", dtype, shape)
    with file.open("r+b") as opened:
        os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
    return array
