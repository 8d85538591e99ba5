"""A user's own edges, in every format; all errors in them are reported at once."""

import re
from collections import defaultdict

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import (
    errors_in,
    query_table,
    text_table,
    with_ids,
    with_tables,
    write_frame,
    write_rows,
)
from written_out import column_of

from ramen_ray.data.engine import engine, stream
from ramen_ray.data.store import parquet_files
from ramen_ray.data.store.dataset import (
    Dataset,
    DatasetError,
    DatasetWriter,
    write_dataset,
    write_metadata,
)
from ramen_ray.data.store.schemas import schema_of
from ramen_ray.data.tables.graphs import anchor_sets
from ramen_ray.data.tables.graphs.edges import (
    EdgeColumns,
    EdgeList,
    add_edge_list,
    open_tables,
    write_edge_list,
)

TRAIN = ["red shoes", "blue hat", "red shoes", "7"]
ADS = ["shoe shop", "hat shop", "0"]


@pytest.fixture
def path(tmp_path):
    tables = {"ads": text_table("ad_id", ADS)}
    for split, texts in (("train", TRAIN), ("validation", ["silk"]), ("test", ["silk tie"])):
        tables[f"queries/{split}"] = query_table(texts, [[0]] * len(texts))
    return write_dataset(tmp_path / "shop", tables, name="shop").path


def _edges(path, side, name="mine"):
    dataset = Dataset(path)
    assert errors_in(dataset) == []
    anchors = column_of(dataset, f"anchors/{name}")
    rows = dataset.read(f"edges/{name}/{side}").to_pylist()
    return {(row[f"{side}_id"], anchors[row["anchor_id"]]): row["weight"] for row in rows}


def _add(path, **given):
    """Add the edges; columns are given by their names in :class:`EdgeColumns`."""
    names = EdgeColumns.__dataclass_fields__
    columns = EdgeColumns(**{name: given.pop(name) for name in names if name in given})
    replace = given.pop("replace", False)
    return add_edge_list(path, "mine", EdgeList(**given, columns=columns), replace)


EDGE_ROWS = st.lists(
    st.tuples(st.sampled_from(TRAIN), st.sampled_from("abcdefgh"), st.integers(1, 999)), min_size=1
)


@settings(max_examples=7, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=EDGE_ROWS, rows_per_batch=st.integers(1, 40), listed=st.booleans())
def test_edges_in_batches_are_those_of_a_loop(rows, rows_per_batch, listed, path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("edges")
    expected = defaultdict(float)
    for query, anchor, weight in rows:
        for node in [number for number, text in enumerate(TRAIN) if text == query]:
            expected[node, anchor.upper() if listed else anchor] += weight / 8
    links = pd.DataFrame(rows, columns=["query", "anchor", "weight"])
    links["weight"] /= 8
    links.to_parquet(folder / "links.parquet", row_group_size=5)
    anchors = pd.DataFrame({"anchor_id": [*"hgfedcba"], "text": [*"HGFEDCBA"]})

    def sliced(connection, sql, *_):
        for batch in stream(connection, sql):
            for start in range(0, len(batch), rows_per_batch):
                yield batch.slice(start, rows_per_batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anchor_sets, "stream", sliced)
        patch.setattr(parquet_files, "ROWS_PER_GROUP", rows_per_batch)
        counts = _add(
            path,
            replace=True,
            query_edges=str(folder / "links.parquet"),
            edges_weight="weight",
            anchors=write_frame(anchors, folder / "anchors.csv") if listed else None,
        )
    assert _edges(path, "query") == expected
    used = list(dict.fromkeys(anchor for _, anchor, _ in rows))
    in_order = [anchor.upper() for anchor in sorted(used)[::-1]] if listed else used
    assert column_of(Dataset(path), "anchors/mine") == in_order
    assert counts["edges/mine/query"] == len(expected)
    assert counts["train queries without edges"] == 4 - len({node for node, _ in expected})
    assert [file.name for file in path.glob(".*")] == [".lock"]


def _write_edges(folder, dataset, edge_list, threads, memory=None):
    tables = open_tables(edge_list, dataset.metadata)
    with engine(folder, memory, dataset) as connection:
        connection.execute(f"SET threads = {threads}")
        writer = DatasetWriter(folder)
        write_edge_list(connection, dataset, edge_list, tables, "mine", writer)


def test_a_long_table_of_edges_needs_little_memory(path, tmp_path):
    rows = pa.table({"query": TRAIN[:2] * 400_000, "anchor": [f"an anchor {'x' * 90}"] * 800_000})
    pq.write_table(rows, tmp_path / "links.parquet")
    edge_list = EdgeList(query_edges=str(tmp_path / "links.parquet"), protocol="as-published")
    _write_edges(tmp_path, Dataset(path), edge_list, 1, "60MB")
    weights = pq.read_table(tmp_path / "edges" / "mine" / "query.parquet")["weight"]
    assert weights.to_pylist() == [400_000.0] * 3


def test_all_errors_are_reported_together_or_their_rows_left_out(path, tmp_path):
    query_edges = tmp_path / "queries.csv"
    ad_edges = tmp_path / "ads.csv"
    query_edges.write_text(
        "query,anchor,w\n"
        "red shoes,felt,1\n"
        "silk ties,felt,1\n"
        ",felt,1\n"
        "blue hat,,1\n"
        "blue hat,felt,none\n"
        "blue hat,felt,-1\n"
        "blue hat,felt,1,2\n"
        "blue hat,felt,3\n"
    )
    ad_edges.write_text("ad_id,anchor,w\n1,wool,inf\n1,wool,1\n99,felt,1\n1,felt,1\n")
    anchors = tmp_path / "anchors.csv"
    anchors.write_text("anchor_id,text\nfelt,Felt\nfelt,Felt again\ntweed,\n")
    given = {"query_edges": str(query_edges), "ad_edges": str(ad_edges), "edges_weight": "w"}
    given["anchors"] = str(anchors)
    with pytest.raises(DatasetError) as raised:
        _add(path, **given)
    assert re.findall(r"\w+\.csv, row \d(?:, column '\w+')?: \d", str(raised.value)) == [
        "anchors.csv, row 4, column 'text': 1",
        "anchors.csv, row 3, column 'anchor_id': 1",
        "queries.csv, row 8: 1",
        "queries.csv, row 4, column 'query': 1",
        "queries.csv, row 5, column 'anchor': 1",
        "queries.csv, row 6, column 'w': 2",
        "queries.csv, row 3, column 'query': 1",
        "ads.csv, row 2, column 'w': 1",
        "ads.csv, row 4, column 'ad_id': 1",
        "ads.csv, row 3, column 'anchor': 1",
    ]
    assert Dataset(path).anchor_sets == []
    counts = _add(path, **given, skip_bad_rows=True)
    assert _edges(path, "query") == {(0, "Felt"): 1.0, (2, "Felt"): 1.0, (1, "Felt"): 3.0}
    assert _edges(path, "ad") == {(1, "Felt"): 1.0}
    assert sum(n for what, n in counts.items() if what.startswith(("cells", "rows", "unre"))) == 11


def test_no_edges_are_an_error(path, tmp_path):
    with pytest.raises(DatasetError, match="give query_edges"):
        _add(path)
    for query, message in (("none", "none.csv has no rows"), ("silk", "no edges: 1 query edges")):
        source = write_rows(tmp_path / f"{query}.csv", "query anchor", [(query, "felt")])
        with pytest.raises(DatasetError, match=message):
            _add(path, query_edges=source, skip_bad_rows=True)


def test_ids_precede_texts_also_those_that_the_import_merged_or_left_out(path, tmp_path):
    tables = {}
    ids = {"queries/train": [*"789", "10"], "queries/test": ["blue hat"], "ads": [*"xyz"]}
    for table, own in ids.items():
        tables[table] = Dataset(path).read(table).append_column("source_id", [own])
    merged = {
        "query": {"m7": "7", "m of test": "blue hat", "gone": None},
        "ad": {"mx": "x", "gone": None, "hat shop": "x"},
    }
    for side, of in merged.items():
        schema = schema_of(f"aliases/{side}")
        tables[f"aliases/{side}"] = pa.table([[*of], [*of.values()]], schema)
    shop = with_tables(Dataset(path), tmp_path / "with_ids", tables).path
    queries = ["7", "red shoes", "blue hat", "8", "m7", "m of test", "gone", "gone"]
    links = zip(queries, "abcdefgh", strict=True)
    ad_links = zip(["mx", "gone", "y", "hat shop"], "abcd", strict=True)
    counts = _add(
        shop,
        query_edges=write_rows(tmp_path / "links.csv", "q to", links),
        ad_edges=write_rows(tmp_path / "ad_links.csv", "ad_id to", ad_links),
        edges_query="q",
        edges_anchor="to",
    )
    of_queries = [(0, "a"), (0, "b"), (2, "b"), (1, "d"), (0, "e")]
    assert _edges(shop, "query") == dict.fromkeys(of_queries, 1.0)
    assert _edges(shop, "ad") == {(0, "a"): 1.0, (1, "c"): 1.0, (0, "d"): 1.0}
    assert {what: n for what, n in counts.items() if " edges of " in what} == {
        "query edges of validation and test queries": 2,
        "query edges of queries that the import left out": 2,
        "ad edges of ads that the import left out": 1,
    }


@pytest.mark.parametrize("table", ["queries/train", "ads"])
def test_anchors_that_are_ids_are_said_with_the_flag_for_their_texts(table, path, tmp_path, caplog):
    rows = with_ids(Dataset(path).read(table), "id ")
    ids = rows["source_id"].to_pylist()
    shop = with_tables(Dataset(path), tmp_path / "with_ids", {table: rows}).path
    for anchors, number in (([*ids, "felt"], len(ids)), ([ids[0], "felt"], 0), (ADS, 0)):
        links = [(TRAIN[1], anchor) for anchor in anchors]
        source = write_rows(tmp_path / "links.csv", "query anchor", links)
        caplog.clear()
        _add(shop, query_edges=source, replace=True)
        what = table.partition("/")[0]
        said = [f"{number} of {number + 1} anchors are ids of {what}", "--anchors", "'anchor'"]
        assert all(words in caplog.text for words in said) if number else not caplog.records


@pytest.mark.parametrize("by_text", [True, False])
def test_texts_are_normalized_if_those_of_the_dataset_were(by_text, path, tmp_path):
    imported = {"normalize_texts": True, "queries": None if by_text else "queries.csv"}
    write_metadata(path, {**Dataset(path).metadata, "imported": imported})
    links = [("blue \u00a0 hat", "felt"), ("ｂlue hat", "felt")]
    source = write_rows(tmp_path / "links.csv", "query anchor", links)
    if by_text:
        _add(path, query_edges=source)
        assert _edges(path, "query") == {(1, "felt"): 2.0}
    else:
        with pytest.raises(DatasetError, match="column 'query': 2 rows"):
            _add(path, query_edges=source)
