"""Report what is wrong or doubtful in a dataset directory, and what to do about it.

Examples:
    python jobs/validate.py datasets/foldoc
    python jobs/validate.py path/to/mine --json-file findings.json

Training refuses errors, but not warnings. The exit code is 0 without errors, 1 with errors, and 2
if there is no dataset directory.
"""

import shlex
from dataclasses import asdict
from pathlib import Path

import tyro

from ramen_ray.command_line import parse_settings, run_job, write_json
from ramen_ray.config import Section
from ramen_ray.data.checks.structure import inspect_structure
from ramen_ray.data.checks.validation import validate
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import shown_path
from ramen_ray.reports.report_tables import ReportTable, show


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
    findings = validate(dataset)
    counts = inspect_structure(dataset)[1].items()
    show(ReportTable("", ("table", "rows"), [[table, f"{rows:,}"] for table, rows in counts]))
    for finding in findings:
        print(f"{finding.severity}: {finding}")
    errors = sum(finding.severity == "error" for finding in findings)
    print(f"errors: {errors}, warnings: {len(findings) - errors}")
    if settings.json_file is not None:
        write_json(settings.json_file, [asdict(finding) for finding in findings])
    if not errors:
        print(f"next: {shlex.join(['python', 'jobs/describe.py', shown_path(settings.dataset)])}")
    return 1 if errors else 0


if __name__ == "__main__":
    run_job(main)
