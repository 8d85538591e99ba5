"""Files and folders that appear whole or not at all."""

import os
import signal
from collections.abc import Iterator

import pytest
from support import ended_by

from ramen_ray.data.store.whole_files import new_folder, owned_folder, scratch_folder, whole_file


@pytest.fixture(params=[0o002, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
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
        "from ramen_ray.data.store.whole_files import owned_folder\n"
        f"with owned_folder(Path({str(tmp_path)!r})): print('begun', flush=True), signal.pause()"
    )
    ended_by(signal.SIGKILL, begins)
    (left,) = tmp_path.iterdir()
    with owned_folder(tmp_path) as first, new_folder(tmp_path / "folder"):
        (said,) = caplog.messages
        assert said.startswith(f"{left}: left by a killed process")
        assert not left.exists()
        assert first.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_what_a_killed_process_left_goes_first(tmp_path):
    (tmp_path / "aside" / "deep").mkdir(parents=True)
    (tmp_path / "aside" / "deep" / "half").write_text("hal")
    with pytest.raises(ValueError, match="fails"), scratch_folder(tmp_path / "aside") as aside:
        assert list(aside.iterdir()) == []
        (aside / "file").write_text("made")
        raise ValueError("fails")
    assert list(tmp_path.iterdir()) == []
