"""Whether a server stays as it is while clients send what it must refuse, or what is largest.

`jobs/serve.py` answers from a retriever of debian's ads (a bag, searched exactly). Clients,
each with one request at a time, ask single queries in rounds: `one` and `eight` clients, `before`,
`moving`, where the alias moves `--moves` times between two versions, `among`, where one request in
`--hostile-every` is of HOSTILE, and `after`. Each round has the time of its single queries
(`p50_ms`, `p99_ms`) and the processors' time of a request (`cpu_ms`), how many failed, or had other
ads than the query's first answer (`wrong`), and the memory of the server's processes at its end and
at most. `ratio` is the memory after over that before. Clients and server share the machine's cores.

    python -m benchmarks.server [--clients 64] [--requests 200] [--hostile-every 20]
        [--moves 5] [--move-s 10] [--replicas 1]
"""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import psutil
from mlflow.tracking import MlflowClient

from benchmarks.common import (
    ENVIRONMENT,
    ROOT,
    finish,
    in_fresh_process,
    options,
    prepared,
    quantiles,
)
from benchmarks.retriever import DATASET, logged, make_retriever
from ramen_ray.config import EncoderConfig
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.long_work import in_background
from ramen_ray.presets import MINILM
from ramen_ray.tracking.registry import Registry

JSON, PATIENCE_S = "application/json", 120
NAME = "served"
Request = tuple[bytes, str]
Single = tuple[int, float, bool]  # status, milliseconds, whether it has the ads of the first answer
FIRST_ANSWERS = dict[str, list[str]]()  # to a query, of any round


def main() -> None:
    """Serve, ask in rounds, and compare."""
    asked = options(
        __doc__, clients=64, requests=200, hostile_every=20, moves=5, move_s=10.0, replicas=1
    )
    bag = EncoderConfig(kind="bag", pretrained=MINILM)
    path = prepared(DATASET, bag).path
    queries = Dataset(DATASET).read("queries/test")["text"].to_pylist()
    rounds = {"warm": asked.clients, "one": 1, "eight": 8}
    rounds |= dict.fromkeys(("before", "moving", "among", "after"), asked.clients)
    figures = {}
    with tempfile.TemporaryDirectory() as aside:
        client = MlflowClient(in_fresh_process(log, Path(aside), path, bag))
        words = ["--replicas", str(asked.replicas)]
        with serving(Path(aside), f"models:/{NAME}@champion", words) as (port, server):
            for name, clients in rounds.items():
                every = asked.hostile_every if name == "among" else 0
                ended = Event()
                if name == "moving":
                    ask = partial(ask_until, ended, port, queries)
                    move = partial(move_alias, client, asked.moves, asked.move_s, ended)
                    with in_background(move):
                        figures[name] = measure(server, clients, ask)
                else:
                    ask = partial(ask_in_turn, port, queries, asked.requests, every)
                    figures[name] = measure(server, clients, ask)
                print(f"{name}: {figures[name]}", flush=True)
    ratio = figures["after"]["memory_mb"] / figures["before"]["memory_mb"]
    finish(ratio, {**vars(asked), **figures})


def log(folder: Path, path: Path, encoder: EncoderConfig) -> str:
    """Make two versions of a retriever, of which the first has the alias; returns the store."""
    store = f"sqlite:///{folder}/mlflow.db"
    made = make_retriever(folder, path, encoder)
    for _ in range(2):
        uri = logged(folder, made)
        registry = Registry(store)
        registry.register(NAME, registry.look_up(uri).run_id, uri.removeprefix("models:/"))
    registry.client.set_registered_model_alias(NAME, "champion", "1")
    return store


def move_alias(
    client: MlflowClient, moves: int, seconds: float, ended: Event, stopped: Event
) -> None:
    """Give the alias to the other version a few times, with some seconds before and after each."""
    for move in range(moves):
        stopped.wait(seconds)
        client.set_registered_model_alias(NAME, "champion", str(2 - move % 2))
    stopped.wait(seconds)
    ended.set()


def ask_until(ended: Event, port: int, queries: list[str], client: int) -> list[Single | int]:
    """Send a client's single queries, one after another."""
    answered = list[Single | int]()
    while not ended.is_set():
        answered += ask_in_turn(port, queries, 1, 0, client * 100_000 + len(answered))
    return answered


@contextmanager
def serving(
    folder: Path, uri: str, words: list[str], checkout: Path = ROOT
) -> Iterator[tuple[int, psutil.Process]]:
    """Serve a model by the code of a checkout until the block ends; yields port and process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, **ENVIRONMENT}
    environment["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
    environment["PYTHONPATH"] = str(checkout)
    command = [sys.executable, str(checkout / "jobs/serve.py")]
    command += ["--model", uri, "--port", str(port)]
    with (folder / f"server-{port}.log").open("wb") as said:
        started = subprocess.Popen(
            [*command, *words],
            env=environment,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        while started.poll() is None:
            with suppress(OSError):
                if post(port, single("a query"))[0] == 200:
                    break
            time.sleep(0.5)
        yield port, psutil.Process(started.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGTERM)
        started.wait()


def ask_in_turn(
    port: int, queries: list[str], requests: int, hostile_every: int, client: int
) -> list[Single | int]:
    """Send a client's requests; of hostile ones only the status is kept, 0 if there was none."""
    draw = random.Random(client)
    taken = list[Single | int]()
    for _ in range(requests):
        is_hostile = hostile_every and draw.randrange(hostile_every) == 0
        query = draw.choice(queries)
        status, milliseconds, content = 0, 0.0, b""
        with suppress(OSError, http.client.HTTPException):
            request = draw.choice(HOSTILE) if is_hostile else single(query)
            status, milliseconds, content = post(port, request)
        if is_hostile:
            taken.append(status)
        else:
            ads = json.loads(content)["predictions"][0]["ad_ids"] if status == 200 else []
            is_right = bool(ads) and ads == FIRST_ANSWERS.setdefault(query, ads)
            taken.append((status, milliseconds, is_right))
    return taken


def measure(
    server: psutil.Process, clients: int, ask: Callable[[int], list[Single | int]]
) -> dict[str, Any]:
    """Run a round of all clients; returns its times, statuses and the server's memory."""
    taken = [memory_mb(server)]
    cpu_before = cpu_s(server)

    def watch(ended: Event) -> None:
        while not ended.wait(0.2):
            taken.append(memory_mb(server))

    with in_background(watch), ThreadPoolExecutor(clients) as pool:
        found = [one for of_client in pool.map(ask, range(clients)) for one in of_client]
    single_ms = [one[1] for one in found if isinstance(one, tuple) and one[0] == 200]
    failed = sum(isinstance(one, tuple) and one[0] != 200 for one in found)
    wrong = sum(isinstance(one, tuple) and not one[2] for one in found) - failed
    taken.append(memory_mb(server))
    cpu_ms = 1000 * (cpu_s(server) - cpu_before) / len(found)
    memory = {"memory_mb": taken[-1], "most_mb": max(taken)}
    hostile = dict(Counter(str(one) for one in found if isinstance(one, int)))
    return {
        **quantiles(single_ms),
        "cpu_ms": cpu_ms,
        "answered": len(single_ms),
        "failed": failed,
        "wrong": wrong,
        **memory,
        "hostile": hostile,
    }


def memory_mb(server: psutil.Process) -> float:
    """Return what the server and its processes have in memory, without what they share."""
    total = 0
    for process in [server, *server.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            memory = process.memory_info()
            total += memory.rss - memory.shared
    return total / 1e6


def cpu_s(server: psutil.Process) -> float:
    """Return the processors' seconds that the server and its processes have taken."""
    processes = [server, *server.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def post(port: int, request: Request) -> tuple[int, float, bytes]:
    """Send a request; returns the status, the milliseconds, and the content."""
    body, kind = request
    started = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("POST", "/invocations", body, {"Content-Type": kind})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, 1000 * (time.perf_counter() - started), content


def single(query: str) -> Request:
    """Return the request of one query."""
    return json.dumps({"inputs": [query]}).encode(), JSON


def _asking(queries: object, top_k: int) -> Request:
    return json.dumps({"inputs": queries, "params": {"top_k": top_k}}).encode(), JSON


HOSTILE = [
    _asking(["an editor"] * 10_000, 20),  # the most that is answered
    _asking(["an editor"] * 10, 20_000),
    _asking(["x" * 10_000] * 199, 10),
    _asking(["an editor"] * 10_000, 21),
    _asking(["an editor"] * 100_000, 1),
    _asking(["x" * 4_000_000], 1),
    _asking(["\ud800", None, {"a": [1]}, [], 7], 10),
    (b'{"inputs": ' + b"[" * 100_000, JSON),
    (b'{"inputs": [' + b"9" * 5_000 + b"]}", JSON),
    (b"query\n" + b"an editor\n" * 100_000, "text/csv"),
    (b"\x00\xff" * 500_000, JSON),
    (json.dumps({"instances": [{"query": "x" * 100}] * 2_000}).encode(), JSON),
]


if __name__ == "__main__":
    main()
