"""Lines of text files as bytes: read whole, within limits, and converted where not UTF-8."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

MAX_CELL_BYTES = 1 << 24
MAX_LINE_BYTES = 1 << 26
MIN_STRANGE_BYTES = 4
MAX_STRANGE_SHARE = 0.3
"""In Windows-1252, letters beyond ASCII mostly stand alone, or in twos."""

MARK = b"\xef\xbb\xbf"
_RUNS = re.compile(r"[^\x00-\x7f\udc80-\udcff]*[\udc80-\udcff][^\x00-\x7f]*")
"""Bad bytes and letters around them; a few letters may be bytes of another encoding by chance."""
_UTF8 = re.compile("[^\udc80-\udcff]")
_UNDEFINED = b"\x81\x8d\x8f\x90\x9d"
_RARE = _UNDEFINED + "ƒˆ˜".encode("cp1252")  # as letters of Shift-JIS they are frequent
_PUNCTUATION = "€„…†‡‰‹‘’“”•–—™›\xa0¡£©«®°´·»¿".encode("cp1252")
_AS_WINDOWS_1252 = {
    0xDC00 + byte: chr(byte) if byte in _UNDEFINED else bytes([byte]).decode("cp1252")
    for byte in range(0x80, 0x100)
}


class TooLargeError(ValueError):
    """A line is so large that reading it would kill the process; ``line`` counts from 0."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def whole_lines(stream: BinaryIO, block_bytes: int) -> Iterator[bytes]:
    r"""Read blocks of whole lines; each ends with ``\n``, even if the file does not.

    Raises a TooLargeError if a line has more than ``MAX_LINE_BYTES``.
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
            message = f"has more than {MAX_LINE_BYTES >> 20} MiB without a line break"
            raise TooLargeError(message, lines)
    if rest := b"".join(unfinished):
        yield rest + b"\n"


@dataclass(frozen=True)
class Decoded:
    """Lines of text as UTF-8; those that were not are numbered from 0."""

    data: bytes
    damaged_lines: list[int]
    are_windows_1252: bool = True  # these can be so, not GBK, Big5, Shift-JIS, EUC-KR, KOI8 ...


def decoded(content: bytes) -> Decoded:
    """Convert whole lines to UTF-8: what is UTF-8 stays, other bytes are read as Windows-1252."""
    if is_utf8(content):
        return Decoded(content, [])
    damaged = [row for row, line in enumerate(content.split(b"\n")) if not is_utf8(line)]
    text = content.decode("utf-8", "surrogateescape")
    return Decoded(text.translate(_AS_WINDOWS_1252).encode(), damaged, _can_be_windows_1252(text))


def is_utf8(content: bytes) -> bool:
    """Return whether ``content`` is UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _can_be_windows_1252(escaped: str) -> bool:
    """Look at bad bytes, which are half surrogates, and count those that are strange there.

    Texts in Windows-1252 hardly have three or more in a row, as where letters are all beyond ASCII,
    or where a letter takes two bytes.
    """
    num_bad = num_strange = 0
    for letters, times in Counter(_RUNS.findall(escaped)).items():
        run = letters.encode("utf-8", "surrogateescape")
        bad = _UTF8.sub("", letters).encode("utf-8", "surrogateescape")
        if any(byte in _UNDEFINED for byte in bad):
            return False
        num_bad += times * len(bad)
        num_strange += times * _count_strange(run, bad)
    return num_strange < MIN_STRANGE_BYTES or num_strange < MAX_STRANGE_SHARE * num_bad


def _count_strange(run: bytes, bad: bytes) -> int:
    """Count strange bytes in a run: all of it, or those that are rare anywhere."""
    letters = set(run.translate(None, _PUNCTUATION))
    if len(run) >= 3 and len(letters) >= 2 and 2 * len(bad) >= len(run):
        return len(run)
    return sum(byte in _RARE for byte in bad)
