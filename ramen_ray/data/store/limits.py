"""Limits on the size of cells and lines and on nesting: more would kill the process that reads."""

import re

import numpy as np

MAX_CELL_BYTES = 1 << 24
MAX_LINE_BYTES = 1 << 26
MAX_NESTING = 100
"""Lists and objects within each other in one line of JSON; Arrow's parser recurses."""

TOO_LONG = f"has more than {MAX_LINE_BYTES >> 20} MiB without a line break"

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?')
_OPENING = np.isin(np.arange(256), list(b"[{"))
_DEPTH = np.zeros(256, dtype=np.int64)
_DEPTH[list(b"[{")], _DEPTH[list(b"]}")] = 1, -1


class TooLargeError(ValueError):
    """A line is beyond a limit; ``line`` is its number, from 0."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def check_nesting(lines: bytes) -> None:
    """Check how deep the lines of JSON are nested.

    Raises:
        TooLargeError: one is nested deeper than ``MAX_NESTING``.
    """
    characters = np.frombuffer(lines, dtype=np.uint8)
    opening = np.flatnonzero(_OPENING[characters])
    if len(opening) <= MAX_NESTING:
        return
    ends = np.flatnonzero(characters == ord("\n"))
    line_of = np.searchsorted(ends, opening)
    doubtful = line_of[MAX_NESTING:][line_of[MAX_NESTING:] == line_of[:-MAX_NESTING]]
    for line in np.unique(doubtful).tolist():  # the brackets may be side by side, or in texts
        first = ends[line - 1] + 1 if line else 0
        last = ends[line] if line < len(ends) else len(lines)
        brackets = _STRING.sub(b"", lines[first:last])
        if _DEPTH[np.frombuffer(brackets, dtype=np.uint8)].cumsum().max(initial=0) > MAX_NESTING:
            raise TooLargeError(f"is nested more than {MAX_NESTING} deep", line)
