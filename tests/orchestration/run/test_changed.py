"""What a run was trained on is what is measured and kept, whatever is replaced meanwhile."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.tracking import MlflowClient
from short_runs import train_here
from written_out import column_of

from jobs import evaluate as evaluate_job
from jobs import graph
from jobs import train as train_job
from ramen_ray.config import overlay, write_config
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.method.retrieval import retriever_folder as retriever
from ramen_ray.orchestration import evaluate as checkpoint
from ramen_ray.orchestration.evaluate import evaluate_checkpoint
from ramen_ray.orchestration.run import fit as training
from ramen_ray.orchestration.run.directory import RunDirectory, RunError
from ramen_ray.orchestration.run.fit import fit, fit_on
from ramen_ray.orchestration.tune import beside_base
from ramen_ray.orchestration.tune.beside_base import fit_beside_base
from ramen_ray.tracking.registry import Registry


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    for module in (training, beside_base):
        monkeypatch.setattr(module, "train_in_all_workers", train_here)


@pytest.fixture
def config(cluster, small_run, dataset_path, encoder_path, tmp_path):
    """A run of an epoch on a dataset and an encoder of its own."""
    changes = {
        "dataset": str(shutil.copytree(dataset_path, tmp_path / "handmade")),
        "encoder.pretrained": str(shutil.copytree(encoder_path, tmp_path / "encoder")),
        "training.epochs": 1,
        "name": tmp_path.name,
    }
    return overlay(small_run, changes)


def _renumber_ads(dataset):
    """Give all ads other ids, as another import of the same tables may; returns the former file."""
    file = Path(dataset) / "ads.parquet"
    before = file.read_bytes()
    ads = pq.read_table(file)
    turned = ads.set_column(1, "text", ads["text"].take(pa.array(np.arange(len(ads))[::-1])))
    pq.write_table(turned, file)
    return before


def _then(first, then):
    def both(*arguments, **named):
        result = first(*arguments, **named)
        then()
        return result

    return both


def _logged_models(config):
    directory = RunDirectory.of(config.output, str(config.name))
    client = MlflowClient(f"sqlite:///{config.output}/mlflow.db")
    run = client.get_run(directory.notes["mlflow_run_id"])
    return list(run.outputs.model_outputs) if run.outputs else []


def test_ads_renumbered_while_a_run_trains_are_not_served_by_it(
    config, tmp_path, done, refused, monkeypatch
):
    ads = Path(config.dataset) / "ads.parquet"
    write_config(config, tmp_path / "config.json")
    before = ads.read_bytes()
    renumber = _then(training.train_in_all_workers, lambda: _renumber_ads(config.dataset))
    with monkeypatch.context() as patch:
        patch.setattr(training, "train_in_all_workers", renumber)
        said = refused(train_job, "--config", tmp_path / "config.json")
    assert config.dataset in said
    assert _logged_models(config) == []
    said = refused(train_job, "--config", tmp_path / "config.json")
    assert "ads: different" in said
    ads.write_bytes(before)
    done(train_job, "--config", tmp_path / "config.json")
    (model,) = _logged_models(config)
    registry = Registry(f"sqlite:///{config.output}/mlflow.db")
    folder = registry.download(f"models:/{model.model_id}", tmp_path / "model")
    served = pq.read_table(folder / retriever.ADS)["text"].to_pylist()
    assert served == column_of(Dataset(config.dataset), "ads")


def test_what_a_checkpoint_is_measured_on_is_what_it_was_trained_on_or_asked_for(
    config, tmp_path, done, refused, monkeypatch
):
    run = fit(config).run_directory
    shutil.rmtree(config.encoder.pretrained)  # the checkpoint has all that is needed
    predictions = tmp_path / "predictions.parquet"
    prepare = checkpoint.prepare

    def replace():
        assert config.dataset in refused(graph, "remove", config.dataset, "--name", "links")
        _renumber_ads(config.dataset)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "prepare", _then(prepare, replace))
        with pytest.raises(DatasetError, match="handmade"):
            evaluate_checkpoint(run, "test", predictions=predictions)
    assert not predictions.exists()
    said = refused(evaluate_job, "--checkpoint", run)
    assert f"{run}/checkpoint_" in said and f"--dataset {config.dataset} " in said
    done(evaluate_job, "--checkpoint", run, "--dataset", config.dataset)


@pytest.mark.slow
def test_an_encoder_that_is_replaced_while_a_run_trains_is_refused(config, monkeypatch):
    file = Path(config.encoder.pretrained) / "model.safetensors"
    before = file.read_bytes()
    prepared = training.prepared_data
    with monkeypatch.context() as patch:
        replaced = _then(prepared, lambda: file.write_bytes(before[:-4] + bytes(4)))
        patch.setattr(training, "prepared_data", replaced)
        with pytest.raises(RunError, match=": encoder "):
            fit(config)
    file.write_bytes(before)
    assert fit(config).metrics


def test_a_run_and_its_base_are_trained_on_the_same(config, refused, monkeypatch):
    def change_after(*arguments):
        result = fit_on(*arguments)
        assert config.dataset in refused(graph, "remove", *set_named("links"))
        _renumber_ads(config.dataset)
        anchors = Path(config.dataset) / "anchors"
        shutil.copy(anchors / "links.parquet", anchors / "seller.parquet")
        return result

    def set_named(name):
        return [config.dataset, "--name", name]

    monkeypatch.setattr(beside_base, "fit_on", change_after)
    removes = re.escape(shlex.join(["python", "jobs/graph.py", "remove", *set_named("seller")]))
    said = rf": dataset .*; anchors/seller: new; ads: different; .*\({removes}\)"
    with pytest.raises(RunError, match=said):
        fit_beside_base(config)


def test_a_base_without_classifiers_is_no_change_for_a_run_that_starts_with_some(
    small_run, dataset_path, encoder_path, tmp_path, monkeypatch
):
    shutil.copytree(encoder_path, tmp_path / "encoder")
    (tmp_path / "classifiers").mkdir()
    trained = []

    def train(inputs, *_):
        trained.append(inputs.config.base.kind)
        if len(trained) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(beside_base, "fit_on", train)
    epochs = {"training.epochs": 3, "base.refresh_every": 1, "base.first_clustered_epoch": 1}
    start = {"encoder.pretrained": str(tmp_path), "dataset": str(dataset_path)}
    with pytest.raises(KeyboardInterrupt):
        fit_beside_base(overlay(small_run, {**start, **epochs, "base.kind": "unidec"}))
    assert trained == ["in_batch", "unidec", "unidec"]
