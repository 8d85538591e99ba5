"""Arrays in files: what travels to other processes, and what they find."""

import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.store.file_arrays import into_files


@dataclass(frozen=True)
class Half:
    values: NDArray[np.float64]
    empty: NDArray[np.int64]


@dataclass(frozen=True)
class Whole:
    name: str
    half: Half
    by_side: dict[str, NDArray[np.int64]]


def test_files_travel_as_paths_and_hold_the_same(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random(10_000)
    sides = {"query": np.arange(5000), "ad": np.arange(7000)}
    sent = pickle.dumps(
        into_files(Whole("w", Half(values, np.arange(0)), sides), tmp_path / "index")
    )
    assert len(sent) < 2000
    found: Whole = pickle.loads(sent)
    assert found.name == "w" and len(found.half.empty) == 0
    np.testing.assert_array_equal(found.half.values, values)
    for side, expected in sides.items():
        np.testing.assert_array_equal(found.by_side[side], expected)
        assert not found.by_side[side].flags.writeable


def test_what_is_computed_from_a_file_travels_with_its_values(tmp_path: Path) -> None:
    in_file = into_files(np.arange(1000), tmp_path / "index")
    for own in (in_file[10:20], in_file[[3, 1]], in_file + 1, in_file.reshape(10, 100)):
        expected = own.tolist()
        sent = pickle.dumps(own)
        assert pickle.loads(sent).tolist() == expected
