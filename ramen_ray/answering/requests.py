"""What a request may ask of a retriever, and why it is refused."""

import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa

MAX_CHARACTERS = 10_000
# of one request
MAX_QUERIES = 10_000
MAX_QUERY_CHARACTERS = 2_000_000
MAX_ANSWERS = 200_000
QUERY_COLUMNS = ("query", "text")
JSON_NAMES = {"dict": "an object", "list": "a list"}
SURROGATE = re.compile("[\ud800-\udfff]")
COLUMNS = "columns"  # of answers: by name, the values of their ads
ANSWERS = pa.schema(
    [
        ("ad_ids", pa.list_(pa.string())),
        ("ads", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("doubt", pa.string()),
        ("error", pa.string()),
    ]
)


class RefusedError(ValueError):
    """A request that cannot be answered; the message tells its sender why."""


def queries_of(table: Any) -> list[Any]:
    """Return the cells of the first column of a table of pandas, a list's having no name."""
    name = table.columns[0]  # MLflow drops all others
    if isinstance(name, str) and name not in QUERY_COLUMNS:
        raise RefusedError(
            f"the first column is {name!r}; put the queries first, in a column named "
            f"{' or '.join(QUERY_COLUMNS)}"
        )
    return [plain(cell) for cell in table.iloc[:, 0]]


def plain(value: Any) -> Any:
    """Return an array as Python's lists and values, others as they are."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def find_error(query: object) -> str | None:
    """Return why a query cannot be answered; None if it can."""
    if query is None or (isinstance(query, float) and math.isnan(query)):  # pandas' null
        return "the query is missing"
    if not isinstance(query, str):
        name = type(query).__name__
        return f"the query is {JSON_NAMES.get(name, name)}, not a text"
    if not query.strip():
        return "the query is empty"
    if len(query) > MAX_CHARACTERS:
        return f"the query has {len(query)} characters; at most {MAX_CHARACTERS} are allowed"
    if SURROGATE.search(query):
        return "the query has half of a surrogate pair, which is no character"
    return None


def check_numbers(top_k: Any, min_score: Any, num_ads: int) -> None:
    """Refuse what is not a number, such as true, or is out of range."""
    if isinstance(top_k, bool) or not isinstance(top_k, int | np.integer):
        raise RefusedError(f"top_k is {top_k!r}; give a whole number")
    if not 1 <= top_k <= num_ads:
        raise RefusedError(
            f"top_k is {top_k}; this retriever has {num_ads} ads to choose from, so it must be "
            f"from 1 to {num_ads}"
        )
    is_number = isinstance(min_score, Real) and not isinstance(min_score, bool)
    if min_score is not None and not (is_number and -math.inf <= min_score <= math.inf):
        raise RefusedError(f"min_score is {min_score!r}; give a number, or leave it out")


def check_limits(at_most: Any) -> None:
    """Refuse what does not limit the ads with one value of a column."""
    if not isinstance(at_most, Mapping):
        raise RefusedError(f"at_most is {at_most!r}; give numbers by column")
    for name, most in at_most.items():
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise RefusedError(f"at_most of {name} is {most!r}; give a whole number from 1 on")


def check_size(num_queries: int, num_characters: int, top_k: int) -> None:
    """Refuse a request that is too large."""
    if num_queries > MAX_QUERIES:
        raise RefusedError(
            f"the request has {num_queries} queries; send at most {MAX_QUERIES} at once"
        )
    if num_characters > MAX_QUERY_CHARACTERS:
        raise RefusedError(
            f"the queries have {num_characters} characters; send at most {MAX_QUERY_CHARACTERS} at "
            f"once"
        )
    if num_queries * top_k > MAX_ANSWERS:
        raise RefusedError(
            f"the request asks for {num_queries} times {top_k} ads; send at most "
            f"{MAX_ANSWERS // top_k} queries at once, or lower top_k"
        )
