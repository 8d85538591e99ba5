"""Adding an anchor set: the dataset afterwards, and after an interruption at any point."""

import json
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import contents_of, ended_by, errors_in, write_rows
from written_out import column_of

from jobs import graph
from ramen_ray.data.checks import validation
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.made_folder import in_use
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import UserTables
from ramen_ray.data.tables.graphs import edges
from ramen_ray.data.tables.graphs.anchor_sets import folder_beside, made_by, put_in_place
from ramen_ray.data.tables.graphs.edges import EdgeColumns, EdgeList, add_edge_list

QUERY_EDGES = [("5", "a tree", 0.5), ("0", "a bird", 1.0), ("5", "a bird", 2.0)]
AD_EDGES = [("7", "a ship", 1.0)]
SIDES = ("query", "ad")


def _add(copied, name, sides=SIDES, replace=False):
    given = {}
    for side, rows in zip(SIDES, (QUERY_EDGES, AD_EDGES), strict=True):
        if side in sides:
            table = copied.parent / f"{name.replace('/', '-')}-{side}.csv"
            given[f"{side}_edges"] = write_rows(table, f"{side} anchor weight", rows)
    columns = EdgeColumns(edges_ad="ad", edges_weight="weight")
    return add_edge_list(copied, name, EdgeList(**given, columns=columns), replace)


def test_a_set_is_added_and_nothing_else_changes(copied):
    before = contents_of(copied)
    counts = _add(copied, "more")
    dataset = Dataset(copied)
    anchors = column_of(dataset, "anchors/more")
    for side, given in zip(SIDES, (QUERY_EDGES, AD_EDGES), strict=True):
        rows = [tuple(row.values()) for row in dataset.read(f"edges/more/{side}").to_pylist()]
        assert rows == sorted(rows)
        found = [(str(node), anchors[anchor], weight) for node, anchor, weight in rows]
        assert sorted(found) == sorted(given)
    assert (counts["train queries without edges"], counts["ads without edges"]) == (58, 39)
    assert dataset.metadata["anchor_sets"]["more"]["made_by"] == "edges"
    assert dataset.metadata["num_rows"]["anchors/more"] == 3
    after = contents_of(copied)
    assert {file for file in before if after[file] != before[file]} == {"dataset.json"}
    assert [file.name for file in copied.rglob(".*")] == [".lock"]
    assert errors_in(dataset) == []


def test_what_was_checked_as_it_was_written_is_not_validated_again(tmp_path, monkeypatch):
    rows = [(f"q{number}", f"a{number % 9}") for number in range(60)]
    clicks = write_rows(tmp_path / "clicks.csv", "query ad", rows)
    path = import_tables(UserTables(str(clicks)), tmp_path / "made").path
    with monkeypatch.context() as patch:
        patch.setattr(validation, "_Tables", None)
        _add(path, "more")
        _add(path, "others")
    ads = Dataset(path).read("ads").to_pylist()
    ads[3]["text"] = ""
    pq.write_table(pa.Table.from_pylist(ads, Dataset(path).schema("ads")), path / "ads.parquet")
    with pytest.raises(DatasetError, match=r"ads\.parquet, row 3, column 'text'"):
        _add(path, "third")
    for checked in ({}, 5):  # by hand
        metadata = {**Dataset(path).metadata, "checked": checked}
        (path / "dataset.json").write_text(json.dumps(metadata))
        assert not Dataset(path).is_checked


@pytest.mark.parametrize(("name", "message"), [("links", "'links' already"), ("a/b", "a/b")])
def test_what_cannot_be_added_changes_nothing(copied, name, message):
    before = contents_of(copied)
    with pytest.raises(DatasetError, match=message):
        _add(copied, name)
    assert contents_of(copied) == before


@pytest.mark.parametrize("name", ["more", "links"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_interruption_leaves_a_sound_dataset(copied, name, call, monkeypatch):
    calls = []
    rename = Path.rename

    def interrupted(self, target):
        calls.append(target)
        if len(calls) == call:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _add(copied, name, replace=True)
    dataset = Dataset(copied)
    assert name not in dataset.anchor_sets
    assert not dataset.has(f"edges/{name}/query")
    assert errors_in(dataset) == []
    _add(copied, name)
    assert Dataset(copied).num_rows(f"anchors/{name}") == 3


def test_jobs_that_run_at_once_keep_each_others_sets(copied, monkeypatch):
    others = ["first", "second", "links"]
    write = edges.write_edge_list

    def slow(*arguments):
        while others:  # these begin later and end earlier
            _add(copied, others.pop(), replace=True)
        return write(*arguments)

    monkeypatch.setattr(edges, "write_edge_list", slow)
    _add(copied, "more")
    dataset = Dataset(copied)
    assert dataset.metadata["anchor_sets"].keys() == {"first", "second", "more", "links"}
    counts = {table: dataset.num_rows(table) for table in dataset.tables}
    assert dataset.metadata["num_rows"] == counts
    assert counts["anchors/more"] == counts["anchors/first"] == 3
    assert errors_in(dataset) == []


def test_what_killed_processes_left_is_no_table_and_is_removed(copied, caplog):
    tables = Dataset(copied).tables
    with folder_beside(Dataset(copied)) as left:
        shutil.copytree(copied / "anchors", left / "anchors")
        killed = shutil.copytree(left.parent, copied / ".ramen_ray-0a1b_c2d")
        assert Dataset(copied).tables == tables
        caplog.set_level("INFO")
        _add(copied, "more")
        assert left.exists()
        assert not killed.exists()
        assert f"{killed}: left by a killed process, and removed" in caplog.messages
    counted = json.loads((copied / "dataset.json").read_text())["num_rows"]
    assert set(counted) == {*tables, "anchors/more", "edges/more/ad", "edges/more/query"}


def test_edges_are_not_added_to_other_nodes_than_they_were_made_for(copied):
    dataset = Dataset(copied)
    before = dataset.tables
    with folder_beside(dataset) as aside:
        rows = dataset.read("ads")
        pq.write_table(rows.set_column(1, "text", rows["text"][::-1]), copied / "ads.parquet")
        with pytest.raises(DatasetError, match="mine"):
            put_in_place(aside, dataset, "more", {}, replace=False)
    assert Dataset(copied).tables == before


def test_a_dataset_that_a_training_holds_does_not_change_until_it_ends(copied, refused, done):
    with in_use(copied), in_use(copied):
        said = refused(graph, "remove", copied, "--name", "links")
        assert str(copied) in said
        with pytest.raises(DatasetError, match="in use by a job"):
            _add(copied, "more")
    assert Dataset(copied).anchor_sets == ["links", "topics"]
    holds = (
        "import signal\nfrom pathlib import Path\n"
        "from ramen_ray.data.store.made_folder import in_use\n"
        f"with in_use(Path({str(copied)!r})): print('begun', flush=True), signal.pause()"
    )
    assert ended_by(signal.SIGKILL, holds)[0] == -signal.SIGKILL
    said = refused(graph, "remove", copied, "--name", "seller")
    assert "'seller'" in said
    done(graph, "remove", copied, "--name", "links")
    assert Dataset(copied).anchor_sets == ["topics"]
    assert errors_in(Dataset(copied)) == []


def test_how_a_set_was_made_names_no_password():
    made = made_by("edges", EdgeList("s3://me:secret@bucket/edges.csv"))
    assert made["settings"]["query_edges"] == "s3://***@bucket/edges.csv"
