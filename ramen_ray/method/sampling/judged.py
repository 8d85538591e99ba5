"""What judgements say of the ads of train queries: who are given negatives, and who is no negative.

Ads judged low are no positives, clicked or not, and are drawn as negatives of the batch. Ads judged
high are no negatives of their query, and its positives if that is asked for.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s, ragged_positions
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.store.judgements import LOW, Judgements


@dataclass(frozen=True)
class JudgedAds:
    """The judged ads of each train query row."""

    pairs: Csr  # query rows x ads
    grades: NDArray[np.float32]  # (entries,) from 0 to 1
    are_positives: bool = False  # whether ads judged high count as clicked

    @classmethod
    def from_judgements(
        cls, judged: Judgements, num_queries: int, are_positives: bool = False
    ) -> "JudgedAds":
        """Take the judgements of train query rows."""
        order = np.lexsort((judged.ads, judged.queries))
        pairs = Csr.from_pairs(judged.queries, judged.ads, num_queries)
        return cls(pairs, judged.grades[order].astype(np.float32), are_positives)

    @property
    def low(self) -> Csr:
        """The ads judged low of each query."""
        rows, ads = self.pairs.gather(np.arange(self.pairs.num_rows))
        is_low = self.grades < LOW
        return Csr.from_pairs(rows[is_low], ads[is_low], self.pairs.num_rows)

    def applied_to(self, clicks: Csr) -> Csr:
        """Return clicks without the ads judged low, and perhaps with those judged high.

        One that was not clicked has the average weight of the query's clicks.
        """
        rows, ads = clicks.gather(np.arange(clicks.num_rows))
        judged_rows, judged_ads = self.pairs.gather(np.arange(clicks.num_rows))
        is_high = self.grades >= LOW
        judged = _joined(judged_rows, judged_ads)
        clicked = _joined(rows, ads)
        is_kept = ~np.isin(clicked, judged[~is_high])
        is_added = is_high & ~np.isin(judged, clicked) & self.are_positives
        if is_kept.all() and not is_added.any():
            return clicks
        weights = None
        if clicks.cumulative_weights is not None:
            of_clicks = clicks.weights(np.arange(len(ads)))
            totals = np.bincount(rows, of_clicks, clicks.num_rows)
            degrees = np.diff(clicks.indptr)
            means = np.divide(totals, degrees, out=np.ones(len(totals)), where=degrees > 0)
            weights = np.concatenate([of_clicks[is_kept], means[judged_rows[is_added]]])
        return Csr.from_pairs(
            np.concatenate([rows[is_kept], judged_rows[is_added]]),
            np.concatenate([ads[is_kept], judged_ads[is_added]]),
            clicks.num_rows,
            weights,
        )

    def links(self, pool: Int64s, rows: Int64s) -> tuple[Int64s, NDArray[np.float32]]:
        """Return the judged pairs of ``rows`` (b,) and the ascending ads of a ``pool`` (L,).

        These are row place * L + place in pool (links,), and the grade (links,) of each.
        """
        row, ad = self.pairs.gather(rows)
        entries = ragged_positions(self.pairs.indptr[rows], self.pairs.degrees(rows))
        place = np.searchsorted(pool, ad)
        is_there = np.append(pool, -1)[place] == ad
        return (row * len(pool) + place)[is_there], self.grades[entries[is_there]]


def _joined(rows: Int64s, columns: NDArray[Any]) -> Int64s:
    """Return a number for each pair (n,); different pairs have different ones."""
    return rows << 32 | columns
