"""What Ray does not do when it joins or starts a cluster: say soon what is wrong, and try again."""

import logging
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import grpc
import psutil
import ray

from ramen_ray.errors import LOST, UserError

TOO_SLOW = "timed out during startup"
TRIES = 3  # Ray gives its processes half a minute each time, and starts faster from warm files
ANSWERS_WITHIN_S = 20
GCS, LOOKS_EVERY_S = "gcs_server", 0.5

Joined = TypeVar("Joined")
logger = logging.getLogger(__name__)
_is_lost = threading.Event()


class NoClusterError(UserError):
    """No cluster answers at the address."""


def check_that_it_answers() -> None:
    """Check that the cluster that this process is to join answers; else a NoClusterError."""
    # Ray itself would wait seven minutes for it, deaf to signals.
    address, named_by = _address()
    if address is None:
        return
    if not re.fullmatch(r"[^/]+:\d+", address):
        raise NoClusterError(
            f"{named_by} {address!r} is not HOST:PORT, the address of a cluster's head, such as "
            f"127.0.0.1:6379 (an address with http:// is for `ray job submit --address`)"
        )
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return  # it answers only those who show their certificates
    directly = [("grpc.enable_http_proxy", 0)]  # as Ray does
    with grpc.insecure_channel(address, options=directly) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWERS_WITHIN_S)
        except grpc.FutureTimeoutError:
            raise NoClusterError(
                f"no Ray cluster answers at {address}, which {named_by} names; start it, name "
                f"another, or set RAY_ADDRESS=local to let the job start a Ray of its own"
            ) from None


def _address() -> tuple[str | None, str]:
    """Return the address that Ray would join, and what names it; None to start a cluster."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address == "local":
        return None, ""
    if address not in ("", "auto"):
        return address, "RAY_ADDRESS"
    # `ray start` leaves it there, and a machine that is switched off does not remove it.
    file = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray", "ray_current_cluster")
    return (file.read_text().strip(), str(file)) if file.is_file() else (None, "")


def in_a_few_tries(start: Callable[[], Joined]) -> Joined:
    """Return what ``start`` returns; if Ray was too slow, end its processes and try again."""
    for _ in range(TRIES - 1):
        before = set(psutil.Process().children(recursive=True))
        try:
            return start()
        except Exception as error:  # Ray has no class for its own start that takes too long
            if TOO_SLOW not in str(error):
                raise
        logger.warning("warning: Ray has not started in time, on a busy machine; trying again")
        ray.shutdown()
        _end(set(psutil.Process().children(recursive=True)) - before)
    return start()


def _end(processes: set[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(list(processes), timeout=ANSWERS_WITHIN_S)


def is_lost() -> bool:
    """Return whether Ray's control process has died, so that calls of Ray would not return."""
    return _is_lost.is_set()


def watch_own_ray() -> None:
    """Send LOST to this process, if it handles it, when the control process of its Ray dies."""
    started = [child for child in psutil.Process().children(recursive=True) if child.name() == GCS]
    if started and callable(signal.getsignal(LOST)):
        threading.Thread(target=_watch, args=[started[-1]], daemon=True).start()


def _watch(gcs: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        while gcs.status() != psutil.STATUS_ZOMBIE:
            time.sleep(LOOKS_EVERY_S)
    if ray.is_initialized():  # else it has been shut down
        _is_lost.set()
        signal.pthread_kill(threading.main_thread().ident or 0, LOST)
