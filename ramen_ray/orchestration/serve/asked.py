"""The body of a request, read as JSON after what it holds was counted."""

import json
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from ramen_ray.answering.requests import MAX_QUERIES
from ramen_ray.tracking.registry import MOST_SAID, RegistryError

MOST_VALUES = 20 * MAX_QUERIES
ADVICE = 'post {"inputs": ["a query"]} as JSON to /invocations'


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
