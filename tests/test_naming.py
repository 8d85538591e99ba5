"""Which names from outside are allowed, and what becomes of other texts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset
from ramen_ray.naming import BadNameError, checked_name, dataset_name, joined_name, name_like

BAD = ["", ".", "..", "../x", "/etc", "a/b", "a b", "-x", ".x", "x\n", "a\0", "\udc80", "x" * 101]


@pytest.mark.parametrize("name", [*BAD, "é" * 51])
def test_a_bad_name_is_refused_in_one_line(name):
    with pytest.raises(BadNameError, match=r"^.* is not a valid name: .*$") as refused:
        checked_name(name)
    assert len(str(refused.value)) < 200


@given(st.text())
def test_a_name_can_be_made_from_any_text(text):
    assert checked_name(name_like(text, "other"))


@given(st.lists(st.from_regex(r"\w[\w.-]{0,60}", fullmatch=True), min_size=1, max_size=4))
def test_joined_names_are_names_and_stay_different(parts):
    joined = checked_name(joined_name(*parts))
    assert joined == "-".join(parts) or joined != joined_name(*parts, "2")


def test_a_dataset_has_the_name_of_its_folder_or_the_given_one(dataset_path, tmp_path):
    assert dataset_name(None, Path("/data/my shop (1)")) == "my-shop-1"
    assert dataset_name("mine", Path("/data/my shop (1)")) == "mine"
    for name in BAD:
        with pytest.raises(DatasetError, match=r"name: .* is not a valid name"):
            dataset_name(name, Path("/data/shop"))
        with pytest.raises(DatasetError, match="not a valid name"):
            write_dataset(tmp_path / "made", {}, name=name)
    assert not list(tmp_path.iterdir())
    assert Dataset(dataset_path).name == "handmade"
