"""An application that is served in a thread, and what asks it."""

import json
import socket
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
from starlette.applications import Starlette
from support import PATIENCE_S, with_tables

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.serve.exchanges import server_of

AS_JSON = {"Content-Type": "application/json"}


@contextmanager
def serving(app: Starlette) -> Iterator[int]:
    """Serve in a thread until the block ends; yields the port."""
    server = server_of(app)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def asked(port: int, path: str, body: Any = None, **headers: str) -> Any:
    """Return status, headers and content of an answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    method = "GET" if body is None else "POST"
    connection.request(method, path, json.dumps(body), AS_JSON | headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    is_json = answer.headers["Content-Type"] == "application/json"
    return answer.status, answer.headers, json.loads(content) if is_json else content.decode()


@contextmanager
def clients(
    port: int, body: Any, expected: dict[str, Any], refusals: Collection[int] = ()
) -> Iterator[list[str]]:
    """Let four clients ask until the block ends; yields the versions that answered, as expected."""
    ended = threading.Event()
    answered = list[str]()

    def ask_on(_):
        while not ended.wait(0.01):  # else they take the CPUs of what is tested
            status, headers, content = asked(port, "/invocations", body)
            if status in refusals:
                continue
            assert status == 200, content
            assert content["predictions"] == expected[headers["X-Model"]]
            answered.append(headers["X-Model"])

    with ThreadPoolExecutor(4) as pool:
        asking = pool.map(ask_on, range(4))
        try:
            yield answered
        finally:
            ended.set()
        assert len([*asking]) == 4


def figures_at(port: int) -> dict[str, float]:
    lines = asked(port, "/metrics")[2].splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def with_markets(dataset: Path, folder: Path) -> Path:
    """Copy a dataset, whose ads get a market, but every third; returns where it is."""
    opened = Dataset(dataset)
    ads = opened.read("ads")
    markets = [("DE", "<b>FR</b>", None)[ad % 3] for ad in range(len(ads))]
    ads = ads.append_column("filter_market", [markets])
    return with_tables(opened, folder, {"ads": ads}).path


def replicas_here(name: str = "") -> list[psutil.Process]:
    """Return the processes of the replicas, or of those whose deployment has this in its name."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ends meanwhile
            title = " ".join(child.cmdline())
            if "ServeReplica:" in title and name in title:
                found.append(child)
    return found
