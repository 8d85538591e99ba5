"""A user's own edges, in every format; all errors in them are reported at once."""

import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import errors_in, query_table, text_table

from ramen_ray.data.graphs import edge_joining
from ramen_ray.data.graphs.edge_import import add_edge_list
from ramen_ray.data.graphs.edge_joining import first_of_each
from ramen_ray.data.graphs.edge_lists import EdgeList
from ramen_ray.data.graphs.edge_staging import NAMES
from ramen_ray.data.sources import pieces
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset

TRAIN, ADS = ["red shoes", "blue hat", "red shoes", "7"], ["shoe shop", "hat shop", "0"]
LINKS = pd.DataFrame(
    {
        "query": ["red shoes", "3", " blue hat ", "blue hat", "7", "blue hat"],
        "anchor": ["footwear", "numbers", "headwear", "felt, wool", "numbers", " headwear"],
        "weight": [1.0, 0.5, 2.0, 1.5, 0.25, 1.0],
    }
)
QUERY_EDGES = {  # "7" is query 3's text, and "3" its number; the repeated edges are added up
    (0, "footwear"): 1.0,
    (2, "footwear"): 1.0,
    (3, "numbers"): 0.75,
    (1, "headwear"): 3.0,
    (1, "felt, wool"): 1.5,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tables = {"ads": text_table("ad_id", ADS)}
    for split, texts in (("train", TRAIN), ("validation", ["silk"]), ("test", ["silk tie"])):
        tables[f"queries/{split}"] = query_table(texts, [[0]] * len(texts))
    return write_dataset(tmp_path / "shop", tables, name="shop").path


@pytest.fixture
def path_with_ids(path: Path, tmp_path: Path) -> Path:
    tables = {name: Dataset(path).read(name) for name in Dataset(path).tables}
    for name, ids in (
        ("queries/train", ["7", "8", "9", "10"]),
        ("queries/test", ["blue hat"]),
        ("ads", ["x", "y", "z"]),
    ):
        tables[name] = tables[name].append_column("source_id", [ids])
    return write_dataset(tmp_path / "shop_with_ids", tables, name="shop").path


def _write(frame: pd.DataFrame, file: Path) -> str:
    match file.suffix:
        case ".csv":
            frame.to_csv(file, index=False)
        case ".jsonl":
            frame.to_json(file, orient="records", lines=True)
        case ".parquet":
            frame.to_parquet(file)
    return str(file)


def _edges(path: Path, side: str, name: str = "mine") -> dict[tuple[int, str], float]:
    dataset = Dataset(path)
    assert errors_in(dataset) == []
    anchors = dataset.read(f"anchors/{name}")["text"].to_pylist()
    rows = dataset.read(f"edges/{name}/{side}").to_pylist()
    return {(row[f"{side}_id"], anchors[row["anchor_id"]]): row["weight"] for row in rows}


def _add(path: Path, **edge_list: Any) -> dict[str, int]:
    return add_edge_list(path, "mine", EdgeList(**edge_list))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("piece_size", [20, 1 << 20])
def test_every_format_gives_the_edges(
    suffix: str, piece_size: int, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "BYTES_PER_PIECE", piece_size)
    source = _write(LINKS, tmp_path / f"links{suffix}")
    counts = _add(path, query_edges=source, weight_column="weight")
    assert _edges(path, "query") == QUERY_EDGES
    assert counts["repeated query edges merged"] == 2
    assert counts["anchors/mine"] == 4
    assert Dataset(path).metadata["anchor_sets"]["mine"]["made_by"] == "edges"


EDGE_ROWS = st.lists(
    st.tuples(st.sampled_from(TRAIN), st.sampled_from("abcdefgh"), st.integers(1, 999)), min_size=1
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=EDGE_ROWS, rows_per_part=st.integers(1, 40), listed=st.booleans())
def test_edges_in_parts_are_those_of_a_plain_loop(
    rows: list[tuple[str, str, int]],
    rows_per_part: int,
    listed: bool,
    path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("edges")
    expected: dict[tuple[int, str], float] = defaultdict(float)
    for query, anchor, weight in rows:
        for node in [number for number, text in enumerate(TRAIN) if text == query]:
            expected[node, anchor.upper() if listed else anchor] += weight / 8
    links = pd.DataFrame(rows, columns=["query", "anchor", "weight"])
    links["weight"] /= 8
    links.to_parquet(folder / "links.parquet", row_group_size=5)
    anchors = pd.DataFrame({"anchor_id": [*"hgfedcba"], "text": [*"HGFEDCBA"]})
    edge_list = EdgeList(
        query_edges=str(folder / "links.parquet"),
        weight_column="weight",
        anchors=_write(anchors, folder / "anchors.csv") if listed else None,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edge_joining, "ROWS_PER_PART", rows_per_part)
        patch.setattr(edge_joining, "ROWS_PER_GROUP", rows_per_part)
        patch.setattr(edge_joining, "BYTES_PER_CHUNK", rows_per_part)
        counts = add_edge_list(path, "mine", edge_list, replace=True, run=_last_one_first)
    assert _edges(path, "query") == expected
    assert counts["edges/mine/query"] == len(expected)
    assert counts["train queries without edges"] == 4 - len({node for node, _ in expected})
    assert [file.name for file in path.glob(".*")] == [".lock"]


def test_names_of_more_bytes_than_an_arrow_array_holds(tmp_path: Path) -> None:
    num_rows = 1100  # of 1 MiB each, twice
    with (tmp_path / "zeros").open("wb") as zeros:
        zeros.truncate(num_rows << 20)  # takes no room on the disk
    texts = pa.memory_map(str(tmp_path / "zeros")).read_buffer()
    offsets = pa.py_buffer((np.arange(num_rows + 1) << 20).astype(np.int32))
    half = pa.StringArray.from_buffers(num_rows, offsets, texts)
    hashes = np.arange(2 * num_rows, dtype=np.uint64) % 3
    names = pa.table([hashes, pa.chunked_array([half, half])], schema=NAMES)
    found = first_of_each(names)
    assert found["hash"].to_pylist() == [0, 1, 2]
    assert pc.binary_length(found["text"]).to_pylist() == [1 << 20] * 3


def _last_one_first(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    return [task() for task in reversed(tasks)][::-1]


def test_the_order_of_a_datasets_rows_does_not_matter(path: Path, tmp_path: Path) -> None:
    links = _write(LINKS, tmp_path / "links.csv")
    ads = _write(pd.DataFrame({"ad_id": ["hat shop"], "anchor": ["felt"]}), tmp_path / "ads.csv")
    for table, id_column in (("queries/train", "query_id"), ("ads", "ad_id")):
        rows = Dataset(path).read(table).sort_by([(id_column, "descending")])
        pq.write_table(rows, path / f"{table}.parquet")
    _add(path, query_edges=links, ad_edges=ads, weight_column=None)
    assert _edges(path, "query").keys() == QUERY_EDGES.keys()
    assert _edges(path, "ad") == {(1, "felt"): 1.0}


def test_the_users_ids_take_precedence(path_with_ids: Path, tmp_path: Path) -> None:
    links = pd.DataFrame({"q": ["7", "red shoes"], "to": ["numbers", "footwear"]})
    source = _write(links, tmp_path / "links.csv")
    _add(path_with_ids, query_edges=source, query_column="q", anchor_column="to")
    assert _edges(path_with_ids, "query") == {
        (0, "numbers"): 1.0,
        (0, "footwear"): 1.0,
        (2, "footwear"): 1.0,
    }


def test_anchors_by_id_and_both_sides(path: Path, tmp_path: Path) -> None:
    anchors = pd.DataFrame({"anchor_id": [30, 10, 20], "text": ["wool", "felt", "unused"]})
    queries = pd.DataFrame({"query": ["blue hat"], "anchor": [10]})
    ads = pd.DataFrame({"ad_id": [1, 0, 1], "anchor": [30, 30, 10]})
    _add(
        path,
        anchors=_write(anchors, tmp_path / "anchors.parquet"),
        query_edges=_write(queries, tmp_path / "queries.jsonl"),
        ad_edges=_write(ads, tmp_path / "ads.parquet"),
    )
    assert _edges(path, "query") == {(1, "felt"): 1.0}
    # "0" is the text of ad 2
    assert _edges(path, "ad") == {(1, "wool"): 1.0, (2, "wool"): 1.0, (1, "felt"): 1.0}


def test_anchors_may_be_listed_by_their_texts(path: Path, tmp_path: Path) -> None:
    anchors, links = tmp_path / "anchors.csv", tmp_path / "links.csv"
    links.write_text("query,anchor\nblue hat,wool\nblue hat,felt\n")
    found = {"query_edges": str(links), "anchors": str(anchors), "anchor_id_column": "text"}
    anchors.write_text("text\nfelt\nwool\nfelt\n")
    with pytest.raises(DatasetError, match="row 4, column 'text': an earlier row has this anchor"):
        _add(path, **found)
    anchors.write_text("text\nfelt\nwool\n")
    _add(path, **found)
    assert _edges(path, "query") == {(1, "felt"): 1.0, (1, "wool"): 1.0}


def test_all_errors_are_reported_together(path: Path, tmp_path: Path) -> None:
    query_edges, ad_edges = tmp_path / "queries.csv", tmp_path / "ads.csv"
    query_edges.write_text(
        "query,anchor,w\n"
        "red shoes,felt,1\n"
        "silk ties,felt,1\n"
        ",felt,1\n"
        "blue hat,,1\n"
        "blue hat,felt,none\n"
        "blue hat,felt,-1\n"
        "blue hat,felt,1,2\n"
    )
    ad_edges.write_text("ad_id,anchor,w\n1,wool,inf\n99,felt,1\n")
    anchors = tmp_path / "anchors.csv"
    anchors.write_text("anchor_id,text\nfelt,Felt\nfelt,Felt again\ntweed,\n")
    with pytest.raises(DatasetError) as raised:
        _add(
            path,
            anchors=str(anchors),
            query_edges=str(query_edges),
            ad_edges=str(ad_edges),
            weight_column="w",
        )
    assert str(raised.value).splitlines()[1:] == [
        f"  - {anchors}, row 4, column 'text': the cell is empty: ''; {CORRECT}",
        f"  - {anchors}, row 3, column 'anchor_id': an earlier row has this anchor: 'felt'; "
        f"{CORRECT}",
        f"  - {query_edges}, row 8: 4 cells instead of 3: 'blue hat,felt,1,2'; "
        "quote cells that hold the delimiter",
        f"  - {query_edges}, row 4, column 'query': the cell is empty: ''; {CORRECT}",
        f"  - {query_edges}, row 3, column 'query': there is no such query: 'silk ties'; {CORRECT}",
        f"  - {query_edges}, row 5, column 'anchor': the cell is empty: ''; {CORRECT}",
        f"  - {query_edges}, row 6, column 'w': a weight must be a number above 0: "
        f"'none', '-1'; {CORRECT}",
        f"  - {ad_edges}, row 3, column 'ad_id': there is no such ad: '99'; {CORRECT}",
        f"  - {ad_edges}, row 2, column 'anchor': there is no such anchor: 'wool'; {CORRECT}",
        f"  - {ad_edges}, row 2, column 'w': a weight must be a number above 0: 'inf'; {CORRECT}",
    ]
    assert Dataset(path).anchor_sets == []


CORRECT = "correct these rows, or leave them out with skip_bad_rows"


def test_bad_rows_can_be_left_out(path: Path, tmp_path: Path) -> None:
    links, anchors = tmp_path / "links.csv", tmp_path / "anchors.csv"
    links.write_text(
        "query,anchor,weight\n"
        "red shoes,felt,1\n"
        "no such query,felt,1\n"
        ",felt,1\n"
        "blue hat,,1\n"
        "blue hat,no such anchor,1\n"
        "blue hat,felt,-1\n"
        "blue hat,felt,1,2\n"
        "blue hat,felt,3\n"
    )
    anchors.write_text("anchor_id,text\nfelt,Felt\nfelt,Felt again\n,Wool\ntweed,\n")
    found = {"query_edges": str(links), "anchors": str(anchors), "weight_column": "weight"}
    counts = _add(path, **found, skip_bad_rows=True)
    assert _edges(path, "query") == {(0, "Felt"): 1.0, (2, "Felt"): 1.0, (1, "Felt"): 3.0}
    assert {what: count for what, count in counts.items() if "bad" in what or "lines" in what} == {
        "bad rows, the cell is empty": 4,
        "bad rows, an earlier row has this anchor": 1,
        "unreadable lines": 1,
        "bad rows, there is no such query": 1,
        "bad rows, there is no such anchor": 1,
        "bad rows, a weight must be a number above 0": 1,
    }


def test_held_out_queries_bring_no_edges(path: Path, tmp_path: Path) -> None:
    links = LINKS.assign(query=["red shoes", "silk tie", " Silk ", "SILK  tie", "7", "blue hat"])
    counts = _add(path, query_edges=_write(links, tmp_path / "links.csv"))
    assert counts["query edges of validation and test queries"] == 3
    assert {node for node, _ in _edges(path, "query")} == {0, 1, 2, 3}


def test_the_id_of_a_held_out_query_takes_precedence_over_the_text_of_a_train_query(
    path_with_ids: Path, tmp_path: Path
) -> None:
    links = pd.DataFrame({"query": ["blue hat", "8"], "anchor": ["of the test query", "mine"]})
    counts = _add(path_with_ids, query_edges=_write(links, tmp_path / "links.csv"))
    assert _edges(path_with_ids, "query") == {(1, "mine"): 1.0}
    assert counts["query edges of validation and test queries"] == 1


def test_no_edges_are_an_error(path: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="give query_edges"):
        _add(path)
    source = _write(LINKS.assign(query="none"), tmp_path / "links.csv")
    with pytest.raises(DatasetError, match="leaves no edges: 6 bad rows, there is no such query"):
        _add(path, query_edges=source, skip_bad_rows=True)
    broken = tmp_path / "broken.csv"
    broken.write_text("query,anchor\nred shoes\n")
    with pytest.raises(DatasetError, match="row 2: 1 cells instead of 2"):
        _add(path, query_edges=str(broken))
    header_only = _write(LINKS[:0], tmp_path / "empty.csv")
    with pytest.raises(DatasetError, match=r"empty.csv holds no rows"):
        _add(path, query_edges=header_only)
    with pytest.raises(DatasetError, match=r"empty.csv holds no rows"):
        _add(
            path,
            query_edges=source,
            anchors=header_only,
            anchor_id_column="query",
            anchor_text_column="anchor",
        )
    shutil.rmtree(path / "queries")
    with pytest.raises(DatasetError, match="no table 'queries/train'"):
        _add(path, query_edges=source)
