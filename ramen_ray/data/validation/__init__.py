"""Find everything that is wrong or doubtful in a dataset directory."""

from collections.abc import Callable
from functools import partial

from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.tasks import RunTasks, one_after_another, runner_for
from ramen_ray.data.validation.batches import UnreadableFileError, table_batches
from ramen_ray.data.validation.cross_checks import cross_findings
from ramen_ray.data.validation.row_checks import row_findings
from ramen_ray.data.validation.structure import inspect_structure


def check(dataset: Dataset, run: RunTasks = one_after_another) -> None:
    """Refuse a dataset directory in which :func:`validate` finds errors.

    Raises:
        DatasetError: lists all of them.
    """
    raise_errors(dataset, validate(dataset, run))


def validate(
    dataset: Dataset,
    run: RunTasks = one_after_another,
    progress: Callable[[str], None] = lambda stage: None,
) -> list[Finding]:
    """Check the whole dataset directory as a stream; returns all findings, errors first.

    Tables that cannot be read are reported and left out of the later checks.

    Args:
        dataset: the dataset directory.
        run: runs the checks of a large dataset; those of a small one run in this process.
        progress: called with the name of each stage as it starts.
    """
    progress("footers")
    structure = inspect_structure(dataset)
    findings, num_rows = list(structure.findings), structure.num_rows
    run = runner_for(sum(num_rows.values()), run)
    progress("rows")
    of_tables = run([partial(_table_findings, dataset, table, num_rows) for table in num_rows])
    readable: dict[str, int] = {}
    for table, (found, is_readable) in zip(num_rows, of_tables, strict=True):
        findings += found
        if is_readable:
            readable[table] = num_rows[table]
    progress("tables against each other")
    findings += cross_findings(dataset, readable, run)
    return sorted(findings, key=lambda finding: finding.severity)


def _table_findings(
    dataset: Dataset, table: str, num_rows: dict[str, int]
) -> tuple[list[Finding], bool]:
    """Return what is wrong with single rows of a table, and whether it can be read."""
    try:
        return row_findings(table, table_batches(dataset, table), num_rows), True
    except UnreadableFileError as error:
        return [error.finding], False
