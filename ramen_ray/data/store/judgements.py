"""Judgements: how well ads answer queries, as people, models or logs have said."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Float64s, Int64s
from ramen_ray.errors import DatasetError

LOW = 0.5
"""A lower grade says that the ad does not answer the query."""
CLICKED_RANGE = 0.05, 0.95
"""Shares of the clicked pairs that a teacher scores below the grades LOW and 1."""


@dataclass(frozen=True)
class Judgements:
    """Grades from 0 to 1, each of a query and an ad, all (pairs,); no pair is there twice."""

    queries: Int64s
    ads: Int64s
    grades: Float64s

    @classmethod
    def of(cls, rows: pa.Table, sources: Collection[str] = ()) -> "Judgements":
        """Take a table's judgements by ``sources``, or all; of several of a pair, the mean counts.

        Raises a DatasetError if the table has none by one of them.
        """
        known = pc.unique(rows["source"]).to_pylist()
        for source in sources:
            if source not in known:
                raise DatasetError(
                    f"there is no judgement by {source!r}; there are some by {', '.join(known)}"
                )
        if sources:
            rows = rows.filter(pc.is_in(rows["source"], pa.array(sources, pa.string())))
        pairs = rows.group_by(["query_id", "ad_id"], use_threads=False)
        means = pairs.aggregate([("grade", "mean")]).sort_by(
            [("query_id", "ascending"), ("ad_id", "ascending")]
        )
        return cls(*(means[name].to_numpy() for name in ("query_id", "ad_id", "grade_mean")))

    def among(self, member: Booleans) -> "Judgements":
        """Return the judgements of the ads that ``member`` (ads,) flags."""
        kept = member[self.ads]
        return Judgements(self.queries[kept], self.ads[kept], self.grades[kept])


def grades_of_scores(scores: Float64s, is_clicked: Booleans) -> Float64s:
    """Turn a teacher's scores (pairs,) into grades (pairs,), by those of the pairs with a click.

    Half is the score that one clicked pair in twenty is below, and 1 what one in twenty is above;
    grades go straight through both, and end at 0 and 1. Raises a DatasetError if the two are one.
    """
    low, high = np.quantile(scores[is_clicked], CLICKED_RANGE)
    if not low < high:
        raise DatasetError("the teacher gives nearly all clicked pairs one score; take another")
    return np.clip(LOW + (1 - LOW) * (scores - low) / (high - low), 0.0, 1.0)
