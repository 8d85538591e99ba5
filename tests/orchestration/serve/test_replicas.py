"""A retriever in replicas on Ray Serve: no request is lost."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from conftest import free_port
from ray.exceptions import ActorDiedError, ActorUnavailableError
from serving import asked, figures_at, serving
from support import PATIENCE_S, wait_until

from jobs.serve import AnswerSettings, application
from ramen_ray.orchestration.serve.server import ServerSettings, app_of
from ramen_ray.tracking.registry import Registry

NUM_CPUS = 2
pytest.importorskip("grpc_reflection", reason="ray[serve] is not installed")


def _replicas() -> list[psutil.Process]:
    """Return the processes of the replicas."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ends meanwhile
            if "ServeReplica:" in " ".join(child.cmdline()):
                found.append(child)
    return found


class _Dying:
    """In place of a handle of Ray Serve: two replicas die, the third answers."""

    def __init__(self) -> None:
        self.outcomes = [ActorDiedError(), ActorUnavailableError("away", None), "answered"]
        self.answer = self

    def broadcast(self, method: str, uri: str) -> Any:
        return SimpleNamespace(results=lambda timeout_s: [(40, ["market"])])

    def remote(self, uri: str, requests: Any) -> Any:
        return self

    def result(self, timeout_s: float) -> Any:
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def test_another_replica_answers_if_one_dies_meanwhile():
    from ramen_ray.orchestration.serve.replicas import HeldByReplicas

    held = HeldByReplicas(cast(Any, _Dying()), "models:/any/1")
    assert (held.num_ads, held.columns) == (40, ["market"])
    assert held.answer([]) == "answered"


def test_a_replica_answers_while_it_loads_another_version(monkeypatch):
    from ramen_ray.orchestration.serve import replicas

    may_load = threading.Event()

    def hold(_: Any, uri: str) -> Any:
        assert uri == "old" or may_load.wait(PATIENCE_S)
        return SimpleNamespace(num_ads=1, columns=[], answer=lambda requests: uri)

    monkeypatch.setattr(replicas, "Registry", lambda store: store)
    monkeypatch.setattr(replicas, "Held", hold)

    async def ask() -> list[Any]:
        replica = replicas.Replica("a store")
        answers = [await replica.answer("old", [])]
        loading = asyncio.create_task(replica.load("new"))
        answers += [await replica.answer("old", []) for _ in range(3)]
        assert not loading.done()
        may_load.set()
        return [*answers, await replica.answer("new", [])]

    assert asyncio.run(ask()) == ["old", "old", "old", "old", "new"]


@pytest.fixture
def _serve(cluster: None) -> Iterator[None]:
    """A cluster without Ray Serve after the test."""
    yield
    from ray import serve

    serve.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("_serve")
def test_no_request_is_lost_while_versions_change_and_a_replica_is_killed(store, dataset_path):
    from ramen_ray.orchestration.serve.replicas import replicas

    registry = Registry(store.uri)
    expected = {}
    for version, noise in (("1", 0.0), ("2", 3.0)):
        store.champion("spread", noise, dataset_path)
        uri = f"models:/spread/{version}"
        expected[uri] = registry.load(uri).answer(["robin nest", "oak"], 3).to_pylist()
    assert expected["models:/spread/1"] != expected["models:/spread/2"]
    body = {"inputs": ["robin nest", "oak"], "params": {"top_k": 3}}
    ended = threading.Event()

    def ask_on(_: int) -> Counter[str]:
        answered = Counter[str]()
        while not ended.is_set():
            status, headers, content = asked(port, "/invocations", body)
            assert status == 200, content
            assert content["predictions"] == expected[headers["X-Model"]]
            answered[headers["X-Model"]] += 1
        return answered

    def move_to(version: str) -> None:
        store.client.set_registered_model_alias("spread", "champion", version)
        wait_until(
            lambda: asked(port, "/ready")[2]["version"] == version, f"{version} is not served"
        )

    with replicas(registry, 2) as hold:
        settings = ServerSettings(follow_s=0.05, replicas=2, hold=hold)
        with serving(app_of(registry, "models:/spread@champion", settings)) as port:
            with ThreadPoolExecutor(4) as pool:
                clients = pool.map(ask_on, range(4))
                try:
                    move_to("1")
                    killed = _replicas()
                    assert len(killed) == 2
                    killed[0].kill()
                    wait_until(
                        lambda: len({*_replicas()} - {killed[0]}) == 2, "none takes its place"
                    )
                    move_to("2")
                finally:
                    ended.set()
                counts = sum(clients, Counter())
            assert counts.keys() == expected.keys()
            figures = figures_at(port)
            assert figures['ramen_requests_total{status="200"}'] == counts.total()
            assert figures["ramen_queries_total"] == 2 * counts.total()
            assert asked(port, "/invocations", {"inputs": [""], "params": {"top_k": 0}})[0] == 400
            clicked = asked(port, "/why?query=robin&ad_id=3")[2][0]["queries"]
            assert all(-1 <= query["score"] <= 1 for query in clicked)


@pytest.mark.slow
@pytest.mark.usefixtures("_serve")
def test_the_server_runs_as_an_application_of_ray_serve(store, dataset_path, monkeypatch):
    from ray import serve

    store.champion("served", 0.0, dataset_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    settings = AnswerSettings(model="models:/served@champion", replicas=NUM_CPUS - 1)
    port = free_port()
    serve.start(http_options={"port": port})
    serve.run(application(settings), route_prefix="/")
    expected = Registry(store.uri).load(settings.model).answer(["robin nest"], 3).to_pylist()
    status, headers, content = asked(
        port, "/invocations", {"inputs": ["robin nest"], "params": {"top_k": 3}}
    )
    assert (status, headers["X-Model"]) == (200, "models:/served/1")
    assert content["predictions"] == expected
    assert asked(port, "/invocations", {"inputs": [""], "params": {"top_k": 0}})[0] == 400
    assert asked(port, "/ready")[2]["name"] == "served"
    assert len(_replicas()) == NUM_CPUS
