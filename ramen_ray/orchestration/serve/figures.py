"""What a server counts and times: for Prometheus, and as a line a minute."""

import logging
import time
from collections import Counter as Counts
from collections.abc import Callable
from typing import Any

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
)

from ramen_ray.orchestration.serve.held import Counted

SCORES = [score / 20 for score in range(-4, 21)]  # bounds of the histogram of scores
SIZES = [2**power for power in range(11)]
SECONDS = [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32]

logger = logging.getLogger(__name__)


class Figures:
    """Counts of what one retriever answers, which any thread may add to."""

    def __init__(self, registry: CollectorRegistry, what: str = "ramen") -> None:
        """Let a registry of Prometheus' client have them, with names that begin with ``what``."""
        made: Any = {"namespace": what, "registry": registry}
        self._what = what
        self._requests = Counter("requests", "Requests by status.", ["status"], **made)
        self._seconds = Histogram(
            "request_seconds", "From a whole request to its answer.", buckets=SECONDS, **made
        )
        self._batches = Histogram(
            "batch_queries", "Queries that are answered together.", buckets=SIZES, **made
        )
        self._waiting = Gauge("waiting_requests", "Requests that wait.", **made)
        self._queries = Counter("queries", "Queries.", **made)
        self._empty = Counter("empty_answers", "Queries without an ad.", **made)
        self._doubts = Counter("doubts", "Queries whose answers are doubted.", ["doubt"], **made)
        self._scores = Histogram("best_score", "Score of the best ad.", buckets=SCORES, **made)
        self.refused_loads = Counter("refused_loads", "Versions not taken over.", **made)
        self._model = Info("model", "The version that is served.", **made)
        self._ads = Gauge("ads", "Ads of the version that is served.", **made)
        self._age = Gauge("index_age_seconds", "Since the ads were last changed.", **made)
        self._minute = list[float]()
        self._statuses = Counts[int]()

    def serve(self, described: dict[str, Any]) -> None:
        """Name the version that is served from now on."""
        texts = {name: str(described[name] or "") for name in ("model", "version", "run")}
        self._model.info(texts)
        self._ads.set(described["ads"])
        made_at = time.time() - described["age_s"]
        self._age.set_function(lambda: time.time() - made_at)

    def watch(self, num_waiting: Callable[[], float]) -> None:
        """Read how many requests wait when it is asked for."""
        self._waiting.set_function(num_waiting)

    def count_request(self, status: int, seconds: float) -> None:
        """Count a request of queries."""
        self._requests.labels(status).inc()
        self._seconds.observe(seconds)
        self._minute.append(seconds)
        self._statuses[status] += 1

    def count_answers(self, counted: Counted) -> None:
        """Count what was found for queries."""
        num_queries = sum(counted.batches)
        self._queries.inc(num_queries)
        self._empty.inc(num_queries - len(counted.best))
        for size in counted.batches:
            self._batches.observe(size)
        for doubt in counted.doubts:
            self._doubts.labels(doubt).inc()
        for score in counted.best:
            self._scores.observe(score)

    def log_minute(self) -> None:
        """Log a line of the requests since the last one, if there were any."""
        if not self._minute:
            return
        p50, p99 = 1000 * np.quantile(self._minute, [0.5, 0.99])
        num_errors = sum(count for status, count in self._statuses.items() if status >= 400)
        logger.info(
            "%s: %d requests, %d errors, p50 %.1f ms, p99 %.1f ms",
            self._what,
            len(self._minute),
            num_errors,
            p50,
            p99,
        )
        self._minute.clear()
        self._statuses.clear()
