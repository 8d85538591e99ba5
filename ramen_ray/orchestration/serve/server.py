"""A retriever over HTTP: what is wrong or too large is refused in one sentence."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import UserError
from ramen_ray.orchestration.serve.exchanges import (
    INVOCATIONS,
    JSON,
    RETRY,
    Bodies,
    BusyError,
    Exchanges,
)
from ramen_ray.orchestration.serve.figures import Figures
from ramen_ray.orchestration.serve.following import Following
from ramen_ray.orchestration.serve.held import (
    ADVICE,
    RELEASED_EVERY_S,
    Held,
    asked_by,
    release_memory,
)
from ramen_ray.orchestration.serve.lane import QUERIES_TOGETHER, SHADOW, Lane, Shadow
from ramen_ray.orchestration.serve.settings import ServerSettings
from ramen_ray.orchestration.serve.why import Reason, reasons
from ramen_ray.tracking.registry import MOST_SAID, Registry

ANSWER_S = 60.0  # that a request waits for its turn and its answer
# A request that is not larger is answered with others, before those that are.
SMALL_BODY_BYTES = 65_536
SMALL_ANSWERS = 2_000
MOST_WAITING = 256
MOST_LARGE_WAITING = 8
MINUTE_S = 60.0
T = TypeVar("T")
PAGE = Path(__file__).with_name("page.html")
ONLY_ITSELF = {  # what the page may load and ask
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; base-uri 'none'; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'"
}


def app_of(
    registry: Registry,
    model_uri: str,
    settings: ServerSettings | None = None,
    hold: Callable[[str], Held] | None = None,
) -> Starlette:
    """Load a retriever, or let ``hold`` load it elsewhere; returns its web application.

    It follows the alias. As with `mlflow models serve`, `POST /invocations` answers `{"inputs":
    [text, ...], "params": {...}}` by `{"predictions": [...]}`; `/shadow` does by the challenger.
    `GET /health` and `/ready` describe the version that is served, `/metrics` has figures for
    Prometheus. `/` is a page for people, and `/why` tells it why an ad answers a query. What is
    wrong with a request has a status from 400 to 499, and a sentence; 503 says to ask again.
    """
    settings = settings or ServerSettings()
    service = _Service(registry, model_uri, settings, hold)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        thread = ThreadPoolExecutor(1)
        works = {release_memory: RELEASED_EVERY_S}
        for following in service.followings:
            works[following.figures.log_minute] = MINUTE_S
            works[following.look] = settings.follow_s
        tasks = [
            asyncio.create_task(_every(seconds, thread, work)) for work, seconds in works.items()
        ]
        yield
        for task in tasks:
            task.cancel()

    app = Starlette(
        routes=service.routes,
        middleware=[Middleware(Exchanges, figures=service.following.figures, log=settings.log)],
        exception_handlers={
            UserError: _refused,
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

    def __init__(
        self,
        registry: Registry,
        model_uri: str,
        settings: ServerSettings,
        hold: Callable[[str], Held] | None,
    ) -> None:
        self.registry = registry
        self.metered = CollectorRegistry()
        ProcessCollector(registry=self.metered)
        figures = Figures(self.metered)
        self.following = Following(registry, model_uri, figures, hold)
        self.followings = [self.following]
        self.small = Lane(self.following, MOST_WAITING, QUERIES_TOGETHER, settings.replicas)
        self.large = Lane(self.following, MOST_LARGE_WAITING, 1)
        self.bodies = Bodies()
        figures.watch(lambda: len(self.small.waiting) + len(self.large.waiting))
        self.routes = [
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/metrics", self.metrics),
            Route(INVOCATIONS, self.invocations, methods=["POST"]),
        ]
        self.shadow: Shadow | None = None
        if settings.shadow:
            challenger = Following(registry, settings.shadow, Figures(self.metered, SHADOW))
            self.followings.append(challenger)
            self.shadow = Shadow(challenger, self.metered, settings.shadow_share)
            ask_shadow = partial(self.invocations, lane=self.shadow.lane)
            self.routes.append(Route("/shadow", ask_shadow, methods=["POST"]))
        if settings.page:
            self.page = Response(PAGE.read_bytes(), 200, ONLY_ITSELF, "text/html")
            self.routes.append(Route("/", self.show_page))
            self.routes.append(Route("/why", self.why))
            self.explaining = asyncio.Lock()

    @property
    def described(self) -> dict[str, Any]:
        """The versions that are served, as JSON."""
        shadow = self.shadow.following.served.described() if self.shadow else None
        return {**self.following.served.described(), "shadow": shadow}

    async def health(self, _: Request) -> Response:
        """Describe the version that is served."""
        return _json(200, self.described)

    async def ready(self, _: Request) -> Response:
        """Do the same, but with the status 503 while requests are refused."""
        return _json(503 if self.small.is_full else 200, self.described)

    async def metrics(self, _: Request) -> Response:
        """Return figures."""
        return Response(generate_latest(self.metered), media_type=CONTENT_TYPE_LATEST)

    async def show_page(self, _: Request) -> Response:
        """Return the page for people."""
        return self.page

    async def invocations(self, request: Request, lane: Lane | None = None) -> Response:
        """Answer queries, by the champion or in another lane."""
        noted = request.state.noted
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise HTTPException(400, f"the request is not of the type {JSON}")
        async with self.bodies.read(request) as body, asyncio.timeout(ANSWER_S):
            noted["began"] = time.monotonic()
            is_small = len(body) <= SMALL_BODY_BYTES
            asked = asked_by(body) if is_small else await self._in_turn(asked_by, body)
            noted["queries"] = len(asked.inputs)
            noted["texts"] = asked.inputs
            is_small = is_small and asked.num_answers <= SMALL_ANSWERS
            answered = await (lane or (self.small if is_small else self.large)).answer(asked)
            noted["ended"] = time.monotonic()
        noted["model"] = answered.served.uri
        content = b'{"predictions":[' + b",".join(answered.rows) + b"]}"
        model = {"X-Model": quote(answered.served.uri, "/:")}
        after = None
        if self.shadow and is_small and lane is None:
            after = BackgroundTask(self.shadow.may_ask, asked, answered.rows)
        return Response(content, 200, model, JSON, after)

    async def why(self, request: Request) -> Response:
        """Say why an ad may answer a query."""
        if self.explaining.locked():
            raise BusyError
        async with self.explaining, asyncio.timeout(ANSWER_S):
            ad_id, query = (request.query_params.get(name, "") for name in ("ad_id", "query"))
            return _json(200, await self._in_turn(self._reasons, ad_id, query))

    def _reasons(self, ad_id: str, query: str) -> list[Reason]:
        served = self.following.served
        trained_by = self.registry.trained_by(self.registry.look_up(served.uri))
        dataset = Dataset(self.registry.parameters(trained_by)["dataset"])
        return reasons(dataset, ad_id, query, served.held.embed)

    async def _in_turn(self, work: Callable[..., T], *given: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.large.threads, work, *given)


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
