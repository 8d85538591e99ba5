"""What is wrong with some input: where it stands, how bad it is, what to do."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ramen_ray.data.dataset import DatasetError


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a file.

    Attributes:
        severity: an ``error`` cannot be trained on; a ``warning`` can.
        file: the file, or the folder where something is missing.
        message: what is wrong, with an example.
        advice: what to do about it.
        row: first row concerned: counted from 0 in parquet, the line number (from 1) in text files.
        column: the column concerned.
    """

    severity: Literal["error", "warning"]
    file: str
    message: str
    advice: str = ""
    row: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        """Say it in one line."""
        place = [self.file]
        if self.row is not None:
            place.append(f"row {self.row}")
        if self.column is not None:
            place.append(f"column {self.column!r}")
        advice = f"; {self.advice}" if self.advice else ""
        return f"{', '.join(place)}: {self.message}{advice}"


def raise_errors(what: str, findings: Iterable[Finding]) -> None:
    """Raise one DatasetError that lists the errors among ``findings``, if there are any.

    Args:
        what: names the input, as in "the dataset directory /data/mine".
        findings: what was found; warnings are passed over.
    """
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    if errors:
        listed = "".join(f"\n  - {error}" for error in errors)
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
