"""What softmax losses, classifiers and the graph bring on the built-in datasets.

Rows: the bases ance, depsl and unidec, the last by its embeddings, by its classifiers and by both;
RAMEN on each; and, with `--parts`, unidec without each of its parts. Each row is compared with
`ance`, or with the row that it names, over the same seeds and queries. Runs that are stored from
before are not made again, so an interrupted table goes on. `ratio` is the P@1 of RAMEN on unidec
over that of RAMEN on ance, on the last dataset.

    python -m benchmarks.unidec_gain [--sets foldoc rdocs debian] [--seeds 3] [--split validation]
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from benchmarks.common import finish, options
from benchmarks.graph_gain import GraphVariant, compare, mean
from ramen_ray.bases import Part
from ramen_ray.config import WITHOUT_GRAPH, RunConfig
from ramen_ray.presets import bag_ramen, base_changes

PLAIN: dict[str, Any] = {"walk.enabled": False, "pruning.mode": "never"}
PARTS: tuple[Part, ...] = ("encoder", "classifier", "both")


def rows(config: RunConfig, with_parts: bool) -> dict[str, GraphVariant]:
    """Return the rows of a dataset's table by title."""
    found = {
        "ance": GraphVariant({**WITHOUT_GRAPH, "base.kind": "ance"}, None),
        "ance + RAMEN": GraphVariant({**PLAIN, "base.kind": "ance"}, "ance"),
    }
    for base in ("depsl", "unidec"):
        own = base_changes(config, {"base.kind": base})
        for part in PARTS if base == "unidec" else PARTS[:1]:
            title = f"{base}: {part}" if base == "unidec" else base
            found[title] = GraphVariant({**own, **WITHOUT_GRAPH}, "ance", part=part)
            found[f"{title} + RAMEN"] = GraphVariant({**own, **PLAIN}, title, part=part)
    whole = found["unidec: both + RAMEN"]
    found["unidec: both, shuffled graph"] = replace(whole, random_edges=1.0)
    best = replace(whole, base="ance + RAMEN")
    found["unidec: both + RAMEN, over ance + RAMEN"] = best
    if with_parts:
        unidec = base_changes(config, {"base.kind": "unidec"})
        for title, changes in ABLATIONS.items():
            changed = GraphVariant({**unidec, **changes}, "unidec: both", part="both")
            found[f"unidec: both, {title}"] = changed
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
    sets = ["foldoc", "rdocs", "debian"]
    asked = options(__doc__, sets=sets, seeds=3, split="test", parts=False)
    torch.set_num_threads(1)
    gain = 1.0
    for dataset in asked.sets:
        config = bag_ramen(dataset)
        runs = compare(config, rows(config, asked.parts), asked.seeds, asked.split)
        gain = mean(runs["unidec: both + RAMEN"], "P@1") / mean(runs["ance + RAMEN"], "P@1")
    finish(gain, {})


if __name__ == "__main__":
    main()
