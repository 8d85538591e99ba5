"""Requests with their answers: how many, large and slow they may be; each is counted and logged."""

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ramen_ray.errors import UserError
from ramen_ray.orchestration.serve.figures import Figures
from ramen_ray.orchestration.serve.settings import Log

MOST_CONNECTIONS = 400
EXCHANGE_S = 90.0
SECONDS_FOR_ANSWERS = 4  # that are on their way when the server is stopped
RETRY = {"Retry-After": "1"}
JSON = "application/json"
MAX_BODY_BYTES = 16_000_000  # of two million characters, of which each may take six bytes or more
MOST_BODY_BYTES = 64_000_000  # of all that are read or wait
BODY_S = 20.0
INVOCATIONS = "/invocations"
ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)

logger = logging.getLogger(__name__)


class BusyError(UserError):
    """Too much waits, or what would answer is away for a moment."""

    def __init__(self, why: str = "too many requests wait") -> None:
        super().__init__(why)


class Exchanges:
    """An application around another one, of which it names, counts and logs the requests.

    What the other one puts into ``request.state.noted`` is logged too.
    """

    def __init__(self, app: ASGIApp, figures: Figures, log: Log) -> None:
        self.app = app
        self.figures = figures
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if ID.fullmatch(given) else uuid.uuid4().hex
        noted: dict[str, Any] = {"began": time.monotonic(), "id": name}
        scope["state"]["noted"] = noted

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = name
                noted["status"] = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_named)
        except Exception:
            logger.exception("the request %s", name)
            if "status" not in noted:
                await JSONResponse({"error": "a fault"}, 500)(scope, receive, send_named)
        if scope["path"] == INVOCATIONS:
            self._record(noted)

    def _record(self, noted: dict[str, Any]) -> None:
        seconds = noted.pop("ended", time.monotonic()) - noted.pop("began")
        self.figures.count_request(noted["status"], seconds)
        texts = noted.pop("texts", None)
        if self.log == "minutes":
            return
        if self.log == "queries":
            noted["queries"] = texts
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        logger.info("%s", json.dumps({"time": now, **noted, "ms": round(1000 * seconds, 1)}))


class Bodies:
    """Reads bodies of requests that are not too large, alone and together."""

    def __init__(self) -> None:
        self._num_bytes = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Read a body, and count it until the block ends; raises an HTTPException if it is late."""
        num_bytes = 0
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(BODY_S):
                    async for part in request.stream():
                        num_bytes += len(part)
                        self._num_bytes += len(part)
                        if num_bytes > MAX_BODY_BYTES:
                            raise HTTPException(
                                413, f"the body has more than {MAX_BODY_BYTES} bytes"
                            )
                        if self._num_bytes > MOST_BODY_BYTES:
                            raise BusyError
                        body += part
            except TimeoutError:
                raise HTTPException(408, f"the body takes more than {BODY_S:.0f} s") from None
            except ClientDisconnect:
                raise HTTPException(400, "the client has gone") from None
            yield bytes(body)
        finally:
            self._num_bytes -= num_bytes


class LimitedConnection(H11Protocol):
    """A connection that is cut if a request with its answer, sent and read, takes EXCHANGE_S.

    Beyond MOST_CONNECTIONS requests are refused, and beyond twice as many, connections.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the time of the first request."""
        super().connection_made(transport)
        self._cut = self.loop.call_later(EXCHANGE_S, transport.abort)
        if len(self.connections) > MOST_CONNECTIONS:
            self.app = _refuse
        if len(self.connections) > 2 * MOST_CONNECTIONS:
            transport.abort()

    def on_response_complete(self) -> None:
        """Begin the time of the next request."""
        self._cut.cancel()
        self._cut = self.loop.call_later(EXCHANGE_S, self.transport.abort)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time."""
        self._cut.cancel()
        super().connection_lost(exc)


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    why = b'{"error": "there are too many connections"}'
    response = Response(why, 503, RETRY | {"Connection": "close"}, JSON)
    await response(scope, receive, send)


def server_of(app: ASGIApp) -> uvicorn.Server:
    """Make the server of an application, which logs its faults itself."""
    config = uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="none",
        log_level="critical",
        timeout_graceful_shutdown=SECONDS_FOR_ANSWERS,
    )
    return uvicorn.Server(config)
