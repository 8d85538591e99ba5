"""Runs that are kept, and the tables of evidence that are made of them.

Tables are CSV: per cent, and differences in points with their 95 % intervals.
"""

import csv
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from ramen_ray.method.metrics.comparison import mean_over_seeds, paired_differences_over_seeds
from ramen_ray.method.metrics.ranking import PerQuery, ratio

ByQuery = Mapping[str, PerQuery]
"""A run's metrics by name, query by query."""
Found = tuple[Mapping[str, ByQuery], Mapping[str, Any]]
"""Metrics of each of some runs, and other figures."""
COLUMNS = (
    *("dataset", "variant", "over", "runs", "metric"),
    *("percent", "difference", "low", "high"),
)


def kept(folder: Path, content: Sequence[Any], make: Callable[[], Found]) -> Found:
    """Return what ``make()`` returned when it was first called for ``content``.

    A benchmark of many runs that was stopped goes on where it was.
    """
    file = kept_file(folder, content)
    if not file.exists():
        started = time.monotonic()
        made, figures = make()
        arrays: dict[str, Any] = {
            f"{run}|{metric}": np.stack(values)
            for run, of_run in made.items()
            for metric, values in of_run.items()
        }
        folder.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(".part.npz")
        np.savez(aside, **arrays, figures=json.dumps(figures))
        aside.rename(file)
        seconds = time.monotonic() - started
        print(f"{folder.name} {file.stem}: {seconds:.0f} s", file=sys.stderr, flush=True)
    runs: dict[str, dict[str, PerQuery]] = {}
    with np.load(file) as stored:
        for name in [name for name in stored if name != "figures"]:
            run, _, metric = name.partition("|")
            gained, possible = stored[name]
            runs.setdefault(run, {})[metric] = (gained, possible)
        return runs, json.loads(str(stored["figures"]))


def kept_file(folder: Path, content: Sequence[Any]) -> Path:
    """Return where :func:`kept` has what was made for ``content``."""
    key = hashlib.blake2b(json.dumps(content, default=str).encode(), digest_size=8).hexdigest()
    return folder / f"{key}.npz"


def compared(
    dataset: str,
    variant: str,
    runs: Sequence[ByQuery],
    over: str = "",
    base: Sequence[ByQuery] = (),
) -> Iterator[dict[str, str]]:
    """Yield a variant's lines, less a base if one is named; the base may have further runs."""
    differences = paired_differences_over_seeds(runs, base[: len(runs)]) if over else {}
    for metric, values in mean_over_seeds(runs).items():
        points = [f"{100 * value:+.2f}" for value in differences.get(metric, ())]
        cells = (dataset, variant, over, str(len(runs)), metric, f"{100 * ratio(values):.2f}")
        yield dict(zip(COLUMNS, (*cells, *points), strict=False))


def mean(runs: Sequence[ByQuery], metric: str) -> float:
    return ratio(mean_over_seeds(runs)[metric])


def write(name: str, lines: Sequence[Mapping[str, str]], folder: str) -> None:
    """Write a table as ``name``.csv into a folder, or print it if ``folder`` is empty."""
    file = Path(folder) / f"{name}.csv"
    opened = file.open("w", encoding="utf-8", newline="") if folder else nullcontext(sys.stdout)
    with opened as stream:
        columns = dict.fromkeys(column for line in lines for column in line)
        writer = csv.DictWriter(stream, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
