"""Hashes of what files contain, by which things that are made of them are known."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

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
