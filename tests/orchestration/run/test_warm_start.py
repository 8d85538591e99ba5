"""Training that goes on from an earlier run, named as a model, after ads have come and gone."""

import shutil
from pathlib import Path

import mlflow
import numpy as np
import pyarrow as pa
import pytest
import torch
from short_runs import fit_here
from stores import choose
from written_out import column_of

from ramen_ray.config import overlay
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.errors import UserError
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.orchestration.run.directory import RunDirectory, RunError
from ramen_ray.orchestration.run.identity import Inputs, resolved, trained_on, training_data
from ramen_ray.orchestration.run.inputs import note_carried
from ramen_ray.presets import with_base
from ramen_ray.tracking.registry import Registry, uri_of

CHAMPION = "models:/weekly@champion"
GONE = 6


def _week(dataset_path, folder, order, with_ids=True):
    """Write the handmade dataset with these of its ads, in this order, and no graph."""
    handmade = Dataset(dataset_path)
    texts = handmade.read("ads").sort_by("ad_id")["text"].take(pa.array(order))
    tables = {"ads": pa.table({"ad_id": range(len(order)), "text": texts})}
    if with_ids:
        ids = pa.array([f"A{ad}" for ad in order])
        tables["ads"] = tables["ads"].append_column("source_id", ids)
    place = {int(ad): number for number, ad in enumerate(order)}
    for split in handmade.splits:
        queries = handmade.read(f"queries/{split}").to_pylist()
        for query in queries:
            query["ad_ids"] = sorted(place[ad] for ad in query["ad_ids"] if ad in place)
        kept = [query for query in queries if query["ad_ids"]]
        rows = [query | {"query_id": number} for number, query in enumerate(kept)]
        tables[f"queries/{split}"] = pa.Table.from_pylist(rows)
    return write_dataset(folder, tables, name="weekly").path


def _best(result):
    return load_model(result.encoder.parent)


@pytest.fixture(scope="module")
def config(small_run):
    changes = {
        "regularization.lambda_x": {},
        "regularization.lambda_z": {},
        "regularization.adaptive": True,  # as in presets, also where there is no graph
        "training.epochs": 2,
    }
    return with_base(overlay(small_run, changes), {"base.kind": "unidec"})


@pytest.fixture(scope="module")
def last_week(cluster, config, dataset_path, tmp_path_factory):
    """A run that is the champion."""
    num_ads = Dataset(dataset_path).num_rows("ads")
    week = _week(dataset_path, tmp_path_factory.mktemp("weeks") / "first", np.arange(num_ads))
    changes = {"dataset": str(week), "classifier.unclicked": "own", "name": "week"}
    config = overlay(config, changes)
    result = fit_here(config)
    registry = Registry(result.run.uri)
    found = registry.find_logged(result.run.id, None)
    choose(registry, "weekly", *found)
    mlflow.set_tracking_uri(None)
    return config, result


def test_encoder_head_and_classifiers_of_ads_that_stay_go_on(last_week, dataset_path, tmp_path):
    config, before = last_week
    num_ads = Dataset(dataset_path).num_rows("ads")
    order = np.random.default_rng(1).permutation(num_ads)[GONE:]
    changes = {
        "dataset": str(_week(dataset_path, tmp_path / "second", order)),
        "encoder.pretrained": CHAMPION,
        "name": f"{config.name}-next",
        "optimizer.lr": 1e-12,
        "optimizer.embedding_lr": None,
        "optimizer.head_lr": None,
        "classifier.lr": 1e-12,
    }
    result = fit_here(resolved(overlay(config, changes)))
    assert list(result.rows()) == ["start: week", "trained"]
    assert list(before.rows()) == ["untrained", "trained"]
    week = Dataset(config.dataset)
    next_week = Dataset(changes["dataset"])
    registry = Registry(result.run.uri)
    retriever = registry.look_up(uri_of(registry.find_logged(result.run.id, None)[1]))
    mlflow.set_tracking_uri(None)
    assert training_data(registry, retriever) == [
        (str(next_week.path), next_week.content_of(["queries/train"])),
        (str(week.path), week.fingerprint),
    ]
    after = _best(result)
    old = _best(before)
    of_those = old.classifiers.vectors[torch.from_numpy(order)]
    torch.testing.assert_close(after.classifiers.vectors, of_those, atol=1e-6, rtol=0)
    torch.testing.assert_close(after.state_dict(), old.state_dict(), atol=1e-6, rtol=0)


def test_ads_without_ids_are_told_apart_by_their_texts(last_week, dataset_path, tmp_path):
    config, before = last_week
    order = np.random.default_rng(2).permutation(Dataset(dataset_path).num_rows("ads"))[GONE:]
    now = _week(dataset_path, tmp_path / "second", order, with_ids=False)
    changes = {"encoder.pretrained": str(before.encoder), "dataset": str(now)}
    note_carried(Inputs.of(overlay(config, changes)), tmp_path)
    texts = column_of(Dataset(dataset_path), "ads")
    carried = np.load(tmp_path / "carried.npy")
    assert [texts[ad] for ad in carried] == [texts[ad] for ad in order]


def test_without_the_runs_folder_the_encoder_comes_from_the_store(last_week, tmp_path):
    config, before = last_week
    config = overlay(config, {"encoder.pretrained": CHAMPION, "encoder.kind": "transformer"})
    assert resolved(config).encoder.pretrained == str(before.encoder)
    away = tmp_path / "away"
    shutil.move(before.run_directory, away)
    found = resolved(config)
    shutil.move(away, before.run_directory)
    folder = Path(found.encoder.pretrained)
    assert folder.is_relative_to(Path(config.output) / "encoders")
    assert found.encoder.kind == "bag"
    week = Dataset(config.dataset)
    known = (str(week.path), week.content_of(["queries/train"]))
    parameters = {"dataset": "another", "encoder.pretrained": str(folder)}
    assert [*trained_on(parameters, "now")] == [("another", "now"), known]
    loaded = load_model(folder.parent).state_dict()
    torch.testing.assert_close(loaded, _best(before).state_dict(), atol=0, rtol=0)


def test_what_cannot_be_gone_on_from_is_told(last_week, tmp_path):
    config, _ = last_week
    with pytest.raises(UserError, match="nobody"):
        resolved(overlay(config, {"encoder.pretrained": "models:/weekly@nobody"}))
    unfinished = RunDirectory(tmp_path / "run")
    unfinished.create()
    unfinished.note(mlflow_run_id="0")
    with pytest.raises(RunError, match=str(unfinished.path)):
        resolved(overlay(config, {"encoder.pretrained": str(unfinished.path)}))
