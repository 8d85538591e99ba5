"""What the Ray that a job starts exposes to others on the machine and in the network."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

import psutil
import pytest
from conftest import free_port, running_head
from support import PATIENCE_S, ROOT, run_python, the_error, wait_until

LOOPBACK = ("127.", "::1", "::ffff:127.")
START = """
import json, os, ray
from ramen_ray.orchestration.cluster.joining import start_ray
start_ray()
session = os.path.realpath(os.path.join(os.environ["RAY_TMPDIR"], "ray", "session_latest"))
niceness = ray.get(ray.remote(lambda: os.nice(0)).remote())
print(json.dumps([session, niceness]), flush=True)
input()
"""


def _as_jobs_start_it(folder, **settings):
    """Return the environment of a person's shell, in which nothing of Ray is set."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    ray = tempfile.mkdtemp(prefix="ray-")  # the path of a socket has at most 107 bytes
    home = {"HOME": str(folder), "RAY_TMPDIR": ray, "PYTHONPATH": str(ROOT)}
    return {**kept, **home, "RAY_ADDRESS": "local", **settings}


def _listening(root):
    """Find what the children of a process listen on: (address, port) to their names."""
    return {
        (one.laddr.ip, one.laddr.port): " ".join(process.cmdline())[:120]
        for process in psutil.Process(root).children(recursive=True)
        for one in process.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    }


def _gives_metrics(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return answer.status == 200
    except (OSError, ValueError, HTTPException):  # gRPC answers in another language
        return False


@pytest.fixture
def started(tmp_path):
    """A process that has started Ray as jobs do, its session folder and its workers' niceness."""
    command = [sys.executable, "-c", START]
    environment = _as_jobs_start_it(tmp_path)
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process.pid, *json.loads(process.stdout.readline())
        process.communicate("\n", timeout=PATIENCE_S)


def test_no_metrics_are_offered_files_are_the_owners_and_workers_do_not_give_way(started, tmp_path):
    pid, session, niceness = started
    assert niceness == os.nice(0)
    for private in (Path(session), tmp_path / ".ray", tmp_path / ".ray" / "auth_token"):
        assert not stat.S_IMODE(private.stat().st_mode) & 0o077, private
    open_to_all = {
        port: name
        for (address, port), name in _listening(pid).items()
        if not address.startswith(LOOPBACK)
    }
    assert any("raylet" in name for name in open_to_all.values())
    assert {port: name for port, name in open_to_all.items() if _gives_metrics(port)} == {}
    assert not {44217, 44227} & open_to_all.keys()


JOIN = "from ramen_ray.command_line import run_job\n" + (
    "from ramen_ray.orchestration.cluster.joining import start_ray\n"
    "import sys\nsys.exit(run_job(start_ray))"
)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [{}, {"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_MODE": "disabled"}])
def test_a_job_without_the_clusters_token_is_told_in_one_line(mode, guarded, tmp_path):
    environment = _as_jobs_start_it(tmp_path, RAY_ADDRESS=guarded.address, **mode)
    done = run_python("-c", JOIN, code=2, env=environment)
    assert "RAY_AUTH_MODE" in the_error(done.stderr)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A head node that wants a token."""
    home = {
        "HOME": str(tmp_path_factory.mktemp("guarded")),
        "RAY_TMPDIR": tempfile.mkdtemp(prefix="ray-"),
    }
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}
    with running_head(free_port(), "--num-cpus=1", **home, **token) as head:
        wait_until(lambda: _asks_for_the_token(head), "the head does not answer")
        yield head


def _asks_for_the_token(head):
    try:
        urllib.request.urlopen(f"{head.dashboard}/api/version", timeout=5).close()
    except OSError as error:
        return isinstance(error, urllib.error.HTTPError)
    return False
