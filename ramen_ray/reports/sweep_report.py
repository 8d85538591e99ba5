"""Which settings of a sweep matter, and how they interact."""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import optuna
from matplotlib import pyplot as plt
from optuna.distributions import BaseDistribution
from optuna.trial import TrialState

from ramen_ray.reports.plots import PIXELS_PER_INCH
from ramen_ray.reports.trials import TrialRecord

FEWEST = 4  # least number of trials for a plot or importances to be useful


def write_sweep_plots(
    folder: Path,
    trials: Sequence[TrialRecord],
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
    trials: Sequence[TrialRecord], distributions: Mapping[str, BaseDistribution]
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
    trials: Sequence[TrialRecord], distributions: Mapping[str, BaseDistribution]
) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    for trial in trials:
        if trial.value is not None:
            done = optuna.trial.create_trial(
                state=TrialState.COMPLETE,
                params={
                    key: _as_chosen(of, distributions[key]) for key, of in trial.params.items()
                },
                distributions=dict(distributions),
                value=trial.value,
            )
            study.add_trial(done)
    return study


def _as_chosen(value: Any, distribution: Any) -> Any:
    """Return a value as the space has it: records are JSON, which turns tuples into lists."""
    choices = getattr(distribution, "choices", ())
    return next((one for one in choices if json.dumps(one) == json.dumps(value)), value)


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
    axes.figure.savefig(folder / f"{name}.png", dpi=PIXELS_PER_INCH, bbox_inches="tight")
    plt.close(axes.figure)
