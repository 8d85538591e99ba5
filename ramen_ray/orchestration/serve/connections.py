"""Connections of clients: how many there are, and how long each may keep the server waiting."""

import asyncio

import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ramen_ray.errors import UserError

MOST_CONNECTIONS = 400
EXCHANGE_S = 90.0
SECONDS_FOR_ANSWERS = 4  # that are on their way when the server is stopped
RETRY = {"Retry-After": "1"}
JSON = "application/json"


class BusyError(UserError):
    """Too much waits, or what would answer is away for a moment."""

    def __init__(self, why: str = "too many requests wait") -> None:
        super().__init__(why)


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
