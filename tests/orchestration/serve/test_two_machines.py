"""Replicas and shards on two machines: no request is lost, whatever dies."""

from collections import Counter
from contextlib import contextmanager
from itertools import product

import pytest
from conftest import TOPICS
from serving import asked, clients, figures_at, replicas_here, serving
from support import PATIENCE_S, wait_until, write_rows

from jobs import index
from ramen_ray.orchestration.serve import server
from ramen_ray.orchestration.serve.server import app_of
from ramen_ray.orchestration.serve.settings import ServerSettings

pytest.importorskip("grpc_reflection", reason="ray[serve] is not installed")
pytestmark = pytest.mark.slow

TEXTS = ["robin nest", "oak"]
BODY = {"inputs": TEXTS, "params": {"top_k": 3}}


def _die(replicas, name=""):
    """Kill replicas, and wait until there are as many of this name as before."""
    number = len(replicas_here(name))
    for replica in replicas:
        replica.kill()
    wait_until(lambda: len({*replicas_here(name)} - {*replicas}) == number, "none takes its place")


@pytest.fixture
def two_machines(machines, monkeypatch):
    """Two machines, without Ray Serve after the test; clients wait as long as others start."""
    monkeypatch.setattr("ramen_ray.orchestration.serve.replicas.ANSWERS_WITHIN_S", PATIENCE_S)
    monkeypatch.setattr(server, "ANSWER_S", PATIENCE_S)
    machines.become(2, 2)
    yield machines
    from ray import serve

    serve.shutdown()


@contextmanager
def _served(registry, model_uri, settings):
    """Serve by replicas until the block ends; yields the port."""
    from ramen_ray.orchestration.serve.replicas import replicas

    with replicas(registry, model_uri, settings) as hold:
        app = app_of(registry, model_uri, settings, hold)
        with serving(app) as port:
            yield port


def test_no_request_is_lost_while_versions_change_and_replicas_and_a_machine_die(
    two_machines, store, dataset_path
):
    registry = store.registry
    expected = {}
    for version, noise in (("1", 0.0), ("2", 3.0)):
        store.champion("spread", noise, dataset_path)
        uri = f"models:/spread/{version}"
        expected[uri] = registry.load(uri).answer(TEXTS, 3).to_pylist()
    assert expected["models:/spread/1"] != expected["models:/spread/2"]

    def move_to(version):
        store.client.set_registered_model_alias("spread", "champion", version)
        wait_until(
            lambda: asked(port, "/ready")[2]["version"] == version, f"{version} is not served"
        )

    champion = "models:/spread@champion"
    settings = ServerSettings(follow_s=0.05, replicas=2)
    with _served(registry, champion, settings) as port:
        with clients(port, BODY, expected) as answered:
            move_to("1")
            assert len({replica.ppid() for replica in replicas_here()}) == 2  # on both machines
            _die(replicas_here()[:1])
            _die(replicas_here())  # both at once
            move_to("2")
            two_machines.lose()
            wait_until(lambda: len(replicas_here()) == 2, "none is started elsewhere")
            move_to("1")
        counts = Counter(answered)
        assert counts.keys() == expected.keys()
        figures = figures_at(port)
        assert figures['ramen_requests_total{status="200"}'] == counts.total()
        assert figures["ramen_queries_total"] == 2 * counts.total()
        assert asked(port, "/invocations", {"inputs": [""], "params": {"top_k": 0}})[0] == 400
        clicked = asked(port, "/why?query=robin&ad_id=3")[2][0]["queries"]
        assert all(-1 <= query["score"] <= 1 for query in clicked)


def test_shards_on_two_machines_answer_while_replicas_come_and_shards_die(
    two_machines, store, dataset_path, done, tmp_path, monkeypatch
):
    from ramen_ray.orchestration.serve import replicas

    champion = "models:/large@champion"
    store.champion("large", 0.0, dataset_path)
    words = [word for topic in TOPICS.values() for word in topic]
    pairs = [f"{first} {second}" for first, second in product(words, words)]
    more = [[f"A{row}", text] for row, text in enumerate([*pairs, *pairs])]  # of some 3 products
    ads = write_rows(tmp_path / "ads.csv", "ad_id text", more)
    done(index, "--model", champion, "--output", store.output, "--ads", ads)
    registry = store.registry
    whole = registry.load(champion)
    expected = {registry.pinned(champion): whole.answer(TEXTS, 3).to_pylist()}
    soon = {"upscale_delay_s": 0.0, "downscale_delay_s": 0.0, "look_back_period_s": 11.0}
    monkeypatch.setattr(replicas, "SCALING", {"target_ongoing_requests": 0.1, **soon})
    settings = ServerSettings(replicas=2, min_replicas=1, shards=2)
    with _served(registry, champion, settings) as port:
        assert len({process.ppid() for process in replicas_here()}) == 2  # on both machines
        assert (len(replicas_here()), len(replicas_here(":shard-"))) == (3, 2)
        # nobody else has a shard, so on a busy machine its clients may wait in vain for a new one
        with clients(port, BODY, expected, refusals=[503]) as answered:
            wait_until(lambda: len(replicas_here()) == 4, "no replica comes")
            _die(replicas_here(":shard-1"), ":shard-1")
            _die(replicas_here(":shard-"), ":shard-")
            before = len(answered)
            wait_until(lambda: len(answered) > before, "no shard comes back")
        wait_until(lambda: len(replicas_here()) == 3, "no replica goes")
        params = {"top_k": 5, "min_score": 0.5}
        body = {"inputs": words[:8], "params": params}
        found = asked(port, "/invocations", body)[2]["predictions"]
        assert found == whole.answer(words[:8], **params).to_pylist()
