"""A run that is told that a machine leaves writes a checkpoint, and goes on from it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.run.checkpoints import kept_in
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.fit import TrainResult, fit_on
from ramen_ray.orchestration.run.identity import identity_of
from ramen_ray.orchestration.run.loop import STEPS_PER_QUESTION
from ramen_ray.orchestration.run.processes import OnReport, only_worker

STEPS_PER_EPOCH = 7


class _MachineGone(Exception):
    pass


@pytest.fixture
def train(cluster: None, small_run: RunConfig) -> Iterator[Callable[..., TrainResult]]:
    """Train in this process, with an answer to whether a machine leaves."""
    changes = {
        "base.kind": "in_batch",
        "pruning.mode": "never",
        "regularization.adaptive": True,
        "training.epochs": 3,
    }

    def called(name: str, leaves: bool, on_report: OnReport = lambda metrics: None) -> TrainResult:
        config = overlay(small_run, {**changes, "name": name})
        worker = replace(only_worker(on_report), machine_leaves=lambda: leaves)
        dataset = Dataset(config.dataset)
        made_from = identity_of(config, dataset)
        return fit_on(dataset, config, made_from, lambda train, *_: train(worker))

    precision = torch.get_float32_matmul_precision()
    yield called
    torch.set_float32_matmul_precision(precision)


def test_a_run_that_was_told_of_a_leaving_machine_goes_on_from_there_to_the_same_numbers(
    train, small_run
):
    undisturbed = train("undisturbed", leaves=False)
    folder = RunDirectory.of(small_run.output, "warned").path
    assert STEPS_PER_QUESTION % STEPS_PER_EPOCH, "no checkpoint is planned there"

    def lose_the_machine(metrics: dict[str, Any]) -> None:
        if metrics["step"] > STEPS_PER_EPOCH:
            raise _MachineGone

    with pytest.raises(_MachineGone):
        train("warned", leaves=True, on_report=lose_the_machine)
    assert max(checkpoint.step for checkpoint in kept_in(Path(folder))) == STEPS_PER_QUESTION
    warned = train("warned", leaves=True)
    assert warned.metrics == undisturbed.metrics
    for name in ("loss/task", "loss/total", "lambda_z/topics"):
        assert warned.run.read_history(name) == undisturbed.run.read_history(name), name
