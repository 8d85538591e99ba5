"""A retriever over HTTP: the same answers as in a process, and one sentence about bad requests."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from conftest import free_port
from fastapi.testclient import TestClient
from support import ROOT, running

from ramen_ray.orchestration.serve.server import MAX_BODY_BYTES, app_of
from ramen_ray.tracking.registry import Registry

AS_JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client(store, logged_retriever) -> Iterator[TestClient]:
    with TestClient(app_of(Registry(store.uri), logged_retriever)) as client:
        yield client


def test_answers_are_those_of_the_loaded_retriever(client, store, logged_retriever):
    texts = ["robin nest", "oak"]
    answered = client.post("/invocations", json={"inputs": texts, "params": {"top_k": 3}})
    expected = Registry(store.uri).load(logged_retriever, "cpu").answer(texts, 3)
    assert answered.json() == {"predictions": expected.to_pylist()}
    assert client.get("/health").status_code == 200


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
    ("content", "headers", "sentence"),
    [
        (b'{"inputs": ' + b"[" * 100_000, AS_JSON, "parsing the body"),
        (b"\x00\xff" * 1_000, AS_JSON, "JSON"),
        (b'["oak"]', AS_JSON, "the request"),
        (b'{"instances": [{"query": "oak"}]}', AS_JSON, "inputs"),
        (b'{"inputs": ["oak"], "params": {"topk": 1}}', AS_JSON, "params.topk"),
        (b'{"inputs": ["oak"], "params": {"top_k": 0}}', AS_JSON, "top_k is 0"),
        (b'{"inputs": ["oak"], "params": {"min_score": NaN}}', AS_JSON, "number"),
        (b'{"inputs": ["oak"], "params": {"filter": {"a": "b"}}}', AS_JSON, "no column"),
        (b'{"inputs": ["oak"]}', {}, "the request"),
        (b" " * (MAX_BODY_BYTES + 1), AS_JSON, "16000000 bytes"),
        (b'{"inputs": ["oak"], "params": {"top_k": true}}', AS_JSON, "top_k is True"),
        (b'{"inputs": ["oak"], "params": {"top_k": 3.5}}', AS_JSON, "top_k is 3.5"),
        (b'{"inputs": ["oak"], "params": {"min_score": true}}', AS_JSON, "min_score is True"),
        (b'{"inputs": ["oak"], "params": {"filter": ["a"]}}', AS_JSON, "filter is ['a']"),
        (b'{"inputs": ["oak"], "params": {"filter": {"\\ud800": "a"}}}', AS_JSON, "no column"),
        (b'{"inputs": [1], "' + b"k" * 100_000 + b'": 1}', AS_JSON, "kkk"),
        (json.dumps({"inputs": ["oak"] * 10_001}).encode(), AS_JSON, "10000"),
        (json.dumps({"inputs": ["x" * 9_999] * 201}).encode(), AS_JSON, "2000000"),
    ],
)
def test_a_bad_request_is_refused_in_one_sentence(client, content, headers, sentence):
    answered = client.post("/invocations", content=content, headers=headers)
    assert answered.status_code == (413 if "bytes" in sentence else 400)
    assert sentence.lower() in answered.json()["error"].lower()
    assert len(answered.text) < 600


def test_no_client_is_sent_to_another_address(client):
    answered = client.post(
        "/invocations/", json={"inputs": ["oak"]}, headers={"Host": "evil.example"}
    )
    assert answered.status_code == 404
    assert "evil" not in f"{answered.headers}"
    too_large = client.post("/invocations/", content=iter([b" " * (MAX_BODY_BYTES + 1)]))
    assert too_large.json().keys() == {"error"}


def test_the_job_serves_until_it_is_stopped(store, logged_retriever, tmp_path):
    port, log = free_port(), tmp_path / "server.log"
    command = [sys.executable, str(ROOT / "jobs/serve.py"), "--model", logged_retriever]
    command += ["--port", str(port)]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": store.uri}
    address = f"http://127.0.0.1:{port}"
    with running(command, log, f"{address}/health", env=environment, cwd=tmp_path) as server:
        assert f"serving: {logged_retriever} at {address}" in log.read_text()
        second = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True)
        assert second.returncode == 2
        assert f"error: cannot listen at 127.0.0.1, port {port}: Add".encode() in second.stderr
        server.terminate()
        assert server.wait(30) == 143
    assert "Traceback" not in log.read_text()
