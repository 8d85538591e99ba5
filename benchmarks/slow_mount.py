"""A folder as a slow network shows it: read-only, and each read waits before it is answered.

A file system in user space, in the protocol of the kernel's own include/uapi/linux/fuse.h. Needs
Linux and root.

    python -m benchmarks.slow_mount FOLDER MOUNT_POINT [--latency-ms 1]    (until it is unmounted)
"""

import argparse
import ctypes
import errno
import os
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT, BATCH_FORGET = 26, 27, 28, 29, 36, 42
UNANSWERED = (FORGET, BATCH_FORGET, INTERRUPT)

REQUEST = struct.Struct("<IIQQIIIHH")  # length, opcode, number, node, uid, gid, pid, -, -
ANSWER = struct.Struct("<IiQ")  # length, error, number of the request
ATTRIBUTES = struct.Struct("<6Q10I")
VALID_S = 3600  # nothing changes below
ASYNCHRONOUS_READS = 1
LARGEST_READ = 1 << 17
NUM_THREADS = 16
MS_RDONLY, MS_NOSUID, MS_NODEV, MNT_DETACH = 1, 2, 4, 2
SECONDS_TO_MOUNT = 30


class SlowFolder:
    """Answers the kernel's requests for the files of a folder."""

    def __init__(self, folder: Path, latency_s: float) -> None:
        self._latency_s = latency_s
        self._paths = {1: folder}  # by node; nodes are never forgotten
        self._nodes = {folder: 1}
        self._lock = threading.Lock()
        self._answers: dict[int, Callable[[int, bytes], bytes]] = {
            INIT: self._init,
            LOOKUP: self._lookup,
            GETATTR: self._attributes,
            OPEN: self._open,
            READ: self._read,
            RELEASE: self._release,
            OPENDIR: lambda node, body: bytes(16),
            READDIR: self._list,
            RELEASEDIR: lambda node, body: b"",
            FLUSH: lambda node, body: b"",
            STATFS: lambda node, body: bytes(80),
        }

    def serve(self, device: int) -> None:
        """Answer requests until the folder is unmounted; several threads may do so."""
        while True:
            try:
                request = os.read(device, LARGEST_READ + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                continue
            _, opcode, number, node, *_ = REQUEST.unpack_from(request)
            if opcode in UNANSWERED:
                continue
            answer, code = b"", 0
            try:
                answer = self._answers[opcode](node, request[REQUEST.size :])
            except KeyError:
                code = errno.ENOSYS
            except OSError as error:
                code = error.errno or errno.EIO
            os.write(device, ANSWER.pack(ANSWER.size + len(answer), -code, number) + answer)

    def _init(self, node: int, body: bytes) -> bytes:
        readahead = struct.unpack_from("<3I", body)[2]
        limits = struct.pack("<2H2I2HI", 64, 48, LARGEST_READ, 1, LARGEST_READ >> 12, 0, 0)
        return struct.pack("<4I", 7, 31, readahead, ASYNCHRONOUS_READS) + limits + bytes(28)

    def _lookup(self, node: int, body: bytes) -> bytes:
        path = self._paths[node] / os.fsdecode(body.rstrip(b"\0"))
        found = path.stat()
        with self._lock:
            own = self._nodes.setdefault(path, len(self._nodes) + 1)
            self._paths[own] = path
        return struct.pack("<4Q2I", own, 0, VALID_S, VALID_S, 0, 0) + _attributes(own, found)

    def _attributes(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", VALID_S, 0, 0) + _attributes(node, self._paths[node].stat())

    def _open(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", os.open(self._paths[node], os.O_RDONLY), 0, 0)

    def _read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", body)
        time.sleep(self._latency_s)
        return os.pread(handle, size, offset)

    def _release(self, node: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _list(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        listed = b""
        for number, path in enumerate(sorted(self._paths[node].iterdir()), start=1):
            name = os.fsencode(path.name)
            kind = stat.S_IFMT(path.stat().st_mode) >> 12
            entry = struct.pack("<QQII", number + 1, number, len(name), kind) + name
            entry += bytes(-len(entry) % 8)
            if number > offset and len(listed) + len(entry) <= size:
                listed += entry
        return listed


def _attributes(node: int, found: os.stat_result) -> bytes:
    sizes = (node, found.st_size, found.st_blocks)
    times = (int(found.st_atime), int(found.st_mtime), int(found.st_ctime))
    rest = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, found.st_blksize, 0)
    return ATTRIBUTES.pack(*sizes, *times, 0, 0, 0, *rest)


@contextmanager
def slow_mount(folder: Path, mount_point: Path, latency_ms: float) -> Iterator[Path]:
    """Show ``folder`` at ``mount_point`` until the block ends, by a process of its own.

    Python holds its lock while it reads a page of a mapped file, so the process that reads cannot
    be the one that answers.
    """
    mount_point.mkdir()
    command = [sys.executable, "-m", "benchmarks.slow_mount", str(folder), str(mount_point)]
    server = subprocess.Popen([*command, "--latency-ms", str(latency_ms)])
    deadline = time.monotonic() + SECONDS_TO_MOUNT
    try:
        while not mount_point.is_mount():
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit("the slow folder cannot be mounted; this benchmark needs Linux and root")
            time.sleep(0.05)
        yield mount_point
    finally:
        if mount_point.is_mount():
            _call("umount2", os.fsencode(mount_point), MNT_DETACH)
        server.terminate()
        server.wait()


def _call(name: str, *arguments: bytes | int) -> None:
    """Call a function of the C library that returns 0 if it succeeds."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    """Mount a folder and serve it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("mount_point", type=Path)
    parser.add_argument("--latency-ms", type=float, default=1.0)
    options = parser.parse_args()
    device = os.open("/dev/fuse", os.O_RDWR)
    how = f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}".encode()
    flags = MS_RDONLY | MS_NOSUID | MS_NODEV
    _call("mount", b"slow", os.fsencode(options.mount_point), b"fuse.slow", flags, how)
    slow = SlowFolder(options.folder.resolve(), options.latency_ms / 1000)
    threads = [threading.Thread(target=slow.serve, args=(device,)) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
