"""A machine's copy of a folder is whole and has its content, whatever was there before."""

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ramen_ray.data.store import checksums
from ramen_ray.data.store.checksums import DamagedError, copy_folder, write_checksums
from ramen_ray.errors import is_disk_full


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    made = tmp_path / "shared"
    (made / "tokens" / "ads").mkdir(parents=True)
    (made / "tokens" / "ads" / "token_ids.npy").write_bytes(bytes(range(256)) * 1000)
    (made / "prepared.json").write_text("{}")
    (made / "empty.npy").write_bytes(b"")
    write_checksums(made)
    return made


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "disk" / "of" / "a machine"


def _contents(folder: Path) -> dict[str, bytes]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def _inodes(folder: Path) -> set[int]:
    return {file.stat().st_ino for file in folder.rglob("*") if file.is_file()}


def test_a_copy_is_one_of_its_own_and_made_once(shared: Path, target: Path) -> None:
    expected = _contents(shared)
    copy_folder(shared, target)
    inodes = _inodes(target)
    assert not inodes & _inodes(shared), "a link would still be read over the network"
    copy_folder(shared, target)
    assert _inodes(target) == inodes
    shutil.rmtree(shared)
    assert _contents(target) == expected


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


TOKENS = "tokens/ads/token_ids.npy"
CHECKSUMS = "checksums-1-of-1.json"
DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped bit": lambda copy: _flip(copy / TOKENS),
    "cut short": lambda copy: (copy / TOKENS).write_bytes(b"short"),
    "missing": lambda copy: (copy / TOKENS).unlink(),
    "without checksums": lambda copy: (copy / CHECKSUMS).unlink(),
    "of an earlier content": lambda copy: (
        (copy / TOKENS).write_bytes(b"earlier"),
        (copy / CHECKSUMS).unlink(),  # else noted as a file of the folder
        write_checksums(copy),
    ),
    "emptied": lambda copy: (shutil.rmtree(copy), copy.mkdir()),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_copy_that_differs_is_made_again(case: str, shared: Path, target: Path) -> None:
    copy_folder(shared, target)
    DAMAGE[case](target)
    assert _contents(target) != _contents(shared)
    copy_folder(shared, target)
    assert _contents(target) == _contents(shared)


def test_a_killed_copy_is_made_again(
    shared: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(source: str, copy: str) -> None:
        Path(copy).write_bytes(Path(source).read_bytes()[:5])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checksums, "copyfile", killed)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a kill leaves no time for it
        with pytest.raises(KeyboardInterrupt):
            copy_folder(shared, target)
    assert _contents(target.parent), "half of the copy is there"
    assert not target.exists()
    copy_folder(shared, target)
    assert _contents(target) == _contents(shared)
    assert {path.name for path in target.parent.iterdir()} == {target.name, f".{target.name}.lock"}


def test_damage_is_not_copied(shared: Path, target: Path) -> None:
    _flip(shared / TOKENS)
    with pytest.raises(DamagedError, match=r"token_ids\.npy has changed"):
        copy_folder(shared, target)
    assert [path.suffix for path in target.parent.iterdir()] == [".lock"]


def test_a_disk_without_room_is_left_as_it_was(small_disk: Path, shared: Path) -> None:
    (shared / "large.npy").write_bytes(bytes(300_000))
    write_checksums(shared)
    with pytest.raises(OSError, match=r"0\.6 MB needed, 0\.3 free") as full:
        copy_folder(shared, small_disk / "copy")
    assert is_disk_full(full.value)
    assert [path.name for path in small_disk.iterdir()] == [".copy.lock"]


def test_two_at_once_copy_once(shared: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []

    def slowly(source: str, copy: str) -> None:
        time.sleep(0.1)
        copied.append(source)
        shutil.copyfile(source, copy)

    monkeypatch.setattr(checksums, "copyfile", slowly)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(copy_folder, shared, target) for _ in "ab"]:
            done.result()
    assert len(copied) == len(_contents(shared))
    assert _contents(target) == _contents(shared)
