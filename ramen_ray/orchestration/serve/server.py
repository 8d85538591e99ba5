"""A retriever over HTTP: what is wrong or too large is refused in one sentence."""

import json
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ramen_ray.answering.requests import MAX_QUERIES
from ramen_ray.tracking.registry import Registry, RegistryError, ask

MAX_BODY_BYTES = 16_000_000  # of two million characters, of which each may take six bytes or more
MOST_SAID = 500  # characters of a request that are told back
ADVICE = 'post {"inputs": ["a query"]} as JSON to /invocations'


class Params(BaseModel, extra="forbid"):
    """What a request may set of its answers; the retriever checks the values."""

    top_k: Any = None
    filter: Any = None
    min_score: Any = None


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
    app = FastAPI(openapi_url=None, redirect_slashes=False)  # no client says where to go on
    app.add_middleware(_Limited)

    @app.get("/health")
    def health() -> None: ...

    @app.post("/invocations")
    def invocations(asked: Asked) -> JSONResponse:
        answers = ask(retriever, asked.inputs, asked.params.model_dump())
        return JSONResponse({"predictions": answers.to_pylist()})

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


class _Limited:
    """An application that reads no more of a request than MAX_BODY_BYTES."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_bytes = 0

        async def receive_part() -> Message:
            nonlocal num_bytes
            part = await receive()
            num_bytes += len(part.get("body", b""))
            if num_bytes > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body has more than {MAX_BODY_BYTES} bytes")
            return part

        await self.app(scope, receive_part, send)


def _refusal(status: int, why: str) -> Response:
    # json escapes half surrogate pairs, which JSONResponse cannot encode
    return Response(json.dumps({"error": why[:MOST_SAID]}), status, media_type="application/json")
