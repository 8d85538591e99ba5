"""The bad match rate: how often predictions name another brand or place than the query does.

The RAMEN paper reports it from a search engine (section 4, Table 2) and does not say how it is
measured. This is an estimate from lists of names: a prediction is a bad match of a kind if query
and ad both have names of this kind, but none in common. If the query or the ad has no name, it is
not a bad match. Names that are not on the list are missed, and words that only look like a name
are counted.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ramen_ray.data.arrays import Booleans

KS = (1, 3, 5)
NAMED_QUERIES = "named_queries"


def bad_match_metrics(
    topk_ad_ids: NDArray[np.int64],
    query_names: csr_array,
    ad_names: csr_array,
    kind_of: NDArray[np.int64],
    kinds: Sequence[str],
) -> dict[str, float]:
    """Return bad match rates (fractions), such as ``brand/BMR@1``, and ``BMR@1`` for any kind.

    A kind's rate is the share of bad matches among the first k predictions (queries, at least 5),
    best first, -1 after the last, for the queries that have a name of this kind;
    ``brand/named_queries`` is the share of such queries. Names are (queries, named) and (ads,
    named) bool; ``kind_of`` (named,) is the index of each in ``kinds``.
    """
    shown = topk_ad_ids[:, : max(KS)]
    names_any = np.zeros(len(shown), dtype=np.bool_)
    any_bad = np.zeros(shown.shape, dtype=np.bool_)
    metrics: dict[str, float] = {}
    for number, kind in enumerate(kinds):
        of_kind = np.flatnonzero(kind_of == number)
        queries, ads = query_names[:, of_kind], ad_names[:, of_kind]
        has_name = np.diff(queries.indptr) > 0
        bad = _bad_matches(shown, queries, ads)
        metrics |= {f"{kind}/{name}": v for name, v in _rates(shown, has_name, bad).items()}
        names_any |= has_name
        any_bad |= bad
    return metrics | _rates(shown, names_any, any_bad)


def _bad_matches(shown: NDArray[np.int64], queries: csr_array, ads: csr_array) -> Booleans:
    places = (shown >= 0) & (np.diff(queries.indptr) > 0)[:, None]
    places[places] = np.diff(ads.indptr)[shown[places]] > 0
    predicted_for, _ = np.nonzero(places)
    in_common = queries[predicted_for].multiply(ads[shown[places]]).sum(axis=1)
    places[places] = in_common == 0
    return places


def _rates(shown: NDArray[np.int64], has_name: Booleans, bad: Booleans) -> dict[str, float]:
    predicted = (shown >= 0) & has_name[:, None]
    rates = {NAMED_QUERIES: float(has_name.mean())}
    for k in KS:
        rates[f"BMR@{k}"] = float(bad[:, :k].sum() / max(int(predicted[:, :k].sum()), 1))
    return rates
