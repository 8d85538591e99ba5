"""What is wrong with the rows of a table, one finding of each kind, however many files have it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.findings import Finding, Severity

EXAMPLES = 3
FEW = 3
"""Doubtful rows of a kind that are not yet an error."""
ADVICE = "correct them, or leave these rows out with --skip-bad-rows"


@dataclass(frozen=True)
class Kind:
    """A way for rows to be wrong.

    Attributes:
        message: follows the number of rows, as in "3 cells are empty".
        advice, column, severity: see :class:`~ramen_ray.data.findings.Finding`.
        most: how many such rows are no more than a warning.
        always: whether they are refused even where bad rows are skipped.
    """

    message: str
    advice: str = ADVICE
    column: str | None = None
    severity: Severity = "error"
    most: int = 0
    always: bool = False


@dataclass
class Fault:
    """Rows of one kind.

    Attributes:
        kind: what is wrong with them.
        count: number of such rows.
        files: the files that have any.
        first: file and row of the first.
        examples: the first few cells.
    """

    kind: Kind
    count: int = 0
    files: set[str] = field(default_factory=set)
    first: tuple[str, int] | None = None
    examples: list[Any] = field(default_factory=list)

    def add(self, file: str, rows: Int64s, cells: Sequence[Any]) -> None:
        """Count the rows (n,) of a file; ``cells`` are those of the first few."""
        if len(rows):
            self.first = self.first or (file, int(rows[0]))
            self.count += len(rows)
            self.files.add(file)
            self.examples += cells[: EXAMPLES - len(self.examples)]

    def finding(self) -> Finding:
        """Say it in one line."""
        file, row = self.first or ("", 0)
        examples = ", ".join("nothing" if cell is None else repr(cell) for cell in self.examples)
        rest = self.count - len(self.examples)
        more = f" and {rest} more" if rest and examples else ""
        over = f" (in {len(self.files)} files)" if len(self.files) > 1 else ""
        what = f"{self.count} {self.kind.message}{over}"
        return Finding(
            self.kind.severity if self.count > self.kind.most else "warning",
            file,
            f"{what}: {examples}{more}" if examples else what,
            self.kind.advice,
            row,
            self.kind.column,
        )


class Faults:
    """The faults of one table, in the order in which they were first found."""

    def __init__(self) -> None:
        """Begin with none."""
        self._faults: dict[Kind, Fault] = {}

    def add(self, kind: Kind, file: str, rows: Int64s, cells: Sequence[Any] = ()) -> None:
        """Count the rows (n,) of a file; ``cells`` are those of the first few."""
        if len(rows):
            self._faults.setdefault(kind, Fault(kind)).add(file, rows, cells)

    def add_uncounted(self, kind: Kind, count: int) -> None:
        """Count more rows of a kind that was added before."""
        self._faults[kind].count += count

    def findings(self, always: bool = False) -> list[Finding]:
        """Return one finding of each kind; if ``always``, of those that are always refused."""
        return [
            fault.finding() for fault in self._faults.values() if fault.kind.always or not always
        ]

    def clear(self) -> None:
        """Forget them."""
        self._faults.clear()
