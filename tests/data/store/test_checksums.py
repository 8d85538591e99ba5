"""A folder is compared with what was noted when it was written; a copy of it has its content."""

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import contents_of

from ramen_ray.data.store.checksums import (
    DamagedError,
    check_intact,
    copy_folder,
    find_damage,
    is_intact,
    write_checksums,
)
from ramen_ray.errors import is_disk_full


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    (made / "encoder").mkdir(parents=True)
    (made / "encoder" / "weights").write_bytes(bytes(range(256)) * 8000)
    (made / "state").write_bytes(b"some")
    (made / "empty").write_bytes(b"")
    write_checksums(made)
    return made


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


CHECKSUMS_FILE = "checksums-1-of-1.json"
WEIGHTS = "encoder/weights"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped bit": (lambda made: _flip(made / WEIGHTS), "weights has changed since"),
    "truncated": (lambda made: (made / "state").write_bytes(b"so"), "state has 2 bytes instead of"),
    "grown": (lambda made: (made / "empty").write_bytes(b"x"), "empty has 1 bytes instead of 0"),
    "missing": (lambda made: (made / "state").unlink(), "state cannot be read"),
    "no manifest": (lambda made: (made / CHECKSUMS_FILE).unlink(), "is incomplete: 0 of 1"),
    "half a manifest": (lambda made: (made / CHECKSUMS_FILE).write_text("{"), "json is damaged"),
    "another manifest": (lambda made: (made / CHECKSUMS_FILE).write_text("[]"), "json is damaged"),
}


def test_a_task_that_is_run_again_notes_its_files_anew(folder):
    (folder / "state").write_bytes(b"another")
    write_checksums(folder)
    assert find_damage(folder) is None


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_and_a_damaged_folder_removed(case, folder, caplog):
    assert find_damage(folder) is None
    assert is_intact(folder, "unused")
    check_intact(folder)
    damage, message = DAMAGE[case]
    damage(folder)
    with pytest.raises(DamagedError, match=message):
        check_intact(folder)
    assert not is_intact(folder, "it is made again")
    assert not folder.exists()
    assert [record.message.endswith(": it is made again") for record in caplog.records] == [True]
    assert not is_intact(folder, "unused"), "what is not there is no damage"
    assert len(caplog.records) == 1


def test_folders_of_several_writers_are_put_together(tmp_path):
    for writer in range(2):
        own = tmp_path / str(writer)
        own.mkdir()
        (own / f"share-{writer}").write_text(f"of {writer}")
        write_checksums(own, writer, 2)
    together = tmp_path / "together"
    shutil.copytree(tmp_path / "1", together)
    assert "incomplete: 1 of 2" in str(find_damage(together))
    shutil.copytree(tmp_path / "0", together, dirs_exist_ok=True)
    assert find_damage(together) is None
    (together / "share-1").write_text("of 7")
    assert "share-1 has changed" in str(find_damage(together))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "disk" / "of" / "a machine"


def _inodes(folder: Path) -> set[int]:
    return {file.stat().st_ino for file in folder.rglob("*") if file.is_file()}


def test_a_copy_is_one_of_its_own_and_made_once(folder, target):
    expected = contents_of(folder)
    copy_folder(folder, target)
    inodes = _inodes(target)
    assert not inodes & _inodes(folder), "a link would still be read over the network"
    copy_folder(folder, target)
    assert _inodes(target) == inodes
    shutil.rmtree(folder)
    assert contents_of(target) == expected


DAMAGED_COPIES: dict[str, Callable[[Path], object]] = {
    "flipped bit": lambda copy: _flip(copy / WEIGHTS),
    "of an earlier content": lambda copy: (
        (copy / WEIGHTS).write_bytes(b"earlier"),
        (copy / CHECKSUMS_FILE).unlink(),  # else noted as a file of the folder
        write_checksums(copy),
    ),
    "emptied": lambda copy: (shutil.rmtree(copy), copy.mkdir()),
}


@pytest.mark.parametrize("case", DAMAGED_COPIES)
def test_a_copy_that_differs_is_made_again(case, folder, target):
    copy_folder(folder, target)
    DAMAGED_COPIES[case](target)
    assert contents_of(target) != contents_of(folder)
    copy_folder(folder, target)
    assert contents_of(target) == contents_of(folder)


def test_a_killed_copy_is_made_again(folder, target, monkeypatch):
    def killed(source: Path, copy: Path) -> None:
        copy.write_bytes(source.read_bytes()[:5])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a kill leaves no time for it
        with pytest.raises(KeyboardInterrupt):
            copy_folder(folder, target)
    assert contents_of(target.parent), "half of the copy is there"
    assert not target.exists()
    copy_folder(folder, target)
    assert contents_of(target) == contents_of(folder)
    assert {path.name for path in target.parent.iterdir()} == {target.name, f".{target.name}.lock"}


def test_damage_is_not_copied(folder, target):
    _flip(folder / WEIGHTS)
    with pytest.raises(DamagedError, match="weights has changed"):
        copy_folder(folder, target)
    assert [path.suffix for path in target.parent.iterdir()] == [".lock"]


def test_a_disk_without_room_is_left_as_it_was(small_disk, folder):
    (folder / "large.npy").write_bytes(bytes(300_000))
    write_checksums(folder)
    with pytest.raises(OSError, match=r"2\.3 MB needed, 0\.3 free") as full:
        copy_folder(folder, small_disk / "copy")
    assert is_disk_full(full.value)
    assert [path.name for path in small_disk.iterdir()] == [".copy.lock"]


def test_two_at_once_copy_once(folder, target, monkeypatch):
    copied: list[Path] = []

    def slowly(source: Path, copy: Path) -> None:
        time.sleep(0.1)
        copied.append(source)
        copy.write_bytes(source.read_bytes())

    monkeypatch.setattr(shutil, "copyfile", slowly)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(copy_folder, folder, target) for _ in "ab"]:
            done.result()
    assert len(copied) == len(contents_of(folder))
    assert contents_of(target) == contents_of(folder)
