"""A disk without room: how to know the error, whichever library raised it, and what to say."""

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

SIGNS = re.compile(
    r"No space left on device|Disk quota exceeded"
    r"|disk is full"  # sqlite
    r"|\d+ requested and \d+ written"  # numpy
    r"|PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+"  # torch
)


def is_disk_full(error: BaseException) -> bool:
    """Say whether ``error`` or one of its causes says that a disk has no room left."""
    return any(SIGNS.search(f"{one}") for one in _with_causes(error))


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def no_room_message(words: Iterable[str]) -> str:
    """Say which disk has no room left, and what to do.

    Args:
        words: the words of the command; some name folders that it uses.
    """
    named = [Path(word.partition("=")[2] or word) for word in words]
    folders = [Path.cwd(), Path(tempfile.gettempdir()), *filter(_is_there, named)]
    free, folder = min((shutil.disk_usage(folder).free, str(folder)) for folder in folders)
    return (
        f"no room is left on a disk (that of {folder} has {free / 1e6:.1f} MB); make room, and run "
        f"the same command again"
    )


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # no name of a file
        return False
