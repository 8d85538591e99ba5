"""Tables of a dataset directory as streams."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramen_ray.data.store.dataset import FORMAT_VERSION, Dataset, DatasetWriter, write_metadata


@given(st.permutations(range(6)), st.integers(0, 6), st.booleans())
def test_a_table_streams_in_the_order_of_its_ids(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], cut: int, is_sorted: bool
) -> None:
    ids = sorted(ids) if is_sorted else ids
    rows = pa.table({"ad_id": ids, "text": [f"ad {number}" for number in ids]})
    writer = DatasetWriter(tmp_path_factory.mktemp("dataset"))
    for number, part in enumerate((rows[:cut], rows[cut:])):
        pq.write_table(part, writer.part("ads", number))
    write_metadata(writer.folder, {"format_version": FORMAT_VERSION, "name": "made"})
    streamed = pa.Table.from_batches(Dataset(writer.folder).in_order("ads"))
    assert streamed.to_pylist() == [{"ad_id": n, "text": f"ad {n}"} for n in range(6)]
