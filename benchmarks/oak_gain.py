"""OAK beside its base and RAMEN on the built-in datasets, or on yours, with links of three kinds.

Rows: the base ance and RAMEN on it; OAK with links by a linker that was trained for it, by the
encoder of the row RAMEN, and with true links (oracle); OAK without each of its parts. All get the
anchor sets that RAMEN uses. A line for each seed says how good the linkers are. Seeds that are kept
from before are not run again. `ratio` is the R@10 of RAMEN over the base's, on the last dataset.

    python -m benchmarks.oak_gain [--sets foldoc debian FOLDER ...] [--seeds 3] [--split test]
        [--into docs/evidence]
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import CACHE, finish, options
from benchmarks.graph_gain import UNWALKED, dataset_of, measured_by_query, recipe
from benchmarks.in_process import begin, train, train_all_epochs
from benchmarks.tables import Found, compared, kept, mean, write
from experiments.oak.augmentation import Augmentation
from experiments.oak.linker_data import make_link_dataset
from experiments.oak.links import (
    LINKER_DEPTH,
    first_links,
    held_out_links,
    link_figures,
    nearest_anchors,
    train_links,
)
from experiments.oak.method import AugmentedQueries, OakSettings, oak_objective, oak_part
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, flatten, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.presets import bag_ramen, used_sets

VERSION = 4  # of what is kept; a change of the method makes the runs anew
STORE = CACHE / "oak_gain"
ANCE: dict[str, Any] = {"base.kind": "ance"}
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "OAK without a trained bank": {"bank_lr": 0.0},
    "OAK without calibration": {"calibration_weight": 0.0},
    "OAK without the encoder's term": {"encoder_weight": 0.0},
    "OAK with a mean, not attention": {"pooling": "mean"},
}
HEAD_LR = bag_ramen("foldoc").optimizer.head_lr
TRAINED, RAMEN, ORACLE = "links by the trained linker", "links by RAMEN", "oracle links"


def main() -> None:
    asked = options(__doc__, sets=["foldoc", "debian"], seeds=3, split="test", into="")
    torch.set_num_threads(1)
    lines, gain = list[dict[str, str]](), 1.0
    for dataset in asked.sets:
        found = [measured(recipe(dataset), seed, asked.split) for seed in range(asked.seeds)]
        for seed, (_, linkers) in enumerate(found):
            print(f"{dataset}, linkers, seed {seed}: {dict(linkers)}")
        runs = {title: [rows[title] for rows, _ in found] for title in found[0][0]}
        for title, of_seeds in runs.items():
            bases = ("ance", "RAMEN") if title.startswith("OAK, ") else ("ance",)
            for base in bases if title != "ance" else ("",):
                lines += compared(dataset, title, of_seeds, base, runs.get(base, ()))
        gain = mean(runs["RAMEN"], "R@10") / mean(runs["ance"], "R@10")
    write("oak", lines, asked.into)
    finish(gain, {})


def measured(preset: RunConfig, seed: int, split: str) -> Found:
    """Return the metrics of a seed's rows by query, and figures of its linkers."""
    config = overlay(preset, {"seed": seed})
    content = [VERSION, Dataset(config.dataset).fingerprint, flatten(config), split]
    return kept(STORE, content, lambda: _measured(config, split))


def _measured(config: RunConfig, split: str) -> Found:
    data, sets = dataset_of(config.dataset, config.encoder), used_sets(config)
    linked = overlay(config, {**WITHOUT_GRAPH, **ANCE, "dataset": str(link_dataset(config))})
    ance = train(overlay(config, {**WITHOUT_GRAPH, **ANCE}), data)
    ramen = train(overlay(config, {**ANCE, **UNWALKED}), data)
    linker = train(linked, dataset_of(linked.dataset, linked.encoder))
    rows = {"ance": measured_by_query(ance, data, split)}
    rows["RAMEN"] = measured_by_query(ramen, data, split)
    anchors = {
        kind: nearest_anchors(model, data, sets, split, LINKER_DEPTH)
        for kind, model in ((TRAINED, linker), (RAMEN, ramen))
    }
    oak = OakSettings(anchor_sets=tuple(sets))
    links: dict[str, NDArray[Any]] = {
        kind: found[:, : oak.links_at_test] for kind, found in anchors.items()
    }
    edges = held_out_links(Dataset(config.dataset), sets, split)
    if edges is not None:
        links[ORACLE] = first_links(edges, oak.max_links)
    for title, changes in {"OAK": {}, **ABLATIONS}.items():
        trained = train_oak(oak_base(config), oak.model_copy(update=changes), data)
        for kind, found in links.items():
            if title == "OAK" or kind != RAMEN:
                model = AugmentedQueries(*trained, found)
                name = kind if title == "OAK" else kind.removeprefix("links by the ")
                rows[f"{title}, {name}"] = measured_by_query(model, data, split)
    is_known = np.zeros(sum(len(data.anchors(name)) for name in sets), dtype=bool)
    is_known[train_links(data, sets).indices] = True
    return rows, {
        kind: link_figures(found, oak.links_at_test, edges, is_known)
        for kind, found in anchors.items()
    }


def oak_base(config: RunConfig) -> RunConfig:
    """Return what OAK is added to: ance, with the rate of heads that all datasets have."""
    return overlay(config, {**WITHOUT_GRAPH, **ANCE, "optimizer.head_lr": HEAD_LR})


def link_dataset(config: RunConfig) -> Path:
    sets = used_sets(config)
    folder = CACHE / f"links_{Dataset(config.dataset).fingerprint}_{'_'.join(sets)}"
    if not folder.exists():
        make_link_dataset(Path(config.dataset), folder, sets)
    return folder


def train_oak(
    config: RunConfig, oak: OakSettings, data: Prepared
) -> tuple[DualEncoder, Augmentation]:
    """Train OAK on a base; returns the model, and what enriches its queries."""
    run = begin(config, data)
    part = oak_part(config, oak, data, run.model, run.sampler)
    run.objective, run.state.parts = oak_objective(config, oak), [*run.state.parts, part]
    return train_all_epochs(run), part.augmentation


if __name__ == "__main__":
    main()
