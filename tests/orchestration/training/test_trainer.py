"""What becomes of errors of workers and of Ray Train; Ray itself is not started."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.train import CheckpointConfig, FailureConfig
from ray.train.v2._internal.exceptions import (
    UserExceptionWithTraceback,
    WorkerGroupStartupTimeoutError,
    WorkerHealthCheckFailedError,
)
from ray.train.v2._internal.execution.failure_handling import (
    FailureDecision,
    create_failure_policy,
)
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from ramen_ray.config import WorkersConfig
from ramen_ray.full_disk import is_disk_full
from ramen_ray.orchestration.cluster.resources import ClusterError
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.training import trainer
from ramen_ray.orchestration.run.task import EndOnFullDisk

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
DIED = WorkerHealthCheckFailedError("A worker has died.\nIts logs", ActorDiedError())


def _run(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def __init__(self, *_: object, **__: object) -> None:
            """Take what Ray Train's trainer takes."""

        def fit(self) -> None:
            raise error

    monkeypatch.setattr(trainer, "TorchTrainer", Fails)
    directory = RunDirectory(Path("runs") / "a")
    workers = WorkersConfig(max_failures=2)
    trainer.run_in_workers(print, None, workers, directory, CheckpointConfig())


@pytest.mark.parametrize("failures", [{0: DIED}, {0: ConnectionError("reset"), 1: DIED}])
def test_workers_that_die_too_often_are_told_in_one_line(
    failures: dict[int, Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError, match="workers have died 3 times, once more than") as told:
        _run(WorkerGroupError("dead", failures), monkeypatch)
    assert str(told.value).endswith("(A worker has died.)")


def test_a_lost_machine_that_is_not_replaced_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(trainer.START_TIMEOUT, "60")
    with pytest.raises(ClusterError, match="had no room for all 1 since; add machines") as told:
        _run(ControllerError(WorkerGroupStartupTimeoutError(1)), monkeypatch)
    assert "\n" not in str(told.value)


def test_a_controller_that_dies_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="a process has died"):
        _run(ActorDiedError(), monkeypatch)


def test_a_fault_of_the_code_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = WorkerGroupError("wrong", {0: ZeroDivisionError("by zero")})
    with pytest.raises(WorkerGroupError, match="wrong") as raised:
        _run(failure, monkeypatch)
    assert raised.value is failure


def test_ray_train_starts_no_worker_anew_on_a_full_disk() -> None:
    policy: Any = create_failure_policy(FailureConfig(max_failures=3))
    wrapped = UserExceptionWithTraceback(FULL, f"Traceback\nOSError: {FULL}")
    other = UserExceptionWithTraceback(KeyError("a"), "Traceback\nKeyError: 'a'")
    EndOnFullDisk().after_exception(None, {0: other})
    assert policy.make_decision(WorkerGroupError("", {0: other})) == FailureDecision.RETRY
    with pytest.raises(ControllerError) as ended:
        EndOnFullDisk().after_exception(None, {0: other, 1: wrapped})
    assert policy.make_decision(ended.value) == FailureDecision.RAISE
    assert is_disk_full(ended.value)
