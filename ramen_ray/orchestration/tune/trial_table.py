"""The table of a sweep's trials, ``trials.parquet``: all that a sweep goes on from."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ramen_ray.data.store.made_folder import whole_file
from ramen_ray.orchestration.run.directory import RunError
from ramen_ray.reports.search_report import TrialRecord

TABLE_FILE = "trials.parquet"
AS_JSON = ("params", "drawn", "metrics", "course")


def write_trials(folder: Path, records: Mapping[str, TrialRecord]) -> None:
    """Write the table of a sweep's folder anew."""
    rows = [asdict(record) for record in records.values()]
    for row in rows:
        row |= {column: json.dumps(row[column]) for column in AS_JSON}
    with whole_file(folder / TABLE_FILE) as aside:
        pq.write_table(pa.Table.from_pylist(rows), aside)


def read_trials(folder: Path) -> dict[str, TrialRecord]:
    """Read a sweep's trials by name, in the order of their begin; none if it has no table yet.

    Raises a RunError if the file is not such a table.
    """
    file = folder / TABLE_FILE
    if not file.is_file():
        return {}
    try:
        rows = pq.read_table(file).to_pylist()
        parsed = [row | {column: json.loads(row[column]) for column in AS_JSON} for row in rows]
        return {row["name"]: TrialRecord(**row) for row in parsed}
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} is damaged; to begin the sweep anew, delete {folder}") from error
