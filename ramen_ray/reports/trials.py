"""What is kept of a trial of a search, and the table of a sweep's trials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from ramen_ray.reports.tables import ReportTable, as_markdown

TRIALS_FILE = "trials.csv"
BEST_FILE = "best_command.txt"
MOST_DESCRIBED = 30


@dataclass(frozen=True)
class TrialRecord:
    """How far a trial came on the validation split, and how it ended."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)  # sampled settings, by dotted key
    value: float | None = None  # what decides, of its best validation; None before the first
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the same, by name; fractions
    epochs: int = 0
    seconds: float = 0.0  # of training, with the start of the trial
    is_whole: bool = False  # whether it trained to the end
    end: str = ""  # how it ended, in words; empty while it runs
    mlflow_run_id: str | None = None  # None if it has not begun its run


def settings_of(trial: TrialRecord) -> str:
    """Return a trial's settings in one line."""
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in trial.params.items()
    )


def write_sweep_table(
    folder: Path, trials: Sequence[TrialRecord], metric: str, command: str | None
) -> None:
    """Write the table of trials, best first, and the command of the best one, if any."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"trial": t.name, metric: t.value, "end": t.end, **t.params, "run": t.mlflow_run_id}
        for t in trials
    ]
    pd.DataFrame(rows).to_csv(folder / TRIALS_FILE, index=False)
    if command is not None:
        (folder / BEST_FILE).write_text(command + "\n")


def describe_sweep(trials: Sequence[TrialRecord], metric: str, command: str | None) -> str:
    """Say in Markdown how trials, best first, have ended, and how to train the best."""
    rows = []
    for trial in trials[:MOST_DESCRIBED]:
        value = "–" if trial.value is None else f"{100 * trial.value:.2f}"
        rows.append([trial.name, value, trial.end, settings_of(trial)])
    columns = ("trial", metric, "ended", "settings")
    table = as_markdown(ReportTable("", columns, rows, text_columns=4))
    rest = len(trials) - MOST_DESCRIBED
    more = [f"and {rest} more in {TRIALS_FILE}"] * (rest > 0)
    best = [f"Train the best: `{command}`"] * (command is not None)
    return "\n\n".join([*best, table, *more])
