"""A retriever over HTTP: what is wrong or too large is refused in one sentence."""

import json
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from ramen_ray.tracking.registry import Registry, RegistryError, ask
from ramen_ray.tracking.retriever_model import MAX_QUERIES, find_error

MAX_BODY_BYTES = 16_000_000  # of two million characters, of which each may take six bytes or more
MOST_SAID = 500  # characters of a request that are told back
ADVICE = 'post {"inputs": ["a query"]} as JSON to /invocations'


class Params(BaseModel, extra="forbid"):
    """What a request may set of its answers; the retriever checks the values."""

    top_k: int | None = None
    filter: dict[str, Any] | None = None
    min_score: float | None = None


class Asked(BaseModel, extra="forbid"):
    """The body of a request."""

    inputs: Annotated[list[Any], Field(max_length=MAX_QUERIES)]
    params: Params = Params()


def app_of(registry: Registry, model_uri: str) -> FastAPI:
    """Load a retriever, and make its web application.

    As with `mlflow models serve`, `POST /invocations` answers `{"inputs": [text, ...], "params":
    {...}}` by `{"predictions": [...]}`, and `GET /health` by null. What is wrong with a
    request has a status from 400 to 499, and a sentence.
    """
    retriever = registry.load(model_uri)
    app = FastAPI(openapi_url=None, max_body_size=MAX_BODY_BYTES)

    @app.get("/health")
    def health() -> None: ...

    @app.post("/invocations")
    def invocations(asked: Asked) -> JSONResponse:
        # Of lists and objects MLflow would make a table, of any width, and answer its first column.
        texts: list[Any] = [None if isinstance(one, list | dict) else one for one in asked.inputs]
        answers = ask(retriever, texts, asked.params.model_dump())
        for query, answer in zip(asked.inputs, answers, strict=True):
            if isinstance(query, list | dict):
                answer["error"] = find_error(query)
        return JSONResponse({"predictions": answers})

    @app.exception_handler(RegistryError)
    def refused(_: Request, error: RegistryError) -> Response:
        return _refusal(400, str(error))

    @app.exception_handler(RequestValidationError)
    def not_understood(_: Request, error: RequestValidationError) -> Response:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"][1:])
        return _refusal(400, f"{fault['msg']}: {place or 'the request'}; {ADVICE}")

    @app.exception_handler(HTTPException)
    def not_read(_: Request, error: HTTPException) -> Response:
        return _refusal(error.status_code, f"{error.detail}; {ADVICE}")

    return app


def _refusal(status: int, why: str) -> Response:
    # json escapes half surrogate pairs, which JSONResponse cannot encode
    return Response(json.dumps({"error": why[:MOST_SAID]}), status, media_type="application/json")
