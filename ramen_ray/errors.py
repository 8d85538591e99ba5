"""Errors that a user can correct, a full disk among them, and how they are shown."""

import re
import shutil
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_END = r"(?=[])}>'\",.:;]*(?:\s|$))"
_IN_TEXT = re.compile(
    r"(\w[\w+.-]{0,30}://)"  # without a limit a long word takes hours
    # a password may have spaces, but what looks like a port and then words is a port
    rf"([^\s/@]*:(?!\d+(?:\W|$))\S[^\n@]*@\S*?|\S*?){_END}"
)
_WHOLE = re.compile(r"(\w[\w+.-]*://)(.*)", re.DOTALL)
_HOSTS = re.compile(r"(?:(?:[\w.-]*|\[[\da-fA-F:.]+\])(?::\d*)?(?:,|(?=/|$)))*(?:/|$)")
_WITH_VERSION = re.compile(r"([^@]+/[^@]+)(@v\d+)")
"""A path in a store, and the version of a Delta table there."""
_AFTER_PATH = re.compile(r"([?#;]|%3[bf]|%23)(.*)", re.DOTALL | re.IGNORECASE)
_WITHOUT_SCHEME = re.compile(r"(?<![\w:/@.-])[\w.-]+:[^\s:/@]+@(?=[\w.-]+)")
_QUERY = re.compile(rf"(?<=[^\s?])\?[\w.%~+-]+=\S*?{_END}")
_ACTS_ON_TERMINALS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, line separators, marks that turn the direction of text, half characters."""
# what Python and the libraries that write files say
_DISK_IS_FULL = re.compile(
    r"No space left on device|Disk quota exceeded"
    r"|disk is full"  # sqlite
    r"|\d+ requested and \d+ written"  # numpy
    r"|PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+"  # torch
)

LOST = signal.SIGUSR1
"""Sent by a job to itself when what it cannot do without has died; it ends as if interrupted."""


class UserError(ValueError):
    """Input cannot be used; the message says what is wrong, where, and what to do."""

    def __init__(self, message: str) -> None:
        """Keep the ``message``, :func:`redacted`."""
        super().__init__(redacted(message))


class DatasetError(UserError):
    """A dataset or a table is missing, incomplete or inconsistent; the message says where."""


def first_line_of(error: BaseException) -> str:
    """Return the first line of an error's message, and the next one if that ends in a colon."""
    first, *below = (str(error).strip() or type(error).__name__).splitlines()
    return f"{first} {below[0].strip()}" if below and first.endswith(":") else first


def redacted(text: str) -> str:
    """Return ``text`` with only scheme, host, port and path left of its addresses."""
    return _QUERY.sub("?***", _WITHOUT_SCHEME.sub("***@", _IN_TEXT.sub(_allowed, text)))


def shown_address(address: str) -> str:
    """Return what may be shown of a text that is one address as a whole."""
    whole = _WHOLE.fullmatch(address)
    return redacted(address) if whole is None else _allowed(whole)


def redacted_reason(reason: str, address: str) -> str:
    """Return what a library says of ``address``, without the address's words that are not shown."""
    secret = set(re.findall(r"\w+", f"{address} {unquote(address)}"))
    for word in secret - set(re.findall(r"\w+", shown_address(address))):
        reason = re.sub(rf"\b{word}\b", "***", reason)
    return redacted(reason)


def _allowed(address: re.Match[str]) -> str:
    """Return what may be shown of a match's scheme and rest; only the scheme, if in doubt."""
    scheme, rest = address.groups()
    if scheme == "sqlite://":  # a file, in whose name all may stand
        return scheme + rest
    versioned = _WITH_VERSION.fullmatch(rest)
    unversioned, version = versioned.groups() if versioned else (rest, "")
    path, mark, query = [*_AFTER_PATH.split(unversioned, maxsplit=1), "", ""][:3]
    has_host = not path.startswith("/")
    place = path.rpartition("@")[2] if has_host else path
    if "@" in query or not _HOSTS.match(place):
        return f"{scheme}***"
    user = "" if place == path else "***@"
    end = f"{mark}***" if mark else ""
    return f"{scheme}{user}{place}{end}{version}"


def printable(text: str) -> str:
    """Escape what a terminal would act on instead of showing it, line breaks too."""
    return _ACTS_ON_TERMINALS.sub(lambda match: repr(match[0])[1:-1], text)


def shown_path(path: str | Path) -> str:
    """Return a path as it is written in the current folder: relative, if it is inside."""
    here = Path.cwd()
    text = str(Path(path).relative_to(here) if Path(path).is_relative_to(here) else path)
    return f"./{text}" if text.startswith("-") else text  # commands would read it as a flag


def without_secrets(value: Any) -> Any:
    """Return settings, which may be dicts of dicts, with what may be shown of all addresses."""
    if isinstance(value, dict):
        return {key: without_secrets(setting) for key, setting in value.items()}
    return shown_address(value) if isinstance(value, str) else value


def is_disk_full(error: BaseException) -> bool:
    """Say whether ``error`` or one of its causes says that a disk has no room left."""
    cause: BaseException | None = error
    while cause is not None and not _DISK_IS_FULL.search(f"{cause}"):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def no_room_message(words: Iterable[str]) -> str:
    """Say which disk has no room left, and what to do; some ``words`` of the command name it."""
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
