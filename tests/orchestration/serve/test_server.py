"""A retriever over HTTP: the same answers as in a process, and one sentence about bad requests."""

import gc
import json
import os
import re
import socket
import sys
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy as np
import psutil
import pytest
from conftest import free_port
from serving import AS_JSON, asked, clients, figures_at, serving
from starlette.testclient import TestClient
from stores import choose
from support import PATIENCE_S, ROOT, running, wait_until, write_rows

from jobs import index, promote, serve
from ramen_ray.orchestration.serve import exchanges, held, server
from ramen_ray.orchestration.serve.exchanges import MAX_BODY_BYTES
from ramen_ray.orchestration.serve.server import app_of
from ramen_ray.orchestration.serve.settings import ServerSettings
from ramen_ray.tracking.registry import Registry, ask


@pytest.fixture(scope="module")
def client(store, logged_retriever):
    with TestClient(app_of(store.registry, logged_retriever)) as client:
        yield client


def test_a_query_that_is_no_text_has_an_error_in_its_row(client):
    content = b'{"inputs": ["oak", "\\ud800", null, 7, {"a": [1]}, ["oak"], NaN, "", true]}'
    answered = client.post("/invocations", content=content, headers=AS_JSON)
    rows = answered.json()["predictions"]
    told = ["surrogate", "missing", "int", "an object", "a list", "missing", "empty", "bool"]
    assert rows[0]["error"] is None
    for row, word in zip(rows[1:], told, strict=True):
        assert word in row["error"]
    assert [len(row["ads"]) for row in rows] == [10, *[0] * 8]
    for odd in ([], {}, ["id", "oak"], {"query": "oak"}, ["x"] * 100_000):
        answered = client.post("/invocations", json={"inputs": [odd, *[["y"]] * 9_000]})
        (first, *_, last) = answered.json()["predictions"]
        assert not first["ads"]
        assert last["error"] == "the query is a list, not a text"


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b'{"inputs": ' + b"[" * 100_000, "JSON"),
        ('{"inputs": ["oak"]}'.encode("utf-16"), "JSON"),
        (b'["oak"]', "request"),
        (b'{"instances": [{"query": "oak"}]}', "inputs"),
        (json.dumps({"inputs": ["oak"] * 10_001}).encode(), "10000"),
        (b'{"inputs": [' + b"1," * 300_000 + b"1]}", "200000"),
        (b'{"inputs": [1], "' + b"k" * 1_000_000 + b'": 1}', "kkk"),
        (b'{"inputs": ["oak"], "params": {"topk": 1}}', "params.topk"),
        (b'{"inputs": ["oak"], "params": {"top_k": 0}}', "top_k"),
        (b'{"inputs": ["oak"], "params": {"top_k": true}}', "top_k"),
        (b'{"inputs": ["oak"], "params": {"min_score": NaN}}', "min_score"),
        (b'{"inputs": ["oak"], "params": {"filter": ["a"]}}', "filter"),
        (b'{"inputs": ["oak"], "params": {"filter": {"a": "b"}}}', "'a'"),
        (b'{"inputs": ["oak"], "params": {"filter": {"\\ud800": "a"}}}', "column"),
        (b'{"inputs": ["oak"], "params": {"filter": {"' + b"k" * 1_000_000 + b'": "a"}}}', "kkk"),
        (b" " * (MAX_BODY_BYTES + 1), "16000000"),
    ],
)
def test_a_bad_request_is_refused_in_one_sentence(client, content, place):
    answered = client.post("/invocations", content=content, headers=AS_JSON)
    assert answered.status_code == (413 if len(content) > MAX_BODY_BYTES else 400)
    assert place in answered.json()["error"]
    assert len(answered.text) < 600


def test_what_is_not_sent_as_json_is_refused(client):
    assert client.post("/invocations", content=b'{"inputs": ["oak"]}').status_code == 400


def test_no_client_is_sent_to_another_address(client):
    answered = client.post(
        "/invocations/", json={"inputs": ["oak"]}, headers={"Host": "evil.example"}
    )
    assert answered.status_code == 404
    assert "evil" not in f"{answered.headers}"
    too_large = client.post("/invocations/", content=iter([b" " * (MAX_BODY_BYTES + 1)]))
    assert too_large.json().keys() == {"error"}


def test_an_alias_is_followed_while_clients_ask(
    store, dataset_path, done, caplog, tmp_path, monkeypatch
):
    name = "models:/followed@champion"
    expected = {}
    registry = store.registry
    for version, noise in (("1", 0.0), ("2", 3.0)):
        store.champion("followed", noise, dataset_path)
        uri = f"models:/followed/{version}"
        expected[uri] = registry.load(uri).answer(["robin nest"], 3).to_pylist()
    assert expected["models:/followed/1"] != expected["models:/followed/2"]
    loaded = []

    def load(*given):
        retriever = Registry.load(*given)
        loaded.append(weakref.ref(retriever))
        return retriever

    monkeypatch.setattr(registry, "load", partial(load, registry))
    app = app_of(registry, name, ServerSettings(follow_s=0.05))
    gc.freeze()  # as the job does, so that what stays is not looked through again
    body = {"inputs": ["robin nest"], "params": {"top_k": 3}}

    def is_served(version):
        return asked(port, "/ready")[2]["version"] == version

    restore = (promote, "--restore", "--name", "followed", "--output", store.output)
    with serving(app) as port:
        with clients(port, body, expected) as answered:
            done(*restore)
            wait_until(lambda: is_served("1"), "the version before is not served")
            for version in "212":
                store.client.set_registered_model_alias("followed", "champion", version)
                wait_until(lambda v=version: is_served(v), f"version {version} is not served")
            wait_until(lambda: loaded[0]() is None, "the first version stays in memory")
        counts = Counter(answered)
        assert counts.keys() == expected.keys()
        described = asked(port, "/health")[2]
        assert described["model"] == "models:/followed/2"
        assert described["ads"] == 40
        assert described["run"] == registry.look_up("models:/followed/2").run_id
        figures = figures_at(port)
        assert figures['ramen_requests_total{status="200"}'] == counts.total()
        assert figures["ramen_refused_loads_total"] == 0

        rows = [[f"A{n}", "oak"] for n in range(3)]
        few = write_rows(tmp_path / "few.csv", "ad_id text", rows)
        to = ("--model", name, "--output", store.output)
        done(index, *to, "--sync", few, "--allow-lost-ads")
        wait_until(lambda: "models:/followed/3" in caplog.text, caplog.text)
        found = registry.find_logged(store.run(0.0, dataset_path), None)
        damaged = next(store.output.glob(f"mlartifacts/models/{found[1]}/**/index.faiss"))
        damaged.write_bytes(damaged.read_bytes()[:-9])
        choose(registry, "followed", *found)
        wait_until(lambda: "models:/followed/4" in caplog.text, caplog.text)
        assert figures_at(port)["ramen_refused_loads_total"] == 2
        assert is_served("2")
        assert asked(port, "/invocations", body)[2]["predictions"] == expected["models:/followed/2"]


def test_requests_that_wait_are_answered_together_or_refused(store, logged_retriever, monkeypatch):
    monkeypatch.setattr(server, "MOST_WAITING", 12)
    texts = ["robin nest", "oak", "ship", "saw", ""]
    expected = store.registry.load(logged_retriever, "cpu").answer(texts, 3).to_pylist()
    app = app_of(store.registry, logged_retriever)
    may_answer = threading.Event()
    sizes = []

    def ask_later(retriever, queries, params):
        sizes.append(len(queries))
        may_answer.wait(PATIENCE_S)
        return ask(retriever, queries, params)

    monkeypatch.setattr(held, "ask", ask_later)

    def send(number):
        top_k = 0 if number == 9 else 3
        body = {"inputs": texts[number % 5 :], "params": {"top_k": top_k}}
        return asked(port, "/invocations", body)

    def is_waiting(number):
        return figures_at(port)["ramen_waiting_requests"] == number

    with serving(app) as port, ThreadPoolExecutor(13) as pool:
        first = pool.submit(send, 0)
        wait_until(lambda: sizes, "nothing is answered")
        others = [pool.submit(send, number) for number in range(12)]
        wait_until(lambda: is_waiting(12), "nothing waits")
        assert asked(port, "/ready")[0] == 503
        status, headers, _ = send(0)
        assert (status, headers["Retry-After"]) == (503, "1")
        may_answer.set()
        assert first.result()[2]["predictions"] == expected
        for number, other in enumerate(others):
            status, _, content = other.result()
            if number == 9:
                assert status == 400
                assert "top_k" in content["error"]
            else:
                assert [row["ads"] for row in content["predictions"]] == [
                    row["ads"] for row in expected[number % 5 :]
                ]
    assert sorted(sizes) == [1, 5, 38]  # what is refused, the first, and what waited


def test_requests_are_named_counted_and_logged(store, logged_retriever, monkeypatch, caplog):
    monkeypatch.setattr(server, "MINUTE_S", 0.05)
    caplog.set_level("INFO", "ramen_ray")
    app = app_of(store.registry, logged_retriever, ServerSettings(log="queries"))
    body = {"inputs": ["oak", "", "robin nest"], "params": {"min_score": 2.0}}
    with TestClient(app) as client:
        given = client.post("/invocations", json=body, headers={"X-Request-Id": "mine-1"})
        made = client.post("/invocations", json=[], headers={"X-Request-Id": "not\tmine"})
        figures = client.get("/metrics").text
        wait_until(lambda: "requests, 1 errors, p50 " in caplog.text, caplog.text)
    assert given.headers["X-Request-Id"] == "mine-1"
    assert made.headers["X-Request-Id"].isalnum()
    assert given.headers["X-Model"] == logged_retriever
    lines = [json.loads(record.message) for record in caplog.records if "{" in record.message]
    assert [(line["id"], line["status"]) for line in lines] == [
        ("mine-1", 200),
        (made.headers["X-Request-Id"], 400),
    ]
    assert lines[0]["queries"] == body["inputs"]
    assert lines[0]["model"] == logged_retriever
    assert "ramen_queries_total 3.0" in figures
    assert "ramen_empty_answers_total 3.0" in figures
    page = (ROOT / "docs/how_to/morning.md").read_text()
    for name in re.findall(r"ramen_\w+|process_\w+", page):
        assert f"{name} " in figures or f"{name}{{" in figures or name == "ramen_doubts_total"


def test_memory_that_large_requests_leave_free_is_given_back():
    blocks = [np.ones(12_000) for _ in range(1_000)]  # too small to be given back one by one
    last = blocks[-1]  # what comes before stays with the process
    del blocks
    process = psutil.Process()
    before = process.memory_info().rss
    held.release_memory()
    assert before - process.memory_info().rss > 0.8 * 999 * last.nbytes


HALF = (
    b"POST /invocations HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\nContent-Type: application/json"
)


def test_a_client_that_hangs_costs_a_connection(store, logged_retriever, monkeypatch, caplog):
    monkeypatch.setattr(exchanges, "EXCHANGE_S", 1.0)
    monkeypatch.setattr(exchanges, "BODY_S", 0.5)
    app = app_of(store.registry, logged_retriever)
    body = json.dumps({"inputs": ["oak"] * 5_000, "params": {"top_k": 40}}).encode()
    large = HALF.replace(b"99", str(len(body)).encode()) + b"\r\n\r\n" + body
    with serving(app) as port, ExitStack() as clients:
        texts = [b"", HALF, HALF + b"\r\n\r\n{", b"\xff\r\n\r\n", large]
        opened = [socket.create_connection(("127.0.0.1", port), PATIENCE_S) for _ in texts]
        for client, text in zip(opened, texts, strict=True):
            clients.enter_context(client)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(text)
        assert asked(port, "/invocations", {"inputs": ["oak"]})[0] == 200
        for client, begin in zip(opened, (b"", b"", b"HTTP/1.1 408"), strict=False):
            assert client.recv(12) == begin
        answered = 'ramen_requests_total{status="200"}'  # in vain, too
        wait_until(lambda: figures_at(port).get(answered) == 2, "the answer is not cut")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_the_job_serves_until_it_is_stopped(store, logged_retriever, refused, tmp_path):
    port = free_port()
    log = tmp_path / "server.log"
    words = ["--model", logged_retriever, "--port", str(port)]
    command = [sys.executable, str(ROOT / "jobs/serve.py"), *words]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": store.uri}
    address = f"http://127.0.0.1:{port}"
    with running(command, log, f"{address}/health", env=environment, cwd=tmp_path) as server:
        assert logged_retriever in log.read_text()
        assert f"port {port}" in refused(serve, *words)
        with socket.create_connection(("127.0.0.1", port)) as hanging:
            hanging.sendall(HALF + b"\r\n\r\n{")
            server.terminate()
            assert server.wait(10) == 143
    assert "Traceback" not in log.read_text()
