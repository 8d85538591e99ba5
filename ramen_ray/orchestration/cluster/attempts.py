"""A limit on how often work may end its process: Ray Data starts its tasks again for ever."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ramen_ray.orchestration.cluster.resources import ClusterError

MAX_ATTEMPTS = 4


@contextmanager
def limited_attempts(folder: Path, work: str) -> Iterator[None]:
    """Do ``work`` in the block, unless too many processes have died at it.

    Args:
        folder: a folder that all machines can reach; an attempt leaves a mark there until it ends.
        work: what is done, such as the file that is read; it names the work in the error.

    Raises:
        ClusterError: ``MAX_ATTEMPTS`` processes have died.
    """
    folder.mkdir(parents=True, exist_ok=True)
    marks = folder / hashlib.blake2b(work.encode(), digest_size=8).hexdigest()
    if marks.exists() and marks.stat().st_size >= MAX_ATTEMPTS:
        raise ClusterError(
            f"{work}: {MAX_ATTEMPTS} processes have died at it, by a lack of memory or by what "
            f"they read"
        )
    with marks.open("ab") as file:
        file.write(b".")
    try:
        yield
    finally:
        marks.unlink(missing_ok=True)  # whoever ends the work may have removed the folder
