"""The packages that a user may have today beside ours: quality, seconds, memory, size, speed.

Rivals: lexical search, sentence-transformers' trainer, label trees in environments of their own,
and our bases, each with and without RAMEN, OAK and AugGT. All get the same queries, ads and clicks,
lose the same filter pairs, and are measured by the same code. Settings are chosen on validation
within the same budget for each; test is asked once. Every try and every run is kept, so that the
same command goes on. `ratio` is the P@1 of the best of ours over that of the best rival, both by
validation, on the last dataset.

    python -m benchmarks.peers [--sets foldoc debian rdocs] [--seeds 3] [--rivals NAME ...]
        [--into docs/evidence]

`--budget` is seconds for choosing settings; 0 takes what is kept.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from benchmarks.common import NUM_THREADS, ROOT, finish, options
from benchmarks.peers import lexical, ours, trainer, trees
from benchmarks.peers.rivals import METRICS, Contest, Run
from benchmarks.tables import ByQuery, compared, write

RIVALS = {**lexical.RIVALS, **trainer.RIVALS, **trees.RIVALS, **ours.RIVALS}
Runs = Mapping[str, Sequence[Run]]
Line = dict[str, str]
COMPARED = ("P@1", "R@10", "tail/R@10")
COSTS = {
    "processor_s": ("training, s", 1.0),
    "memory_bytes": ("memory, MB", 1e6),
    "model_bytes": ("model, MB", 1e6),
    "index_bytes": ("index, MB", 1e6),
    "queries_per_s": ("queries/s", 1.0),
    "p50_ms": ("one query, ms", 1.0),
    "p99_ms": ("99 %, ms", 1.0),
}


def main() -> None:
    asked = options(
        __doc__,
        sets=["foldoc", "debian", "rdocs"],
        seeds=3,
        rivals=list(RIVALS),
        budget=600.0,
        threads=NUM_THREADS,
        into="",
    )
    peers, lead = list[Line](), list[Line]()
    gain = 1.0
    for dataset in asked.sets:
        found: dict[str, list[Run]] = {}
        for name in asked.rivals:
            folder, rival = ROOT / "datasets" / dataset, RIVALS[name]
            contest = Contest(name, rival, folder, asked.budget, asked.threads)
            seeds = range(asked.seeds if rival.is_random else 1)
            found[name] = [contest.run(seed) for seed in seeds]
        peers += quality_and_costs(dataset, found)
        own = best_by_validation(found, [name for name in found if name in ours.RIVALS])
        other = best_by_validation(found, [name for name in found if name not in ours.RIVALS])
        if own:
            lead += lead_of(own, dataset, found)
        gain = value(found[own], "P@1") / value(found[other], "P@1") if own and other else 1.0
    write("peers", peers, asked.into)
    write("peers_lead", lead, asked.into)
    finish(gain, {})


def best_by_validation(found: Runs, names: Sequence[str]) -> str:
    """Return which of ``names`` validation would choose; an empty text of none."""
    scores = {name: np.mean([run.validation_score for run in found[name]]) for name in names}
    return max(scores, key=lambda name: scores[name], default="")


def value(runs: Sequence[Run], metric: str) -> float:
    """Return a metric of the test split, as the mean over the seeds."""
    return float(np.mean([run.value(metric) for run in runs]))


def quality_and_costs(dataset: str, found: Runs) -> Iterator[Line]:
    """Yield each rival's metrics in per cent, number of seeds, seconds, bytes and rates."""
    for name, runs in found.items():
        line = {"dataset": dataset, "rival": name}
        line |= {m.replace("/", " "): f"{100 * value(runs, m):.2f}" for m in METRICS}
        line["seeds"] = str(len(runs))
        for key, (title, unit) in COSTS.items():
            figure = np.median([run.figures[key] for run in runs]) / unit
            line[title] = np.format_float_positional(
                figure, 3, unique=False, fractional=False, trim="-"
            )
        yield line


def lead_of(first: str, dataset: str, found: Runs) -> Iterator[Line]:
    """Yield how much ``first`` is ahead of each other row, with intervals."""
    for name in (name for name in found if name != first):
        seeds = range(max(len(found[name]), len(found[first])))
        ours_, theirs = (
            # what does not depend on the seed has one run
            [_compared(side[seed % len(side)]) for seed in seeds]
            for side in (found[first], found[name])
        )
        yield from compared(dataset, first, ours_, name, theirs)


def _compared(run: Run) -> ByQuery:
    return {metric.replace("/", " "): run.metrics["test"][metric] for metric in COMPARED}


if __name__ == "__main__":
    main()
