"""Copies of folders with checksums on a machine's own disk: made once, checked by content."""

import errno
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copyfile

from filelock import FileLock

from ramen_ray.data.store.checksums import check_intact, checksum_files, is_intact


def copy_folder(folder: Path, target: Path) -> None:
    """Make ``target`` a copy of ``folder``, unless it is one.

    A copy that is damaged, cut off, or of other content is made again. If two processes need the
    same copy at the same time, the second waits for the first.

    Raises:
        OSError: the copy cannot be written, or the disk has no room for it.
        DamagedError: ``folder`` is not as its checksums say. In both cases there is no ``target``.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{target.name}.lock"):
        if _is_copy(target, folder):
            return
        aside = target.with_name(f".{target.name}-aside")
        shutil.rmtree(aside, ignore_errors=True)  # left by a killed process
        try:
            _copy_files(folder, aside)
            check_intact(aside)
            aside.rename(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _is_copy(target: Path, folder: Path) -> bool:
    """Say whether ``target`` is an intact copy of ``folder``; what is there instead is removed."""
    if _checksums(target) == _checksums(folder):
        return is_intact(target, "it is copied again")
    shutil.rmtree(target, ignore_errors=True)
    return False


def _checksums(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in checksum_files(folder)}


def _copy_files(folder: Path, aside: Path) -> None:
    names = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    aside.mkdir()
    needed = sum((folder / name).stat().st_size for name in names)
    free = shutil.disk_usage(aside).free
    if needed > free:
        room = f"No space left on device: {needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} free"
        raise OSError(errno.ENOSPC, room, str(aside))
    for name in names:
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as threads:  # a network folder answers many requests at once
        list(threads.map(lambda name: copyfile(folder / name, aside / name), names))
