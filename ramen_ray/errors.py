"""Errors that a user can correct: jobs show them as one message, without a traceback."""


class UserError(ValueError):
    """Input cannot be used; the message says what is wrong, where, and what to do."""


def first_line_of(error: Exception) -> str:
    """Return an error's message in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
