"""A challenger that is asked a share of the requests again, after the champion has answered."""

import asyncio
import json
import random
import time

from prometheus_client import CollectorRegistry, Histogram

from ramen_ray.orchestration.serve.asked import Asked
from ramen_ray.orchestration.serve.connections import BusyError
from ramen_ray.orchestration.serve.following import Following
from ramen_ray.orchestration.serve.held import Rows
from ramen_ray.orchestration.serve.lane import Lane
from ramen_ray.tracking.registry import RegistryError

SHADOW = "ramen_shadow"  # what the names of its figures begin with
FIRST = 10
TENTHS = [tenth / 10 for tenth in range(11)]
MOST_WAITING = 64
QUERIES_TOGETHER = 64


class Shadow:
    """Answers for figures: how many of the first ads are the same, how fast, how doubtful."""

    def __init__(self, following: Following, registry: CollectorRegistry, share: float) -> None:
        self.following = following
        self.lane = Lane(following, MOST_WAITING, QUERIES_TOGETHER)
        self._share = share
        self._draw = random.Random(0)
        self._overlap = Histogram(
            "overlap",
            f"Share of the champion's first {FIRST} ads of a query that are the challenger's.",
            buckets=TENTHS,
            namespace=SHADOW,
            registry=registry,
        )
        self._tasks = set[asyncio.Task[None]]()

    async def may_ask(self, asked: Asked, rows: Rows) -> None:
        """Ask again, if it is this request's turn, without waiting for it."""
        if self._draw.random() < self._share:
            task = asyncio.create_task(self._compare(asked, rows))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _compare(self, asked: Asked, rows: Rows) -> None:
        began = time.monotonic()
        try:
            answered = await self.lane.answer(asked)
        except BusyError:
            status = 503
        except RegistryError:  # such as a column that only the champion has
            status = 400
        else:
            status = 200
            for champion, challenger in zip(rows, answered.rows, strict=True):
                ours, theirs = (
                    {*json.loads(row)["ad_ids"][:FIRST]} for row in (champion, challenger)
                )
                self._overlap.observe(len(ours & theirs) / len(ours) if ours else not theirs)
        self.following.figures.count_request(status, time.monotonic() - began)
