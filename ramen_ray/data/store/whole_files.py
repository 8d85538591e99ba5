"""Files that appear whole or not at all."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path, within: Path | None = None) -> Iterator[Path]:
    """Yield a temporary file to write, which replaces ``path`` when the block ends.

    Its name is hidden and unique, so that two processes can write the same file at once. A killed
    process leaves it behind.

    Args:
        path: the file.
        within: a folder on the same disk for the temporary file; None for that of ``path``.
    """
    aside = unused_name(path, within)
    aside.touch(exist_ok=False)
    try:
        yield aside
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)


def unused_name(path: Path, within: Path | None = None) -> Path:
    """Return a hidden name like that of ``path`` that nobody uses, beside it or ``within``."""
    return (within or path.parent) / f".{path.name}-{secrets.token_hex(4)}"
