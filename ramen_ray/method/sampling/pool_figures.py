"""How large the pool of a step is, and how many of its ads are clicks: what a softmax loss sees."""

import numpy as np

from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.sampling.batches import Batch
from ramen_ray.method.sampling.step_inputs import Pool


def pool_figures(batch: Batch, clicks: Csr) -> dict[str, float]:
    """Return figures of the pool of a global batch.

    Args:
        batch: the batch.
        clicks: train query rows x ads.

    Returns:
        ``ads``, the size of the pool; ``clicked_per_query``, the mean number of its ads that were
        clicked for a query; ``share_unclicked``, the share of those clicked for none of the batch.
    """
    pool = Pool.of_ads(batch)
    clicked_BL = pool.is_positive([clicks], batch.queries)
    return {
        "ads": float(len(pool.ids)),
        "clicked_per_query": float(clicked_BL.sum(axis=1).mean()),
        "share_unclicked": float(np.mean(~clicked_BL.any(axis=0))),
    }
