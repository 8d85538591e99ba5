"""What a search within some minutes has found, as a table, a plot and plain sentences."""

from collections.abc import Mapping
from pathlib import Path

from ramen_ray.method.metrics.comparison import Difference, in_points
from ramen_ray.method.metrics.judgement import HEADLINES
from ramen_ray.reports.plots import drawn
from ramen_ray.reports.tables import ReportTable, as_markdown
from ramen_ray.reports.trials import TrialRecord


def candidates_table(candidates: Mapping[str, TrialRecord]) -> str:
    """Return a Markdown table of candidates by name, in their order."""
    rows = []
    for name, one in candidates.items():
        reached = [f"{100 * one.metrics[metric]:.2f}" for metric in HEADLINES]
        end = "" if one.is_whole else "stopped"
        rows.append([name, *reached, f"{one.epochs}", f"{one.seconds:.0f}", end])
    columns = ("candidate", *(f"validation {name}" for name in HEADLINES))
    return as_markdown(ReportTable("", (*columns, "epochs", "seconds", ""), rows))


def verdict(
    candidates: Mapping[str, TrialRecord],
    gains: Mapping[str, Mapping[str, Difference]],
    num_queries: int,
) -> list[str]:
    """Say what matters on the data, what does not, and how sure that is.

    ``candidates`` come best first; ``gains`` are differences of the best to others, by these names.
    """
    best = next(iter(candidates))
    compared = {
        other: ", ".join(f"{metric} {in_points(by[metric], digits=1)}" for metric in HEADLINES)
        for other, by in gains.items()
    }
    matters = [other for other, by in gains.items() if any(by[m][1] > 0 for m in HEADLINES)]
    level = [other for other in gains if other not in matters]
    finished = sum(one.is_whole for one in candidates.values())
    sentences = []
    if matters:
        said = "; ".join(f"over {other}: {compared[other]}" for other in matters)
        sentences.append(f"what matters: {best} gains {said}")
    if level:
        said = "; ".join(f"over {other}: {compared[other]}" for other in level)
        sentences.append(f"what does not show: {best} {said}")
    return [
        *sentences,
        f"how sure: {finished} of {len(candidates)} candidates trained to the end, with one seed, "
        f"on {num_queries:,} validation queries; the best of many looks better than it is, so "
        f"repeat it with other seeds before you rely on small differences",
    ]


def write_recommendation(
    folder: Path, candidates: Mapping[str, TrialRecord], table: str, sentences: list[str]
) -> None:
    """Write the table with the sentences as Markdown, and a plot of all candidates as PNG."""
    folder.mkdir(exist_ok=True)
    said = "".join(f"- {sentence}\n" for sentence in sentences)
    (folder / "recommendation.md").write_text(f"{table}\n\n{said}")
    places = range(len(candidates))
    with drawn(folder / "recommendation.png", 9, 1 + 0.3 * len(candidates)) as axes:
        for metric in HEADLINES:
            values = [100 * one.metrics[metric] for one in candidates.values()]
            axes.plot(values, places, "o", label=metric)
        axes.set_yticks(places, list(candidates))
        axes.invert_yaxis()
        axes.set_xlabel("validation (%)")
        axes.grid(axis="x", alpha=0.3)
