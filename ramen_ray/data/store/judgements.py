"""Judgements: how well ads answer queries, as people, models or logs have said."""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Float64s, Int64s
from ramen_ray.errors import DatasetError

LOW = 0.5
"""A lower grade says that the ad does not answer the query."""


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
