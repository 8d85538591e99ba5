"""Arrays in files: what travels to other processes, and what they find."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from ramen_ray.data.store.mapped_files import FileArray, map_array


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
