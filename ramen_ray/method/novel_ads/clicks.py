"""What classifiers and combiners are trained on: frozen embeddings, and clicks on seen ads.

Shapes: b queries of this worker and B of the global batch, L distinct ads of a step, S seen ads.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.hashing import keyed_hash
from ramen_ray.method.devices import to_device
from ramen_ray.method.distributed import gather_rows, world
from ramen_ray.method.model.embeddings import TextEmbeddings
from ramen_ray.method.sampling.draws import draw_ads
from ramen_ray.method.sampling.orders import num_steps, random_order
from ramen_ray.method.sampling.step_inputs import Pool

DROPOUT_KEY = 1


@dataclass(frozen=True)
class SeenClicks:
    """Train clicks on the seen ads.

    Attributes:
        queries: embeddings of the train queries.
        query_ids: (train queries,) int64, which seed the draws.
        clicks: train query rows x rows of seen ads; clicks on other ads are left out.
    """

    queries: TextEmbeddings
    query_ids: NDArray[np.int64]
    clicks: Csr

    @classmethod
    def from_prepared(cls, data: Prepared, queries: TextEmbeddings, ids: Int64s) -> "SeenClicks":
        """Keep the train clicks on the ads ``ids`` (S,), ascending."""
        clicks = data.clicks["train"]
        rows, ads = clicks.gather(np.arange(clicks.num_rows))
        is_seen = np.isin(ads, ids)
        seen_rows = np.searchsorted(ids, ads[is_seen])
        return cls(
            queries, data.query_ids, Csr.from_pairs(rows[is_seen], seen_rows, clicks.num_rows)
        )

    @cached_property
    def clicked_rows(self) -> Int64s:
        """(clicked queries,) int64, the rows of the queries with clicks on seen ads."""
        return self.clicks.filled_rows


@dataclass(frozen=True)
class Step:
    """What a step trains on.

    Attributes:
        queries: (b,) rows of this worker's queries.
        pool: the distinct ads (L,) that the global batch drew, as rows of seen ads.
        positives: (b, 1) int64, the place in the pool of the ad that each query drew.
        is_positive: (b, L) bool, all ads of the pool that were clicked for a query.
    """

    queries: Int64s
    pool: Int64s
    positives: Tensor
    is_positive: Tensor


@dataclass(frozen=True)
class StepSampler:
    """Draws the steps' queries and a click of each: pure functions of the seed and the step.

    Attributes:
        data: the clicks.
        batch_size: B.
        seed: seeds all draws.
        device: where the steps are computed.
    """

    data: SeenClicks
    batch_size: int
    seed: int
    device: torch.device
    _orders: dict[int, Int64s] = field(default_factory=dict, init=False, compare=False)

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in an epoch."""
        return num_steps(len(self.data.clicked_rows), self.batch_size)

    def draw(self, step: int, shortlists: NDArray[np.int32] | None = None) -> Step:
        """Draw this worker's share of a step.

        Args:
            step: the step, from 0.
            shortlists: (train queries, H) rows of seen ads that join the pool; -1 for none.
        """
        epoch, position = divmod(step, self.steps_per_epoch)
        queries = self.data.clicked_rows[self._order_of(epoch)[position]]
        ids = self.data.query_ids[queries]
        ads = drawn = draw_ads(self.data.clicks, queries, ids, (self.seed, epoch))
        if shortlists is not None:
            drawn = np.concatenate([drawn, shortlists[queries]], axis=1)
        ids_of_pool = np.unique(gather_rows(drawn))
        pool = Pool(ids_of_pool[ids_of_pool >= 0])
        mask = pool.is_positive([self.data.clicks], queries)
        return Step(
            queries,
            pool.ids,
            to_device(pool.find(ads), self.device),
            to_device(mask, self.device),
        )

    def _order_of(self, epoch: int) -> Int64s:
        """Return the places (steps, b) of an epoch's queries; kept until the next epoch."""
        if epoch not in self._orders:
            self._orders.clear()
            rank, num_workers = world()
            share = self.batch_size // num_workers
            slots = range(rank * share, (rank + 1) * share)
            num_queries = len(self.data.clicked_rows)
            order = random_order(num_queries, self.batch_size, slots, self.seed, epoch)
            self._orders[epoch] = order
        return self._orders[epoch]

    def query_vectors(self, step: Step) -> Tensor:
        """Return the frozen embeddings (b, D) of a step's queries."""
        return to_device(self.data.queries.take(step.queries), self.device)


@contextmanager
def seeded_dropout(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """Make dropout depend only on the seed, the step and the worker."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        hashed = keyed_hash((seed, step, DROPOUT_KEY), np.array([world()[0]]))
        torch.manual_seed(int(hashed[0] >> np.uint64(1)))
        yield
