"""OAK beside its base and RAMEN on the built-in datasets, with links of three kinds.

Rows: the base ance and RAMEN on it; OAK with links by a linker that was trained for it, by the
encoder of the row RAMEN, and with true links (oracle); OAK without each of its parts. All get the
anchor sets that RAMEN uses. A line before the table says how good the linkers are. Runs that are
stored from before are not made again, so an interrupted table goes on. `ratio` is the R@10 of the
oracle over the base's, on the last dataset.

    python -m benchmarks.oak_gain [--sets foldoc debian] [--seeds 3] [--split validation]
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import CACHE, finish
from benchmarks.graph_gain import dataset_of, header, judged, mean, row
from benchmarks.in_process import train
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, flatten, overlay
from ramen_ray.data.splits.links import make_link_dataset
from ramen_ray.method.metrics.evaluation import evaluate
from ramen_ray.method.metrics.judgement import Propensity
from ramen_ray.method.metrics.links import LINKER_DEPTH, link_figures
from ramen_ray.method.metrics.ranking import PerQuery
from ramen_ray.method.model.augmented_queries import AugmentedQueries
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.links import (
    first_links,
    held_out_links,
    nearest_anchors,
    train_links,
)
from ramen_ray.orchestration.tuning.variants import used_sets
from ramen_ray.presets import PRESETS

VERSION = 1  # of what is stored; a change of the method makes the runs anew
STORE = CACHE / "oak_gain"
ANCE: dict[str, Any] = {"base.kind": "ance"}
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "bank as it starts": {"oak.bank_lr": 0.0},
    "no calibration": {"oak.calibration_weight": 0.0},
    "no encoder term": {"oak.encoder_weight": 0.0},
    "mean instead of attention": {"oak.pooling": "mean"},
}
LINKS = ("trained", "RAMEN's", "oracle")
OAK_PRESET = PRESETS["foldoc-oak"]()

Figures = dict[str, PerQuery]
Ids = NDArray[Any]


def main() -> None:
    """Train what is not there yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=["foldoc", "debian"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ratio = 1.0
    for dataset in arguments.sets:
        config = PRESETS[f"{dataset}-ramen"]()
        seeds = range(arguments.seeds)
        found = [measured(overlay(config, {"seed": seed}), arguments.split) for seed in seeds]
        print(f"\n## {dataset}, {arguments.split}\n")
        for seed, (_, linkers) in zip(seeds, found, strict=True):
            print(f"linkers, seed {seed}: {json.dumps(linkers)}")
        runs = {title: [one[title] for one, _ in found] for title in found[0][0]}
        print(f"\n{header(list(runs['ance'][0]))}")
        for title, of_seeds in runs.items():
            print(row(title, of_seeds, None if title == "ance" else runs["ance"]), flush=True)
            if title.startswith("OAK"):
                print(row(f"{title}, over RAMEN", of_seeds, runs["RAMEN"]), flush=True)
        ratio = mean(runs["OAK, oracle links"], "R@10") / mean(runs["ance"], "R@10")
    finish(ratio, {})


def measured(config: RunConfig, split: str) -> tuple[dict[str, Figures], dict[str, Any]]:
    """Return the metrics of a seed's rows by query, and figures of its linkers."""
    data, sets = dataset_of(config.dataset, config.encoder), used_sets(config)
    oak = oak_config(config)
    trained = overlay(config, {**WITHOUT_GRAPH, **ANCE, "dataset": str(link_dataset(config))})
    rows = {
        "ance": answers(overlay(config, {**WITHOUT_GRAPH, **ANCE}), split),
        "RAMEN": answers(ramen_config(config), split),
    }
    anchors = {
        "trained": anchors_by(trained, config, sets, split),
        "RAMEN's": anchors_by(ramen_config(config), config, sets, split),
    }
    edges = held_out_links(data, sets, split)
    assert edges is not None, f"{config.dataset} has no edges of its {split} queries"
    is_known = np.zeros(sum(len(data.anchors(name)) for name in sets), dtype=bool)
    is_known[train_links(data, sets).indices] = True
    num_links = oak.oak.links_at_test
    links: dict[str, Ids] = {kind: found[:, :num_links] for kind, found in anchors.items()}
    links["oracle"] = first_links(edges, oak.oak.max_links)
    rows |= {f"OAK, {kind} links": answers(oak, split, links[kind]) for kind in LINKS}
    for title, changes in ABLATIONS.items():
        for kind in ("trained", "oracle"):
            without = overlay(oak, changes)
            rows[f"OAK, {title}, {kind} links"] = answers(without, split, links[kind])
    figures = {
        kind: link_figures(found, num_links, edges, is_known) for kind, found in anchors.items()
    }
    return {title: judged(ads, data, split) for title, ads in rows.items()}, figures


def ramen_config(config: RunConfig) -> RunConfig:
    """Return RAMEN on ance, on the dataset's own edges, as OAK has them."""
    return overlay(config, {**ANCE, "walk.enabled": False, "pruning.mode": "never"})


def oak_config(config: RunConfig) -> RunConfig:
    """Return OAK on ance, with the anchor sets that RAMEN uses."""
    changes = {"oak.anchor_sets": used_sets(config), "oak.bank_lr": OAK_PRESET.oak.bank_lr}
    rates = {"optimizer.head_lr": OAK_PRESET.optimizer.head_lr}
    return overlay(config, {**WITHOUT_GRAPH, **ANCE, **changes, **rates})


def link_dataset(config: RunConfig) -> Path:
    """Write the dataset that a linker is trained on."""
    sets = used_sets(config)
    folder = CACHE / f"links_{Path(config.dataset).name}_{'_'.join(sets)}"
    if not folder.exists():
        make_link_dataset(Path(config.dataset), folder, sets)
    return folder


def answers(config: RunConfig, split: str, links: Ids | None = None) -> Ids:
    """Return the best ads of a split's queries, from a run that is made now or was earlier."""

    def searched() -> Ids:
        model = model_of(config)
        answering = model if links is None else AugmentedQueries(model, links)
        data = dataset_of(config.dataset, config.encoder)
        return evaluate(answering, data, split, Propensity())[1][0]

    given = "" if links is None else hashlib.blake2b(links.tobytes(), digest_size=8).hexdigest()
    return stored([flatten(config), split, given], searched)


def anchors_by(linker: RunConfig, config: RunConfig, sets: list[str], split: str) -> Ids:
    """Return the anchors that the model of ``linker`` gives a split's queries, best first."""

    def searched() -> Ids:
        data = dataset_of(config.dataset, config.encoder)
        return nearest_anchors(model_of(linker), data, sets, split, LINKER_DEPTH)

    return stored(["anchors", flatten(linker), config.dataset, sets, split], searched)


def model_of(config: RunConfig) -> DualEncoder:
    """Train a configuration, once."""
    return _trained(config.model_dump_json())


@cache
def _trained(content: str) -> DualEncoder:
    config, started = RunConfig.model_validate_json(content), time.monotonic()
    model = train(config, dataset_of(config.dataset, config.encoder))
    seconds = time.monotonic() - started
    print(f"{config.dataset} seed {config.seed}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return model


def stored(content: list[Any], make: Callable[[], Ids]) -> Ids:
    """Return what ``make()`` returned when it was called for ``content``."""
    key = json.dumps([VERSION, *content], default=str).encode()
    file = STORE / f"{hashlib.blake2b(key, digest_size=8).hexdigest()}.npy"
    if not file.exists():
        STORE.mkdir(parents=True, exist_ok=True)
        np.save(file, make())
    found: Ids = np.load(file)
    return found


if __name__ == "__main__":
    main()
