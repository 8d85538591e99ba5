"""Files that appear whole or not at all, and folders for what is made on the way."""

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path, within: Path | None = None) -> Iterator[Path]:
    """Yield a temporary file to write, which replaces ``path`` when the block ends.

    Its name is unique, so that two processes can write the same file at once. It is beside ``path``
    or ``within`` a folder on the same disk; a killed process leaves it there.
    """
    aside = unused_name(path, within)
    aside.touch(exist_ok=False)
    try:
        yield aside
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder that is removed again; what a killed process left in it goes first.

    Whoever uses it has locked what it belongs to.
    """
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def unused_name(path: Path, within: Path | None = None) -> Path:
    """Return a hidden name like that of ``path`` that nobody uses, beside it or ``within``."""
    return (within or path.parent) / f".{path.name}-{secrets.token_hex(4)}"
