"""A sweep's results: a table of trials, which settings matter, and how they interact."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import optuna
import pandas as pd
from matplotlib import pyplot as plt
from optuna.distributions import BaseDistribution
from optuna.trial import TrialState

TRIALS_FILE = "trials.csv"
BEST_FILE = "best_command.txt"
MOST_DESCRIBED = 30
FEWEST = 4  # least number of trials for a plot or importances to be useful


@dataclass(frozen=True)
class SweepTrial:
    """One trial of a sweep."""

    name: str  # the trial's name
    params: Mapping[str, Any]  # the sampled settings, by dotted key
    value: float | None  # its best value of the metric; None if it has none
    end: str  # how it ended, in words
    mlflow_run_id: str | None  # its MLflow run; None if it never started one


def write_sweep_table(
    folder: Path, trials: Sequence[SweepTrial], metric: str, command: str | None
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


def describe_sweep(trials: Sequence[SweepTrial], metric: str, command: str | None) -> str:
    """Say in Markdown how trials, best first, have ended, and how to train the best."""
    rows = [f"| trial | {metric} | ended | settings |", "|---|--:|---|---|"]
    for trial in trials[:MOST_DESCRIBED]:
        value = "–" if trial.value is None else f"{100 * trial.value:.2f}"
        rows.append(f"| {trial.name} | {value} | {trial.end} | {_settings_of(trial)} |")
    rest = len(trials) - MOST_DESCRIBED
    more = [f"and {rest} more in {TRIALS_FILE}"] * (rest > 0)
    best = [f"Train the best: `{command}`"] * (command is not None)
    return "\n\n".join([*best, "\n".join(rows), *more])


def _settings_of(trial: SweepTrial) -> str:
    """Return a trial's settings in one line."""
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in trial.params.items()
    )


def write_sweep_plots(
    folder: Path,
    trials: Sequence[SweepTrial],
    distributions: Mapping[str, BaseDistribution],
    metric: str,
) -> None:
    """Write parallel coordinates, importances and contours of λ_x × λ_z as HTML and PNG."""
    study = _study(trials, distributions)
    if len(study.trials) < FEWEST:  # too few for any plot
        return
    _write(folder, "parallel_coordinates", study, "plot_parallel_coordinate", target_name=metric)
    if _has_importances(study):
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        _write(folder, "importances", study, "plot_param_importances", evaluator=evaluator)
    for query_side, ad_side in _pairs(distributions):
        name = query_side.rpartition(".")[2]
        pair = [query_side, ad_side]
        _write(folder, f"contour_{name}", study, "plot_contour", params=pair, target_name=metric)


def parameter_importances(
    trials: Sequence[SweepTrial], distributions: Mapping[str, BaseDistribution]
) -> dict[str, float]:
    """Return the share of the metric's variance that each setting explains (fANOVA), if known."""
    study = _study(trials, distributions)
    if not _has_importances(study):
        return {}
    return dict(
        optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0)
        )
    )


def _has_importances(study: optuna.Study) -> bool:
    return len(study.trials) >= FEWEST and len({trial.value for trial in study.trials}) > 1


def _study(
    trials: Sequence[SweepTrial], distributions: Mapping[str, BaseDistribution]
) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    for trial in trials:
        if trial.value is not None:
            done = optuna.trial.create_trial(
                state=TrialState.COMPLETE,
                params=dict(trial.params),
                distributions=dict(distributions),
                value=trial.value,
            )
            study.add_trial(done)
    return study


def _pairs(distributions: Mapping[str, BaseDistribution]) -> list[tuple[str, str]]:
    """Return the pairs of λ_x and λ_z of the anchor sets that have both."""
    query_sides = [key for key in distributions if ".lambda_x." in key]
    both = [(key, key.replace(".lambda_x.", ".lambda_z.")) for key in query_sides]
    return [pair for pair in both if pair[1] in distributions]


def _write(folder: Path, name: str, study: optuna.Study, plot: str, **options: Any) -> None:
    getattr(optuna.visualization, plot)(study, **options).write_html(folder / f"{name}.html")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        axes = getattr(optuna.visualization.matplotlib, plot)(study, **options)
    axes.figure.set_size_inches(9, 5)
    axes.figure.savefig(folder / f"{name}.png", dpi=120, bbox_inches="tight")
    plt.close(axes.figure)
