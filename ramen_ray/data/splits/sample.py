"""A smaller dataset around some queries of a large one, with the clicks and edges there."""

from pathlib import Path

import numpy as np

from ramen_ray.data.arrays import Booleans, Float64s, uniforms
from ramen_ray.data.splits.kept import Kept, lowest, new_dataset_from, write_kept
from ramen_ray.data.store.dataset import Dataset, DatasetWriter
from ramen_ray.data.store.schemas import JUDGED, NODE_TABLES, SPLITS, TRAIN

SHARE_OF_SEEDS = 1 / 64
GROWTH = 4
_SEEDS, _NEIGHBOURS, _ADS, _HELD_OUT = range(4)

FAR = 1e-9  # weight of queries that share no ad: drawn where no others are left


def sample_dataset(dataset: Path, output: Path, num_queries: int, seed: int = 0) -> Dataset:
    """Write a dataset of ``num_queries`` train queries that lie close together.

    One in 64 is drawn uniformly. The others share ads with those chosen before them, rarely clicked
    ads counting more. All their clicks and edges are kept, and what these join. Ads without train
    clicks (novel ones too), and held-out queries that led to a kept ad, are kept in the same
    proportion as clicked ads, the queries with all their answers. So ads have about as many clicks,
    and nodes as many edges, as before; but fewer ads compete, which makes metrics better. Raises a
    DatasetError if the dataset is not usable, or changes meanwhile, or ``output`` exists.
    """
    parent = Dataset(dataset)
    settings = {"num_queries": num_queries, "seed": seed}
    with new_dataset_from(parent, output, "sample", "sample", settings) as writer:
        kept = _kept_rows(parent, num_queries, seed)
        for table in kept:
            write_kept(parent, table, kept, writer)
        for split in SPLITS[1:]:
            write_kept(parent, f"filters/{split}", kept, writer)
        for table in JUDGED:
            write_kept(parent, table, kept, writer)
        for anchor_set in parent.anchor_sets:
            _write_graph(parent, anchor_set, kept, writer)
    return Dataset(output)


def _kept_rows(parent: Dataset, num_queries: int, seed: int) -> dict[str, Booleans]:
    queries, ads = parent.clicks("train").nonzero()
    num_train = parent.num_rows(TRAIN)
    num_ads = parent.num_rows("ads")
    degrees = np.bincount(ads, minlength=num_ads)
    weights = np.ones(num_train)
    train = lowest(_race((seed, _SEEDS), weights), max(round(SHARE_OF_SEEDS * num_queries), 1))
    while (count := int(train.sum())) < min(num_queries, num_train):
        near = np.zeros(num_ads, dtype=bool)
        near[ads[train[queries]]] = True
        shared = np.bincount(queries, near[ads] / degrees[ads], minlength=num_train)
        weights = np.where(train, np.inf, shared + FAR)  # those chosen draw 0, and stay chosen
        train = lowest(_race((seed, _NEIGHBOURS), weights), min(GROWTH * count, num_queries))
    clicked = np.zeros(num_ads, dtype=bool)
    clicked[ads[train[queries]]] = True
    share = clicked.sum() / max((degrees > 0).sum(), 1)
    bare = (degrees == 0) & (uniforms((seed, _ADS), np.arange(num_ads)) < share)
    kept = {TRAIN: train, "ads": clicked | bare}
    for number, split in enumerate(SPLITS[1:]):
        queries, answers = parent.clicks(split).nonzero()
        num_held_out = parent.num_rows(f"queries/{split}")
        reached = np.bincount(queries, (clicked | bare)[answers], minlength=num_held_out) > 0
        draws = _race((seed, _HELD_OUT + number), reached.astype(float))
        kept[f"queries/{split}"] = lowest(draws, round(share * num_held_out))
        kept["ads"][answers[kept[f"queries/{split}"][queries]]] = True
    return kept


def _race(key: tuple[int, ...], weights: Float64s) -> Float64s:
    """Draw for rows (n,): the lowest are a sample by weight; a weight of 0 draws infinity."""
    draws = -np.log1p(-uniforms(key, np.arange(len(weights))))
    with np.errstate(divide="ignore"):
        return np.where(weights > 0, draws / weights, np.inf)


def _write_graph(parent: Dataset, anchor_set: str, kept: Kept, writer: DatasetWriter) -> None:
    """Write an anchor set's edges of kept nodes, and their anchors; nothing if there are none."""
    edges = {f"edges/{anchor_set}/{side}": kept[nodes] for side, nodes in NODE_TABLES.items()}
    anchors = np.zeros(parent.num_rows(f"anchors/{anchor_set}"), dtype=bool)
    for table in filter(parent.has, edges):
        for rows in parent.batches(table):
            anchors[rows["anchor_id"].to_numpy()[edges[table][rows[0].to_numpy()]]] = True
    for table in (f"anchors/{anchor_set}", *edges):
        write_kept(parent, table, {**kept, f"anchors/{anchor_set}": anchors}, writer)
