"""A worker's whole run on a GPU, with all that it may have beside the encoder."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import prepare_in_process

from ramen_ray.config import overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.training import step
from ramen_ray.orchestration.run.identity import Inputs
from ramen_ray.orchestration.run.processes import only_worker
from ramen_ray.orchestration.run.worker import WorkerTask
from ramen_ray.tracking.addresses import tracking_uri
from ramen_ray.tracking.runs import open_run

DEVICE = "cuda:0"

pytestmark = pytest.mark.gpu


def test_an_interrupted_run_goes_on_to_the_same_numbers(
    cluster, small_run, encoder_path, tmp_path, monkeypatch
):
    config = overlay(
        small_run,
        {
            "base.kind": "in_batch",
            "base.heads": "classifier",
            "base.loss": "decoupled",
            "pruning.mode": "never",
            "training.checkpoint_every_steps": 3,
        },
    )
    data = prepare_in_process(
        Dataset(config.dataset),
        tmp_path / "prepared",
        encoder_path,
        config.encoder.max_length,
        True,
    )
    output = Path(config.output)

    def run(name, on_report):
        tracked = open_run(tracking_uri(output), config.experiment, name, output)
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        edges = data.path / "edges"
        task = WorkerTask(Inputs.of(config), data.path, edges, folder, tracked)
        return task.train(replace(only_worker(on_report), device=torch.device(DEVICE))).metrics

    devices = set()
    encode = step.encode

    def note_device(*arguments, **options):
        encoded = encode(*arguments, **options)
        devices.add(encoded.embeddings_UD.device)
        return encoded

    def interrupt(metrics):
        if metrics["step"] == 18:
            raise KeyboardInterrupt

    monkeypatch.setattr(step, "encode", note_device)
    unharmed = run("unharmed", lambda metrics: None)
    with pytest.raises(KeyboardInterrupt):
        run("interrupted", interrupt)
    resumed = run("interrupted", lambda metrics: None)
    assert devices == {torch.device(DEVICE)}
    for split, expected in unharmed["trained"].items():
        assert resumed["trained"][split] == pytest.approx(expected, abs=0.02), split
