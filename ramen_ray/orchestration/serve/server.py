"""A retriever over HTTP: what is wrong or too large is refused in one sentence."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ramen_ray.orchestration.serve.asked import ADVICE, asked_by
from ramen_ray.orchestration.serve.connections import JSON, RETRY, BusyError
from ramen_ray.orchestration.serve.exchanges import INVOCATIONS, Bodies, Exchanges, Log
from ramen_ray.orchestration.serve.figures import Figures
from ramen_ray.orchestration.serve.following import Following
from ramen_ray.orchestration.serve.lane import Answered, Lane
from ramen_ray.tracking.registry import MOST_SAID, Registry, RegistryError

ANSWER_S = 60.0  # that a request waits for its turn and its answer
# A request that is not larger is answered with others, before those that are.
SMALL_BODY_BYTES = 65_536
SMALL_ANSWERS = 2_000
QUERIES_TOGETHER = 64
MOST_WAITING = 256
MOST_LARGE_WAITING = 8
MINUTE_S = 60.0


def app_of(
    registry: Registry, model_uri: str, follow_s: float = 5.0, log: Log = "minutes"
) -> Starlette:
    """Load a retriever, and make its web application, which follows an alias every ``follow_s``.

    As with `mlflow models serve`, `POST /invocations` answers `{"inputs": [text, ...], "params":
    {...}}` by `{"predictions": [...]}`. `GET /health` and `/ready` describe the version that is
    served, `/metrics` has figures for Prometheus. What is wrong with a request has a status from
    400 to 499, and a sentence; 503 says to ask again.
    """
    figures = Figures()
    service = _Service(Following(registry, model_uri, figures), figures)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        thread = ThreadPoolExecutor(1)
        works = {figures.log_minute: MINUTE_S, service.following.look: follow_s}
        tasks = [
            asyncio.create_task(_every(seconds, thread, work)) for work, seconds in works.items()
        ]
        yield
        for task in tasks:
            task.cancel()

    app = Starlette(
        routes=[
            Route("/health", service.health),
            Route("/ready", service.ready),
            Route("/metrics", service.metrics),
            Route(INVOCATIONS, service.invocations, methods=["POST"]),
        ],
        middleware=[Middleware(Exchanges, figures=figures, log=log)],
        exception_handlers={
            RegistryError: _refused,
            HTTPException: _not_read,
            BusyError: _busy,
            TimeoutError: _busy,
        },
        lifespan=lifespan,
    )
    app.state.following = service.following
    app.router.redirect_slashes = False  # no client says where to go on
    return app


class _Service:
    """The pages of the application."""

    def __init__(self, following: Following, figures: Figures) -> None:
        self.following = following
        self.figures = figures
        self.small = Lane(following, figures, MOST_WAITING, QUERIES_TOGETHER)
        self.large = Lane(following, figures, MOST_LARGE_WAITING, 1)
        self.bodies = Bodies()
        figures.watch(lambda: len(self.small.waiting) + len(self.large.waiting))

    async def health(self, _: Request) -> Response:
        """Describe the version that is served."""
        return _json(200, self.following.served.described())

    async def ready(self, _: Request) -> Response:
        """Do the same, but with the status 503 while requests are refused."""
        return _json(503 if self.small.is_full else 200, self.following.served.described())

    async def metrics(self, _: Request) -> Response:
        """Return figures."""
        return Response(self.figures.exposed(), media_type=CONTENT_TYPE_LATEST)

    async def invocations(self, request: Request) -> Response:
        """Answer queries."""
        noted = request.state.noted
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise HTTPException(400, f"the request is not of the type {JSON}")
        async with self.bodies.read(request) as body, asyncio.timeout(ANSWER_S):
            noted["began"] = time.monotonic()
            answered = await self._answer(body, noted)
            noted["ended"] = time.monotonic()
        noted["model"] = answered.served.uri
        content = b'{"predictions":[' + b",".join(answered.rows) + b"]}"
        return Response(content, 200, {"X-Model": quote(answered.served.uri, "/:")}, JSON)

    async def _answer(self, body: bytes, noted: dict[str, Any]) -> Answered:
        is_small = len(body) <= SMALL_BODY_BYTES
        if is_small:
            asked = asked_by(body)
        else:
            loop = asyncio.get_running_loop()
            asked = await loop.run_in_executor(self.large.thread, asked_by, body)
        noted["queries"] = len(asked.inputs)
        noted["texts"] = asked.inputs
        is_small = is_small and asked.num_answers <= SMALL_ANSWERS
        return await (self.small if is_small else self.large).answer(asked)


async def _refused(_: Request, error: Exception) -> Response:
    return _json(400, {"error": str(error)[:MOST_SAID]})


async def _not_read(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json(error.status_code, {"error": f"{error.detail}; {ADVICE}"[:MOST_SAID]})


async def _busy(_: Request, __: Exception) -> Response:
    return _json(503, {"error": "the server is busy"}, RETRY)


async def _every(seconds: float, thread: ThreadPoolExecutor, work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        await asyncio.get_running_loop().run_in_executor(thread, work)


def _json(status: int, content: object, headers: dict[str, str] | None = None) -> Response:
    # json escapes half surrogate pairs, which JSONResponse cannot encode
    return Response(json.dumps(content), status, headers, JSON)
