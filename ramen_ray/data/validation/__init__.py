"""Find everything that is wrong or doubtful in a dataset directory."""

from collections.abc import Callable

from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.validation.batches import UnreadableFileError, table_batches
from ramen_ray.data.validation.cross_checks import cross_findings
from ramen_ray.data.validation.row_checks import row_findings
from ramen_ray.data.validation.structure import inspect_structure


def check(dataset: Dataset) -> None:
    """Refuse a dataset directory in which :func:`validate` finds errors.

    Raises:
        DatasetError: lists all of them.
    """
    raise_errors(dataset, validate(dataset))


def validate(
    dataset: Dataset, progress: Callable[[str], None] = lambda stage: None
) -> list[Finding]:
    """Check the whole dataset directory as a stream; returns all findings, errors first.

    Tables that cannot be read are reported and left out of the later checks.

    Args:
        dataset: the dataset directory.
        progress: called with the name of each stage as it starts.
    """
    progress("footers")
    structure = inspect_structure(dataset)
    findings = list(structure.findings)
    whole: dict[str, int] = {}
    for table, count in structure.num_rows.items():
        progress(table)
        try:
            findings += row_findings(table, table_batches(dataset, table), structure.num_rows)
            whole[table] = count
        except UnreadableFileError as error:
            findings.append(error.finding)
    progress("tables against each other")
    findings += cross_findings(dataset, whole)
    return sorted(findings, key=lambda finding: finding.severity)
