"""A run that is told that a machine leaves writes checkpoints, and goes on from the last."""

import pytest
from short_runs import fit_here

from ramen_ray.config import overlay
from ramen_ray.orchestration.run.checkpoints import kept_in
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.loop import STEPS_PER_QUESTION

STEPS_PER_EPOCH = 7
CHANGES = {"regularization.adaptive": True, "training.epochs": 3}


class _MachineGone(Exception):
    pass


def test_a_run_that_was_told_of_a_leaving_machine_goes_on_from_there_to_the_same_numbers(
    cluster, config
):
    undisturbed = fit_here(overlay(config, {"name": "undisturbed"}))
    told = overlay(config, {"name": "warned"})
    folder = RunDirectory.of(config.output, "warned").path
    last = 2 * STEPS_PER_QUESTION
    assert last % STEPS_PER_EPOCH, "no checkpoint is planned there"

    def lose_the_machine(metrics):
        if metrics["step"] > 2 * STEPS_PER_EPOCH:
            raise _MachineGone

    with pytest.raises(_MachineGone):
        fit_here(told, machine_leaves=lambda: True, report=lose_the_machine)
    assert max(checkpoint.step for checkpoint in kept_in(folder)) == last
    warned = fit_here(told, machine_leaves=lambda: True)
    assert warned.metrics == undisturbed.metrics
    for name in ("loss/task", "loss/total", "lambda_z/topics"):
        assert warned.run.read_history(name) == undisturbed.run.read_history(name), name
