"""Why the graph changes R@10 and not P@1 on foldoc, and what it gains when clicks are few.

An entry's links are split into clicks and edges, so a query's other links count as wrong answers.
They are known for test queries that are also ads: the anchors of that ad. With R_z over clicked
ads, by side, with the bag and the λ on `links` named: P@1, the share of queries whose first
prediction is such a link, and P@1 and R@10
when links are dropped from the predictions. Then R@10 over the base's with a share of the train
queries. In batch, in this process, without Ray, walk and pruning, with seeds 0, 1, 2; intervals are
a bootstrap over queries and seeds. `ratio` is R@10 over the base's with a tenth of the queries.

    python -m benchmarks.neighbours [--seeds 3]
"""

import argparse
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.common import CACHE, NUM_THREADS, finish, prepared
from benchmarks.in_process import first_queries, train, with_occurring_tokens
from ramen_ray.config import overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.comparison import paired_differences_over_seeds
from ramen_ray.method.metrics.judgement import KS, Judgement, Propensity
from ramen_ray.method.metrics.ranking import PerQuery, ratio
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import TopK, search_parts
from ramen_ray.presets import foldoc_ramen

ANCHOR_SET = "links"
SIDES = {"base": (0.0, 0.0), "x 0.1": (0.1, 0.0), "both 0.1": (0.1, 0.1), "both 0.3": (0.3, 0.3)}
SHARES = (0.25, 0.1)
BATCH = 256


def main() -> None:
    """Train all sides with every seed, then base and the largest λ on shares of the queries."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(NUM_THREADS)
    prepared_data = prepared(foldoc_ramen().dataset, foldoc_ramen().encoder)
    data = with_occurring_tokens(prepared_data, CACHE / f"tokens_{prepared_data.path.name}")
    links = links_of(data, "test")
    found = {
        side: [look(trained(data, side, seed), data, links) for seed in seeds] for side in SIDES
    }
    figures: dict[str, Any] = {
        side: {name: mean(runs, name) for name in runs[0]} for side, runs in found.items()
    }
    for share in SHARES:
        ours, base = (
            [measured(trained(data, side, seed, share), data) for seed in seeds]
            for side in ("both 0.3", "base")
        )
        bounds = [100 * bound for bound in paired_differences_over_seeds(ours, base)["R@10"]]
        rates = [
            100 * float(np.mean([ratio(run["R@10"]) for run in runs])) for runs in (base, ours)
        ]
        figures[f"share {share:g}"] = {"R@10": rates, "R@10 less base": bounds}
    base_rate, rate = figures[f"share {SHARES[-1]:g}"]["R@10"]
    finish(rate / base_rate, figures)


def trained(data: Prepared, side: str, seed: int, share: float = 1.0) -> DualEncoder:
    """Train on the first ``share`` of the train queries."""
    lambda_x, lambda_z = SIDES[side]
    changes = {
        "base.kind": "in_batch",
        "walk.enabled": False,
        "pruning.mode": "never",
        "regularization.adaptive": False,
        "regularization.nodes": "clicked",
        "regularization.lambda_x": {ANCHOR_SET: lambda_x},
        "regularization.lambda_z": {ANCHOR_SET: lambda_z},
        "seed": seed,
        "training.global_batch_size": BATCH,
    }
    return train(overlay(foldoc_ramen(), changes), data, first_queries(share))


def links_of(data: Prepared, split: str) -> NDArray[np.int64]:
    """Return (pairs, 2) of (query row, ad): the links of queries that are ads by their text."""
    query, twin = same_texts(data.queries[split].hashes, data.ads.hashes)
    row, anchor = data.edges(ANCHOR_SET, "ad").gather(twin)
    place, ad = same_texts(data.anchors(ANCHOR_SET).hashes[anchor], data.ads.hashes)
    return np.stack([query[row[place]], ad], axis=1)


def same_texts(
    hashes: NDArray[np.uint64], among: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return those of ``hashes`` that are ``among`` others, and where (the first of equal ones)."""
    order = np.argsort(among, kind="stable")
    place = np.minimum(np.searchsorted(among[order], hashes), len(among) - 1)
    here = np.flatnonzero(among[order[place]] == hashes)
    return here, order[place[here]]


def look(model: DualEncoder, data: Prepared, links: NDArray[np.int64]) -> dict[str, float]:
    """Return P@1, how often a link comes first, and P@1 and R@10 without links, as shares."""
    ads, _ = predictions(model, data, data.filters("test"))
    pairs = set(map(tuple, links.tolist()))
    first = [(query, int(best)) in pairs for query, best in enumerate(ads[:, 0])]
    without, _ = predictions(model, data, np.concatenate([data.filters("test"), links]))
    judgement = Judgement.from_prepared(data, "test", Propensity())
    plain, filtered = (judgement.by_query(top) for top in (ads, without))
    return {
        "P@1": ratio(plain["P@1"]),
        "link first": float(np.mean(first)),
        "P@1 without links": ratio(filtered["P@1"]),
        "R@10": ratio(plain["R@10"]),
        "R@10 without links": ratio(filtered["R@10"]),
    }


def measured(model: DualEncoder, data: Prepared) -> dict[str, PerQuery]:
    """Return the metrics of the test split, query by query."""
    ads, _ = predictions(model, data, data.filters("test"))
    return Judgement.from_prepared(data, "test", Propensity()).by_query(ads)


def predictions(model: DualEncoder, data: Prepared, filters: NDArray[np.int64]) -> TopK:
    """Search all ads for the test queries, and drop the pairs of ``filters``."""
    queries, ads = data.queries["test"], data.candidates("test")
    embedded = model.embed_queries(queries, np.arange(len(queries)))
    return search_parts(embedded, [model.embed_ads(data.ads, ads)], ads, filters, max(KS))


def mean(runs: list[dict[str, float]], name: str) -> float:
    """Return a figure's mean over the seeds, in per cent."""
    return 100 * float(np.mean([run[name] for run in runs]))


if __name__ == "__main__":
    main()
