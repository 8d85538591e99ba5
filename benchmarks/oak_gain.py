"""OAK beside its base and RAMEN on the built-in datasets, or on yours, with links of three kinds.

Rows: the base ance and RAMEN on it; OAK with links by a linker that was trained for it, by the
encoder of the row RAMEN, and with true links (oracle); OAK without each of its parts. All get the
anchor sets that RAMEN uses. A line before the table says how good the linkers are. Runs that are
stored from before are not made again, so an interrupted table goes on. `ratio` is the R@10 of the
oracle over the base's, on the last dataset.

    python -m benchmarks.oak_gain [--sets foldoc debian FOLDER ...] [--seeds 3] [--split test]
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import CACHE, finish, kept, options
from benchmarks.graph_gain import dataset_of, header, judged, mean, row, trained
from benchmarks.in_process import begin, train_all_epochs
from experiments.oak.augmentation import Augmentation
from experiments.oak.links import (
    LINKER_DEPTH,
    first_links,
    held_out_links,
    link_figures,
    nearest_anchors,
    train_links,
)
from experiments.oak.method import oak_objective, oak_part
from experiments.oak.queries import AugmentedQueries
from experiments.oak.settings import OakSettings
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, flatten, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.splits.links import make_link_dataset
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.judgement import Propensity, evaluate
from ramen_ray.method.metrics.ranking import PerQuery
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.orchestration.tune.variants import used_sets
from ramen_ray.presets import bag_ramen

VERSION = 2  # of what is stored; a change of the method makes the runs anew
STORE = CACHE / "oak_gain"
ANCE: dict[str, Any] = {"base.kind": "ance"}
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "bank as it starts": {"bank_lr": 0.0},
    "no calibration": {"calibration_weight": 0.0},
    "no encoder term": {"encoder_weight": 0.0},
    "mean instead of attention": {"pooling": "mean"},
}
HEAD_LR = bag_ramen("foldoc").optimizer.head_lr
LINKS = ("trained", "RAMEN's", "oracle")

Figures = dict[str, PerQuery]
Ids = NDArray[Any]


def main() -> None:
    """Train what is not there yet, and print the tables."""
    asked = options(__doc__, sets=["foldoc", "debian"], seeds=3, split="test")
    torch.set_num_threads(1)
    ratio = 1.0
    for dataset in asked.sets:
        config = config_for(dataset)
        seeds = range(asked.seeds)
        found = [measured(overlay(config, {"seed": seed}), asked.split) for seed in seeds]
        print(f"\n## {dataset}, {asked.split}\n")
        for seed, (_, linkers) in zip(seeds, found, strict=True):
            print(f"linkers, seed {seed}: {json.dumps(linkers)}")
        runs = {title: [one[title] for one, _ in found] for title in found[0][0]}
        print(f"\n{header(list(runs['ance'][0]))}")
        for title, of_seeds in runs.items():
            print(row(title, of_seeds, None if title == "ance" else runs["ance"]), flush=True)
            if title.startswith("OAK"):
                print(row(f"{title}, over RAMEN", of_seeds, runs["RAMEN"]), flush=True)
        best = next(title for title in reversed(LINKS) if f"OAK, {title} links" in runs)
        ratio = mean(runs[f"OAK, {best} links"], "R@10") / mean(runs["ance"], "R@10")
    finish(ratio, {})


def config_for(dataset: str) -> RunConfig:
    """Return the whole method for a built-in dataset, or for one in a folder."""
    return bag_ramen(dataset)


def measured(config: RunConfig, split: str) -> tuple[dict[str, Figures], dict[str, Any]]:
    """Return the metrics of a seed's rows by query, and figures of its linkers."""
    data, sets = dataset_of(config.dataset, config.encoder), used_sets(config)
    oak = OakSettings(anchor_sets=tuple(sets))
    linker = overlay(config, {**WITHOUT_GRAPH, **ANCE, "dataset": str(link_dataset(config))})
    rows = {
        "ance": answers(overlay(config, {**WITHOUT_GRAPH, **ANCE}), split),
        "RAMEN": answers(ramen_config(config), split),
    }
    anchors = {
        "trained": anchors_by(linker, config, sets, split),
        "RAMEN's": anchors_by(ramen_config(config), config, sets, split),
    }
    edges = held_out_links(data, sets, split)
    is_known = np.zeros(sum(len(data.anchors(name)) for name in sets), dtype=bool)
    is_known[train_links(data, sets).indices] = True
    num_links = oak.links_at_test
    links: dict[str, Ids] = {kind: found[:, :num_links] for kind, found in anchors.items()}
    if edges is not None:
        links["oracle"] = first_links(edges, oak.max_links)
    base = oak_base(config)
    rows |= {f"OAK, {kind} links": enriched(base, oak, split, links[kind]) for kind in links}
    for title, changes in ABLATIONS.items():
        for kind in sorted(links.keys() - {"RAMEN's"}, reverse=True):
            without = oak.model_copy(update=changes)
            rows[f"OAK, {title}, {kind} links"] = enriched(base, without, split, links[kind])
    figures = {
        kind: link_figures(found, num_links, edges, is_known) for kind, found in anchors.items()
    }
    return {title: judged(ads, data, split) for title, ads in rows.items()}, figures


def ramen_config(config: RunConfig) -> RunConfig:
    """Return RAMEN on ance, on the dataset's own edges, as OAK has them."""
    return overlay(config, {**ANCE, "walk.enabled": False, "pruning.mode": "never"})


def oak_base(config: RunConfig) -> RunConfig:
    """Return what OAK is added to: ance, with the rate of heads that all datasets have."""
    return overlay(config, {**WITHOUT_GRAPH, **ANCE, "optimizer.head_lr": HEAD_LR})


def link_dataset(config: RunConfig) -> Path:
    """Write the dataset that a linker is trained on."""
    sets = used_sets(config)
    folder = CACHE / f"links_{fingerprint(config.dataset)}_{'_'.join(sets)}"
    if not folder.exists():
        make_link_dataset(Path(config.dataset), folder, sets)
    return folder


def answers(config: RunConfig, split: str) -> Ids:
    """Return the best ads of a split's queries, from a run that is made now or was earlier."""

    def searched() -> Ids:
        data = dataset_of(config.dataset, config.encoder)
        return evaluate(model_of(config), data, split, Propensity())[1][0]

    return stored(config, [split], searched)


def enriched(config: RunConfig, oak: OakSettings, split: str, links: Ids) -> Ids:
    """Return the best ads of a split's queries, which OAK enriches by ``links``, likewise."""

    def searched() -> Ids:
        data = dataset_of(config.dataset, config.encoder)
        model, augmentation = _trained_oak(config.model_dump_json(), oak.model_dump_json())
        return evaluate(AugmentedQueries(model, augmentation, links), data, split, Propensity())[1][
            0
        ]

    given = hashlib.blake2b(links.tobytes(), digest_size=8).hexdigest()
    return stored(config, [flatten(oak), split, given], searched)


def anchors_by(linker: RunConfig, config: RunConfig, sets: list[str], split: str) -> Ids:
    """Return the anchors that the model of ``linker`` gives a split's queries, best first."""

    def searched() -> Ids:
        data = dataset_of(config.dataset, config.encoder)
        return nearest_anchors(model_of(linker), data, sets, split, LINKER_DEPTH)

    return stored(config, ["anchors", flatten(linker), sets, split], searched)


def model_of(config: RunConfig) -> DualEncoder:
    """Train a configuration, once."""
    return trained(config.model_dump_json())


@cache
def _trained_oak(config_json: str, oak_json: str) -> tuple[DualEncoder, Augmentation]:
    config = RunConfig.model_validate_json(config_json)
    data = dataset_of(config.dataset, config.encoder)
    return train_oak(config, OakSettings.model_validate_json(oak_json), data)


def train_oak(
    config: RunConfig, oak: OakSettings, data: Prepared
) -> tuple[DualEncoder, Augmentation]:
    """Train OAK on a base; returns the model, and what enriches its queries."""
    run = begin(config, data)
    part = oak_part(config, oak, data, run.model, run.sampler)
    run.objective, run.state.parts = oak_objective(config, oak), [*run.state.parts, part]
    return train_all_epochs(run), part.augmentation


@cache
def fingerprint(dataset: str) -> str:
    """Return what tells a dataset from others."""
    return Dataset(dataset).fingerprint


def stored(config: RunConfig, content: list[Any], make: Callable[[], Ids]) -> Ids:
    """Return what ``make()`` returned when it was called for a run and ``content``."""
    run = [VERSION, fingerprint(config.dataset), flatten(config)]
    return kept(STORE, [*run, *content], lambda: {"ids": make()})["ids"]


if __name__ == "__main__":
    main()
