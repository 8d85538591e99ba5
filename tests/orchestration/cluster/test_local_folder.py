"""Workers read a machine's copies of shared folders, or the folders if they cannot be copied."""

import time

import pytest
from short_runs import run_two_workers

from ramen_ray.data.store.made_folder import write_checksums
from ramen_ray.method.sampling.training_data import Regularizer
from ramen_ray.orchestration.cluster import local_folder
from ramen_ray.orchestration.cluster.local_folder import LocalFolder

SIDES = [Regularizer("links", "query"), Regularizer("links", "ad"), Regularizer("topics", "ad")]


def _write(folder, size=4):
    folder.mkdir(parents=True)
    (folder / "indices.npy").write_bytes(b"x" * size)
    write_checksums(folder)
    return folder


@pytest.fixture
def walked(tmp_path):
    """Two graphs that a run draws from, and one that it does not."""
    folder = tmp_path / "shared" / "walked"
    for name in ("links/query", "links/ad", "topics/ad", "topics/query"):
        _write(folder / name)
    return folder


def test_graphs_of_a_run_are_copied_and_forgotten(walked, tmp_path):
    local = LocalFolder(tmp_path / "disk")
    copies = local.copy_of_graphs(walked, SIDES)
    assert copies.is_relative_to(tmp_path / "disk")
    found = {str(file.parent.relative_to(copies)) for file in copies.rglob("*.npy")}
    assert found == {one.path for one in SIDES}
    assert local.copy_of_graphs(walked, []) == walked
    LocalFolder(tmp_path / "disk", is_first=False).forget(walked)
    assert copies.exists(), "others of the machine leave it to the first"
    local.forget(walked)
    assert not copies.exists()
    assert len(list(walked.rglob("*.npy"))) == 4


def test_what_does_not_fit_is_read_where_it_is(walked, small_disk, caplog):
    large = _write(walked / "large" / "ad", 300_000)
    local = LocalFolder(small_disk)
    assert local.copy_of(large) == large
    (record,) = caplog.records
    assert "large/ad" in record.message
    graphs = [*SIDES, Regularizer("large", "ad")]
    assert local.copy_of_graphs(walked, graphs) == walked, "not some here and some there"


def test_damage_is_not_copied(walked, tmp_path, caplog):
    (walked / "links" / "ad" / "indices.npy").write_bytes(b"y")
    local = LocalFolder(tmp_path / "disk")
    assert local.copy_of_graphs(walked, SIDES) == walked
    assert "indices.npy" in caplog.text
    assert not list((tmp_path / "disk").rglob("links/ad/*.npy"))


def test_a_folder_that_cannot_be_written_is_done_without(walked, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    local = LocalFolder(tmp_path / "file")
    assert local.copy_of(walked / "links" / "ad") == walked / "links" / "ad"
    assert "links/ad" in caplog.text


def _copy_in_one_of_two(rank, folder):
    copy = local_folder._copy_files

    def slowly(*arguments):
        assert rank == 0
        time.sleep(1)
        copy(*arguments)

    local_folder._copy_files = slowly
    local_folder.SECONDS_BETWEEN_SIGNS = 0.3
    local = LocalFolder(folder / "disk", is_first=rank == 0)
    copied = local.copy_of(folder / "shared")
    assert (copied / "indices.npy").read_bytes() == b"xxxx"
    assert copied.is_relative_to(folder / "disk")


def test_all_workers_of_a_machine_wait_for_its_first(tmp_path):
    _write(tmp_path / "shared")
    run_two_workers(_copy_in_one_of_two, tmp_path)
