"""A page on which one person judges answers, key by key."""

from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ramen_ray.orchestration.judge.judging import GUIDELINE, Judging
from ramen_ray.orchestration.serve.exchanges import JSON, Bodies, server_of

PAGE = Path(__file__).with_name("page.html")
LOOPBACK = ["127.0.0.1", "localhost"]


class JudgePage:
    """Asks a judge for the grades that are missing, and notes them.

    Attributes:
        server: ends when the judge says so.
    """

    def __init__(self, judging: Judging, judge: str) -> None:
        """Go on where the judge was."""
        self.judging = judging
        self.judge = judge
        self.grades = judging.grades(judge)
        self._bodies = Bodies()
        routes = [
            Route("/", self.page),
            Route("/state", self.state),
            Route("/grade", self.grade, methods=["POST"]),
            Route("/end", self.end, methods=["POST"]),
        ]
        # no other site may ask under a name of its own
        guards = [Middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK)]
        self.server: uvicorn.Server = server_of(Starlette(routes=routes, middleware=guards))

    async def page(self, _: Request) -> Response:
        """Return the page."""
        return HTMLResponse(PAGE.read_text(encoding="utf-8"))

    async def grade(self, request: Request) -> Response:
        """Note a grade, or take one back, then say what is next."""
        _check_origin(request)
        async with self._bodies.read(request) as body:
            try:
                said = self.judging.said(body)
            except ValueError as error:
                raise HTTPException(400, "no such pair or grade") from error
        self.judging.note(self.judge, said)  # at once: answers keep their order
        said.put_into(self.grades)
        return await self.state(request)

    async def end(self, request: Request) -> Response:
        """End the server."""
        _check_origin(request)
        self.server.should_exit = True
        return JSONResponse({})

    async def state(self, _: Request) -> Response:
        """Return the query whose turn it is, with its ads and their grades."""
        pairs = self.judging.drawn["pairs"]
        turn = next((number for number in range(len(pairs)) if number not in self.grades), None)
        state: dict[str, Any] = {
            "done": len(self.grades),
            "of": len(pairs),
            "turn": turn,
            "last": next(reversed(self.grades), None),
            "ads": [],
            "guideline": GUIDELINE,
        }
        if turn is not None:
            query = pairs[turn]["query"]
            state["query"] = self.judging.drawn["queries"][query]["text"]
            state["ads"] = [
                {"pair": number, "text": pair["text"], "grade": self.grades.get(number)}
                for number, pair in enumerate(pairs)
                if pair["query"] == query
            ]
        return JSONResponse(state)


def _check_origin(request: Request) -> None:
    """Refuse what is not JSON, which other sites' forms cannot send."""
    if request.headers.get("content-type", "") != JSON:
        raise HTTPException(400, f"the request is not of the type {JSON}")
