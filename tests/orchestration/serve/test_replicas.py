"""A retriever in replicas on Ray Serve, and its index in shards."""

from unittest.mock import MagicMock

import pytest
from conftest import free_port
from ray.exceptions import ActorDiedError, ActorUnavailableError
from serving import asked, replicas_here, with_markets

from jobs.serve import AnswerSettings, application
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.retrieval import shards
from ramen_ray.tracking.registry import uri_of

NUM_CPUS = 2
pytest.importorskip("grpc_reflection", reason="ray[serve] is not installed")


def test_another_replica_answers_if_one_dies_meanwhile():
    from ramen_ray.orchestration.serve.replicas import HeldByReplicas

    handle = MagicMock()
    two_die = [ActorDiedError(), ActorUnavailableError("away", None), (40, ["market"])]
    handle.ask.remote.return_value.result.side_effect = two_die
    held = HeldByReplicas(handle, "models:/any/1")
    assert (held.num_ads, held.columns) == (40, ["market"])


def test_shards_find_what_one_search_finds(store, dataset_path, tmp_path, monkeypatch):
    from ramen_ray.orchestration.serve.replicas import hold_shard

    count = 3
    monkeypatch.setattr(shards, "ADS_PER_PRODUCT", 8)  # of 40 ads
    uri = uri_of(store.champion("shards", 0.0, with_markets(dataset_path, tmp_path / "a")).model_id)
    registry = store.registry
    parts = [hold_shard(number, count, registry, uri).search for number in range(count)]
    whole = registry.load(uri)
    cut = registry.load(uri, search=shards.search_of(parts))
    assert cut.index is None
    texts = ["robin nest", *Dataset(dataset_path).read("ads")["text"].to_pylist()]  # some are equal
    for params in (
        {},
        {"top_k": 40, "columns": ["market"]},
        {"top_k": 7, "filter": {"market": ["DE"]}},
        {"top_k": 5, "at_most": {"market": 1}, "min_score": 0.2},
        {"filter": {"market": "gone"}},
    ):
        assert cut.answer(texts, **params).equals(whole.answer(texts, **params))


@pytest.fixture
def _serve(cluster):
    """A cluster without Ray Serve after the test."""
    yield
    from ray import serve

    serve.shutdown()


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
    expected = store.registry.load(settings.model).answer(["robin nest"], 3).to_pylist()
    status, headers, content = asked(
        port, "/invocations", {"inputs": ["robin nest"], "params": {"top_k": 3}}
    )
    assert (status, headers["X-Model"]) == (200, "models:/served/1")
    assert content["predictions"] == expected
    assert asked(port, "/invocations", {"inputs": [""], "params": {"top_k": 0}})[0] == 400
    assert asked(port, "/ready")[2]["name"] == "served"
    assert len(replicas_here()) == NUM_CPUS
