"""Findings: what is wrong with an input, where, how severe it is, and what to do about it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.errors import printable

MAX_EXAMPLES = 3
MAX_LISTED = 20
FEW = 3  # doubtful rows of a kind that are not yet an error
MAX_EXAMPLE_LENGTH = 60
Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a file, and what to do about it."""

    severity: Severity  # an error stops training, a warning does not
    file: str  # or the folder where something is missing; relative in a dataset directory
    message: str
    advice: str = ""
    row: int | None = None  # the first: from 0 in parquet, the line from 1 in text files
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


@dataclass(frozen=True)
class FaultKind:
    """A way for rows to be wrong: what is said of them, and how they are found.

    In a user's column ``flags`` finds them, in a table of a dataset ``sql``; other rows are found
    as they are read. What it has of :class:`Finding` means the same.
    """

    message: str
    advice: str = ""
    column: str | None = None
    severity: Severity = "error"
    most: int = 0  # so many such rows are no more than a warning
    always: bool = False  # they are refused even where bad rows are skipped
    skipped: str = "left out"  # what becomes of them where bad rows are skipped
    # of a column's values, of texts an Arrow array (n,), else one of NumPy
    flags: Callable[[Any], Booleans] = lambda values: np.zeros(len(values), dtype=bool)
    unwanted: bool = False  # rows with flags are no fault: they are left out and counted
    sql: str = ""  # selects ``row`` and what is wrong, ``value``, from ``this``, which has ``row``
    whole: str = ""  # SQL over the table for how many could break it; by default its rows


@dataclass
class Tally:
    """Rows of one kind in some files: all are counted, and the first few are shown."""

    kind: FaultKind
    count: int = 0
    files: set[str] = field(default_factory=set)
    _examples: list[tuple[str, int, Any]] = field(default_factory=list)
    _first: tuple[str, int] | None = None

    def add(self, file: object, rows: Int64s | Sequence[int], values: Sequence[Any] = ()) -> None:
        """Count the rows (n,) of a file; ``values`` are those of the first few."""
        self._first = self._first or (str(file), int(rows[0]))
        self.count += len(rows)
        self.files.add(str(file))
        room = MAX_EXAMPLES - len(self._examples)
        pairs = zip(rows, values[:room], strict=False)
        self._examples += [(str(file), int(row), value) for row, value in pairs]

    def finding(self) -> Finding:
        """Say how many rows there are, as in "2 cells are empty (in 2 files): null, null"."""
        over = f" (in {len(self.files)} files)" if len(self.files) > 1 else ""
        examples = [_show(value) for _, _, value in self._examples]
        return self._finding(f"{self.count} {self.kind.message}{over}", examples)

    def share(self, out_of: int | None = None) -> Finding:
        """Say where the first few are, as in "empty text (2 of 60, 3.3%): '', '' (row 7)"."""
        share = f" ({self.count} of {out_of}, {self.count / out_of:.1%})" if out_of else ""
        examples = [_show(value) + self._place(file, row) for file, row, value in self._examples]
        return self._finding(f"{self.kind.message}{share}", examples)

    def _finding(self, what: str, examples: Sequence[str]) -> Finding:
        kind = self.kind
        file, row = self._first or ("", 0)
        severity = kind.severity if self.count > kind.most else "warning"
        rest = self.count - len(examples)
        more = f" and {rest} more" if rest else ""
        message = f"{what}: {', '.join(examples)}{more}" if examples else what
        return Finding(severity, file, message, kind.advice, row, kind.column)

    def _place(self, file: str, row: int) -> str:
        first_file, first_row = self._first or ("", 0)
        if file != first_file:
            return f" ({file.rpartition('/')[2]}, row {row})"
        return f" (row {row})" if row != first_row else ""


class Tallies(dict[FaultKind, Tally]):
    """The tallies of an input, in the order in which their kinds were first found."""

    def add(
        self,
        kind: FaultKind,
        file: object,
        rows: Int64s | Sequence[int],
        values: Sequence[Any] = (),
    ) -> None:
        """Count the rows (n,) of a file; ``values`` are those of the first few."""
        if len(rows):
            self.setdefault(kind, Tally(kind)).add(file, rows, values)


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
    """Raise one DatasetError that lists the first errors in ``what``, if there are any."""
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
