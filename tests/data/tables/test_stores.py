"""Users' tables in stores: an S3-compatible one, Google's without a network, and fsspec's."""

import gzip
import io
import time
from unittest.mock import Mock

import fsspec
import pandas as pd
import pytest
from conftest import free_port
from fsspec.implementations.memory import MemoryFileSystem
from support import the_error
from written_out import clicks_of

from jobs import ingest
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import Columns, Splits, UserTables
from ramen_ray.data.tables.reading import files
from ramen_ray.data.tables.reading.columns import text_column
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.loading import UserTable

BUCKET = "logs"
BY_TIME = Splits(validation_from="2026-03-03", test_from="2026-03-04")
SECONDS_TO_GIVE_UP = 60
DAYS = {
    f"2026-03-0{day}": [(f"query {day}-{n}", f"ad {n % 3}") for n in range(9)]
    for day in range(1, 6)
}


@pytest.fixture(scope="module")
def address(s3):
    """A store with a bucket of clicks."""
    s3.create_bucket(Bucket=BUCKET)
    for name, content in _files().items():
        s3.put_object(Bucket=BUCKET, Key=name, Body=content)
    return s3.meta.endpoint_url


def _files():
    """Return the same clicks as a folder of parquet by days, and as compressed CSV."""
    made = {"days/_SUCCESS": b""}
    for day, rows in DAYS.items():
        parquet = io.BytesIO()
        clicks = pd.DataFrame(rows, columns=["query", "ad"])
        clicks.to_parquet(parquet)
        made[f"days/day={day}/part-0.parquet"] = parquet.getvalue()
        text = clicks.assign(day=day).to_csv(index=False)
        made[f"täglich [1]/{day}.csv.gz"] = gzip.compress(text.encode())
    return made


@pytest.mark.parametrize(
    "source", ["days", "days/day=2026-03-0?/*.parquet", "täglich [1]", "t*/2026-03-0[1-5].csv.gz"]
)
def test_clicks_in_s3_are_imported(source, address, tmp_path):
    clicks = f"s3://{BUCKET}/{source}"
    columns = Columns(clicks_time="day")
    expected = {split: {} for split in SPLITS}
    for day, rows in DAYS.items():
        split = "test" if day >= "2026-03-04" else "train" if day < "2026-03-03" else "validation"
        expected[split] |= {query: [ad] for query, ad in rows}
    made = import_tables(UserTables(clicks, columns=columns, splits=BY_TIME), tmp_path / "made")
    assert {split: clicks_of(made, split) for split in SPLITS} == expected


def test_an_address_may_name_its_store_and_a_bad_one_is_one_line_without_secrets(
    address, tmp_path, run_here, monkeypatch
):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    host = address.removeprefix("http://")
    clicks = f"s3://us:s3cret@{BUCKET}/days?scheme=http&endpoint_override={host}"
    assert len(find_files(clicks, ["query", "day"])) == len(DAYS)
    table = UserTable(clicks, {"query": text_column("query", "refuse")}, skip_bad_rows=False)
    assert "s3cret" not in table.source
    misspelt = clicks.replace(BUCKET, "misspelt")
    for bad in (misspelt, clicks.replace("days", "none")):
        with pytest.raises(DatasetError, match=r"s3://\*\*\*@"):
            find_files(bad, ["query"])
    code, said = run_here(ingest, "tables", "--clicks", misspelt, "--output", tmp_path / "made")
    assert code == 2
    assert "s3://***@" in the_error(said)
    assert "s3cret" not in said
    assert not list(tmp_path.iterdir())


def test_a_google_store_that_does_not_answer_is_given_up_soon(monkeypatch):
    monkeypatch.setattr(files, "GOOGLE_RETRIES_S", 1)
    store = f"scheme=http&endpoint_override=127.0.0.1:{free_port()}"
    start = time.monotonic()
    with pytest.raises(DatasetError, match=r"gs://\*\*\*@"):
        find_files(f"gs://anonymous@bucket/clicks?{store}", ["query"])
    assert time.monotonic() - start < SECONDS_TO_GIVE_UP


def test_other_stores_are_opened_by_fsspec(monkeypatch):
    with fsspec.open("memory://shop/clicks/day=1/a.csv", "wt") as written:
        written.write("query,ad\nhat,1\n")
    (file,) = find_files("memory://shop/clicks", ["query", "day"])
    assert (file.header, file.partitions) == (("query", "ad"), {"day": "1"})
    denied = Mock(side_effect=RuntimeError("HTTP 403: Access Denied"))
    monkeypatch.setattr(MemoryFileSystem, "info", denied)
    with pytest.raises(DatasetError, match="memory://shop/clicks: HTTP 403"):
        find_files("memory://shop/clicks", ["query"])
