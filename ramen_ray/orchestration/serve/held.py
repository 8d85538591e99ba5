"""Requests, and a retriever that is held in memory: it answers them together, as JSON."""

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BaseModel, Field, ValidationError

from ramen_ray.answering.encoding import Embeddings
from ramen_ray.answering.requests import MAX_QUERIES
from ramen_ray.tracking.registry import MOST_SAID, Registry, RegistryError, ask, ask_once

MOST_VALUES = 20 * MAX_QUERIES
ADVICE = 'post {"inputs": ["a query"]} as JSON to /invocations'
ROWS_AT_ONCE = 64  # that are spelt out while other threads wait
RELEASED_EVERY_S = 5.0


class Params(BaseModel, extra="forbid", frozen=True):
    """What a request may set of its answers; the retriever checks the values."""

    top_k: Any = None
    filter: Any = None
    min_score: Any = None
    at_most: Any = None
    columns: Any = None


class Asked(BaseModel, extra="forbid"):
    """A request."""

    inputs: Annotated[list[Any], Field(max_length=MAX_QUERIES)]
    params: Params = Params()

    @property
    def num_answers(self) -> int:
        """Return how many ads are asked for, as far as can be told before it is checked."""
        top_k = self.params.top_k
        return len(self.inputs) * (top_k if isinstance(top_k, int) else 10)


def asked_by(body: bytes) -> Asked:
    """Read a request, or raise a RegistryError.

    The interpreter does nothing else while JSON is read, so it may not have too many values.
    """
    try:
        text = body.decode()
        if _num_values(text) > MOST_VALUES:
            raise RegistryError(f"the request has more than {MOST_VALUES} values; {ADVICE}")
        return Asked.model_validate(json.loads(text))
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"]))[:MOST_SAID]
        raise RegistryError(f"{fault['msg']}: {place or 'the request'}; {ADVICE}") from None
    except (ValueError, RecursionError) as error:
        raise RegistryError(f"the body is no JSON ({error}); {ADVICE}") from None


def _num_values(text: str) -> int:
    """Count commas outside of strings, or all strings if they are too many."""
    plain = text.replace("\\\\", "").replace('\\"', "")
    num_strings = plain.count('"') // 2
    if num_strings > MOST_VALUES:
        return num_strings
    return sum(part.count(",") for part in plain.split('"')[::2])


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

    def embed(self, texts: Sequence[str]) -> Embeddings:
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
