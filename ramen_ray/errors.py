"""Errors that a user can correct, a full disk among them, and how they are shown."""

import re
import shutil
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_PASSWORD = re.compile(r"(\w+://[^\s:/?#@]*):\S*@")  # to the last @, as a password may contain one
_WITHOUT_SCHEME = re.compile(r"(?<![\w:/@.-])([\w.-]+):[^\s:/@]+@(?=[\w.-]+)")
_SECRET = re.compile(r"(?i)([?&](?:password|passwd|pwd|token|secret\w*)=)[^&#\s]*")
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


class DatasetError(UserError):
    """A dataset or a table is missing, incomplete or inconsistent; the message says where."""


def first_line_of(error: Exception) -> str:
    """Return an error's message in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def redacted(text: str) -> str:
    """Return ``text`` without the passwords in its addresses, fit to be shown or stored."""
    without_secrets = _SECRET.sub(r"\1***", text)
    return _PASSWORD.sub(r"\1:***@", _WITHOUT_SCHEME.sub(r"\1:***@", without_secrets))


def printable(text: str) -> str:
    """Escape what a terminal would act on instead of showing it, line breaks too."""
    return _ACTS_ON_TERMINALS.sub(lambda found: repr(found[0])[1:-1], text)


def shown_path(path: str | Path) -> str:
    """Return a path as it is written in the current folder: relative, if it is inside."""
    here = Path.cwd()
    shown = str(Path(path).relative_to(here) if Path(path).is_relative_to(here) else path)
    return f"./{shown}" if shown.startswith("-") else shown  # commands would read it as a flag


def without_passwords(value: Any) -> Any:
    """Return settings, which may be dicts of dicts, with all texts :func:`redacted`."""
    if isinstance(value, dict):
        return {key: without_passwords(one) for key, one in value.items()}
    return redacted(value) if isinstance(value, str) else value


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
