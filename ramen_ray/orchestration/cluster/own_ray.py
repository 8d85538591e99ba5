"""End a job whose own Ray has lost its control process, without which Ray waits and then exits."""

import signal
import threading
import time

import psutil
import ray

from ramen_ray.errors import LOST

GCS = "gcs_server"
LOOKS_EVERY_S = 0.5

_is_lost = threading.Event()


def is_lost() -> bool:
    """Return whether the control process has died; calls of Ray would not return."""
    return _is_lost.is_set()


def watch_own_ray() -> None:
    """Send LOST to this process, if it handles it, when the control process of its Ray dies."""
    started = [child for child in psutil.Process().children(recursive=True) if child.name() == GCS]
    if started and callable(signal.getsignal(LOST)):
        threading.Thread(target=_watch, args=[started[-1]], daemon=True).start()


def _watch(gcs: psutil.Process) -> None:
    while _lives(gcs):
        time.sleep(LOOKS_EVERY_S)
    if ray.is_initialized():  # else it has been shut down
        _is_lost.set()
        signal.pthread_kill(threading.main_thread().ident or 0, LOST)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
