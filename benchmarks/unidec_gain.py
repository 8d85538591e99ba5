"""What softmax losses, classifiers and the graph bring on the built-in datasets.

Rows: the bases ance, depsl and unidec, the last by its embeddings, by its classifiers and by both;
RAMEN on each; and, with `--parts`, unidec without each of its parts. Each row is compared with
`ance`, or with the row that it names, over the same seeds and queries. Runs that are stored from
before are not made again, so an interrupted table goes on. `ratio` is the P@1 of RAMEN on unidec
over that of RAMEN on ance, on the last dataset.

    python -m benchmarks.unidec_gain [--sets foldoc rdocs debian] [--seeds 3] [--split validation]
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.common import CACHE, finish
from benchmarks.graph_gain import dataset_of, header, judged, mean, row
from benchmarks.in_process import train
from ramen_ray.bases.combination import Part
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, flatten, overlay
from ramen_ray.method.metrics.evaluation import evaluate
from ramen_ray.method.metrics.judgement import Propensity
from ramen_ray.method.metrics.ranking import PerQuery
from ramen_ray.presets import bag_ramen, base_changes

VERSION = 1  # of what is stored; a change of the method makes the runs anew
STORE = CACHE / "unidec_gain"
PLAIN: dict[str, Any] = {"walk.enabled": False, "pruning.mode": "never"}
PARTS: tuple[Part, ...] = ("encoder", "classifier", "both")


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        changes: of the dataset's preset.
        part: what answers.
        base: the row that it is compared with; None for the first.
    """

    changes: Mapping[str, Any]
    part: Part = "encoder"
    base: str | None = "ance"


def rows(config: RunConfig, with_parts: bool) -> dict[str, Row]:
    """Return the rows of a dataset's table by title."""
    found = {"ance": Row({**WITHOUT_GRAPH, "base.kind": "ance"}, base=None)}
    found["ance + RAMEN"] = Row({**PLAIN, "base.kind": "ance"})
    for base in ("depsl", "unidec"):
        own = base_changes(config, {"base.kind": base})
        for part in PARTS if base == "unidec" else PARTS[:1]:
            title = f"{base}: {part}" if base == "unidec" else base
            found[title] = Row({**own, **WITHOUT_GRAPH}, part)
            found[f"{title} + RAMEN"] = Row({**own, **PLAIN}, part, title)
    best = found["unidec: both + RAMEN"]
    found["unidec: both + RAMEN, over ance + RAMEN"] = Row(best.changes, "both", "ance + RAMEN")
    if with_parts:
        unidec = base_changes(config, {"base.kind": "unidec"})
        for title, changes in ABLATIONS.items():
            title = f"unidec: both, {title}"
            found[title] = Row({**unidec, **WITHOUT_GRAPH, **changes}, "both", "unidec: both")
    return found


ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "one ad a query": {"base.num_positives": 1},
    "six ads a query": {"base.num_positives": 6},
    "one hard negative": {"base.num_hard_negatives": 1},
    "no hard negatives": {"base.hard_negatives": "none"},
    "random order": {"base.order": "random"},
    "half of the task reversed": {"loss.reverse_share": 0.5},
    "supcon": {"base.loss": "supcon"},
    "cross-entropy added": {"classifier.bce": 1.0},
    "the paper's sum of cosines": {"classifier.weight": 1.0, "classifier.text_scale": 1.0},
    "own classifiers of unclicked ads": {"classifier.unclicked": "own"},
}


def main() -> None:
    """Train what is not there yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=["foldoc", "rdocs", "debian"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--parts", action="store_true", help="also without each part")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gain = 1.0
    for dataset in arguments.sets:
        config = bag_ramen(dataset)
        runs: dict[str, list[dict[str, PerQuery]]] = {}
        print(f"\n## {dataset}, {arguments.split}\n")
        for title, one in rows(config, arguments.parts).items():
            seeds = range(arguments.seeds)
            runs[title] = [measured(config, one, seed, arguments.split) for seed in seeds]
            if one.base is None:
                print(header(list(runs[title][0])))
            print(row(title, runs[title], runs[one.base] if one.base else None), flush=True)
        gain = mean(runs["unidec: both + RAMEN"], "P@1") / mean(runs["ance + RAMEN"], "P@1")
    finish(gain, {})


def measured(preset: RunConfig, one: Row, seed: int, split: str) -> dict[str, PerQuery]:
    """Return a row's metrics of a split by query, from a run that is made now or was earlier."""
    config = overlay(preset, {**one.changes, "seed": seed})
    data = dataset_of(config.dataset, config.encoder)
    content = [VERSION, flatten(config), data.path.name, split]
    key = hashlib.blake2b(json.dumps(content, default=str).encode(), digest_size=8).hexdigest()
    file = STORE / f"{key}.npz"
    if not file.exists():
        started = time.monotonic()
        model = train(config, data)
        STORE.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {}
        for part in PARTS if model.classifiers is not None else PARTS[:1]:
            model.part = part
            found = judged(evaluate(model, data, split, Propensity())[1][0], data, split)
            arrays |= {f"{part}/{name}": np.stack(values) for name, values in found.items()}
        np.savez(file, **arrays)
        seconds = time.monotonic() - started
        print(f"{config.dataset} seed {seed}: {seconds:.0f} s", file=sys.stderr, flush=True)
    stored, prefix = np.load(file), f"{one.part}/"
    return {
        name.removeprefix(prefix): (stored[name][0], stored[name][1])
        for name in stored.files
        if name.startswith(prefix)
    }


if __name__ == "__main__":
    main()
