"""Files and folders are whole or absent, made once, and compared with what was noted of them."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import contents_of, ended_by

from ramen_ray.data.store.made_folder import (
    DamagedError,
    check_intact,
    find_damage,
    is_intact,
    made_once,
    new_folder,
    owned_folder,
    whole_file,
    write_checksums,
)

CHECKSUMS_FILE = "checksums-1-of-1.json"
WEIGHTS = "encoder/weights"


@pytest.fixture(params=[0o002, 0o022, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_files_and_folders_have_the_permissions_that_the_umask_says(umask, tmp_path):
    with whole_file(tmp_path / "file") as aside:
        aside.write_text("whole")
    with new_folder(tmp_path / "folder") as aside:
        (aside / "within").write_text("whole")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    files, folders = 0o666 & ~umask, 0o777 & ~umask
    assert modes == {"file": files, "folder": folders, "within": files}


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, caplog):
    caplog.set_level("INFO")
    begins = (
        "import signal\nfrom pathlib import Path\n"
        "from ramen_ray.data.store.made_folder import owned_folder\n"
        f"with owned_folder(Path({str(tmp_path)!r})): print('begun', flush=True), signal.pause()"
    )
    ended_by(signal.SIGKILL, begins)
    (left,) = tmp_path.iterdir()
    with owned_folder(tmp_path) as first, new_folder(tmp_path / "folder"):
        assert [message.partition(":")[0] for message in caplog.messages] == [str(left)]
        assert not left.exists()
        assert first.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def _write(made):
    (made / "encoder").mkdir(parents=True)
    (made / "encoder" / "weights").write_bytes(bytes(range(256)) * 8000)
    (made / "state").write_bytes(b"some")
    (made / "empty").write_bytes(b"")


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "made"
    _write(made)
    write_checksums(made)
    return made


def _flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "flipped bit": (lambda made: _flip(made / WEIGHTS), WEIGHTS),
    "truncated": (lambda made: (made / "state").write_bytes(b"so"), "state"),
    "grown": (lambda made: (made / "empty").write_bytes(b"x"), "empty"),
    "missing": (lambda made: (made / "state").unlink(), "state"),
    "no list": (lambda made: (made / CHECKSUMS_FILE).unlink(), "made"),
    "half a list": (lambda made: (made / CHECKSUMS_FILE).write_text("{"), CHECKSUMS_FILE),
    "another list": (lambda made: (made / CHECKSUMS_FILE).write_text("[]"), CHECKSUMS_FILE),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_and_a_damaged_folder_removed(case, folder, caplog):
    write_checksums(folder)  # as a task that is run again does
    check_intact(folder)
    assert is_intact(folder, "unused")
    damage, place = DAMAGE[case]
    damage(folder)
    with pytest.raises(DamagedError, match=place):
        check_intact(folder)
    assert not is_intact(folder, "it is made again")
    assert not folder.exists()
    assert [record.message.endswith(": it is made again") for record in caplog.records] == [True]
    assert not is_intact(folder, "unused"), "what is not there is no damage"
    assert len(caplog.records) == 1


def _made(target, like=None):
    """Make ``target`` unless it is there, and say whether it was not."""
    with made_once(target, like) as aside:
        if aside is not None:
            _write(aside)
        return aside is not None


def test_what_two_need_at_once_is_made_once(tmp_path):
    together = threading.Barrier(2)

    def make(_):
        together.wait()
        return _made(tmp_path / "target")

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(make, "ab")) == [False, True]
    assert find_damage(tmp_path / "target") is None


@pytest.mark.parametrize("change", [None, *DAMAGE])
def test_what_is_damaged_or_of_another_content_is_made_again(change, folder, tmp_path):
    target = tmp_path / "cache" / "target"
    assert _made(target)
    assert contents_of(target) == contents_of(folder)
    assert not _made(target, like=folder)
    if change is not None:
        DAMAGE[change][0](target)
    else:
        (folder / "state").write_bytes(b"other")
        write_checksums(folder)
    assert _made(target, like=folder)
    assert {path.name for path in target.parent.iterdir()} == {"target", ".target.lock"}


def test_nothing_is_left_of_what_fails(small_disk):
    with pytest.raises(OSError, match="No space"), made_once(small_disk / "target") as aside:
        (aside / "large.npy").write_bytes(bytes(3_000_000))
    assert [path.name for path in small_disk.iterdir()] == [".target.lock"]
