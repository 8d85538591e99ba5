"""Arrays in files that are larger than memory, or shared by the processes of a machine."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import dtype_to_descr, open_memmap, write_array_header_1_0
from numpy.typing import DTypeLike, NDArray


def map_new_array(
    file: Path, dtype: DTypeLike, shape: tuple[int, ...]
) -> np.memmap[Any, np.dtype[Any]]:
    """Map a new ``.npy`` file of zeros; raises an OSError if the disk has no room for it."""
    array = open_memmap(file, "w+", dtype, shape)
    with file.open("r+b") as opened:  # takes the room now: later, a write would end by SIGBUS
        os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
    return array


def publish(folder: Path) -> None:
    """Let other machines see what was written into mapped ``.npy`` files of a shared folder."""
    for file in folder.rglob("*.npy"):
        file.open("r+b").close()  # NFS sends a file's pages when somebody closes it who could write


@contextmanager
def growing_array(file: Path, dtype: DTypeLike) -> Iterator[Callable[[NDArray[Any]], None]]:
    """Write an array (n,) of unknown length into a ``.npy`` file; yields what appends a piece."""
    header = {"descr": dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (0,)}
    with file.open("wb") as stream:
        write_array_header_1_0(stream, header)
        length = 0

        def append(values: NDArray[Any]) -> None:
            nonlocal length
            stream.write(np.ascontiguousarray(values, dtype).data)
            length += len(values)

        yield append
        stream.seek(0)  # NumPy leaves room in the header for the length
        write_array_header_1_0(stream, header | {"shape": (length,)})


class FileArray(np.memmap[Any, np.dtype[Any]]):
    """A mapped ``.npy`` file, pickled as its path; what is computed from it is pickled whole."""

    file: Path | None = None

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self.file is None:
            return np.array(self, subok=False).__reduce_ex__(protocol)
        return map_array, (self.file,)


def map_array(file: Path) -> FileArray:
    """Map a ``.npy`` file, which must stay as it is, for reading."""
    mapped = np.load(file, mmap_mode="r").view(FileArray)
    mapped.file = file
    return mapped
