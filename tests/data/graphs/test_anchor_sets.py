"""Adding an anchor set: the dataset afterwards, and after an interruption at any point."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support import errors_in

from ramen_ray.data.graphs.anchor_sets import Edges, add_anchor_set
from ramen_ray.data.store.dataset import Dataset, DatasetError

TEXTS = pa.array(["never linked", "a bird", "a ship", "a tree"])
QUERY_EDGES = Edges(np.array([5, 0, 5]), np.array([3, 1, 1]), np.array([0.5, 1.0, 2.0]))
AD_EDGES = Edges(np.array([7]), np.array([2]), np.array([1.0]))
BOTH = {"query": QUERY_EDGES, "ad": AD_EDGES}
MADE = {"made_by": "hand", "settings": {"by": "me"}}


@pytest.fixture
def path(dataset_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(dataset_path, tmp_path / "dataset"))


def _content(path: Path) -> dict[str, bytes]:
    return {table: Dataset(path).files(table)[0].read_bytes() for table in Dataset(path).tables}


def test_anchors_without_edges_are_left_out_and_edges_sorted(path: Path) -> None:
    before = _content(path)
    counts = add_anchor_set(path, "more", TEXTS, BOTH, MADE)
    dataset = Dataset(path)
    assert dataset.read("anchors/more").to_pydict() == {
        "anchor_id": [0, 1, 2],
        "text": ["a bird", "a ship", "a tree"],
    }
    assert dataset.read("edges/more/query").to_pydict() == {
        "query_id": [0, 5, 5],
        "anchor_id": [0, 0, 2],
        "weight": [1.0, 2.0, 0.5],
    }
    assert dataset.read("edges/more/ad").to_pydict() == {
        "ad_id": [7],
        "anchor_id": [1],
        "weight": [1.0],
    }
    assert counts["edges/more/query"] == 3
    assert counts["train queries without edges"] == 58
    assert counts["ads without edges"] == 39
    assert dataset.metadata["anchor_sets"] == {"more": MADE}
    assert dataset.metadata["num_rows"]["anchors/more"] == 3
    assert {table: _content(path)[table] for table in before} == before
    assert not list(path.rglob(".*"))
    assert errors_in(dataset) == []


def test_a_side_without_edges_is_left_out(path: Path) -> None:
    add_anchor_set(path, "more", TEXTS, {"query": QUERY_EDGES, "ad": Edges.none()}, MADE)
    assert not Dataset(path).has("edges/more/ad")
    assert errors_in(Dataset(path)) == []


@pytest.mark.parametrize(
    ("name", "edges", "message"),
    [
        ("links", BOTH, "anchor set 'links' already; give another name, or set replace"),
        ("a/b", BOTH, "letters, digits"),
        ("more", {"query": Edges.none()}, "would have no edges"),
    ],
)
def test_what_cannot_be_added_changes_nothing(
    path: Path, name: str, edges: dict[str, Edges], message: str
) -> None:
    before = _content(path)
    with pytest.raises(DatasetError, match=message):
        add_anchor_set(path, name, TEXTS, edges, MADE)
    assert _content(path) == before


def test_a_set_is_replaced_whole(path: Path) -> None:
    add_anchor_set(path, "links", TEXTS, {"query": QUERY_EDGES}, MADE, replace=True)
    dataset = Dataset(path)
    assert dataset.num_rows("anchors/links") == 2
    assert not dataset.has("edges/links/ad")
    assert dataset.has("edges/topics/ad")
    assert errors_in(dataset) == []


@pytest.mark.parametrize("name", ["more", "links"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interruption_leaves_a_sound_dataset(
    path: Path, name: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == call:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            add_anchor_set(path, name, TEXTS, BOTH, MADE, replace=True)
    dataset = Dataset(path)
    assert name not in dataset.anchor_sets
    assert not dataset.has(f"edges/{name}/query")
    assert errors_in(dataset) == []
    add_anchor_set(path, name, TEXTS, BOTH, MADE)
    assert Dataset(path).num_rows(f"anchors/{name}") == 3
    assert errors_in(Dataset(path)) == []


def test_hidden_leftovers_are_not_tables(path: Path) -> None:
    tables = Dataset(path).tables
    shutil.copytree(path / "anchors", path / ".more-x1" / "anchors")
    assert Dataset(path).tables == tables
    add_anchor_set(path, "more", TEXTS, BOTH, MADE)
    counted = json.loads((path / "dataset.json").read_text())["num_rows"]
    assert set(counted) == {*tables, "anchors/more", "edges/more/ad", "edges/more/query"}


def test_files_of_others_are_not_deleted(path: Path) -> None:
    mine = path / "edges" / "more" / "query.parquet"
    mine.parent.mkdir()
    mine.write_bytes(b"the only copy")
    with pytest.raises(DatasetError, match=r"edges/more exists already; move it away"):
        add_anchor_set(path, "more", TEXTS, BOTH, MADE)
    assert mine.read_bytes() == b"the only copy"
    add_anchor_set(path, "more", TEXTS, BOTH, MADE, replace=True)
    assert errors_in(Dataset(path)) == []
