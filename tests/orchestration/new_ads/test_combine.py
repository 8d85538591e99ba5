"""A combiner trained on a finished run: what it logs, how it resumes, what it does to new ads."""

import json
import re
from pathlib import Path

import faiss
import numpy as np
import pytest
from safetensors.numpy import load_file
from short_runs import fit_here

from jobs import combine as combine_job
from jobs import index as index_job
from ramen_ray.config import overlay
from ramen_ray.data.splits.novel import NovelSettings, make_novel_split
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.made_folder import not_in_use, write_checksums
from ramen_ray.method.metrics.ground_truth import Propensity, evaluate
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.new_ads.representation import open_combined_ads
from ramen_ray.method.retrieval.retriever_folder import text_embedder
from ramen_ray.orchestration.new_ads import combine as combining
from ramen_ray.orchestration.prepare.pipeline import prepare
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.inputs import encoder_tokenizer
from ramen_ray.tracking.registry import Registry
from ramen_ray.tracking.runs import Run

QUICK = ["--combiner.batch-size", 8, "--combiner.epochs", 2, "--classifiers.epochs", 2]
QUICK += ["--workers.cpus-per-worker", 1]


@pytest.fixture(scope="module")
def config(small_run, split_path):
    changes = {"dataset": str(split_path), "name": "encoder", "training.epochs": 2}
    return overlay(small_run, changes)


@pytest.fixture(scope="module")
def trained(cluster, config):
    return fit_here(config)


def _words(run, output, *more):
    return [combine_job, "--run", run, "--output", output, *QUICK, *more]


def test_a_combiner_is_trained_evaluated_resumed_and_used_for_new_ads(
    trained, config, split_path, done, refused, tmp_path, monkeypatch
):
    words = _words(trained.run_directory, Path(config.output))
    embed_texts = combining.embed_texts

    def embed(*arguments):
        with pytest.raises(DatasetError, match="in use"), not_in_use(split_path):
            pass
        embed_texts(*arguments)

    monkeypatch.setattr(combining, "embed_texts", embed)
    printed = done(*words)
    for row in ("text", "sum", "combiner"):
        assert len(re.findall(rf"│ {row} +│", printed)) == 2, printed
    _check_text_row(printed, config, trained)
    directory = RunDirectory(Path(re.findall(r"combiner: +(.*)", printed)[0]))
    run = Run(trained.run.uri, str(directory.mlflow_run_id))
    logged = run.client.get_run(run.id)
    assert logged.data.tags["mlflow.parentRunId"] == trained.run.id
    assert logged.data.metrics["combiner/zero_shot/R_at_10"] >= 0
    _check_resumed(directory, words, done, refused, tmp_path)
    steps, _ = run.read_history("loss/combiner")
    assert len(set(steps)) == len(steps)
    _check_new_ads(re.findall(r"retriever: (\S+)", printed)[0], trained, done, tmp_path)


def _check_text_row(printed, config, trained):
    """The row of texts is what evaluation measures."""
    tokenizer = encoder_tokenizer(config.encoder)
    data = prepare(Dataset(config.dataset), Path(config.output) / "prepared", tokenizer)
    model = load_model(trained.encoder.parent)
    for split in ("zero_shot", "test"):
        expected = evaluate(model, data, split, Propensity())[0]["R@10"]
        (cells,) = re.findall(rf"│ {split} +│ text +│(.*)", printed)
        assert float(cells.split("│")[3]) == pytest.approx(100 * expected, abs=0.01)


def _check_resumed(directory, again, done, refused, tmp_path):
    """A run whose end is deleted continues from its last checkpoint, to the same result."""
    folder = directory.path
    made_from = directory.notes["made_from"]
    assert str(folder) in refused(*again)
    directory.note(finished=False, made_from={**made_from, "torch": "1.0"})
    error = refused(*again)
    assert "torch" in error
    assert "--allow-changed" in error
    directory.note(made_from=made_from)
    *_, last = sorted(folder.glob("checkpoint_0*"))
    kept = (last / "combiner.safetensors").rename(tmp_path / "kept")  # as if of another version
    write_checksums(last)
    assert str(last) in refused(*again, "--allow-changed")
    kept.rename(last / "combiner.safetensors")
    identity = (last / "made_from.json").read_text()
    (last / "made_from.json").write_text('{"combiner": "another"}')
    write_checksums(last)
    assert str(last) in refused(*again)
    (last / "made_from.json").write_text(identity)
    write_checksums(last)
    before = load_file(folder / "combiner" / "combiner.safetensors")
    done(*again)
    after = load_file(folder / "combiner" / "combiner.safetensors")
    for name, values in before.items():
        np.testing.assert_array_equal(values, after[name])


def _check_new_ads(model_uri, trained, done, tmp_path):
    """New ads get combined vectors; without the combiner's folder, those of their texts."""
    ads = tmp_path / "ads.csv"
    ads.write_text("ad_id,text\nn1,old robin heron\nn2,new sloop ketch\n")
    output = trained.run_directory.parent.parent
    job = [index_job, "--model", model_uri, "--output", output, "--ads", ads]
    uri = re.findall(r"models:/\S+", done(*job))[0]
    folder = Registry(trained.run.uri).download(uri, tmp_path)
    index = faiss.read_index(str(folder / "index.faiss"))
    texts = text_embedder(folder)(["old robin heron", "new sloop ketch"])
    expected = open_combined_ads(folder / "combiner").represent(texts)
    found = index.reconstruct_n(index.ntotal - 2, 2)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.linalg.norm(index.reconstruct_n(0, index.ntotal - 2), axis=1).max() <= 1.0001


@pytest.mark.parametrize(
    ("setting", "value"),
    [("combiner.neighbours", 40), ("combiner.batch_size", 512), ("combiner.heads", 5)],
)
def test_a_setting_that_does_not_fit_the_run_is_named(setting, value, trained, refused):
    run = trained.run_directory
    words = _words(run, run.parent.parent, f"--{setting.replace('_', '-')}", value)
    assert f"{setting} {value}" in refused(*words)


def test_a_run_without_novel_ads_or_on_changed_data_is_refused(
    trained, refused, dataset_path, tmp_path
):
    run_path = trained.run_directory
    settings = json.loads((run_path / "config.json").read_text())
    notes = json.loads((run_path / "run.json").read_text())
    other = tmp_path / "runs" / "other"
    other.mkdir(parents=True)
    (other / "run.json").write_text(json.dumps(notes))
    changed = make_novel_split(dataset_path, tmp_path / "changed", NovelSettings(0.3, seed=4)).path
    again = _words(other, run_path.parent.parent)
    for dataset in (dataset_path, changed):
        (other / "config.json").write_text(json.dumps({**settings, "dataset": str(dataset)}))
        assert str(dataset) in refused(*again)
    RunDirectory(other).note(finished=False)
    assert str(other) in refused(*again)
