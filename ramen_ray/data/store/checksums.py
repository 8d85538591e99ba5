"""Folders whose files have checksums: noted when they are whole, compared when opened or copied."""

import errno
import hashlib
import json
import logging
import shutil
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from filelock import FileLock

from ramen_ray.data.store.whole_files import scratch_folder
from ramen_ray.errors import UserError

CHECKSUMS_FILE = "checksums-{}-of-{}.json"
BYTES_PER_READ = 1 << 20

logger = logging.getLogger(__name__)


class DamagedError(UserError):
    """A file is not as it was written."""


FileContent = tuple[str, int, bytes]
"""A file's name, its number of bytes, and a hash of them."""


def content_digest(files: Iterable[tuple[str, Path]], algorithm: str = "blake2b") -> str:
    """Hash named files by what they contain, read as streams; their folder does not matter."""
    return digest_of(file_contents(files, algorithm))


def file_contents(
    files: Iterable[tuple[str, Path]], algorithm: str = "blake2b"
) -> Iterator[FileContent]:
    """Hash each of some named files."""
    for name, file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, algorithm).digest()
            yield name, file.stat().st_size, content


def digest_of(contents: Iterable[FileContent]) -> str:
    """Hash the content of files as one."""
    digest = hashlib.blake2b(digest_size=16)
    for name, size, content in contents:
        digest.update(f"{name}\0{size}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def write_checksums(folder: Path, writer: int = 0, num_writers: int = 1) -> None:
    """Note the size and checksum of all files below ``folder``, of each of several writers."""
    manifest = folder / CHECKSUMS_FILE.format(writer + 1, num_writers)
    manifest.unlink(missing_ok=True)  # of a task that is run again
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor() as threads:
        found = zip(files, threads.map(size_and_checksum, files), strict=True)
        content = {str(file.relative_to(folder)): noted for file, noted in found}
    manifest.write_text(json.dumps(content, indent=1) + "\n")


def checksum_files(folder: Path) -> list[Path]:
    """List the files that :func:`write_checksums` wrote into ``folder``."""
    return sorted(folder.glob(CHECKSUMS_FILE.format("[0-9]*", "[0-9]*")))


def find_damage(folder: Path) -> str | None:
    """Name a file that is not as :func:`write_checksums` found it; None if all are."""
    manifests = checksum_files(folder)
    num_writers = int(manifests[0].stem.rpartition("-")[2]) if manifests else 1
    if len(manifests) < num_writers:
        return f"{folder} is incomplete: {len(manifests)} of {num_writers} lists of checksums"
    noted: dict[Path, list[int]] = {}
    for manifest in manifests:
        try:
            content = json.loads(manifest.read_text()).items()
            noted |= {folder / name: [size, checksum] for name, (size, checksum) in content}
        except (ValueError, TypeError, AttributeError):
            return f"{manifest} is damaged"
    with ThreadPoolExecutor() as threads:
        return next(filter(None, threads.map(find_difference, noted, noted.values())), None)


def check_intact(folder: Path) -> None:
    """Raise a DamagedError if a file is not as :func:`write_checksums` found it."""
    if damage := find_damage(folder):
        raise DamagedError(damage)


def is_intact(folder: Path, otherwise: str) -> bool:
    """Return whether ``folder`` is intact; a damaged one is removed, and ``otherwise`` logged."""
    if not folder.is_dir():
        return False
    if not (damage := find_damage(folder)):
        return True
    logger.warning("warning: %s: %s", damage, otherwise)
    shutil.rmtree(folder)
    return False


def copy_folder(folder: Path, target: Path) -> None:
    """Make ``target`` a copy of ``folder``, unless it is a whole one of the same content.

    If two processes need the same copy at the same time, the second waits for the first. There is
    no ``target`` after an OSError, as of a full disk, or a DamagedError of ``folder``.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{target.name}.lock"):
        if _manifests(target) != _manifests(folder):
            shutil.rmtree(target, ignore_errors=True)
        elif is_intact(target, "it is copied again"):
            return
        with scratch_folder(target.with_name(f".{target.name}-aside")) as aside:
            _copy_files(folder, aside)
            check_intact(aside)
            aside.rename(target)


def _manifests(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in checksum_files(folder)}


def _copy_files(folder: Path, aside: Path) -> None:
    names = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    needed = sum((folder / name).stat().st_size for name in names)
    if needed > (free := shutil.disk_usage(aside).free):
        room = f"No space left on device: {needed / 1e6:,.1f} MB needed, {free / 1e6:,.1f} free"
        raise OSError(errno.ENOSPC, room, str(aside))
    for name in names:
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as threads:  # a network folder answers many requests at once
        list(threads.map(lambda name: shutil.copyfile(folder / name, aside / name), names))


def parse_object(text: str) -> dict[str, Any]:
    """Read a JSON object, or raise a ValueError."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("it is not an object")
    return content


def size_and_checksum(file: Path) -> list[int]:
    """Return a file's number of bytes, and a checksum of them."""
    checksum = 0
    with file.open("rb") as stream:
        while block := stream.read(BYTES_PER_READ):
            checksum = zlib.crc32(block, checksum)
        return [stream.tell(), checksum]


def find_difference(file: Path, noted: list[int]) -> str | None:
    """Say how a file differs from what :func:`size_and_checksum` found; None if it does not."""
    try:
        size = file.stat().st_size
        if size != noted[0]:
            return f"{file} has {size} bytes instead of {noted[0]}"
        is_same = size_and_checksum(file) == noted
    except OSError as error:
        return f"{file} cannot be read ({error.strerror})"
    return None if is_same else f"{file} has changed since it was written"
