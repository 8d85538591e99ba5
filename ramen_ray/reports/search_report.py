"""What is kept of a trial, and what the trials of a search show: tables, sentences, plots."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
from matplotlib.figure import Figure
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import create_trial

from ramen_ray.method.metrics.comparison import Difference, in_points
from ramen_ray.method.metrics.ranking import HEADLINES
from ramen_ray.reports.report_tables import ReportTable

TRIALS_FILE = "trials.csv"
BEST_FILE = "best_command.txt"
MOST_DESCRIBED = 10
FEWEST = 12  # least number of trials for a plot or importances to be useful
ADAPTIVE = "regularization.adaptive"
LAMBDAS = ("regularization.lambda_x.", "regularization.lambda_z.")
RESTART = "walk.restart_probability"
EXPLAINED = (*LAMBDAS, "loss.margin", RESTART)
MATTERS = 0.1  # share of the variance between trials
PLOT_FILE = "effects.png"
PIXELS_PER_INCH = 120
PANELS_IN_ROW = 4


@dataclass(frozen=True)
class TrialRecord:
    """How far a trial came on the validation split, and how it ended."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)  # changed settings, by dotted key
    value: float | None = None  # what trials are ranked by, at the last validation, if any
    metrics: Mapping[str, float] = field(default_factory=dict)  # at the same one; fractions
    epochs: int = 0
    seconds: float = 0.0  # of training, with the start of the trial
    is_whole: bool = False  # whether it trained to the end
    end: str = ""  # how it ended, in words; empty while it runs
    mlflow_run_id: str | None = None  # None if it has not begun its run
    drawn: Mapping[str, Any] = field(default_factory=dict)  # what a sampler drew for params
    course: Sequence[Sequence[float]] = ()  # its values so far: share of the training done, value


def write_sweep_report(
    folder: Path,
    trials: Sequence[TrialRecord],
    metric: str,
    command: str,
) -> dict[str, float]:
    """Write the table of trials, best first, and the ``command`` of the best one, if any.

    Returns the share of the metric's variance that each setting explains (fANOVA), if known.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"trial": t.name, metric: t.value, "end": t.end, **t.params, "run": t.mlflow_run_id}
        for t in trials
    ]
    pd.DataFrame(rows).to_csv(folder / TRIALS_FILE, index=False)
    if command:
        (folder / BEST_FILE).write_text(command + "\n")
    study = _study([trial for trial in trials if trial.value is not None])
    if len(study.trials) < FEWEST:
        return {}
    if len({trial.value for trial in study.trials}) == 1:  # no variance to explain
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def trials_table(trials: Sequence[TrialRecord], metric: str) -> ReportTable:
    """Lay out how the best of trials, best first, have ended."""
    rows = []
    for trial in trials[:MOST_DESCRIBED]:
        value = "–" if trial.value is None else f"{100 * trial.value:.2f}"
        tried = [
            f"{key} {setting:.4g}" if isinstance(setting, float) else f"{key} {setting}"
            for key, setting in trial.params.items()
        ]
        rows.append([trial.name, value, trial.end, ", ".join(tried)])
    columns = ("trial", metric, "ended", "settings")
    title = f"The best of {len(trials)} trials; all are in {TRIALS_FILE}"
    return ReportTable(title, columns, rows, text_columns=4)


def _study(trials: Sequence[TrialRecord]) -> optuna.Study:
    """Make a study of settings in which trials differ; what does not act in one is 0 or none."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions: dict[str, BaseDistribution] = {}
    columns: dict[str, list[Any]] = {}
    for key in dict.fromkeys(key for trial in trials for key in trial.params):
        values = [trial.params.get(key) for trial in trials]
        if all(value is None or type(value) in (int, float) for value in values):
            columns[key] = [float(value or 0) for value in values]
            distributions[key] = FloatDistribution(min(columns[key]), max(columns[key]))
        else:
            columns[key] = ["none" if value is None else json.dumps(value) for value in values]
            distributions[key] = CategoricalDistribution(sorted(set(columns[key])))
        if distributions[key].single():
            del distributions[key]
    study = optuna.create_study(direction="maximize")
    for row, trial in enumerate(trials):
        params = {key: columns[key][row] for key in distributions}
        study.add_trial(create_trial(params=params, distributions=distributions, value=trial.value))
    return study


def effects(trials: Sequence[TrialRecord], shares: Mapping[str, float], noise: float) -> list[str]:
    """Say of each explained setting whether it matters, and which values the best third have.

    ``shares`` are of the variance between ``trials``, best first, by setting; ``noise`` is the
    standard deviation over seeds, or 0 if it is not known.
    """
    if not shares:  # too few trials
        return []
    values = [trial.value for trial in trials if trial.value is not None]
    if values[0] - values[len(values) // 2] < noise:
        return ["no setting shows: the best trial is as near the median one as two seeds are"]
    best = [trial for trial in trials if trial.value is not None][: max(len(values) // 3, 1)]
    sentences = []
    for key, share in shares.items():
        if not key.startswith(EXPLAINED):
            continue
        explained = f"{key}: {100 * share:.0f} % of the differences between trials"
        if share < MATTERS:
            sentences.append(f"{explained}; it does not matter")
            continue
        used = [float(value) for trial in best if (value := trial.params.get(key))]
        num_without = len(best) - len(used)
        parts = [f"{min(used):.2g} to {max(used):.2g}"] if used else []
        if num_without:
            parts.append(f"{'off' if key == RESTART else '0'} in {num_without}")
        sentences.append(f"{explained}; the best {len(best)} have {', '.join(parts)}")
    return sentences


def plot_effects(
    folder: Path, trials: Sequence[TrialRecord], keys: Sequence[str], metric: str, noise: float
) -> None:
    """Plot the metric of trials, best first, over settings; the band is two seeds' noise wide."""
    shown = [key for key in keys if key.startswith(EXPLAINED)]
    if not shown:
        return
    validated = [(trial.params, 100 * trial.value) for trial in trials if trial.value is not None]
    highest = validated[0][1]
    num_rows = math.ceil(len(shown) / PANELS_IN_ROW)
    size = 3.2 * PANELS_IN_ROW, 3.2 * num_rows
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(num_rows, PANELS_IN_ROW, sharey=True, squeeze=False).flatten()
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    for key, axes in zip(shown, panels, strict=False):
        for is_adaptive, marker in ((False, "o"), (True, "^")):
            points = [
                (params.get(key) or 0, value)
                for params, value in validated
                if bool(params.get(ADAPTIVE)) == is_adaptive
            ]
            label = "adaptive λ (at its highest)" if is_adaptive else "fixed λ"
            axes.plot(*np.reshape(points, (-1, 2)).T, marker, label=label)
        if key.startswith(LAMBDAS):
            positive = [value for params, _ in validated if (value := params.get(key))]
            axes.set_xscale("symlog", linthresh=min(positive, default=1.0))
        axes.set_xlabel(key.partition(".")[2] + (" (0: no walk)" if key == RESTART else ""))
        axes.axhspan(highest - 200 * noise, highest, alpha=0.2, color="grey")
    figure.supylabel(f"{metric} (%)")
    panels[0].legend(fontsize="small")
    figure.savefig(folder / PLOT_FILE, dpi=PIXELS_PER_INCH)


def candidates_table(
    candidates: Mapping[str, TrialRecord], gains: Mapping[str, Mapping[str, Difference]]
) -> ReportTable:
    """Lay out candidates, and how far they are behind the chosen one."""
    rows = []
    for name, trial in candidates.items():
        reached = [f"{100 * trial.metrics[metric]:.2f}" for metric in HEADLINES]
        behind = [
            in_points(gains[name][metric], 1) if name in gains else "" for metric in HEADLINES
        ]
        end = "" if trial.is_whole else trial.end or "out of time"
        rows.append([name, *reached, *behind, f"{trial.epochs:g}", f"{trial.seconds:.0f}", end])
    columns = ["candidate", *(f"validation {metric}" for metric in HEADLINES)]
    columns += [*(f"{metric} behind" for metric in HEADLINES), "epochs", "seconds", ""]
    return ReportTable("", columns, rows)


def verdict(
    candidates: Mapping[str, TrialRecord],
    chosen: str,
    why: Sequence[str],
    gains: Mapping[str, Mapping[str, Difference]],
) -> list[str]:
    """Say what matters on the data, what does not, and how sure that is.

    ``why`` says how one was chosen. ``gains`` are by how much it exceeds others, by their names.
    """
    said: dict[str, list[str]] = {"what matters": [], "what does not show": []}
    for other, by in gains.items():
        shows = any(low > 0 or high < 0 for _, low, high in (by[metric] for metric in HEADLINES))
        figures = ", ".join(f"{metric} {in_points(by[metric], digits=1)}" for metric in HEADLINES)
        said["what matters" if shows else "what does not show"].append(f"over {other}: {figures}")
    finished = sum(trial.is_whole for trial in candidates.values())
    late = sum(not trial.is_whole and not trial.end for trial in candidates.values())
    sentences = [
        f"train: {chosen}",
        *why,
        *(f"{title}: {'; '.join(others)}" for title, others in said.items() if others),
        f"how sure: {finished} of {len(candidates)} candidates trained to the end; figures of the "
        f"others in the table are those by which they were chosen or stopped",
    ]
    if late:
        sentences.append(
            f"{late} of {len(candidates)} were out of time: the same command with more --minutes "
            f"trains them to the end"
        )
    return sentences
