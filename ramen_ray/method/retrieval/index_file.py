"""The file of an index of ads that come block by block.

An index in cells is made in parts, of which memory holds one. Its file is, to the bit, what faiss
writes of an index that was in memory as a whole.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faiss
import numpy as np
from faiss.contrib.inspect_tools import get_invlist
from numpy.typing import NDArray

from ramen_ray.data.store.whole_files import whole_file

BYTES_PER_ID = 8
MOST_GROWTH = 2  # a full cell moves to twice its memory

AddAds = Callable[[NDArray[np.float32]], None]  # adds the vectors (n, D) of the next ads


@contextmanager
def index_file(
    file: Path, index: Any, gb_per_part: float, earlier: Sequence[Path] = ()
) -> Iterator[AddAds]:
    """Fill a trained index, empty in memory, and write it when the block ends, whole or not at all.

    Of one in cells memory holds ``gb_per_part`` GB; another is in memory as a whole. Ads of
    ``earlier`` files of indexes with the same cells come before.
    """
    with whole_file(file) as aside, TemporaryDirectory(prefix=".parts-", dir=file.parent) as parts:
        if isinstance(index, faiss.IndexIVF):
            filling = _InParts(index, [*earlier], Path(parts), gb_per_part)
            yield filling.add
            filling.write(aside)
        else:
            yield index.add
            faiss.write_index(index, str(aside))


@contextmanager
def extended_index_file(file: Path, gb_per_part: float) -> Iterator[AddAds]:
    """Add ads to the index in ``file``, as :func:`index_file`."""
    index, earlier = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC), [file]
    if isinstance(index, faiss.IndexIVF):
        replace_cells(index, faiss.ArrayInvertedLists(index.nlist, index.code_size))
    else:
        index, earlier = faiss.read_index(str(file)), []  # a mapped one cannot grow
    with index_file(file, index, gb_per_part, earlier) as add:
        yield add


def replace_cells(index: Any, lists: Any) -> None:
    """Give an index other lists of what is in its cells."""
    index.replace_invlists(lists, True)
    lists.this.disown()


class _InParts:
    """An index in cells; when its ads in memory are too many, they go to a file."""

    def __init__(self, index: Any, files: list[Path], folder: Path, gb_per_part: float) -> None:
        self.index, self.files, self.folder = index, files, folder
        self.room = 1e9 * gb_per_part / MOST_GROWTH / (index.code_size + BYTES_PER_ID)
        self.num_in_files = index.ntotal

    def add(self, vectors: NDArray[np.float32]) -> None:
        num_held = self.index.ntotal - self.num_in_files
        if num_held and num_held + len(vectors) > self.room:
            self._write_part()
        self.index.add(vectors)

    def write(self, file: Path) -> None:
        if not self.files:
            faiss.write_index(self.index, str(file))
            return
        self._write_part()
        _merge(self.files, self.index, file)

    def _write_part(self) -> None:
        self.files.append(self.folder / f"{len(self.files)}.faiss")
        faiss.write_index(self.index, str(self.files[-1]))
        self.num_in_files = self.index.ntotal
        self.index.reset()
        self.index.ntotal = self.num_in_files  # the number of the next ad


def _merge(parts: list[Path], empty: Any, file: Path) -> None:
    """Write an index whose cells have what they have in all parts, one part after the other.

    ``empty`` has the cells and codes of the parts, no ads, but their number.
    """
    # faiss's own merge (merge_ondisk) writes a second file, which the index then needs there.
    indexes = [faiss.read_index(str(part), faiss.IO_FLAG_MMAP_IFC) for part in parts]
    lists, cells = [index.invlists for index in indexes], range(empty.nlist)
    sizes = np.array([[of_part.list_size(cell) for cell in cells] for of_part in lists])
    header = b"ilar" + struct.pack("<QQ", empty.nlist, empty.code_size)
    no_ads = header + b"sprs" + struct.pack("<Q", 0)
    with file.open("wb") as out:
        out.write(faiss.serialize_index(empty).tobytes().removesuffix(no_ads))
        out.write(header + b"full" + struct.pack("<Q", empty.nlist))
        out.write(sizes.sum(axis=0).astype("<u8").tobytes())
        for cell in cells:
            ids, codes = zip(*(get_invlist(of_part, cell) for of_part in lists), strict=True)
            out.writelines([*codes, *ids])
