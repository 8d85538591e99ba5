"""What the graph brings on the built-in datasets: RAMEN less its base, with controls.

The preset bag-ramen without walk and pruning, in batch, under both
protocols (strict, as published); beside them `ance`, walk, pruning, a quarter of the clicks,
shuffled edges and AugGT. In this process, one thread, without Ray Train. Every run is kept, so that
the same command continues where it was stopped. Prints a Markdown table per dataset: metrics of
each variant and, where it is compared with a base, differences with 95 % intervals over queries and
seeds. `ratio` is R@10 of the preset's recipe over its base, strict, of the last dataset.

    python -m benchmarks.graph_gain [--sets foldoc debian rdocs] [--seeds 3] [--split test]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import CACHE, finish, kept, options, prepared
from benchmarks.in_process import first_queries, random_edges, train
from ramen_ray.bases import Part
from ramen_ray.config import EncoderConfig, RunConfig, flatten, overlay
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.splits.propagation import PropagationSettings, propagate_clicks
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.comparison import paired_differences_over_seeds
from ramen_ray.method.metrics.judgement import Judgement, Propensity, evaluate
from ramen_ray.method.metrics.ranking import (
    PerQuery,
    clicks_on,
    popularity_groups,
    query_metrics,
    ratio,
)
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.presets import bag_ramen

STORE = CACHE / "graph_gain"
VERSION = 2
"""Change it with what a run computes, so that kept runs are not taken for new ones."""
OVERALL = ("P@1", "P@5", "N@5", "PSP@5", "R@10")
NO_GRAPH: dict[str, Any] = {"regularization.lambda_x": {}, "regularization.lambda_z": {}}
PLAIN = {"base.kind": "in_batch", "walk.enabled": False, "pruning.mode": "never"}
FIXED = {"regularization.adaptive": False}
CLICKED = {"regularization.nodes": "clicked"}
RARE = {"regularization.nodes": "rare"}
NGAME = {"base.kind": "ngame"}
PUBLISHED = "_published"


@dataclass(frozen=True)
class GraphVariant:
    """One row of a table.

    Attributes:
        changes: of the dataset's preset.
        base: the row that it is compared with; None for a base.
        share: of the train queries.
        random_edges: share of the edges whose anchors are dealt out anew.
        published: whether it draws from the anchor sets as published.
        propagated: whether it trains on clicks propagated over the graph (AugGT).
        part: which part of the model's vectors answers.
    """

    changes: Mapping[str, Any]
    base: str | None
    share: float = 1.0
    random_edges: float = 0.0
    published: bool = False
    propagated: bool = False
    part: Part = "encoder"


def variants(config: RunConfig) -> dict[str, GraphVariant]:
    """Return the variants of a dataset by name; "RAMEN" is its preset."""
    used = {name: w for name, w in config.regularization.lambda_z.items() if w}
    both = {**PLAIN, "regularization.lambda_x": used}
    queries = {**both, "regularization.lambda_z": {}}
    unpruned = {"walk.enabled": False, "pruning.mode": "never"}
    quarter = "quarter of the clicks: base"
    found = {
        "base": GraphVariant({**PLAIN, **NO_GRAPH}, None),
        "RAMEN": GraphVariant(PLAIN, "base"),
        "rare nodes": GraphVariant({**PLAIN, **RARE}, "base"),
        "fixed λ": GraphVariant({**PLAIN, **FIXED}, "base"),
        "fixed λ, clicked nodes": GraphVariant({**PLAIN, **FIXED, **CLICKED}, "base"),
        "both sides": GraphVariant(both, "base"),
        "both sides, fixed λ, clicked nodes": GraphVariant({**both, **FIXED, **CLICKED}, "base"),
        "query graph only": GraphVariant(queries, "base"),
        "shuffled graph": GraphVariant(PLAIN, "base", random_edges=1.0),
        "shuffled graph, rare nodes": GraphVariant({**PLAIN, **RARE}, "base", random_edges=1.0),
        "shuffled graph, fixed λ": GraphVariant({**PLAIN, **FIXED}, "base", random_edges=1.0),
        quarter: GraphVariant({**PLAIN, **NO_GRAPH}, None, share=0.25),
        "quarter of the clicks: RAMEN": GraphVariant(PLAIN, quarter, share=0.25),
    }
    if any(name.endswith(PUBLISHED) for name in published_sets(config).regularization.lambda_z):
        old = {**both, **FIXED, **CLICKED}
        found |= {
            "as published: RAMEN": GraphVariant(PLAIN, "base", published=True),
            "as published: both sides, fixed λ": GraphVariant(
                {**both, **FIXED}, "base", published=True
            ),
            "as published: both sides, fixed λ, clicked nodes": GraphVariant(
                old, "base", published=True
            ),
        }
    for name in Dataset(config.dataset).strict_anchor_sets:
        if name not in used:
            other = {**PLAIN, **NO_GRAPH, "regularization.lambda_z": {name: 0.3}}
            found[f"`{name}` alone"] = GraphVariant(other, "base")
            found[f"`{name}` alone, fixed λ"] = GraphVariant({**other, **FIXED}, "base")
    return found | {
        "ance": GraphVariant({**unpruned, **NO_GRAPH}, None),
        "ance: RAMEN": GraphVariant(unpruned, "ance"),
        "ance: RAMEN, pruning": GraphVariant({**unpruned, "pruning.mode": "synchronous"}, "ance"),
        "ngame": GraphVariant({**unpruned, **NO_GRAPH, **NGAME}, None),
        "ngame: RAMEN": GraphVariant({**unpruned, **NGAME}, "ngame"),
        "AugGT": GraphVariant({**PLAIN, **NO_GRAPH}, "base", propagated=True),
        "walk": GraphVariant({**PLAIN, "walk.enabled": True}, "base"),
        "half-random graph": GraphVariant(PLAIN, "base", random_edges=0.5),
        "every fourth step": GraphVariant({**PLAIN, "regularization.every_steps": 4}, "base"),
    }


def published_sets(config: RunConfig) -> RunConfig:
    """Take the anchor sets as published in place of the strict ones, where there are such."""
    known = Dataset(config.dataset).anchor_sets

    def renamed(weights: Mapping[str, float]) -> dict[str, float]:
        return {
            name + PUBLISHED if name + PUBLISHED in known else name: weight
            for name, weight in weights.items()
            if weight
        }

    used = config.regularization
    changes = {
        "regularization.lambda_x": renamed(used.lambda_x),
        "regularization.lambda_z": renamed(used.lambda_z),
    }
    return overlay(config, changes)


def main() -> None:
    """Train what is not there yet, and print a table for each dataset."""
    asked = options(__doc__, sets=["foldoc", "debian", "rdocs"], seeds=3, split="test")
    torch.set_num_threads(1)
    gain = 1.0
    for dataset in asked.sets:
        config = bag_ramen(dataset)
        runs = compare(config, variants(config), asked.seeds, asked.split)
        gain = mean(runs["RAMEN"], "R@10") / mean(runs["base"], "R@10")
    finish(gain, {})


def compare(
    config: RunConfig, rows: Mapping[str, GraphVariant], num_seeds: int, split: str
) -> dict[str, list[dict[str, PerQuery]]]:
    """Print a row for each variant of ``config``; returns their metrics by query and seed."""
    print(f"\n## {Path(config.dataset).name}, {split}\n")
    runs: dict[str, list[dict[str, PerQuery]]] = {}
    for title, variant in rows.items():
        runs[title] = [measured(config, variant, seed, split) for seed in range(num_seeds)]
        if len(runs) == 1:
            print(header(list(runs[title][0])))
        print(row(title, runs[title], runs[variant.base] if variant.base else None), flush=True)
    return runs


def measured(
    preset: RunConfig, variant: GraphVariant, seed: int, split: str
) -> dict[str, PerQuery]:
    """Return a variant's metrics of a split by query, trained now or earlier."""
    config = overlay(preset, {**variant.changes, "seed": seed})
    if variant.published:
        config = published_sets(config)
    if variant.propagated:
        config = overlay(config, {"dataset": str(propagated(preset))})
    data = dataset_of(config.dataset, config.encoder)
    changed = (variant.share, variant.random_edges)

    def measure() -> dict[str, Any]:
        model = trained(config.model_dump_json(), *changed)
        model.part = variant.part
        found = judged(evaluate(model, data, split, Propensity())[1][0], data, split)
        return {name: np.stack(values) for name, values in found.items()}

    content = [VERSION, flatten(config), data.path.name, *changed, variant.part, split]
    stored = kept(STORE, content, measure)
    return {name: (values[0], values[1]) for name, values in stored.items()}


@lru_cache(maxsize=8)  # rows that follow one another may differ only in what answers
def trained(config_json: str, share: float = 1.0, shuffled: float = 0.0) -> DualEncoder:
    """Train a configuration on a share of the queries, with a share of the edges shuffled."""
    config = RunConfig.model_validate_json(config_json)
    changes = [random_edges(shuffled, seed=7)] if shuffled else []
    changes += [first_queries(share)] if share < 1 else []
    return train(config, dataset_of(config.dataset, config.encoder), *changes)


@cache
def dataset_of(dataset: str, encoder: EncoderConfig) -> Prepared:
    """Return a dataset, prepared once."""
    return prepared(dataset, encoder)


def propagated(config: RunConfig) -> Path:
    """Write the dataset with clicks propagated over the graphs of a run (AugGT)."""
    weights = config.regularization.lambda_z
    sets = tuple(sorted(name for name, weight in weights.items() if weight))
    folder = CACHE / f"auggt_{Path(config.dataset).name}"
    if not folder.exists():
        propagate_clicks(Dataset(config.dataset), folder, PropagationSettings(anchor_sets=sets))
    return folder


def judged(topk_ad_ids: Int64s, data: Prepared, split: str) -> dict[str, PerQuery]:
    """Measure predictions by query: all clicks, by train clicks of the ad, by clicks of the query.

    Queries are cut into head, torso and tail, a third of the clicks each, as the paper's Table 1
    cuts them by traffic; these sets have none but their clicks.
    """
    judgement = Judgement.from_prepared(data, split, Propensity())
    found = {name: judgement.by_query(topk_ad_ids)[name] for name in OVERALL}
    never = data.train_click_counts == 0
    for name, member in (("clicked ads", ~never), ("never-clicked ads", never)):
        of_ads = query_metrics(
            topk_ad_ids, clicks_on(judgement.truth, member), judgement.inverse, (10,)
        )
        found[f"{name} R@10"] = of_ads["R@10"]
    for name, member in popularity_groups(np.diff(judgement.truth.indptr)).items():
        gained, possible = found["P@1"]
        found[f"{name} queries P@1"] = gained * member, possible * member
    return found


def header(names: list[str]) -> str:
    """Return the first two lines of a table."""
    return f"| variant | {' | '.join(names)} |\n|---|{'--:|' * len(names)}"


def row(title: str, runs: list[dict[str, PerQuery]], base: list[dict[str, PerQuery]] | None) -> str:
    """Return a line in per cent; differences to the base in points, bold where 0 is outside."""
    cells = [f"{100 * mean(runs, name):.2f}" for name in runs[0]]
    if base is not None:
        bounds = paired_differences_over_seeds(runs, base)
        cells = [
            f"{cell} {shown(*bounds[name])}" for cell, name in zip(cells, runs[0], strict=True)
        ]
    return f"| {title} | {' | '.join(cells)} |"


def shown(value: float, low: float, high: float) -> str:
    """Format a difference in points."""
    text = f"{100 * value:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
    return f"**{text}**" if low > 0 or high < 0 else text


def mean(runs: list[dict[str, PerQuery]], name: str) -> float:
    """Return a metric's mean over the seeds."""
    return float(np.mean([ratio(run[name]) for run in runs]))


if __name__ == "__main__":
    main()
