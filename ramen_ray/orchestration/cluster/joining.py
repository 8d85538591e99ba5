"""Join or start Ray: soon, or with what is wrong; and so that no other user can reach it."""

import logging
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import grpc
import psutil
import ray
from ray.data import DataContext
from ray.exceptions import AuthenticationError

from ramen_ray.errors import LOST, UserError, first_line_of
from ramen_ray.long_work import logged_progress

TOO_SLOW = ("timed out during startup", "start a dashboard", "dashboard.log", "dashboard.err")
"""What Ray says where its processes, of which the dashboard is one, have not started in time."""
TRIES = 3  # Ray gives its processes half a minute each time, and starts faster from warm files
ANSWERS_WITHIN_S = 20
GCS = "gcs_server"
LOOKS_EVERY_S = 0.5
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    # Train notices soon what workers report, and that they have ended.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # Keep idle processes: loading their libraries again takes longer than most of our tasks.
    "RAY_idle_worker_killing_time_threshold_ms": "60000",
    # Ray would let every other process of the machine go before its workers.
    "RAY_worker_niceness": "0",
    # Ray would start a task for ever that needs more memory than there is; these take a minute.
    "RAY_task_oom_retries": "6",
    # A cluster that a job starts would offer its figures to all, on ports without a token.
    "RAY_enable_metrics_collection": "0",
    "DASHBOARD_METRIC_PORT": "-1",
    "AUTOSCALER_METRIC_PORT": "-1",
}

Joined = TypeVar("Joined")
logger = logging.getLogger(__name__)
_is_lost = threading.Event()


class ClusterError(UserError):
    """The cluster cannot be reached, or cannot offer what the workers need."""


class NoClusterError(UserError):
    """No cluster answers at the address."""


def start_ray(show_workers: bool = True, for_ray_train: bool = False) -> None:
    """Join the running cluster (RAY_ADDRESS, or one on this machine), or start one.

    Tasks' output is shown if ``show_workers``. ``for_ray_train`` starts a dashboard, too, which its
    actors ask about each other: a dozen processes. Raises a NoClusterError if no cluster answers at
    RAY_ADDRESS, or a ClusterError if it wants a token, or Ray does not start.
    """
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    if "RAY_ADDRESS" not in os.environ:  # one machine, which cannot be preempted
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    if not ray.is_initialized():
        check_that_it_answers()
        keep_token_private()
        try:
            with logged_progress("starting Ray"), kept_handler(signal.SIGTERM):
                joined = in_a_few_tries(
                    lambda: ray.init(
                        logging_level=logging.ERROR,
                        log_to_driver=show_workers,
                        include_dashboard=for_ray_train,
                    )
                )
        except Exception as error:
            raise ClusterError(f"cannot join the Ray cluster: {_advice(error)}") from error
        keep_token_private()
        session = Path(joined.address_info["session_dir"])
        is_own = session.is_dir() and session.name.endswith(f"_{os.getpid()}")
        if is_own and session.stat().st_uid == os.geteuid():
            session.chmod(0o700)  # others could read there what tasks print
        watch_own_ray()
    quiet_ray_data()


@contextmanager
def kept_handler(number: signal.Signals) -> Iterator[None]:
    """Keep this process's handler of a signal, which Ray replaces by one that exits."""
    handler = signal.getsignal(number)
    try:
        yield
    except SystemExit as stop:
        if stop.code == number and callable(handler):
            handler(number, None)
        raise
    finally:
        if threading.current_thread() is threading.main_thread() and callable(handler):
            signal.signal(number, handler)


def keep_token_private() -> None:
    """Keep others on this machine from reading the token; with it they could run code as us."""
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if file.is_file() and file.stat().st_uid == os.geteuid():
        file.chmod(0o600)
    elif not file.parent.exists():
        file.parent.mkdir(mode=0o700, parents=True)  # Ray writes the token for all to read


def _advice(error: Exception) -> str:
    said = first_line_of(error).rstrip(".")
    if _is_too_slow(error):
        return "Ray has not started in time; is the machine too busy? Run the same command again"
    if isinstance(error, AuthenticationError) or os.environ.get("RAY_AUTH_MODE") != "token":
        said += (  # which the cluster does not say
            "; if it wants a token, set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or "
            "RAY_AUTH_TOKEN_PATH to that of the cluster"
        )
    return said


def quiet_ray_data() -> None:
    """Keep Ray Data from showing progress, and let it raise our errors as they were raised."""
    context = DataContext.get_current()
    context.raise_original_map_exception = True
    context.enable_progress_bars = False  # they count blocks, and show hours for seconds
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


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
            if not _is_too_slow(error):
                raise
        logger.warning("warning: Ray has not started in time, on a busy machine; trying again")
        ray.shutdown()
        left = set(psutil.Process().children(recursive=True)) - before
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(list(left), timeout=ANSWERS_WITHIN_S)
    return start()


def _is_too_slow(error: Exception) -> bool:
    return any(sign in str(error) for sign in TOO_SLOW)


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
