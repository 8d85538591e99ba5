"""What becomes of deaths and errors of workers, one or several; they do not train here."""

import errno
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError
from support import wait_until

from ramen_ray.config import WorkersConfig
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.errors import UserError, is_disk_full
from ramen_ray.method.training.step import StepMemoryError
from ramen_ray.orchestration.cluster.joining import ClusterError
from ramen_ray.orchestration.run import workers
from ramen_ray.orchestration.run.workers import EndIfItRecurs, Process

Job = Callable[..., Any]


@pytest.fixture
def train(cluster: None) -> Job:
    """Let the only worker, of one failure at most, do something else than training."""

    def called(worker: Callable[[Process], Any], max_failures: int = 1) -> Any:
        held = WorkersConfig(cpus_per_worker=1, max_failures=max_failures)
        return workers.train_in_one_worker(worker, held)

    return called


def test_another_worker_goes_on_where_one_died(
    train: Job, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def die_once(process: Process) -> str:
        if not (tmp_path / "begun").exists():
            (tmp_path / "begun").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    assert train(die_once) == "done"
    assert caplog.text.count("the worker has failed, another one goes on: ") == 1


def test_another_worker_goes_on_after_an_error_that_may_pass(train: Job, tmp_path: Path) -> None:
    def fail_once(process: Process) -> str:
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").mkdir()
            raise ConnectionResetError("the store went away")
        return "done"

    def always_fail(process: Process) -> None:
        with (tmp_path / "failures").open("a") as failures:
            failures.write(".")
        raise ZeroDivisionError("by zero")

    assert train(fail_once) == "done"
    with pytest.raises(ZeroDivisionError, match="by zero"):
        train(always_fail)
    assert (tmp_path / "failures").stat().st_size == 2


def test_a_step_that_does_not_fit_is_tried_twice_and_told_in_one_line(
    train: Job, tmp_path: Path
) -> None:
    def is_full(process: Process) -> None:
        with (tmp_path / "tries").open("a") as tries:
            tries.write(".")
        raise StepMemoryError(7, 5000, 36_000)

    with pytest.raises(UserError, match=r"out of memory in step 7: .* 36,000 tokens;") as told:
        train(is_full, max_failures=2)
    assert "\n" not in str(told.value)
    assert (tmp_path / "tries").stat().st_size == 2


def test_a_worker_that_dies_too_often_is_told_in_one_line(train: Job) -> None:
    with pytest.raises(ClusterError, match="workers have died 2 times, once more than") as told:
        train(lambda process: os.kill(os.getpid(), signal.SIGKILL))
    assert "\n" not in str(told.value)


def test_no_worker_is_started_anew_after_an_error(train: Job, tmp_path: Path) -> None:
    def fill_the_disk(process: Process) -> None:
        (tmp_path / "disk").mkdir()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def find_fault(process: Process) -> None:
        (tmp_path / "fault").mkdir()
        raise DatasetError("a fault in line 3")

    with pytest.raises(OSError) as full:
        train(fill_the_disk)
    assert is_disk_full(full.value)
    with pytest.raises(DatasetError, match="a fault in line 3"):
        train(find_fault)


def test_ctrl_c_ends_the_worker(train: Job, tmp_path: Path) -> None:
    file = tmp_path / "process"

    def never_end(process: Process) -> None:
        file.write_text(str(os.getpid()))
        threading.Event().wait()

    def interrupt() -> None:
        wait_until(lambda: file.exists() and file.read_text(), "no worker")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        train(never_end)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(file.read_text())).wait(timeout=30)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Died(Exception):
    """What Ray Train makes of a worker whose process has ended."""

    health_check_failure = ActorDiedError()


DIED = _Died("A worker has died.\nIts logs")


def _run(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails:
        def __init__(self, *_: object, **__: object) -> None:
            """Take what Ray Train's trainer takes."""

        def fit(self) -> None:
            raise error

    monkeypatch.setattr(workers, "TorchTrainer", Fails)
    held = WorkersConfig(max_failures=2)
    workers.train_in_workers(lambda process: None, held, Path("runs") / "a")


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
    monkeypatch.setattr(workers, "has_room", lambda needed, seconds: False)
    with pytest.raises(ClusterError, match="had no room for all 1 since; add machines") as told:
        _run(ControllerError(TimeoutError("no workers")), monkeypatch)
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
    EndIfItRecurs().after_exception(None, {0: KeyError("a")})
    with pytest.raises(ControllerError) as ended:
        EndIfItRecurs().after_exception(None, {0: KeyError("a"), 1: FULL})
    assert is_disk_full(ended.value)


def test_ray_train_starts_no_worker_anew_for_a_step_that_does_not_fit_again() -> None:
    ends, seen = EndIfItRecurs(), _Wrapped(StepMemoryError(7, 5000, 36_000))
    ends.after_exception(None, {0: seen, 1: _Wrapped(StepMemoryError(7, 4000, 30_000))})
    ends.after_exception(None, {1: _Wrapped(StepMemoryError(9, 4000, 30_000))})
    ends.after_exception(None, {0: KeyError("a")})
    ends.after_exception(None, {1: _Wrapped(StepMemoryError(9, 4000, 30_000))})
    with pytest.raises(ControllerError) as ended:
        ends.after_exception(None, {0: KeyError("a"), 1: _Wrapped(StepMemoryError(9, 1, 2))})
    said = str(ended.value.controller_failure)
    assert said.startswith("out of memory in step 9: ")
    assert "\n" not in said


class _Wrapped(Exception):
    """As Ray Train passes an error on: as the text of its traceback."""

    def __str__(self) -> str:
        return f"Traceback:\n  in a file\nStepMemoryError: {self.args[0]}\n"


def test_a_step_that_does_not_fit_in_workers_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match="out of memory in step 7"):
        _run(ControllerError(UserError("out of memory in step 7: too much")), monkeypatch)
