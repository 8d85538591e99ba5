"""What becomes of the only worker's deaths and errors; it does not train here."""

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
from support import wait_until

from ramen_ray.config import overlay
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.full_disk import is_disk_full
from ramen_ray.orchestration.cluster.resources import ClusterError
from ramen_ray.orchestration.runs.task import WorkerTask
from ramen_ray.orchestration.training import one_worker
from ramen_ray.presets import minilm
from ramen_ray.tracking.runs import Run

Train = Callable[[Callable[[WorkerTask], Any]], Any]


@pytest.fixture
def train(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Let the only worker, of two failures at most, do something else than training."""
    config = overlay(minilm("foldoc"), {"workers.cpus_per_worker": 1, "workers.max_failures": 2})
    task = WorkerTask(config, "", "", str(tmp_path), Run("", ""), {})

    def called(worker: Callable[[WorkerTask], Any]) -> Any:
        monkeypatch.setattr(one_worker, "train_alone", worker)
        return one_worker.train_in_one_worker(task)

    return called


def test_another_worker_goes_on_where_one_died(
    train: Train, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def die_twice(task: WorkerTask) -> int:
        with (tmp_path / "begun").open("a") as begun:
            begun.write(".")
        if (tmp_path / "begun").stat().st_size < 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return (tmp_path / "begun").stat().st_size

    assert train(die_twice) == 3
    assert caplog.text.count("the worker has failed, another one goes on: ") == 2


def test_another_worker_goes_on_after_an_error_that_may_pass(train: Train, tmp_path: Path) -> None:
    def fail_once(task: WorkerTask) -> str:
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").mkdir()
            raise ConnectionResetError("the store went away")
        return "done"

    def always_fail(task: WorkerTask) -> None:
        with (tmp_path / "failures").open("a") as failures:
            failures.write(".")
        raise ZeroDivisionError("by zero")

    assert train(fail_once) == "done"
    with pytest.raises(ZeroDivisionError, match="by zero"):
        train(always_fail)
    assert (tmp_path / "failures").stat().st_size == 3


def test_a_worker_that_dies_too_often_is_told_in_one_line(train: Train) -> None:
    with pytest.raises(ClusterError, match="workers have died 3 times, once more than") as told:
        train(lambda task: os.kill(os.getpid(), signal.SIGKILL))
    assert "\n" not in str(told.value)


def test_no_worker_is_started_anew_after_an_error(train: Train, tmp_path: Path) -> None:
    def fill_the_disk(task: WorkerTask) -> None:
        (tmp_path / "disk").mkdir()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def find_fault(task: WorkerTask) -> None:
        (tmp_path / "fault").mkdir()
        raise DatasetError("a fault in line 3")

    with pytest.raises(OSError) as full:
        train(fill_the_disk)
    assert is_disk_full(full.value)
    with pytest.raises(DatasetError, match="a fault in line 3"):
        train(find_fault)


def test_ctrl_c_ends_the_worker(train: Train, tmp_path: Path) -> None:
    file = tmp_path / "process"

    def never_end(task: WorkerTask) -> None:
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
