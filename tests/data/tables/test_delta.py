"""Delta tables: the live files of a version are read, and no others."""

import json
import struct
import sys
import zlib
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import errors_in

from ramen_ray.data.splits.judged import JudgedTable, add_judgements
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import Columns, Splits, UserTables
from ramen_ray.data.tables.graphs.edges import EdgeList, add_edge_list

deltalake = pytest.importorskip("deltalake", reason="pip install -e '.[delta]'")

DAYS = [f"2026-10-{day:02d} 00:00" for day in range(1, 11)]
COLUMNS = Columns(clicks_time="day", clicks_weight="clicks", clicks_views="views")
SPLIT = Splits(validation_from=DAYS[7], test_from=DAYS[8])


def _log(number):
    """Return rows of clicks and impressions, other ones for another number."""
    rows = [
        (
            f"query {(day + row) % 40}",
            f"ad {(number + row) % 9}",
            DAYS[day],
            row % 3,
            4,
            f"s{day}-{row // 5}",
        )
        for day in range(10)
        for row in range(30)
    ]
    return pd.DataFrame(rows, columns=["query", "ad", "day", "clicks", "views", "session"])


def _tables(folder, name, versions, **how):
    """Write a Delta table, of which each version replaces the last, and parquet of the last."""
    delta = folder / name
    plain = folder / f"{name}.parquet"
    for frame in versions:
        deltalake.write_deltalake(delta, pa.table(frame), mode="overwrite", **how)
    pq.write_table(pa.table(versions[-1]), plain)
    return delta, plain


def test_live_files_of_a_version_are_read_and_the_version_is_of_the_identity(tmp_path):
    first = _log(0)
    last = _log(4)
    delta, plain = _tables(tmp_path, "clicks", [first, last], partition_by=["day"])
    old = tmp_path / "old.parquet"
    pq.write_table(pa.table(first), old)
    settings = UserTables(str(delta), columns=COLUMNS, splits=SPLIT, weights="coec")

    def imported(source):
        folder = tmp_path / f"made-{len([*tmp_path.iterdir()])}"
        return import_tables(replace(settings, clicks=str(source)), folder)

    latest = imported(delta)
    last_rows = imported(plain)
    assert latest.table_digests == last_rows.table_digests
    older = imported(f"{delta}@v0")
    assert older.table_digests == imported(old).table_digests != latest.table_digests
    recorded = latest.metadata["imported"]["clicks"]
    assert recorded == f"{delta}@v1"
    assert imported(recorded).fingerprint == latest.fingerprint
    deltalake.write_deltalake(delta, pa.table(last), mode="overwrite")
    later = imported(delta)
    assert later.table_digests == latest.table_digests
    assert len({later.fingerprint, latest.fingerprint, last_rows.fingerprint}) == 3


def test_edges_and_judgements_are_read_too(tmp_path):
    log = _log(2)
    edges = pd.DataFrame({"query": log["query"], "anchor": log["session"]})
    grades = pd.DataFrame({"query": log["query"], "ad": log["ad"], "grade": 0.5, "source": "me"})
    written = [
        _tables(tmp_path, name, [frame[:9], frame])
        for name, frame in (("log", log), ("edges", edges), ("grades", grades))
    ]
    made = []
    for number, name in enumerate(("delta", "plain")):
        sources = [str(pair[number]) for pair in written]
        columns = Columns(clicks_time="day", clicks_weight="clicks")
        dataset = import_tables(UserTables(sources[0], columns=columns), tmp_path / "m" / name)
        add_edge_list(dataset.path, "links", EdgeList(sources[1], skip_bad_rows=True))
        made.append(
            add_judgements(Dataset(dataset.path), JudgedTable(sources[2], skip_bad_rows=True))
        )
        assert errors_in(made[-1]) == []
    ours, theirs = made
    assert ours.tables == theirs.tables
    for table in ours.tables:
        assert ours.read(table).equals(theirs.read(table)), table
    assert ours.fingerprint != theirs.fingerprint
    assert ours.metadata["judged"]["judged"].endswith("grades@v1")
    sets = ours.metadata["anchor_sets"]
    assert sets["links"]["settings"]["query_edges"].endswith("edges@v1")


ROWS = pa.table({"query": [f"q{n}" for n in range(60)], "ad": ["a", "b"] * 30})


def _write(folder, features=(), **changes):
    """Write a table, and change entries of its log, as other writers may have."""
    deltalake.write_deltalake(folder, ROWS)
    reader = {"minReaderVersion": 3, "minWriterVersion": 7}
    changes["protocol"] = {**reader, "readerFeatures": features, "writerFeatures": features}
    log = folder / "_delta_log" / f"{0:020}.json"
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    for entry in entries:
        for kind in entry.keys() & changes.keys():
            entry[kind] |= changes[kind]
    log.write_text("\n".join(map(json.dumps, entries)))


def _vector(file):
    """Write a deletion vector of a file's first row, in the format of Delta's protocol."""
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 0)  # a roaring bitmap of the number 0
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    checksum = struct.pack(">I", zlib.crc32(data))
    file.write_bytes(b"\x01" + struct.pack(">I", len(data)) + data + checksum)
    place = {"storageType": "p", "pathOrInlineDv": file.as_uri(), "offset": 1}
    return {**place, "sizeInBytes": len(data), "cardinality": 1}


def test_what_its_files_alone_do_not_say_is_refused_by_name(tmp_path, monkeypatch):
    vector = _vector(tmp_path / "vector.bin")
    mapping = "delta.columnMapping"
    fields = [
        {
            "name": name,
            "type": "string",
            "nullable": True,
            "metadata": {f"{mapping}.id": number, f"{mapping}.physicalName": f"col-{number}"},
        }
        for number, name in enumerate(ROWS.column_names, 1)
    ]
    mapped = {
        "configuration": {f"{mapping}.mode": "name"},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
    }
    tables = {
        "deletion vectors": (["deletionVectors"], {"add": {"deletionVector": vector}}),
        "column mapping": (["columnMapping"], {"metaData": mapped}),
        "gone.parquet is gone": ([], {"add": {"path": "gone.parquet"}}),
    }
    for number, (said, (features, changes)) in enumerate(tables.items()):
        _write(tmp_path / str(number), features, **changes)
        with pytest.raises(DatasetError, match=said):
            import_tables(UserTables(str(tmp_path / str(number))), tmp_path / "out")
    empty = tmp_path / "empty"
    deltalake.write_deltalake(empty, ROWS)
    deltalake.DeltaTable(empty).delete()
    with pytest.raises(DatasetError, match="no files"):
        import_tables(UserTables(str(empty)), tmp_path / "out")
    fine = tmp_path / "fine"
    _write(fine, ["deletionVectors"])
    assert import_tables(UserTables(str(fine)), tmp_path / "out").num_rows("ads") == 2
    for source in (f"{fine}@v9", f"{fine}/a.parquet@v0", f"{fine}@v-1"):
        with pytest.raises(DatasetError):
            import_tables(UserTables(source), tmp_path / "none")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(DatasetError, match="pip install deltalake"):
        import_tables(UserTables(str(fine)), tmp_path / "none")
    assert not (tmp_path / "none").exists()
