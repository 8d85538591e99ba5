"""What a search within some minutes has found, as a table, a plot and plain sentences."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from ramen_ray.method.metrics.comparison import Difference, in_points
from ramen_ray.method.metrics.judgement import HEADLINES


@dataclass(frozen=True)
class Outcome:
    """How far a candidate came on the validation split."""

    p_at_1: float  # P@1 of its best epoch, a fraction
    r_at_10: float  # R@10 of the same epoch
    epochs: int  # epochs that it trained
    seconds: float  # of training, with the start of the trial
    finished: bool  # whether it trained to the end

    @property
    def value(self) -> float:
        """What decides: the mean of both."""
        return (self.p_at_1 + self.r_at_10) / 2


def outcome_table(outcomes: Mapping[str, Outcome]) -> str:
    """Return a Markdown table of candidates, in their order."""
    rows = [
        "| candidate | validation P@1 | validation R@10 | epochs | seconds | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for name, one in outcomes.items():
        end = "" if one.finished else "stopped"
        figures = f"{100 * one.p_at_1:.2f} | {100 * one.r_at_10:.2f} | {one.epochs}"
        rows.append(f"| {name} | {figures} | {one.seconds:.0f} | {end} |")
    return "\n".join(rows)


def verdict(
    outcomes: Mapping[str, Outcome], gains: Mapping[str, Mapping[str, Difference]], num_queries: int
) -> list[str]:
    """Say what matters on the data, what does not, and how sure that is.

    ``outcomes`` come best first; ``gains`` are differences of the best to others, by these names.
    """
    best = next(iter(outcomes))
    compared = {
        other: ", ".join(f"{metric} {in_points(by[metric], digits=1)}" for metric in HEADLINES)
        for other, by in gains.items()
    }
    matters = [other for other, by in gains.items() if any(by[m][1] > 0 for m in HEADLINES)]
    level = [other for other in gains if other not in matters]
    finished = sum(one.finished for one in outcomes.values())
    sentences = []
    if matters:
        said = "; ".join(f"over {other}: {compared[other]}" for other in matters)
        sentences.append(f"what matters: {best} gains {said}")
    if level:
        said = "; ".join(f"over {other}: {compared[other]}" for other in level)
        sentences.append(f"what does not show: {best} {said}")
    return [
        *sentences,
        f"how sure: {finished} of {len(outcomes)} candidates trained to the end, with one seed, on "
        f"{num_queries:,} validation queries; the best of many looks better than it is, so "
        f"repeat it with other seeds before you rely on small differences",
    ]


def write_recommendation(
    folder: Path, outcomes: Mapping[str, Outcome], table: str, sentences: list[str]
) -> None:
    """Write the table with the sentences as Markdown, and a plot of all candidates as PNG."""
    folder.mkdir(exist_ok=True)
    said = "".join(f"- {sentence}\n" for sentence in sentences)
    (folder / "recommendation.md").write_text(f"{table}\n\n{said}")
    figure = Figure(figsize=(9, 1 + 0.3 * len(outcomes)), layout="constrained")
    axes, places = figure.subplots(), range(len(outcomes))
    for label, values in (
        ("P@1", [one.p_at_1 for one in outcomes.values()]),
        ("R@10", [one.r_at_10 for one in outcomes.values()]),
    ):
        axes.plot([100 * value for value in values], places, "o", label=label)
    axes.set_yticks(places, list(outcomes))
    axes.invert_yaxis()
    axes.set_xlabel("validation (%)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    figure.savefig(folder / "recommendation.png", dpi=120)
