"""Change a dataset directory in place: while no job uses it, and hidden while tables are moved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from ramen_ray.data.store.dataset import UNFINISHED, Dataset, DatasetError
from ramen_ray.data.store.made_folder import unused


@contextmanager
def to_change(dataset_path: Path) -> Iterator[Dataset]:
    """Keep a dataset directory for a change, as it is now; a DatasetError if a job holds it.

    A process waits for another that changes it.
    """
    with FileLock(dataset_path / ".lock"), not_in_use(dataset_path):
        yield Dataset(dataset_path)


@contextmanager
def not_in_use(dataset_path: Path) -> Iterator[None]:
    """Keep jobs from using a dataset directory; a DatasetError if one does."""
    with unused(dataset_path) as is_unused:
        if not is_unused:
            raise DatasetError(
                f"{dataset_path} is in use by a job, which would end with other data than it "
                f"began with; run this again when that has ended, or change a copy"
            )
        yield


@contextmanager
def hidden(folder: Path, name: str) -> Iterator[None]:
    """Hide the tables of an anchor set, or of a folder such as ``judged/``, from readers.

    When the block ends one unlink reveals them; after an interrupted one they stay hidden.
    """
    marker = folder / f"{UNFINISHED}{name.replace('/', '.')}"
    marker.touch()
    yield
    marker.unlink()
