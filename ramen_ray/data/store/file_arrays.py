"""Arrays in files, of which processes are sent the paths: those of a machine share the memory."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
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


def into_files(value: Any, file: Path) -> Any:
    """Write the arrays in a dataclass of arrays, mappings and dataclasses; returns it with files.

    Args:
        value: a dataclass, mapping or array; what is none of them stays.
        file: the new files' path, to which the names of fields and keys are added.
    """
    if isinstance(value, np.ndarray):
        np.save(file, value)
        return map_array(file.with_name(f"{file.name}.npy"))
    if isinstance(value, Mapping):
        return {key: into_files(one, _below(file, key)) for key, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return replace(
            value, **{name: into_files(getattr(value, name), _below(file, name)) for name in names}
        )
    return value


def _below(file: Path, name: str) -> Path:
    return file.with_name(f"{file.name}-{name}")
