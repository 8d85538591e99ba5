"""Trials that train in their own process: the numbers of other runs, whatever happens."""

import os
import threading
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from support import kill_process, meanwhile, wait_until

from ramen_ray.config import overlay
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.fit import fit
from ramen_ray.orchestration.run.identity import Inputs
from ramen_ray.orchestration.run.inputs import is_ready
from ramen_ray.orchestration.tune.choice import train_all
from ramen_ray.orchestration.tune.experiment import Experiment
from ramen_ray.orchestration.tune.trials import Trials
from ramen_ray.tracking.addresses import tracking_uri
from ramen_ray.tracking.runs import Run, open_run

pytestmark = pytest.mark.slow

SHOWN = ("loss/task", "loss/total", "validation/P_at_1")

CHANGES = {
    "training.checkpoint_every_steps": 3,
    "pruning.mode": "synchronous",
    "workers.cpus_per_worker": 2,  # all of them
}


@pytest.fixture(scope="module")
def parent(config):
    output = Path(config.output)
    return open_run(tracking_uri(output), config.experiment, "parent", output)


def _named(config, name, max_failures=3):
    return overlay(config, {"name": name, "workers.max_failures": max_failures})


def _directory(config):
    return RunDirectory.of(config.output, str(config.name))


def _experiment(config, parent):
    return Experiment(Inputs.of(config), RunDirectory(Path(config.output)), parent)


def _in_trial(config, parent):
    experiment = _experiment(config, parent)
    return train_all(experiment, {str(config.name): config}, ["P@1"])


def _kill_trial():
    """Kill the process of a trial below this process; says whether there was one."""
    return kill_process("ImplicitFunc")


def _disturbed(config, kill, job, is_soon=False):
    """Do a job, of which a process is killed once the run has one more checkpoint, or as soon."""
    folder = _directory(config).path
    before = {*folder.glob("checkpoint_0*")}

    def disturb():
        if not is_soon:
            wait_until(lambda: {*folder.glob("checkpoint_0*")} - before, "no checkpoint")
        wait_until(kill, "no process to kill")

    return meanwhile(disturb, job)


def test_a_trial_that_dies_too_often_says_so_and_one_that_may_die_goes_on(config, unharmed, parent):
    strict = _named(config, "killed", max_failures=0)
    killed = _named(config, "killed")
    errors = _disturbed(strict, _kill_trial, lambda: _in_trial(strict, parent), is_soon=True)
    assert "killed: its process has died 1 times, once more than" in errors
    assert _disturbed(killed, _kill_trial, lambda: _in_trial(killed, parent)) == ""
    _assert_same(_directory(killed).path, unharmed)


def _assert_same(run, unharmed):
    notes = RunDirectory(run).notes
    assert notes["metrics"] == unharmed.metrics
    left = _left_by(run, Run(unharmed.run.uri, notes["mlflow_run_id"]))
    assert left == _left_by(unharmed.run_directory, unharmed.run)


def _left_by(folder, run):
    """Return a run's checkpoints and its points in MLflow, of which a kill can repeat some."""
    kept = {path.name for path in folder.glob("checkpoint_0*")}
    client = MlflowClient(run.uri)
    histories = [client.get_metric_history(run.id, metric) for metric in SHOWN]
    return kept, [{(point.step, point.value) for point in points} for points in histories]


def test_a_trial_that_is_stopped_leaves_its_process_to_the_next(config, unharmed, parent, tmp_path):
    class StopsOne(FIFOScheduler):
        def on_trial_result(self, controller, trial, result):
            stops = trial.config["name"] == "stopped" and "validation/P@1" in result
            return TrialScheduler.STOP if stops else TrialScheduler.CONTINUE

    def config_of(params, name):
        if name in params.values():  # in the trial's process
            (tmp_path / name).write_text(f"{os.getpid()} {threading.active_count()}")
        return overlay(config, params)

    names = ["stopped", "next", "last"]
    experiment = _experiment(config, parent)
    assert is_ready(config, experiment.inputs.dataset)
    trials = Trials(experiment, config_of, ["P@1"], len(names), at_once=1)
    space = {"name": tune.grid_search(names)}
    ends = [record.end for record in trials.fit(space, scheduler=StopsOne())]
    assert ends[0] == "stopped early"
    assert all(end.startswith("trained to the end") for end in ends[1:])
    seen = [(tmp_path / name).read_text().split() for name in names]
    assert len({process for process, _ in seen}) == 1
    assert seen[1][1] == seen[2][1], "a thread of the stopped trial goes on"
    for name in names[1:]:
        _assert_same(_directory(_named(config, name)).path, unharmed)
    stopped = _named(config, "stopped")
    assert not _directory(stopped).notes.get("finished")
    assert fit(stopped).metrics == unharmed.metrics
