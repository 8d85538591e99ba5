"""Errors that a user can correct, shown as one message without a traceback, and what is shown."""

import re
import signal
from typing import Any

_PASSWORD = re.compile(r"(\w+://[^\s:/?#@]*):\S*@")  # to the last @, as a password may contain one
_SECRET = re.compile(r"(?i)([?&](?:password|passwd|pwd|token|secret\w*)=)[^&#\s]*")
_ACTS_ON_TERMINALS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, line separators, marks that turn the direction of text, half characters."""

LOST = signal.SIGUSR1
"""Sent by a job to itself when what it cannot do without has died; it ends as if interrupted."""


class UserError(ValueError):
    """Input cannot be used; the message says what is wrong, where, and what to do."""


def first_line_of(error: Exception) -> str:
    """Return an error's message in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def redacted(text: str) -> str:
    """Return ``text`` without the passwords in its addresses, fit to be shown or stored."""
    return _PASSWORD.sub(r"\1:***@", _SECRET.sub(r"\1***", text))


def printable(text: str) -> str:
    """Escape what a terminal would act on instead of showing it, line breaks too."""
    return _ACTS_ON_TERMINALS.sub(lambda found: repr(found[0])[1:-1], text)


def without_passwords(value: Any) -> Any:
    """Return settings, which may be dicts of dicts, with all texts :func:`redacted`."""
    if isinstance(value, dict):
        return {key: without_passwords(one) for key, one in value.items()}
    return redacted(value) if isinstance(value, str) else value
