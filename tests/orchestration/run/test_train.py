"""Whole runs on a real Ray: their results, and that a killed run ends like an undisturbed one."""

import json
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from support import WAITS_FOR_TASKS, begin_training, kill_train_worker, meanwhile, wait_until

from jobs import train
from ramen_ray.config import overlay, read_config, write_config
from ramen_ray.data.store.made_folder import checksum_files, write_checksums
from ramen_ray.errors import UserError
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.sampling.training_data import Regularizer
from ramen_ray.method.training.state import CheckpointError
from ramen_ray.orchestration.evaluate import evaluate_checkpoint
from ramen_ray.orchestration.run.checkpoints import WRITER
from ramen_ray.orchestration.run.directory import RunDirectory, RunError
from ramen_ray.orchestration.run.fit import fit, fit_on
from ramen_ray.orchestration.run.identity import Inputs
from ramen_ray.orchestration.run.processes import train_in_one_worker
from ramen_ray.orchestration.run.setup import TEXTS_AT_ONCE
from ramen_ray.tracking.runs import Run

EPOCH = 7  # steps of an epoch of the made dataset
NUM_STEPS = 3 * EPOCH
# steps of checkpoints; at 14 the next epoch waits for background tasks, the others are soon gone
SECOND_EPOCH = (9, 12, 14)
THIRD_EPOCH = (14, 15, 18)
REGULARIZERS = [
    Regularizer("links", "query"),
    Regularizer("links", "ad"),
    Regularizer("topics", "query"),
]

CHANGES = {
    "encoder.kind": "transformer",
    "regularization.lambda_z": {"links": 0.1, "topics": 0.0},
    "regularization.adaptive": True,
    "regularization.every_steps": 2,
    "optimizer.lr": 1e-3,
    **WAITS_FOR_TASKS,
    "pruning.prune_threshold": 0.3,  # drops some edges of the made dataset, not all
    "training.epochs": NUM_STEPS // EPOCH,
    "training.checkpoint_every_steps": 3,
}


def test_a_run_leaves_a_tracked_model(unharmed, config):
    client = unharmed.run.client
    run = client.get_run(unharmed.run.id)
    names = ("loss/task", "loss/R_z/links", "loss/total", "lambda_x/links")
    steps = {name: [step for step, _ in _history(unharmed.run, name)] for name in names}
    weights = [weight for _, weight in _history(unharmed.run, "lambda_x/links")]
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert run.info.status == "FINISHED"
    assert run.data.params["regularization.lambda_x.links"] == "0.1"
    assert float(run.data.params["dataset.num_train_queries"]) == 60
    assert steps["loss/task"] == steps["lambda_x/links"] == list(range(1, NUM_STEPS + 1))
    assert steps["loss/R_z/links"] == steps["loss/total"] == list(range(1, NUM_STEPS + 1, 2))
    assert weights[0] == pytest.approx(0.01, rel=0.2)
    assert 0.001 <= weights[-1] <= 0.1
    assert run.data.metrics["test/P_at_1"] == unharmed.metrics["trained"]["test"]["P@1"]
    assert "lambda_z/topics" not in run.data.metrics
    assert {"config.json", "predictions.html"} <= artifacts
    (model,) = run.outputs.model_outputs
    logged = client.get_logged_model(model.model_id)
    assert {metric.key for metric in logged.metrics} >= {"test/P_at_1", "index/recall_at_100"}
    assert run.data.metrics["index/recall_at_100"] == 1.0
    assert unharmed.metrics["trained"]["validation"]["P@1"] > 0
    assert read_config(unharmed.run_directory / "config.json").training == config.training

    # what the UI shows first: the view of trained models, data, source, a few metrics, the table
    experiment = client.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    (dataset,) = [found.dataset for found in run.inputs.dataset_inputs]
    assert dataset.name == "handmade"
    assert json.loads(dataset.source)["uri"] == Path(config.dataset).as_uri()
    assert run.data.metrics["test_R_at_10"] == run.data.metrics["test/R_at_10"]
    assert run.data.metrics["validation_P_at_1"] == run.data.metrics["best/validation/P_at_1"]
    shown = run.data.tags["mlflow.note.content"]
    assert f"| {100 * unharmed.metrics['trained']['test']['P@1']:.2f} " in shown
    assert f"/runs/{unharmed.run.id}/artifacts/predictions.html)" in shown


def test_a_finished_run_of_the_name_is_returned_as_it_is(unharmed, config):
    assert fit(overlay(config, {"name": "unharmed"})) == unharmed


@pytest.mark.slow
def test_a_compiled_encoder_trains_alike(unharmed, config):
    compiled = fit(overlay(config, {"name": "compiled", "encoder.compile": True}))
    for split, metrics in unharmed.metrics["trained"].items():
        assert compiled.metrics["trained"][split] == pytest.approx(metrics, abs=0.02)


def test_a_run_without_classifiers_cannot_answer_by_them(unharmed, tmp_path):
    copied = shutil.copytree(unharmed.encoder.parent, tmp_path / "copied")
    config = read_config(copied / "config.json")
    write_config(overlay(config, {"base.heads": "classifier"}), copied / "config.json")
    for file in checksum_files(copied):
        file.unlink()
    with pytest.raises(CheckpointError, match=r"copied .*config\.json"):
        evaluate_checkpoint(copied, "test")


def test_a_killed_driver_and_then_a_killed_worker_change_nothing(
    config, unharmed, done, joining, tmp_path
):
    named = overlay(config, {"name": "killed"})
    run_directory = Path(config.output) / "runs" / "killed"
    first = begin_training(named, tmp_path, stdout=subprocess.DEVNULL, env=joining)
    wait_until(partial(_has_reached, run_directory, SECOND_EPOCH), "no checkpoint amid an epoch")
    first.kill()
    first.wait()
    before = RunDirectory(run_directory).notes
    assert not before.get("finished")
    again = partial(done, train, "--config", tmp_path / "killed.json")
    meanwhile(partial(_kill_worker_late, run_directory), again)
    after = RunDirectory(run_directory).notes
    best = unharmed.encoder.parent.name
    assert before.pop(WRITER) != after[WRITER]
    assert after.items() >= {**before, "finished": True, "best_checkpoint": best}.items()
    assert after["metrics"] == unharmed.metrics
    run = Run(unharmed.run.uri, after["mlflow_run_id"])
    _assert_same_histories(run, unharmed.run)
    logged = run.client.get_run(run.id).data.metrics
    for name, value in unharmed.metrics["trained"]["test"].items():
        assert logged[f"test/{name}".replace("@", "_at_")] == value, name


def test_a_step_that_does_not_fit_is_done_in_parts_to_the_same_numbers(config, unharmed):
    most = 20  # texts

    def in_little_memory(train, worker):
        whole = DualEncoder._trained_vectors

        def refuse(model, texts):
            if len(texts.lengths) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return whole(model, texts)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(DualEncoder, "_trained_vectors", refuse)
            return train(worker)

    def run_workers(train, workers, folder):
        return train_in_one_worker(partial(in_little_memory, train), workers)

    little = overlay(config, {"name": "little-memory", "workers.max_failures": 0})
    trained = fit_on(Inputs.of(little), run_workers)
    assert most / 2 < RunDirectory(trained.run_directory).notes[TEXTS_AT_ONCE] <= most
    for name in ("loss/task", "loss/total"):
        expected = dict(zip(*unharmed.run.read_history(name), strict=True))
        history = dict(zip(*trained.run.read_history(name), strict=True))
        assert history == pytest.approx(expected, rel=1e-4), name
    most = 0
    with pytest.raises(UserError, match=r"step 1: .* training\.global_batch_size"):
        fit_on(Inputs.of(overlay(little, {"name": "none"})), run_workers)


def test_a_damaged_run_goes_on_from_what_is_whole_to_the_same_numbers(config, unharmed, caplog):
    run = unharmed.run_directory.with_name("damaged")
    shutil.copytree(unharmed.run_directory, run)
    notes = RunDirectory(run).notes
    begun = {name: notes[name] for name in ("plan", "made_from")}
    (run / "run.json").write_text(json.dumps(begun))
    newest = run / f"checkpoint_{NUM_STEPS:09d}"
    shutil.copytree(newest, run / f"{newest.name}.bak")
    (run / f"checkpoint_{NUM_STEPS + 2:09d}").write_text("")
    file = run / "config.json"
    file.write_bytes(file.read_bytes()[:50])
    (newest / "state.pt").write_bytes(b"")
    resumed = fit(overlay(config, {"name": "damaged"}))
    assert "state.pt" in caplog.text
    assert resumed.metrics == unharmed.metrics
    assert RunDirectory(run).notes["finished"]


@pytest.mark.parametrize(("changed", "now"), [("seed", "7"), ("dataset", "'\\w+'")])
def test_a_checkpoint_of_another_run_is_refused_by_name(changed, now, config, unharmed):
    trained = unharmed.encoder.parent
    run = unharmed.run_directory.with_name(f"another-{changed}")
    checkpoint = shutil.copytree(trained, run / trained.name)
    if changed == "dataset":
        made_from = json.loads((checkpoint / "made_from.json").read_text())
        (checkpoint / "made_from.json").write_text(json.dumps({**made_from, "dataset": "abc"}))
        write_checksums(checkpoint)
    seed = 7 if changed == "seed" else 0
    with pytest.raises(RunError, match=rf"{checkpoint} .*: {changed} \(.* there, {now} now\)"):
        fit(overlay(config, {"name": run.name, "seed": seed}))


def _assert_same_histories(run, unharmed):
    """Compare steps with their values, once: a kill can come before a logged step is noted."""
    shares = [f"graph/share_kept/{one.path}" for one in REGULARIZERS]
    for name in ("loss/task", "loss/total", *shares):
        assert set(_history(run, name)) == set(_history(unharmed, name)), name


def _history(run, metric):
    return [*zip(*run.read_history(metric), strict=True)]


def _has_reached(run_directory, steps):
    return any((run_directory / f"checkpoint_{step:09d}").exists() for step in steps)


def _kill_worker_late(run_directory):
    """Kill the worker amid the third epoch, or before it, if the driver's death came late."""

    def kill():
        return _has_reached(run_directory, THIRD_EPOCH) and kill_train_worker()

    wait_until(kill, "no worker to kill")
