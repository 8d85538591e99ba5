"""What the graph's settings and the margin did in a sweep: a plot of each, and a sentence."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from ramen_ray.reports.pages import PIXELS_PER_INCH
from ramen_ray.reports.search_report import TrialRecord

ADAPTIVE = "regularization.adaptive"
LAMBDA = "regularization.lambda_"
RESTART = "walk.restart_probability"
EXPLAINED = (LAMBDA, "loss.margin", RESTART)
MATTERS = 0.1  # share of the variance between trials
PLOT_FILE = "effects.png"


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
    figure, axes = plt.subplots(
        1, len(shown), sharey=True, squeeze=False, figsize=(3.2 * len(shown), 3.5)
    )
    for key, axis in zip(shown, axes[0], strict=True):
        for is_adaptive, marker in ((False, "o"), (True, "^")):
            points = [
                (params.get(key) or 0, value)
                for params, value in validated
                if bool(params.get(ADAPTIVE)) == is_adaptive
            ]
            label = "adaptive λ (at its highest)" if is_adaptive else "fixed λ"
            axis.plot(*zip(*points, strict=True), marker, label=label) if points else None
        if key.startswith(LAMBDA):
            positive = [value for params, _ in validated if (value := params.get(key))]
            axis.set_xscale("symlog", linthresh=min(positive, default=1.0))
        axis.set_xlabel(key.partition(".")[2] + (" (0: no walk)" if key == RESTART else ""))
        axis.axhspan(validated[0][1] - 200 * noise, validated[0][1], alpha=0.2, color="grey")
    axes[0][0].set_ylabel(f"{metric} (%)")
    axes[0][0].legend(fontsize="small")
    figure.savefig(folder / PLOT_FILE, dpi=PIXELS_PER_INCH, bbox_inches="tight")
    plt.close(figure)
