"""Text files as bytes: read whole lines, and convert lines that are not UTF-8."""

from collections.abc import Iterator
from typing import BinaryIO

from ramen_ray.data.store.limits import MAX_LINE_BYTES, TOO_LONG, TooLargeError


def whole_lines(stream: BinaryIO, block_bytes: int) -> Iterator[bytes]:
    r"""Read blocks of whole lines; each ends with ``\n``, even if the file does not.

    Raises:
        TooLargeError: a line has more than ``MAX_LINE_BYTES``.
    """
    unfinished: list[bytes] = []
    lines = 0
    while block := stream.read(block_bytes):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join([*unfinished, block[:cut]])
            lines += block.count(b"\n")
            unfinished = []
        unfinished.append(block[cut:])
        if sum(map(len, unfinished)) > MAX_LINE_BYTES:
            raise TooLargeError(TOO_LONG, lines)
    if rest := b"".join(unfinished):
        yield rest + b"\n"


def is_utf8(content: bytes) -> bool:
    """Return whether ``content`` is UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def to_utf8(content: bytes) -> tuple[bytes, int]:
    """Read lines that are not UTF-8 as latin-1; returns UTF-8 and the number of such lines."""
    if is_utf8(content):
        return content, 0
    lines = content.split(b"\n")
    damaged = [row for row, line in enumerate(lines) if not is_utf8(line)]
    for row in damaged:
        lines[row] = lines[row].decode("latin-1").encode()
    return b"\n".join(lines), len(damaged)
