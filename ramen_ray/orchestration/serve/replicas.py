"""A retriever in several processes, on any machine of the cluster, behind one HTTP server.

Ray Serve starts the replicas, starts one anew that has died, and gives requests to those that have
least to do. A request names the version that is to answer it, so all replicas change at once.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from ramen_ray.errors import first_line_of
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.cluster.joining import start_ray
from ramen_ray.orchestration.cluster.resources import find_room
from ramen_ray.orchestration.serve.asked import Asked
from ramen_ray.orchestration.serve.connections import MOST_CONNECTIONS, BusyError
from ramen_ray.orchestration.serve.held import Batch, Held
from ramen_ray.orchestration.serve.server import ServerSettings, app_of
from ramen_ray.tracking.registry import Registry

if TYPE_CHECKING:
    from ramen_ray.answering.encoding import Embeddings

RETRIED_S = 30.0  # in which a request is given to others if its replica dies
PAUSE_S = 0.2
PATIENCE_S = 120.0
AT_ONCE = 3  # calls of a replica, so that it answers while it loads


class Replica:
    """Holds the version that answered last, and the one that was loaded last."""

    def __init__(self, store: str) -> None:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)  # not a line for each request
        self._registry = Registry(store)
        self._held = dict[str, Held]()
        self._loading = asyncio.Lock()

    async def load(self, uri: str) -> tuple[int, list[str]]:
        """Load a version, if it is not held; returns the number and the columns of its ads."""
        if uri not in self._held:  # else it answers while another is loaded
            async with self._loading:
                if uri not in self._held:
                    last = dict([*self._held.items()][-1:])
                    self._held = last
                    self._held = {uri: await asyncio.to_thread(Held, self._registry, uri)} | last
        return self._held[uri].num_ads, self._held[uri].columns

    async def answer(self, uri: str, requests: Sequence[Asked]) -> Batch:
        """Do what :meth:`Held.answer` does by a version, which is loaded first if need be."""
        return await asyncio.to_thread((await self._latest(uri)).answer, requests)

    async def embed(self, uri: str, texts: Sequence[str]) -> "Embeddings":
        """Do what :meth:`Held.embed` does by a version."""
        return await asyncio.to_thread((await self._latest(uri)).embed, texts)

    async def _latest(self, uri: str) -> Held:
        await self.load(uri)
        self._held[uri] = self._held.pop(uri)
        return self._held[uri]


class HeldByReplicas(Held):
    """A version that all replicas have loaded."""

    def __init__(self, handle: DeploymentHandle, uri: str) -> None:
        """Let replicas load it; raises the errors of :class:`Held`, a BusyError if one dies."""
        self._handle = handle
        self._uri = uri
        load = handle.broadcast("load", uri)
        with _errors():
            loaded = load.results(timeout_s=PATIENCE_S)
        if not loaded:
            raise BusyError("no replica runs at the moment")
        self.num_ads, self.columns = loaded[0]

    def answer(self, requests: Sequence[Asked]) -> Batch:
        """Do what :meth:`Held.answer` does in a replica, or in another if that dies."""
        return self._ask("answer", requests)

    def embed(self, texts: Sequence[str]) -> "Embeddings":
        """Return unit-norm vectors (texts, D)."""
        return self._ask("embed", texts)

    def _ask(self, method: str, given: object) -> Any:
        last_try = time.monotonic() + RETRIED_S
        while True:
            try:
                with _errors():
                    call = getattr(self._handle, method).remote(self._uri, given)
                    return call.result(timeout_s=PATIENCE_S)
            except BusyError:
                if time.monotonic() > last_try:
                    raise
            time.sleep(PAUSE_S)  # in which Ray notices which replicas are left


@contextmanager
def _errors() -> Iterator[None]:
    """Raise a BusyError if a replica dies or is late, and what it raises without a traceback."""
    try:
        yield
    except (RayActorError, TimeoutError) as error:
        raise BusyError(f"a replica does not answer: {first_line_of(error)}") from error
    except RayTaskError as error:
        raise error.cause from None


@contextmanager
def replicas(registry: Registry, number: int) -> Iterator[Callable[[str], Held]]:
    """Start replicas until the block ends; yields what lets them load the version of a URI."""
    start_ray(show_workers=False)
    find_room(lambda each: [{"CPU": 1}] * each, [number], f"{number} replicas")
    name = f"ramen-{uuid.uuid4().hex[:8]}"
    with logged_progress("starting replicas"):
        serve.start(proxy_location="Disabled")
        handle = serve.run(_replicas_of(registry.uri, number), name=name, route_prefix=None)
    try:
        yield lambda uri: HeldByReplicas(handle, uri)
    finally:
        serve.delete(name)


def _replicas_of(store: str, number: int) -> serve.Application:
    options = {"num_cpus": 1}
    deployment = serve.deployment(
        num_replicas=number, max_ongoing_requests=AT_ONCE, ray_actor_options=options
    )
    return deployment(Replica).bind(store)


def application_of(store: str, model_uri: str, settings: ServerSettings) -> serve.Application:
    """Describe the server and its replicas to a Ray Serve that runs already, with its own ports."""
    options = {"num_cpus": 1}
    deployment = serve.deployment(max_ongoing_requests=MOST_CONNECTIONS, ray_actor_options=options)
    return deployment(Server).bind(
        store, model_uri, settings, _replicas_of(store, settings.replicas)
    )


@serve.ingress()
class Server:
    """The HTTP server, to which Ray Serve's proxies hand requests."""

    def __init__(
        self, store: str, model_uri: str, settings: ServerSettings, handle: DeploymentHandle
    ) -> None:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        settings = replace(settings, hold=partial(HeldByReplicas, handle))
        with ThreadPoolExecutor(1) as thread:  # Ray Serve's event loop may not wait for replicas
            self._app = thread.submit(_app_once_they_run, store, model_uri, settings).result()

    def __serve_build_asgi_app__(self) -> Starlette:
        return self._app


def _app_once_they_run(store: str, model_uri: str, settings: ServerSettings) -> Starlette:
    last_try = time.monotonic() + PATIENCE_S
    while True:
        try:
            return app_of(Registry(store), model_uri, settings)
        except BusyError:  # Ray Serve starts the server and the replicas together
            if time.monotonic() > last_try:
                raise
        time.sleep(PAUSE_S)
