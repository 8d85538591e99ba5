"""A retriever that is held in memory: it answers requests together, as JSON."""

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ramen_ray.orchestration.serve.asked import Asked
from ramen_ray.tracking.registry import Registry, ask, ask_once

if TYPE_CHECKING:
    from ramen_ray.answering.encoding import Embeddings

ROWS_AT_ONCE = 64  # that are spelt out while other threads wait
RELEASED_EVERY_S = 5.0


@dataclass
class Counted:
    """What is counted of answers."""

    batches: list[int] = field(default_factory=list)  # queries of each
    best: list[float] = field(default_factory=list)  # scores of best ads
    doubts: list[str] = field(default_factory=list)


Rows = list[bytes]
Batch = tuple[list[Rows | Exception], Counted]


class Held:
    """A retriever that was loaded and has answered a query.

    Attributes:
        num_ads: how many ads it has.
        columns: the names of those that requests can filter by.
    """

    def __init__(self, registry: Registry, uri: str, **options: Any) -> None:
        """Load it with options of a Retriever, or raise the errors of what loads it or answers."""
        self._retriever = registry.load(uri, **options)
        ask_once(self._retriever)
        self.num_ads = len(self._retriever.ads)
        self.columns = sorted(self._retriever.ads.columns)

    def answer(self, requests: Sequence[Asked]) -> Batch:
        """Answer requests with equal params: rows of JSON for each, or why there are none."""
        counted = Counted()
        return self._answer(requests, counted), counted

    def described(self) -> tuple[int, list[str]]:
        """Return the number and the columns of its ads."""
        return self.num_ads, self.columns

    def embed(self, texts: Sequence[str]) -> "Embeddings":
        """Return unit-norm vectors (texts, D)."""
        return self._retriever.embed(texts)

    def _answer(self, requests: Sequence[Asked], counted: Counted) -> list[Rows | Exception]:
        queries = [query for asked in requests for query in asked.inputs]
        try:
            answers = ask(self._retriever, queries, requests[0].params.model_dump())
        except Exception as error:
            if len(requests) > 1:  # each for itself: they may be too much together only
                return [self._answer([asked], counted)[0] for asked in requests]
            return [error]
        counted.batches.append(len(queries))
        spelt = list[bytes]()
        for batch in answers.to_batches(ROWS_AT_ONCE):  # Arrow holds the interpreter's lock
            for row in batch.to_pylist():
                counted.best += row["scores"][:1]
                counted.doubts += filter(None, [row.get("doubt")])  # not of earlier versions
                spelt.append(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())
        rows = iter(spelt)
        return [[next(rows) for _ in asked.inputs] for asked in requests]


def release_memory() -> None:
    """Give back to the system what large requests have left free within this process."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only glibc keeps, and has it
    if trim:
        trim(0)
