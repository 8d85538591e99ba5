"""Third stage: decide which queries and ads are kept, in which split, with which ids."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s, UInt64s
from ramen_ray.data.importers.tables.given import given_splits
from ramen_ray.data.importers.tables.numbering import Numbering
from ramen_ray.data.importers.tables.settings import Splits, UserTables
from ramen_ray.data.importers.tables.staging import read_parts
from ramen_ray.data.prepared.hashing import uniforms
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.schemas import SPLITS

Int8s = NDArray[np.int8]

TRAIN, VALIDATION, TEST = range(3)
_NOT_CLICKED = 3
_KEY = 1


@dataclass(frozen=True)
class Plan:
    """Splits and final ids, by the numbers of queries and ads.

    Attributes:
        query_periods: (queries,) int8, the period in which a query's clicks count.
        query_splits: (queries,) int8, index into SPLITS; -1 for queries that are left out.
        query_ids: (queries,) int64, ids within the split.
        ad_ids: (ads,) int64; -1 for ads that are left out.
    """

    query_periods: Int8s
    query_splits: Int8s
    query_ids: Int64s
    ad_ids: Int64s

    @classmethod
    def open(cls, folder: Path) -> "Plan":
        """Map the arrays that :func:`make_plan` wrote."""
        names = cls.__dataclass_fields__
        return cls(*(np.load(folder / f"plan-{name}.npy", mmap_mode="r") for name in names))


def make_plan(folder: Path, tables: UserTables) -> dict[str, int]:
    """Decide what is kept and in which split, and write the :class:`Plan`.

    Queries whose texts differ only in case and white space share a split. With a split by time a
    query belongs to the period of its first click, and only its clicks in that period count, so
    that training never sees a later click. A query without a click that counts can only be kept in
    the train split.

    Returns:
        how many ads and queries are left out because they have too few clicks or two splits, and
        how many train queries are kept without a click.

    Raises:
        DatasetError: a split would be empty, or a query is given two.
    """
    queries, ads = Numbering.open(folder, "queries"), Numbering.open(folder, "ads")
    num_queries = int(queries.id_numbers.max(initial=-1)) + 1
    num_ads = int(ads.id_numbers.max(initial=-1)) + 1
    folded = queries.folded_hashes
    periods = _first_periods(folder, folded)
    queries_of_ad = np.zeros(num_ads, dtype=np.int64)
    for _, ad in _counted_clicks(folder, periods):
        queries_of_ad += np.bincount(ad, minlength=num_ads)
    ad_stays = queries_of_ad >= tables.min_queries_per_ad
    ads_of_query = np.zeros(num_queries, dtype=np.int64)
    for query, ad in _counted_clicks(folder, periods):
        ads_of_query += np.bincount(query[ad_stays[ad]], minlength=num_queries)
    splits = _splits(periods, folded, tables.splits)
    if tables.given_splits:
        splits = given_splits(folder, tables, folded, periods != _NOT_CLICKED)
    unclicked = ads_of_query == 0
    stays = ads_of_query >= max(tables.fewest_ads, 1)
    if not tables.fewest_ads:
        stays |= unclicked & (splits == TRAIN)
    splits[~stays] = -1
    query_ids = np.full(num_queries, -1, dtype=np.int64)
    for place, split in enumerate(SPLITS):
        chosen = splits == place
        if not (chosen & ~unclicked).any():
            raise DatasetError(f"the {split} split would have no queries: {_ADVICE[split]}")
        query_ids[chosen] = np.arange(chosen.sum())
    plan = Plan(periods, splits, query_ids, np.where(ad_stays, np.cumsum(ad_stays) - 1, -1))
    for name in Plan.__dataclass_fields__:
        np.save(folder / f"plan-{name}.npy", getattr(plan, name))
    return {
        "ads_left_out": int((~ad_stays).sum()),
        "queries_left_out": int((splits < 0).sum()),
        "unclicked_queries": int((unclicked & (splits == TRAIN)).sum()),
    }


_ADVICE = {
    "train": "hold out fewer test and validation queries, check splits.test_from and"
    " splits.validation_from, or lower the minimum counts",
    "validation": "raise splits.validation_fraction, or check splits.validation_from or the given"
    " splits",
    "test": "raise splits.test_fraction, or check splits.test_from or the given splits",
}


def _first_periods(folder: Path, folded: UInt64s) -> Int8s:
    """Return the first period (queries,) in which any query of the same folded text is clicked."""
    first = np.full(len(folded), _NOT_CLICKED, dtype=np.int8)
    for clicks in read_parts(folder, "summed"):
        np.minimum.at(first, clicks["query"].to_numpy(), clicks["period"].to_numpy())
    _, group = np.unique(folded, return_inverse=True)
    of_group = np.full(int(group.max(initial=-1)) + 1, _NOT_CLICKED, dtype=np.int8)
    np.minimum.at(of_group, group, first)
    return of_group[group]


def _splits(periods: Int8s, folded: UInt64s, splits: Splits) -> Int8s:
    """Assign queries to splits by their period; those of the first period at random."""
    drawn = uniforms((splits.seed, _KEY), folded)
    held_out = 0.0 if splits.test_from else splits.test_fraction
    validation = 0.0 if splits.validation_from else splits.validation_fraction
    at_random = np.where(drawn < held_out + validation, VALIDATION, TRAIN)
    at_random[drawn < held_out] = TEST
    at_random[periods == _NOT_CLICKED] = TRAIN  # held-out queries need an answer
    by_period = np.where(periods == _NOT_CLICKED, TRAIN, periods)
    return np.where(by_period == TRAIN, at_random, by_period).astype(np.int8)


def _counted_clicks(folder: Path, periods: Int8s) -> Iterator[tuple[Int64s, Int64s]]:
    """Stream the (query, ad) pairs that count, part by part."""
    for clicks in read_parts(folder, "summed"):
        query, ad = clicks["query"].to_numpy(), clicks["ad"].to_numpy()
        counts = clicks["period"].to_numpy() == periods[query]
        yield query[counts], ad[counts]
