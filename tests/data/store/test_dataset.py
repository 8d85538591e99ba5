"""Tables of a dataset directory as streams."""

import hashlib
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramen_ray.data.store import parquet_files
from ramen_ray.data.store.dataset import (
    Dataset,
    DatasetError,
    DatasetWriter,
    open_unchanged,
    write_metadata,
)
from ramen_ray.data.store.schemas import FORMAT_VERSION


@given(st.permutations(range(6)), st.integers(0, 6), st.booleans())
def test_a_table_streams_in_the_order_of_its_ids(tmp_path_factory, ids, cut, is_sorted):
    ids = sorted(ids) if is_sorted else ids
    rows = pa.table({"ad_id": ids, "text": [f"ad {number}" for number in ids]})
    writer = DatasetWriter(tmp_path_factory.mktemp("dataset"))
    folder = writer.folder / "ads.parquet"
    folder.mkdir()
    for number, part in enumerate((rows[:cut], rows[cut:])):
        pq.write_table(part, folder / f"{number}.parquet")
    pq.write_table(rows, folder / ".left.parquet")  # by a program that was killed, say
    write_metadata(writer.folder, {"format_version": FORMAT_VERSION, "name": "made"})
    streamed = pa.Table.from_batches(Dataset(writer.folder).in_order("ads"))
    assert streamed.to_pylist() == [{"ad_id": n, "text": f"ad {n}"} for n in range(6)]


def test_a_dataset_is_unchanged_until_a_table_that_it_had_is_another(copied):
    ads = copied / "ads.parquet"
    before = (copied / "ads.parquet").read_bytes()
    opened = Dataset(copied)
    with opened.unchanged("meanwhile"):
        ads.write_bytes(before)
        shutil.copytree(copied / "edges" / "links", copied / "edges" / "more")
    os.utime(ads, (0, 0))
    again = Dataset(copied)

    def forge():
        ads.write_bytes(before[:-1] + b"!")
        os.utime(ads, (0, 0))

    for change in (forge, ads.unlink):
        with (
            pytest.raises(DatasetError, match="mine"),
            again.unchanged("meanwhile"),
        ):
            change()
            pq.read_table(ads)
    ads.write_bytes(before)
    with pytest.raises(KeyError), opened.unchanged("meanwhile"):
        raise KeyError("another error")
    assert open_unchanged(copied, Dataset(copied).fingerprint, "since").path == copied
    with pytest.raises(DatasetError, match="mine"):
        open_unchanged(copied, opened.fingerprint, "since then")


def test_a_dataset_that_nobody_has_touched_is_read_once(copied, monkeypatch):
    read = []
    digest = hashlib.file_digest

    def counted(stream, name):
        read.append(stream)
        return digest(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    opened = Dataset(copied)
    for _ in range(2):
        with opened.unchanged("meanwhile"):
            assert opened.table_digests
    assert len(read) == len(opened.tables)


def test_the_same_rows_give_the_same_bytes_however_they_come(tmp_path, monkeypatch):
    """Also where texts are too many for one array: then row groups are cut by their bytes."""
    monkeypatch.setattr(parquet_files, "ROWS_PER_GROUP", 100)
    monkeypatch.setattr(parquet_files, "BYTES_PER_GROUP", 4000)
    texts = [f"text {n} " * (1 + n % 17) for n in range(1000)]
    rows = pa.table({"ad_id": range(1000), "text": texts})
    for name, size in (("one", 1000), ("many", 7)):
        DatasetWriter(tmp_path / name).write("ads", rows.to_batches(max_chunksize=size))
    one, many = (tmp_path / name / "ads.parquet" for name in ("one", "many"))
    assert one.read_bytes() == many.read_bytes()
    assert pq.read_table(many)["text"].to_pylist() == texts
    footer = pq.read_metadata(many)
    assert 10 < footer.num_row_groups < 100
