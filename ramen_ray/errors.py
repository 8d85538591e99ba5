"""Errors that a user can correct: jobs show them as one message, without a traceback."""

import re

_PASSWORD = re.compile(r"(\w+://[^\s:/?#@]*):\S*@")  # to the last @, as a password may contain one
_SECRET = re.compile(r"(?i)([?&](?:password|passwd|pwd|token|secret\w*)=)[^&#\s]*")


class UserError(ValueError):
    """Input cannot be used; the message says what is wrong, where, and what to do."""


def first_line_of(error: Exception) -> str:
    """Return an error's message in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def redacted(text: str) -> str:
    """Return ``text`` without the passwords in its addresses, fit to be shown or stored."""
    return _PASSWORD.sub(r"\1:***@", _SECRET.sub(r"\1***", text))
