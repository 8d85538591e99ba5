"""What the graph, other bases and the parts of unidec bring on the built-in datasets.

The preset bag-ramen without walk and pruning, in batch, under both protocols (strict, as
published); beside it the other bases, walk, pruning, a quarter of the clicks, shuffled edges and
AugGT. `--parts` has unidec without each of its parts in their place. Every run is kept, so that the
same command goes on. `ratio` is R@10 of the second variant (the preset's recipe) over the first
(its base), of the last dataset.

    python -m benchmarks.graph_gain [--sets foldoc debian rdocs] [--seeds 3] [--split test]
        [--parts] [--into docs/evidence]
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import CACHE, finish, options, prepared
from benchmarks.in_process import first_queries, random_edges, train
from benchmarks.tables import ByQuery, Found, compared, kept, kept_file, mean, write
from experiments.auggt import PropagationSettings, propagate_clicks
from ramen_ray.bases import Part
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, flatten, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity, evaluate
from ramen_ray.method.metrics.ranking import clicks_on, popularity_groups, query_metrics
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.orchestration.run.build import use_bf16
from ramen_ray.presets import bag_ramen, base_changes

STORE = CACHE / "graph_gain"
VERSION = 4  # of what is kept; a change of what a run computes makes the runs anew
OVERALL = ("P@1", "P@5", "PSP@5", "R@10")
ANSWERS = ("most answers", "in between", "fewest answers")
UNWALKED = {"walk.enabled": False, "pruning.mode": "never"}
IN_BATCH = {"base.kind": "in_batch"}
FIXED = {"regularization.adaptive": False}
CLICKED = {"regularization.nodes": "clicked"}
RARE = {"regularization.nodes": "rare"}
PUBLISHED = "_published"
PARTS: tuple[Part, ...] = ("encoder", "classifier", "both")
UNIDEC_WITHOUT: Mapping[str, Mapping[str, Any]] = {
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


dataset_of = cache(prepared)
SETS = {"foldoc": ["links"], "debian": ["sources"]}
"""Whose edges are used where a preset would take all of the dataset's."""


def recipe(dataset: str) -> RunConfig:
    """Return the preset of the tables, for a built-in dataset or one in a folder."""
    config = bag_ramen(dataset)
    weights = config.regularization.lambda_z
    kept_sets = {name: weights[name] for name in SETS.get(dataset, weights)}
    return overlay(config, {"regularization.lambda_z": kept_sets})


@dataclass(frozen=True)
class GraphVariant:
    """A row of a table: changes of the dataset's preset, and the rows that it is compared with."""

    changes: Mapping[str, Any]
    over: tuple[str, ...] = ()
    share: float = 1.0  # of the train queries
    random_edges: float = 0.0  # share of the edges whose anchors are dealt out anew
    published: bool = False  # draws from the anchor sets as published
    propagated: bool = False  # trains on clicks propagated over the graph (AugGT)
    part: Part = "encoder"  # of the model's vectors, that answers


def variants(config: RunConfig) -> dict[str, GraphVariant]:
    """Return the variants of a dataset by name; "RAMEN" is its preset, in batch."""

    def on_base(changes: Mapping[str, Any] = {}, **how: Any) -> GraphVariant:
        return GraphVariant({**IN_BATCH, **UNWALKED, **changes}, ("base",), **how)

    used = {name: w for name, w in config.regularization.lambda_z.items() if w}
    both = {"regularization.lambda_x": used}
    base = {**IN_BATCH, **WITHOUT_GRAPH}
    found = {
        "base": GraphVariant(base),
        "RAMEN": on_base(),
        "rare nodes": on_base(RARE),
        "fixed λ": on_base(FIXED),
        "fixed λ, clicked nodes": on_base({**FIXED, **CLICKED}),
        "both sides": on_base(both),
        "both sides, fixed λ, clicked nodes": on_base({**both, **FIXED, **CLICKED}),
        "query graph only": on_base({**both, "regularization.lambda_z": {}}),
        "shuffled graph": on_base(random_edges=1.0),
        "shuffled graph, rare nodes": on_base(RARE, random_edges=1.0),
        "shuffled graph, fixed λ": on_base(FIXED, random_edges=1.0),
        "half-random graph": on_base(random_edges=0.5),
        "every fourth step": on_base({"regularization.every_steps": 4}),
        "walk": on_base({"walk.enabled": True}),
        "AugGT": on_base(WITHOUT_GRAPH, propagated=True),
        "quarter of the clicks: base": GraphVariant(base, share=0.25),
        "quarter of the clicks: RAMEN": GraphVariant(
            {**IN_BATCH, **UNWALKED}, ("quarter of the clicks: base",), share=0.25
        ),
    }
    if any(name.endswith(PUBLISHED) for name in published_sets(config).regularization.lambda_z):
        old = {**both, **FIXED}
        found |= {
            "as published: RAMEN": on_base(published=True),
            "as published: both sides, fixed λ": on_base(old, published=True),
            "as published: both sides, fixed λ, clicked nodes": on_base(
                {**old, **CLICKED}, published=True
            ),
        }
    for name in Dataset(config.dataset).strict_anchor_sets:
        if name not in used:
            other = {"regularization.lambda_x": {}, "regularization.lambda_z": {name: 0.3}}
            found[f"{name} alone"] = on_base(other)
            found[f"{name} alone, fixed λ"] = on_base({**other, **FIXED})
    return found | other_bases(config)


def other_bases(config: RunConfig) -> dict[str, GraphVariant]:
    """Return the other bases, each without and with the graph; unidec by each of its parts."""
    pruned = {"base.kind": "ance", "walk.enabled": False, "pruning.mode": "synchronous"}
    found = {"ance + RAMEN, pruning": GraphVariant(pruned, ("ance",))}
    for base in ("ance", "ngame", "depsl", "unidec"):
        own = base_changes(config, {"base.kind": base})
        for part in PARTS if base == "unidec" else PARTS[:1]:
            title = f"{base}: {part}" if base == "unidec" else base
            over = ["ance"] if base in ("depsl", "unidec") else []
            found[title] = GraphVariant({**own, **WITHOUT_GRAPH}, tuple(over), part=part)
            over = [title, "ance + RAMEN"] if part == "both" else [title]
            found[f"{title} + RAMEN"] = GraphVariant({**own, **UNWALKED}, tuple(over), part=part)
        if base == "unidec":
            shuffled = replace(found[f"{title} + RAMEN"], over=(title,), random_edges=1.0)
            found[f"{title}, shuffled graph"] = shuffled
    return found


def parts_of_unidec(config: RunConfig) -> dict[str, GraphVariant]:
    whole, unidec = "unidec", base_changes(config, {"base.kind": "unidec"})
    found = {whole: GraphVariant({**unidec, **WITHOUT_GRAPH}, part="both")}
    for title, changes in UNIDEC_WITHOUT.items():
        changed = {**unidec, **WITHOUT_GRAPH, **changes}
        found[f"unidec, {title}"] = GraphVariant(changed, (whole,), part="both")
    return found


def published_sets(config: RunConfig) -> RunConfig:
    """Take the anchor sets as published in place of the strict ones, where there are such."""
    known = Dataset(config.dataset).anchor_sets
    changes = {
        f"regularization.{side}": {
            name + PUBLISHED if name + PUBLISHED in known else name: weight
            for name, weight in getattr(config.regularization, side).items()
            if weight
        }
        for side in ("lambda_x", "lambda_z")
    }
    return overlay(config, changes)


def main() -> None:
    asked = options(
        __doc__, sets=["foldoc", "debian", "rdocs"], seeds=3, split="test", parts=False, into=""
    )
    torch.set_num_threads(1)
    lines, gain = list[dict[str, str]](), 1.0
    for dataset in asked.sets:
        config = recipe(dataset)
        rows = parts_of_unidec(config) if asked.parts else variants(config)
        runs = {
            title: [measured(config, variant, seed, asked.split) for seed in range(asked.seeds)]
            for title, variant in rows.items()
        }
        for title, variant in rows.items():
            for over in variant.over or ("",):
                lines += compared(dataset, title, runs[title], over, runs.get(over, ()))
        first, second, *_ = runs.values()
        gain = mean(second, "R@10") / mean(first, "R@10")
    write("unidec_parts" if asked.parts else "results", lines, asked.into)
    finish(gain, {})


def measured(preset: RunConfig, variant: GraphVariant, seed: int, split: str) -> ByQuery:
    """Return a variant's metrics of a split by query, trained now or earlier."""
    config = changed(preset, variant, seed)
    data = dataset_of(config.dataset, config.encoder)

    def measure() -> Found:
        model = trained(config.model_dump_json(), variant.share, variant.random_edges)
        model.part = variant.part
        bf16 = use_bf16(config, model.device)
        return {"run": measured_by_query(model, data, split, bf16)}, {}

    return kept(STORE, content(config, variant, split), measure)[0]["run"]


def is_kept(preset: RunConfig, variant: GraphVariant, seed: int, split: str) -> bool:
    """Say whether :func:`measured` would train nothing."""
    return kept_file(STORE, content(changed(preset, variant, seed), variant, split)).exists()


def changed(preset: RunConfig, variant: GraphVariant, seed: int) -> RunConfig:
    """Return the configuration of a variant's run."""
    config = overlay(preset, {**variant.changes, "seed": seed})
    if variant.published:
        config = published_sets(config)
    if variant.propagated:
        config = overlay(config, {"dataset": str(propagated(preset))})
    return config


def content(config: RunConfig, variant: GraphVariant, split: str) -> list[Any]:
    """Return all that decides what a run is kept as."""
    data = dataset_of(config.dataset, config.encoder)
    how = (variant.share, variant.random_edges, variant.part)
    return [VERSION, flatten(config), data.path.name, *how, split]


@lru_cache(maxsize=8)  # rows that follow one another may differ only in what answers
def trained(config_json: str, share: float = 1.0, shuffled: float = 0.0) -> DualEncoder:
    """Train a configuration on a share of the queries, with a share of the edges shuffled."""
    config = RunConfig.model_validate_json(config_json)
    changes = [partial(random_edges, share=shuffled)] if shuffled else []
    changes += [partial(first_queries, share=share)] if share < 1 else []
    return train(config, dataset_of(config.dataset, config.encoder), *changes)


def propagated(config: RunConfig) -> Path:
    """Write the dataset with clicks propagated over the graphs of a run (AugGT)."""
    weights = config.regularization.lambda_z
    sets = tuple(sorted(name for name, weight in weights.items() if weight))
    folder = CACHE / f"auggt_{Path(config.dataset).name}"
    if not folder.exists():
        propagate_clicks(Dataset(config.dataset), folder, PropagationSettings(anchor_sets=sets))
    return folder


def measured_by_query(
    model: DualEncoder, data: Prepared, split: str, bf16: bool = False
) -> ByQuery:
    """Measure a model by query: all clicks, by train clicks of the ad, by clicks of the query.

    Queries are cut by their number of answers, a third of the clicks each, as the paper's Table 1
    cuts them by traffic; these sets have none but their clicks.
    """
    ground_truth = GroundTruth.from_prepared(data, split, Propensity())
    topk_ad_ids, _ = evaluate(model, data, split, Propensity(), bf16)[1]
    found = {name: ground_truth.by_query(topk_ad_ids)[name] for name in OVERALL}
    never = data.train_click_counts == 0
    for name, member in (("clicked ads", ~never), ("never-clicked ads", never)):
        of_ads = query_metrics(
            topk_ad_ids, clicks_on(ground_truth.truth, member), ground_truth.inverse, (10,)
        )
        found[f"{name} R@10"] = of_ads["R@10"]
    gained, possible = found["P@1"]
    groups = popularity_groups(np.diff(ground_truth.truth.indptr)).values()
    for name, member in zip(ANSWERS, groups, strict=True):
        found[f"P@1, {name}"] = gained * member, possible * member
    return found


if __name__ == "__main__":
    main()
