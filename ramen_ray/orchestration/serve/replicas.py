"""A retriever in several processes, on any machine of the cluster, behind one HTTP server.

Ray Serve starts the replicas, more of them when more is asked, starts one anew that has died, and
gives requests to those that have least to do. A request names the version that is to answer it, so
all replicas change at once. An index that is larger than a process is cut into shards; each is a
deployment of one replica, which all replicas of the retriever ask.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from ramen_ray.answering.encoding import Embeddings
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.errors import first_line_of
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.cluster.joining import start_ray
from ramen_ray.orchestration.cluster.resources import find_room
from ramen_ray.orchestration.serve.exchanges import MOST_CONNECTIONS, BusyError
from ramen_ray.orchestration.serve.held import (
    RELEASED_EVERY_S,
    Asked,
    Batch,
    Held,
    release_memory,
)
from ramen_ray.orchestration.serve.server import app_of
from ramen_ray.orchestration.serve.settings import ServerSettings
from ramen_ray.tracking.registry import Registry

if TYPE_CHECKING:
    from ramen_ray.method.retrieval.shards import HeldShard

LOADS_WITHIN_S = 120.0  # or it is asked again later
ANSWERS_WITHIN_S = 60.0  # also if replicas die, and others take their places
SHARD_ANSWERS_WITHIN_S = 25.0  # less than a retriever takes for a request
PAUSE_S = 0.2
AT_ONCE = 3  # calls of a replica, so that it answers while it loads
SCALING = {"target_ongoing_requests": 1.0}  # batches of each replica, on average

logger = logging.getLogger(__name__)


class Replica:
    """Holds the two versions that were loaded or asked last, and answers while it loads one."""

    def __init__(self, store: str, hold: Callable[..., Any], *shards: DeploymentHandle) -> None:
        """Load versions by ``hold``, which gets the registry, a URI and the shards."""
        logging.getLogger("ray.serve").setLevel(logging.WARNING)  # not a line for each request
        self._registry = Registry(store)
        self._hold = hold
        self._shards = shards

    async def reconfigure(self, model_uri: str) -> None:
        """Load the version that a URI names now, before the replica is asked for the first time."""
        try:
            await self.load(self._registry.pinned(model_uri))
        except Exception as error:  # the error is raised where the version is asked for
            logger.warning("%s: %s", model_uri, first_line_of(error))

    async def check_health(self) -> None:
        """Give memory back; Ray Serve calls this every ``RELEASED_EVERY_S``."""
        await asyncio.to_thread(release_memory)

    @serve.multiplexed(max_num_models_per_replica=2)
    async def _held(self, uri: str) -> Any:
        return await asyncio.to_thread(self._hold, self._registry, uri, *self._shards)

    async def load(self, uri: str) -> None:
        """Load a version, if it is not held."""
        await self._held(uri)

    async def ask(self, uri: str, method: str, *given: object) -> Any:
        """Call a method of what is held of a version, which is loaded first if need be."""
        held = await self._held(uri)
        return await asyncio.to_thread(getattr(held, method), *given)


class Elsewhere:
    """A version that all replicas of a deployment have loaded."""

    def __init__(self, handle: DeploymentHandle, uri: str, patience_s: float) -> None:
        """Let them load it; raises what they raise, or a BusyError if one dies."""
        self._handle = handle
        self._uri = uri
        self._patience_s = patience_s
        with _errors():
            loaded = handle.broadcast("load", uri).results(timeout_s=LOADS_WITHIN_S)
        if not loaded:
            raise BusyError("no replica runs at the moment")

    def ask(self, method: str, *given: object) -> Any:
        """Call a method of the version in a replica, or in another if that dies.

        Raises a BusyError if none answers within ``patience_s``.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                with _errors():
                    call = self._handle.ask.remote(self._uri, method, *given)
                    return call.result(timeout_s=max(deadline - time.monotonic(), PAUSE_S))
            except BusyError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE_S)  # in which Ray notices which replicas are left


class HeldByReplicas(Held):
    """A version that answers in replicas."""

    def __init__(self, handle: DeploymentHandle, uri: str) -> None:
        """Let replicas load it; raises the errors of :class:`Held`, a BusyError if one dies."""
        self._there = Elsewhere(handle, uri, ANSWERS_WITHIN_S)
        self.num_ads, self.columns = self._there.ask("described")

    def answer(self, requests: Sequence[Asked]) -> Batch:
        """Do what :meth:`Held.answer` does in a replica."""
        batch: Batch = self._there.ask("answer", requests)
        return batch

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """Return unit-norm vectors (texts, D)."""
        vectors: Embeddings = self._there.ask("embed", texts)
        return vectors


@contextmanager
def _errors() -> Iterator[None]:
    """Raise a BusyError if a replica dies or is late, and what it raises without a traceback."""
    try:
        yield
    except (RayActorError, TimeoutError, DeploymentUnavailableError) as error:
        raise BusyError(f"a replica does not answer: {first_line_of(error)}") from error
    except RayTaskError as error:
        raise error.cause from None


def hold_shard(number: int, count: int, registry: Registry, uri: str) -> "HeldShard":
    """Load one of ``count`` shards of a version, or raise the errors of what loads it."""
    from ramen_ray.answering.retriever import INDEX
    from ramen_ray.method.retrieval.shards import HeldShard, index_shard

    with owned_folder() as aside:
        folder = registry.download(uri, aside, may_stay=True)
        return HeldShard(index_shard(folder / INDEX, number, count))


def _hold(registry: Registry, uri: str, *shards: DeploymentHandle) -> Held:
    if not shards:
        return Held(registry, uri)
    from ramen_ray.method.retrieval.shards import search_of

    cut = [Elsewhere(shard, uri, SHARD_ANSWERS_WITHIN_S) for shard in shards]
    return Held(registry, uri, search=search_of([partial(shard.ask, "search") for shard in cut]))


@contextmanager
def replicas(
    registry: Registry, model_uri: str, settings: ServerSettings
) -> Iterator[Callable[[str], Held]]:
    """Start replicas until the block ends; yields what lets them load the version of a URI."""
    start_ray(show_workers=False)
    number = settings.fewest_replicas + settings.shards
    find_room(lambda count: [{"CPU": 1}] * count, [number], f"{number} processes")
    name = f"ramen-{uuid.uuid4().hex[:8]}"
    with logged_progress("starting replicas"):
        serve.start(proxy_location="Disabled")
        application = _replicas_of(registry.uri, model_uri, settings)
        handle = serve.run(application, name=name, route_prefix=None)
    try:
        yield lambda uri: HeldByReplicas(handle, uri)
    finally:
        serve.delete(name)


def _replicas_of(store: str, model_uri: str, settings: ServerSettings) -> serve.Application:
    """Describe replicas, each of which loads the version of ``model_uri`` when it starts."""
    deployment = serve.deployment(
        max_ongoing_requests=AT_ONCE,
        health_check_period_s=RELEASED_EVERY_S,
        ray_actor_options={"num_cpus": 1},
        user_config=model_uri,
    )(Replica)
    at_once = AT_ONCE * settings.replicas
    shards = [
        deployment.options(
            name=f"shard-{number}", num_replicas=1, max_ongoing_requests=at_once
        ).bind(store, partial(hold_shard, number, settings.shards))
        for number in range(settings.shards)
    ]
    bounds = {"min_replicas": settings.fewest_replicas, "max_replicas": settings.replicas}
    scaled = deployment.options(autoscaling_config=bounds | SCALING)
    return scaled.bind(store, _hold, *shards)


def application_of(store: str, model_uri: str, settings: ServerSettings) -> serve.Application:
    """Describe the server and its replicas to a Ray Serve that runs already, with its own ports."""
    options = {"num_cpus": 1}
    deployment = serve.deployment(max_ongoing_requests=MOST_CONNECTIONS, ray_actor_options=options)
    replicas = _replicas_of(store, model_uri, settings)
    return deployment(Server).bind(store, model_uri, settings, replicas)


@serve.ingress()
class Server:
    """The HTTP server, to which Ray Serve's proxies hand requests."""

    def __init__(
        self, store: str, model_uri: str, settings: ServerSettings, handle: DeploymentHandle
    ) -> None:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        hold = partial(HeldByReplicas, handle)
        with ThreadPoolExecutor(1) as thread:  # Ray Serve's event loop may not wait for replicas
            made = thread.submit(_app_once_they_run, store, model_uri, settings, hold)
            self._app = made.result()

    def __serve_build_asgi_app__(self) -> Starlette:
        return self._app


def _app_once_they_run(
    store: str, model_uri: str, settings: ServerSettings, hold: Callable[[str], Held]
) -> Starlette:
    last_try = time.monotonic() + LOADS_WITHIN_S
    while True:
        try:
            return app_of(Registry(store), model_uri, settings, hold)
        except BusyError:  # Ray Serve starts the server and the replicas together
            if time.monotonic() > last_try:
                raise
        time.sleep(PAUSE_S)
