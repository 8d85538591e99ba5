"""A folder's files are compared with what was noted when they were written."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ramen_ray.data.store.checksums import (
    DamagedError,
    check_intact,
    find_damage,
    is_intact,
    parse_checked,
    with_checksum,
    write_checksums,
)


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
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped bit": (lambda made: _flip(made / "encoder" / "weights"), "weights has changed since"),
    "truncated": (lambda made: (made / "state").write_bytes(b"so"), "state has 2 bytes instead of"),
    "emptied": (lambda made: (made / "state").write_bytes(b""), "state has 0 bytes instead of 4"),
    "grown": (lambda made: (made / "empty").write_bytes(b"x"), "empty has 1 bytes instead of 0"),
    "missing": (lambda made: (made / "state").unlink(), "state cannot be read"),
    "no manifest": (lambda made: (made / CHECKSUMS_FILE).unlink(), "is incomplete: 0 of 1"),
    "half a manifest": (lambda made: (made / CHECKSUMS_FILE).write_text("{"), "json is damaged"),
    "empty entries": (
        lambda made: (made / CHECKSUMS_FILE).write_text('{"state": []}'),
        "json is damaged",
    ),
    "another manifest": (lambda made: (made / CHECKSUMS_FILE).write_text("[]"), "json is damaged"),
}


def test_a_task_that_is_run_again_notes_its_files_anew(folder: Path) -> None:
    (folder / "state").write_bytes(b"another")
    write_checksums(folder)
    assert find_damage(folder) is None


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named_and_a_damaged_folder_removed(
    case: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_json_is_checked_against_its_own_checksum() -> None:
    content = {"identity": "abc", "metrics": {"P@1": 0.1 + 0.2}, "finished": True}
    text = with_checksum(content)
    assert parse_checked(text) == content
    assert parse_checked('{"identity": "abc"}') == {"identity": "abc"}, "of an earlier version"
    for damaged in (text.replace("abc", "abd"), text[: len(text) // 2], "", "[1]", "{}}"):
        with pytest.raises(ValueError):
            parse_checked(damaged)


def test_folders_of_several_writers_are_put_together(tmp_path: Path) -> None:
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
