"""Files and folders that appear whole, and arrays in files that travel as paths."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ramen_ray.data.store.mapped_files import FileArray, map_array
from ramen_ray.data.store.whole_files import new_folder, scratch_folder, whole_file


@pytest.fixture(params=[0o002, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_files_and_folders_have_the_permissions_that_the_umask_says(
    umask: int, tmp_path: Path
) -> None:
    with whole_file(tmp_path / "file") as aside:
        aside.write_text("whole")
    with new_folder(tmp_path / "folder") as aside:
        (aside / "within").write_text("whole")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    files, folders = 0o666 & ~umask, 0o777 & ~umask
    assert modes == {"file": files, "folder": folders, "within": files}


def test_what_a_killed_process_left_goes_first(tmp_path: Path) -> None:
    (tmp_path / "aside" / "deep").mkdir(parents=True)
    (tmp_path / "aside" / "deep" / "half").write_text("hal")
    with pytest.raises(ValueError, match="fails"), scratch_folder(tmp_path / "aside") as aside:
        assert list(aside.iterdir()) == []
        (aside / "file").write_text("made")
        raise ValueError("fails")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def in_file(tmp_path: Path) -> FileArray:
    np.save(tmp_path / "values.npy", np.arange(1000))
    return map_array(tmp_path / "values.npy")


def test_files_travel_as_paths_and_hold_the_same(in_file: FileArray) -> None:
    sent = pickle.dumps(in_file)
    assert len(sent) < 400
    found = pickle.loads(sent)
    np.testing.assert_array_equal(found, np.arange(1000))
    assert not found.flags.writeable


def test_what_is_computed_from_a_file_travels_with_its_values(in_file: FileArray) -> None:
    for own in (in_file[10:20], in_file[[3, 1]], in_file + 1, in_file.reshape(10, 100)):
        expected = own.tolist()
        sent = pickle.dumps(own)
        assert pickle.loads(sent).tolist() == expected
