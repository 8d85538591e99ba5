"""What the Ray that a job starts exposes to others on the machine and in the network."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest
from conftest import Head, free_port
from support import PATIENCE_S, ROOT, running, wait_until

LISTENING = "0A"
LOOPBACK = ("127.", "::1")
START = """
import json, os, ray
from ramen_ray.orchestration.cluster.joining import start_ray
start_ray()
session = ray._private.worker._global_node.address_info["session_dir"]
niceness = ray.get(ray.remote(lambda: os.nice(0)).remote())
print(json.dumps([session, niceness]), flush=True)
input()
"""


def _as_jobs_start_it(folder: Path, **settings: str) -> dict[str, str]:
    """Return the environment of a person's shell, in which nothing of Ray is set."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    ray = tempfile.mkdtemp(prefix="ray-")  # the path of a socket has at most 107 bytes
    home = {"HOME": str(folder), "RAY_TMPDIR": ray, "PYTHONPATH": str(ROOT)}
    return {**kept, **home, "RAY_ADDRESS": "local", **settings}


def _listening(root: int) -> dict[tuple[str, int], str]:
    """Find in /proc what the children of a process listen on: (address, port) to their names."""
    import psutil

    sockets = {}
    for table, is_v6 in (("tcp", False), ("tcp6", True)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENING:
                host, port = local.split(":")
                address = "any" if not int(host, 16) else "::1" if is_v6 else _dotted(host)
                sockets[inode] = (address, int(port, 16))
    found = {}
    for process in psutil.Process(root).children(recursive=True):
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            target = str(link.readlink()) if link.is_symlink() else ""
            inode = target.removeprefix("socket:[").removesuffix("]")
            if inode in sockets:
                found[sockets[inode]] = " ".join(process.cmdline())[:120]
    return found


def _dotted(host: str) -> str:
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(host)))


def _gives_metrics(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return answer.status == 200
    except (OSError, ValueError, HTTPException):  # gRPC answers in another language
        return False


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[int, str, int]]:
    """A process that has started Ray as jobs do, its session folder and its workers' niceness."""
    command, environment = [sys.executable, "-c", START], _as_jobs_start_it(tmp_path)
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.pid, *json.loads(process.stdout.readline())
        process.communicate("\n", timeout=PATIENCE_S)


def test_no_metrics_are_offered_files_are_the_owners_and_workers_do_not_give_way(
    started: tuple[int, str, int], tmp_path: Path
) -> None:
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
def test_a_job_without_the_clusters_token_is_told_in_one_line(
    mode: dict[str, str], guarded: Head, tmp_path: Path
) -> None:
    environment = _as_jobs_start_it(tmp_path, RAY_ADDRESS=guarded.address, **mode)
    done = subprocess.run(
        [sys.executable, "-c", JOIN], env=environment, capture_output=True, text=True, timeout=300
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert len(errors) == 1
    assert "RAY_AUTH_MODE" in errors[0]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """A head node that wants a token."""
    folder = tmp_path_factory.mktemp("guarded")
    port, dashboard, agent = (free_port() for _ in range(3))
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block"]
    command += [f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=1"]
    command += [f"--dashboard-agent-listen-port={agent}", "--node-ip-address=127.0.0.1"]
    command += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-host=127.0.0.1"]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}
    environment = _as_jobs_start_it(folder, **token)
    del environment["RAY_ADDRESS"]
    with running(command, folder / "log", env=environment):
        url = f"http://127.0.0.1:{dashboard}/api/version"
        wait_until(lambda: _is_up(url), "the head does not answer")
        yield Head(f"127.0.0.1:{port}", url)


def _is_up(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError as error:
        return isinstance(error, urllib.error.HTTPError)  # it asks for the token
    return True
