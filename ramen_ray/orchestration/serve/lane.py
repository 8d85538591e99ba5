"""Requests that wait are answered together, in threads, by the version that is served then.

A challenger is asked a share of them again, after the champion has answered.
"""

import asyncio
import json
import random
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram

from ramen_ray.orchestration.serve.exchanges import BusyError
from ramen_ray.orchestration.serve.following import Following, Served
from ramen_ray.orchestration.serve.held import Asked, Rows
from ramen_ray.tracking.registry import RegistryError

SHADOW = "ramen_shadow"  # what the names of its figures begin with
FIRST = 10
TENTHS = [tenth / 10 for tenth in range(11)]
SHADOWS_WAITING = 64
QUERIES_TOGETHER = 64


@dataclass(frozen=True)
class Answered:
    """Rows of JSON, and the version that found them."""

    rows: Rows
    served: Served


Result = Answered | Exception


@dataclass(frozen=True, eq=False)
class _Waiting:
    asked: Asked
    alike: str  # equal for requests that can be answered together
    result: asyncio.Future[Answered]


class Lane:
    """A queue of requests, and the threads that answer them, by default one.

    Attributes:
        threads: do what takes long.
    """

    def __init__(
        self, following: Following, most_waiting: int, most_queries: int, num_threads: int = 1
    ) -> None:
        """Let ``most_waiting`` requests wait, and answer ``most_queries`` together."""
        self.following = following
        self.most_waiting = most_waiting
        self.most_queries = most_queries
        self.num_threads = num_threads
        self.threads = ThreadPoolExecutor(num_threads)
        self.waiting = deque[_Waiting]()
        self._work = list[asyncio.Task[None]]()

    @property
    def is_full(self) -> bool:
        """Whether no more requests may wait."""
        return len(self.waiting) >= self.most_waiting

    async def answer(self, asked: Asked) -> Answered:
        """Wait for an answer; raises a RegistryError if there is none, a BusyError if many wait."""
        if self.is_full:
            raise BusyError
        params = repr(asked.params)  # which tells true from 1
        entry = _Waiting(asked, params, asyncio.get_running_loop().create_future())
        self.waiting.append(entry)
        self._work = [task for task in self._work if not task.done()]
        if len(self._work) < self.num_threads:
            self._work.append(asyncio.create_task(self._work_off()))
        return await entry.result

    async def _work_off(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next_batch():
            requests = [entry.asked for entry in batch]
            try:
                results = await loop.run_in_executor(self.threads, self._answer, requests)
            except Exception as error:  # such as all replicas gone
                results = [error] * len(batch)
            for entry, result in zip(batch, results, strict=True):
                if entry.result.done():  # nobody waits any more
                    continue
                if isinstance(result, Answered):
                    entry.result.set_result(result)
                else:
                    entry.result.set_exception(result)

    def _next_batch(self) -> list[_Waiting]:
        """Take the request that has waited longest, and those that can be answered with it."""
        batch = list[_Waiting]()
        others = deque[_Waiting]()
        num_queries = 0
        while self.waiting:
            entry = self.waiting.popleft()
            if entry.result.done():
                continue
            num_queries += len(entry.asked.inputs)
            is_like = not batch or entry.alike == batch[0].alike
            if is_like and (not batch or num_queries <= self.most_queries):
                batch.append(entry)
            else:
                others.append(entry)
        self.waiting = others
        return batch

    def _answer(self, requests: Sequence[Asked]) -> list[Result]:
        served = self.following.served
        results, counted = served.held.answer(requests)
        self.following.figures.count_answers(counted)
        if counted.batches:
            self.following.columns.update(requests[0].params.filter or {})
        return [
            result if isinstance(result, Exception) else Answered(result, served)
            for result in results
        ]


class Shadow:
    """Answers for figures: how many of the first ads are the same, how fast, how doubtful."""

    def __init__(self, following: Following, registry: CollectorRegistry, share: float) -> None:
        self.following = following
        self.lane = Lane(following, SHADOWS_WAITING, QUERIES_TOGETHER)
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
