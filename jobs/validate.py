"""Report what is wrong or doubtful in a dataset directory, and what to do about it.

Examples:
    python jobs/validate.py datasets/foldoc
    python jobs/validate.py path/to/mine --json-file findings.json

Training refuses errors, but not warnings. The exit code is 0 without errors, 1 with errors, and 2
if there is no dataset directory.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Column, Table

from ramen_ray.command_line import parse_settings, run_job, write_json
from ramen_ray.config import Section
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.tasks import Task
from ramen_ray.data.validation import validate
from ramen_ray.data.validation.structure import inspect_structure


class ValidateSettings(Section):
    """Check a dataset directory; print its tables and the findings, errors first."""

    dataset: tyro.conf.Positional[Path]
    """Dataset directory."""
    json_file: Path | None = None
    """Also write the findings to this file, as JSON."""


def main() -> int:
    """Check, print, and return 1 if there are errors."""
    settings = parse_settings(ValidateSettings, __doc__)
    dataset = Dataset(settings.dataset)
    with Console(stderr=True).status("reading") as status:
        findings = validate(dataset, _in_tasks, lambda stage: status.update(f"checking {stage}"))
    counts = Table("table", Column("rows", justify="right"))
    for table, rows in inspect_structure(dataset).num_rows.items():
        counts.add_row(table, f"{rows:,}")
    Console().print(counts)
    for finding in findings:
        print(f"{finding.severity}: {finding}")
    errors = sum(finding.severity == "error" for finding in findings)
    print(f"errors: {errors}, warnings: {len(findings) - errors}")
    if settings.json_file is not None:
        write_json(settings.json_file, [asdict(finding) for finding in findings])
    return 1 if errors else 0


def _in_tasks(tasks: Sequence[Task]) -> list[Any]:
    from ramen_ray.orchestration.cluster.tasks import in_tasks  # small datasets do without Ray

    return in_tasks(tasks)


if __name__ == "__main__":
    sys.exit(run_job(main))
