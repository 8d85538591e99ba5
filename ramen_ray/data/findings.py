"""Findings: what is wrong with an input, where, how severe it is, and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.errors import printable

MAX_EXAMPLES = 3
MAX_LISTED = 20
MAX_EXAMPLE_LENGTH = 60
Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a file.

    Attributes:
        severity: an ``error`` stops training, a ``warning`` does not.
        file: the file, or the folder where something is missing; relative in a dataset directory.
        message: what is wrong, with an example.
        advice: what to do about it.
        row: the first such row: counted from 0 in parquet, the line number (from 1) in text files.
        column: the column.
    """

    severity: Severity
    file: str
    message: str
    advice: str = ""
    row: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        """Describe the finding in one line."""
        place = [self.file]
        if self.row is not None:
            place.append(f"row {self.row}")
        if self.column is not None:
            place.append(f"column {self.column!r}")
        advice = f"; {self.advice}" if self.advice else ""
        return printable(f"{', '.join(place)}: {self.message}{advice}")


@dataclass
class Tally:
    """Rows of a stream that break one rule: all are counted, and the first few are shown.

    Attributes:
        severity, message, advice, column: see :class:`Finding`.
        count: how many values were found so far.
    """

    severity: Severity
    message: str
    advice: str
    column: str
    count: int = 0
    _first: tuple[Path, int] | None = None
    _examples: list[str] = field(default_factory=list)

    def add(self, file: Path, rows: NDArray[np.int64], values: pa.Array) -> None:
        """Count ``values`` (n,), found in ``rows`` (n,) of ``file``."""
        self.count += len(rows)
        room = MAX_EXAMPLES - len(self._examples)
        for row, value in zip(rows[:room].tolist(), values[:room].to_pylist(), strict=True):
            self._examples.append(_show(value) + self._place(file, row))

    def _place(self, file: Path, row: int) -> str:
        if self._first is None:
            self._first = file, row
        if (file, row) == self._first:
            return ""
        return f" (row {row})" if file == self._first[0] else f" ({file.name}, row {row})"

    def findings(self, out_of: int | None = None) -> list[Finding]:
        """Return one finding, or none if nothing was counted.

        Args:
            out_of: total number of values; if given, the finding shows the share.
        """
        if self._first is None:
            return []
        share = f" ({self.count} of {out_of}, {self.count / out_of:.1%})" if out_of else ""
        rest = self.count - len(self._examples)
        examples = ", ".join(self._examples) + (f" and {rest} more" if rest else "")
        file, row = self._first
        message = f"{self.message}{share}: {examples}"
        return [Finding(self.severity, str(file), message, self.advice, row, self.column)]


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, dict):
        return " ".join(f"{name} {_show(item)}" for name, item in value.items())
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str | bytes):
        cut = value[:MAX_EXAMPLE_LENGTH]
        return repr(cut) + ("..." if len(cut) < len(value) else "")
    return str(value)


def raise_errors(what: object, findings: Iterable[Finding]) -> None:
    """Raise one DatasetError that lists the first errors among ``findings``, if there are any.

    Args:
        what: the input, or its name, as in "the dataset directory /data/mine".
        findings: what was found; warnings are ignored.
    """
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    if errors:
        listed = "".join(f"\n  - {error}" for error in errors[:MAX_LISTED])
        rest = len(errors) - MAX_LISTED
        listed += f"\n  and {rest} more" if rest > 0 else ""
        raise DatasetError(f"{what} is not usable:{listed}")


def error_at(
    file: object,
    message: str,
    *,
    advice: str = "",
    row: int | None = None,
    column: str | None = None,
) -> DatasetError:
    """Return the exception that reports one error; the arguments are those of a Finding."""
    return DatasetError(str(Finding("error", str(file), message, advice, row, column)))
