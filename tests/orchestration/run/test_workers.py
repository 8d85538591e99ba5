"""What becomes of deaths and errors of workers, one or several; they do not train here."""

import errno
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError
from support import wait_until

from ramen_ray.config import WorkersConfig
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.errors import UserError, is_disk_full
from ramen_ray.method.distributed import gather_arrays, group_of_cpus, world
from ramen_ray.method.training.step import StepMemoryError
from ramen_ray.orchestration.cluster.joining import ClusterError
from ramen_ray.orchestration.run import processes
from ramen_ray.orchestration.run.processes import EndIfItRecurs, TooManyTexts


@pytest.fixture
def train(cluster):
    """Let the only worker, of one failure at most, do something else than training."""
    held = WorkersConfig(cpus_per_worker=1, max_failures=1)
    return lambda worker: processes.train_in_one_worker(worker, held)


def test_another_worker_goes_on_where_one_failed_or_died(cluster, tmp_path, caplog):
    def end_twice(worker):
        tries = len(list(tmp_path.iterdir()))
        (tmp_path / f"{tries}").touch()
        if tries == 0:
            raise ConnectionResetError("the store went away")
        if tries == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    held = WorkersConfig(cpus_per_worker=1, max_failures=2)
    assert processes.train_in_one_worker(end_twice, held) == "done"
    assert caplog.text.count("the worker has failed, another one goes on: ") == 2


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("error", "tries", "kind", "message"),
    [
        (None, 2, ClusterError, "workers have died 2 times, once more than"),
        (ZeroDivisionError("by zero"), 2, ZeroDivisionError, "by zero"),
        (FULL, 1, OSError, "No space left on device"),
        (DatasetError("a fault in line 3"), 1, DatasetError, "a fault in line 3"),
    ],
    ids=["killed", "fault of the code", "full disk", "fault of the data"],
)
def test_a_worker_that_fails_as_it_would_again_is_told_in_one_line(
    error, tries, kind, message, train, tmp_path
):
    def fail(worker):
        with (tmp_path / "tries").open("a") as file:
            file.write(".")
        if error is not None:
            raise error
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(kind, match=message) as told:
        train(fail)
    assert "\n" not in str(told.value)
    assert (tmp_path / "tries").stat().st_size == tries
    assert is_disk_full(told.value) == (error is FULL)


def test_ctrl_c_ends_the_worker(train, tmp_path):
    file = tmp_path / "process"

    def never_end(worker):
        file.write_text(str(os.getpid()))
        threading.Event().wait()

    def interrupt():
        wait_until(lambda: file.exists() and file.read_text(), "no worker")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        train(never_end)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(file.read_text())).wait(timeout=30)


class _Died(Exception):
    """What Ray Train makes of a worker whose process has ended."""

    health_check_failure = ActorDiedError()


DIED = _Died("A worker has died.\nIts logs")
TOO_OFTEN = r"workers have died 3 times, once more than .*\(A worker has died\.\)$"


def test_several_workers_meet_by_the_interface_that_the_driver_names(
    cluster, tmp_path, monkeypatch
):
    """Ray's processes, started before, do not know it; one group serves all that ask for it."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def meet(worker):
        groups = {group_of_cpus() for _ in range(3)}
        ranks = np.concatenate(gather_arrays(np.array([world()[0]])))
        return os.environ.get("GLOO_SOCKET_IFNAME"), len(groups), ranks.tolist()

    held = WorkersConfig(num_workers=2, cpus_per_worker=1)
    assert processes.train_in_workers(meet, held, tmp_path) == ("lo", 1, [0, 1])


def test_what_all_workers_find_in_the_data_ends_them_at_once(cluster, tmp_path):
    def fail(worker):
        with (tmp_path / f"worker {world()[0]}").open("a") as file:
            file.write(".")
        raise DatasetError("there are too few clicks")

    held = WorkersConfig(num_workers=2, cpus_per_worker=1)
    with pytest.raises(DatasetError, match=r"^there are too few clicks$"):
        processes.train_in_workers(fail, held, tmp_path)
    assert [file.stat().st_size for file in tmp_path.glob("worker *")] == [1, 1]


def _run(error, monkeypatch):
    class Fails:
        def __init__(self, *_, **__):
            """Take what Ray Train's trainer takes."""

        def fit(self):
            raise error

    monkeypatch.setattr(processes, "TorchTrainer", Fails)
    held = WorkersConfig(max_failures=2)
    processes.train_in_workers(lambda process: None, held, Path("runs") / "a")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (WorkerGroupError("dead", {0: DIED}), ClusterError, TOO_OFTEN),
        (WorkerGroupError("dead", {0: ConnectionError("reset"), 1: DIED}), ClusterError, TOO_OFTEN),
        (ControllerError(TimeoutError("none")), ClusterError, "had no room for 1 since; add"),
        (ActorDiedError(), ClusterError, "a process has died"),
        (ControllerError(UserError("out of memory in step 7: b")), UserError, "memory in step 7"),
    ],
)
def test_what_ends_several_workers_is_told_in_one_line(error, kind, message, monkeypatch):
    monkeypatch.setattr(processes, "has_room", lambda needed, seconds: False)
    with pytest.raises(kind, match=message) as told:
        _run(error, monkeypatch)
    assert "\n" not in str(told.value)


def test_a_fault_of_the_code_keeps_its_traceback(monkeypatch):
    failure = WorkerGroupError("wrong", {0: ZeroDivisionError("by zero")})
    with pytest.raises(WorkerGroupError, match="wrong") as raised:
        _run(failure, monkeypatch)
    assert raised.value is failure


def test_ray_train_starts_no_worker_anew_where_it_would_fail_again():
    with pytest.raises(ControllerError) as ended:
        EndIfItRecurs().after_exception(None, {0: KeyError("a"), 1: FULL})
    assert is_disk_full(ended.value)
    ends = EndIfItRecurs()
    ends.after_exception(None, {0: _Wrapped(TooManyTexts(9, 512)), 1: KeyError("a")})
    with pytest.raises(ControllerError) as ended:
        ends.after_exception(None, {0: KeyError("a"), 1: _Wrapped(StepMemoryError(9, 1, 2))})
    said = str(ended.value.controller_failure)
    assert "step 9" in said
    assert "\n" not in said


class _Wrapped(Exception):
    """As Ray Train passes an error on: as the text of its traceback."""

    def __str__(self):
        return f"Traceback:\n  in a file\nStepMemoryError: {self.args[0]}\n"
