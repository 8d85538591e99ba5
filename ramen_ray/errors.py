"""What a user can put right: jobs show these errors as one message, without a traceback."""


class UserError(ValueError):
    """Something that the user gave cannot be used; the message says what, where and what to do."""


def first_line_of(error: Exception) -> str:
    """Say an error in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
