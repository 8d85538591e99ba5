"""Stores that were moved or copied, and retrievers whose logging was cut off."""

import shutil

import pytest
from mlflow.tracking import MlflowClient
from stores import Store, choose

from jobs import promote
from ramen_ray.tracking.addresses import TrackingError
from ramen_ray.tracking.aliases import holder_of, restore
from ramen_ray.tracking.registry import Registry, RegistryError, uri_of
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import open_run

CHAMPION = "models:/shop@champion"


@pytest.fixture
def store(empty_store, prepared_bag, encoder_path, tmp_path):
    output = tmp_path / "outputs"
    output.mkdir()
    shutil.copy(empty_store, output)
    return Store(output, prepared_bag, encoder_path)


def test_a_moved_store_is_read_and_a_link_lets_it_be_written(store, dataset_path, done, tmp_path):
    run_id = store.run(0.0, dataset_path)
    done(promote, run_id, "--name", "shop", "--output", store.output)
    before, now = store.output, tmp_path / "else where"
    before.rename(now)
    there = Store(now, store.data, store.encoder_path)
    registry = there.registry
    for uri in (CHAMPION, "models:/shop/1", uri_of(registry.find_logged(run_id, None)[1])):
        assert registry.look_up(uri).run_id == run_id
        (answer,) = registry.load(uri).answer(["robin"])["ads"]
        assert len(answer) == 10
    with pytest.raises(TrackingError, match=f"'tests'.*{before.name}/"):
        open_run(there.uri, "tests", "later", now)
    assert not before.exists()
    before.symlink_to(now)
    run = open_run(there.uri, "tests", "later", now)
    (tmp_path / "note.txt").write_text("kept")
    run.log_artifacts(tmp_path / "note.txt")
    assert len(list((now / "mlartifacts").rglob("note.txt"))) == 1


def test_only_a_retriever_that_answers_is_promoted(store, dataset_path, refused, tmp_path):
    run_id = store.run(0.0, dataset_path)
    registry = store.registry
    model_id = registry.find_logged(run_id, None)[1]
    folder = store.output / "mlartifacts" / "models" / model_id
    ads = next(folder.rglob("ads.parquet"))
    for lost, place in ((folder, "MLmodel"), (ads, "ads.parquet")):
        lost.rename(store.output / "gone")
        flags = ("--name", "shop", "--force", "--output", store.output)
        assert place in refused(promote, run_id, *flags)
        with pytest.raises((RegistryError, TrackingError)):
            registry.download(uri_of(model_id), tmp_path / "copy")
        assert store.client.search_registered_models() == []
        (store.output / "gone").rename(lost)
    first, again = (choose(registry, "shop", run_id, model_id) for _ in range(2))
    assert first == again
    later = choose(registry, "shop", *registry.find_logged(store.run(1.0, dataset_path), None))
    index = next((store.output / "mlartifacts" / "models" / model_id).rglob("index.faiss"))
    # it can be loaded, and answers any ads
    index.write_bytes(index.read_bytes()[:200].ljust(index.stat().st_size, b"\0"))
    with pytest.raises(RegistryError, match=r"index\.faiss"):
        restore(registry, "shop", "champion")
    assert holder_of(registry, "shop", "champion").version == later


def test_a_retriever_whose_logging_was_killed_is_logged_once(
    logged_retriever, output, tmp_path, monkeypatch
):
    registry = Registry(f"sqlite:///{output}/mlflow.db")
    made = registry.download(logged_retriever, tmp_path / "aside")
    run = open_run(registry.uri, "tests", "killed", output)
    upload = MlflowClient.log_model_artifacts

    def cut_off(client, model_id, folder):
        upload(client, model_id, f"{folder}/artifacts", "artifacts")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(MlflowClient, "log_model_artifacts", cut_off)
        log_retriever(run, made, ["robin"], {})
    model_id = log_retriever(run, made, ["robin"], {})
    experiment = run.client.get_run(run.id).info.experiment_id
    (model,) = run.client.search_logged_models([experiment], f"source_run_id = '{run.id}'")
    assert (model.model_id, model.status) == (model_id, "READY")
    assert registry.find_logged(run.id, None) == (run.id, model_id)
    (answer,) = registry.load(uri_of(model_id)).answer(["robin"])["ads"]
    assert len(answer) == 10
