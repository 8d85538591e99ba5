"""What better neighbours would bring to new ads: true ones in place of the nearest by text.

A true neighbour of a novel ad is a seen ad that a test query clicks as well, so nobody can have it
(the papers' ablation). If true neighbours help and the nearest do not, it is the neighbours that
fail, not the combiner. The base's encoder, its classifiers, and a draft combiner trained on
neighbours that share a train query; up to 0, 1, 2, 3 of three neighbours are true. Prints a table
as benchmarks.combiner does. `ratio` is R@10 on zero_shot with up to three true neighbours over text
alone, of the last set.

    python -m benchmarks.true_neighbours [--sets rdocs foldoc] [--splits 3] [--epochs 5]
        [--csv docs/evidence/true_neighbours.csv]
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from benchmarks.combiner import (
    ENCODERS,
    TEXT,
    ByQuery,
    CombinerRun,
    Row,
    by_test_query,
    embedded_by,
    gain_of,
    run_config,
    settings_of,
    split_of,
    table,
    write_csv,
)
from benchmarks.common import finish
from ramen_ray.data.arrays import Int64s
from ramen_ray.method.novel_ads.evaluation import Embedded
from ramen_ray.method.novel_ads.neighbours import SeenAds, Vectors, clicked_together

NEIGHBOURS = 3
CLICKED_TOGETHER = 100  # of which those without train clicks are left out
SHARE = 0.6  # of the classifiers' mean, added to the text


def main() -> None:
    """Train an encoder on each split, and print what neighbours bring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=["rdocs", "foldoc"])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5, help="of the combiner")
    parser.add_argument("--csv", type=Path, default=Path("/dev/stdout"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines, gain = list[dict[str, str]](), 1.0
    for name in arguments.sets:
        rows: dict[Row, list[ByQuery]] = {}
        for seed in range(arguments.splits):
            for row, values in measured(name, seed, arguments.epochs):
                rows.setdefault(("base", row), []).append(values)
            print(f"{name} {seed}", file=sys.stderr, flush=True)
        lines += table(name, rows)
        best = rows["base", f"text and classifiers, up to {NEIGHBOURS} true"]
        gain = gain_of(best, rows["base", TEXT])
    write_csv(arguments.csv, lines)
    finish(gain, {})


def measured(name: str, seed: int, epochs: int) -> Iterator[tuple[str, ByQuery]]:
    """Yield the metrics of each row on a split."""
    data = split_of(name, "zero-shot", seed)
    config = run_config(name, data, {**ENCODERS["base"][1], "seed": seed})
    embedded, _ = embedded_by(config, data, split_of(name, "one-shot", seed))
    for row, vectors in rows_of(embedded, epochs):
        yield row, by_test_query(embedded, vectors)


def rows_of(embedded: Embedded, epochs: int) -> Iterator[tuple[str, Vectors]]:
    """Yield the vectors of all ads by row."""
    text = embedded.all_ads()
    yield TEXT, text
    with_classifiers = CombinerRun(embedded, settings_of("release", epochs))
    with_classifiers.train_classifiers()
    classifiers = with_classifiers.combined_ads().seen.classifiers
    draft = CombinerRun(embedded, settings_of("draft", epochs))
    draft.train_combiner()
    combined = draft.combined_ads()
    seen = combined.seen
    own = seen.rows_of(np.arange(len(text)))
    nearest = seen.nearest(text, NEIGHBOURS, own).rows
    true = true_neighbours(embedded, seen)
    for count in range(NEIGHBOURS + 1):
        neighbours = first_distinct(np.hstack([true[:, :count], nearest]))
        yield f"text and classifiers, up to {count} true", added(text, classifiers, neighbours)
        yield f"combiner (draft), up to {count} true", combined.combine(text, neighbours)


def true_neighbours(embedded: Embedded, seen: SeenAds) -> Int64s:
    """Return, by ad, rows (ads, K) of seen ads that a test query clicks too, nearest first."""
    clicks = embedded.data.clicks["test"]
    together = clicked_together(clicks, embedded.all_ads(), CLICKED_TOGETHER)
    rows = np.where(together >= 0, seen.rows_of(np.maximum(together, 0)), -1)
    return first_distinct(rows)


def first_distinct(rows: Int64s) -> Int64s:
    """Return the first K different rows (n, K) of ``rows`` (n, m), -1 after the last."""
    repeated = (rows[:, :, None] == rows[:, None, :]) & np.tri(rows.shape[1], k=-1, dtype=bool)
    missing = (rows < 0) | repeated.any(axis=2)
    order = np.argsort(missing, axis=1, kind="stable")[:, :NEIGHBOURS]
    return np.take_along_axis(np.where(missing, -1, rows), order, axis=1)


def added(text: Vectors, classifiers: Vectors, neighbours: Int64s) -> Vectors:
    """Return text + SHARE x mean of the neighbours' classifiers, (ads, D)."""
    is_there = (neighbours >= 0)[..., None]
    total = np.where(is_there, classifiers[neighbours], 0).sum(axis=1)
    return text + np.float32(SHARE) * total / np.maximum(is_there.sum(axis=1), 1)


if __name__ == "__main__":
    main()
