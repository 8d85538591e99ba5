"""The library in a notebook: tables of pandas, polars and Arrow, and search."""

import re
from types import SimpleNamespace

import nbformat
import pandas as pd
import pyarrow as pa
import pytest
from nbclient import NotebookClient
from support import ROOT
from written_out import column_of

from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.notebook import (
    Columns,
    Dataset,
    add_judgements,
    load_retriever,
    validate,
    write_dataset,
)
from ramen_ray.tracking.addresses import sqlite_uri, tracking_uri
from ramen_ray.tracking.registry import RegistryError

CLICKS = {
    "query": [f"query {number % 30}" for number in range(90)],
    "ad_id": [f"A{number % 7}" for number in range(90)],
    "clicks": [1 + number % 3 for number in range(90)],
}
ADS = {"ad_id": [f"A{number}" for number in range(8)], "title": list("abcdefgh")}
KINDS = {"ad_id": ["A0", "A7"], "anchor": ["first", "last"]}


def _categorical(columns):
    """Give ids the type that polars gives to categories."""
    ids = pa.array(columns["ad_id"]).dictionary_encode()
    views = pa.DictionaryArray.from_arrays(ids.indices, ids.dictionary.cast(pa.string_view()))
    return pa.table({**columns, "ad_id": views})


def _grades(dataset):
    tables = [table for table in dataset.tables if "judged" in table]
    return sorted(grade for table in tables for grade in column_of(dataset, table, "grade"))


@pytest.mark.parametrize("frame", [pa.table, pd.DataFrame, _categorical])
def test_tables_in_memory_become_a_dataset_directory(frame, tmp_path):
    columns = Columns(ad_text=("title",), clicks_weight="clicks")
    judged = {"query": CLICKS["query"][:2], "ad_id": CLICKS["ad_id"][:2], "grade": [0, 1]}
    given = {"ads": frame(ADS), "ad_edges": {"kinds": frame(KINDS)}, "columns": columns}
    given["judged"] = frame(judged)
    dataset = write_dataset(tmp_path / "mine", frame(CLICKS), **given, drop_own_text=True)
    assert dataset.path == Dataset(tmp_path / "mine").path
    ads = dataset.read("ads").to_pandas()
    assert sorted(ads["text"]) == ADS["title"]
    texts = {row["text"] for row in dataset.read("queries/train").to_pylist()}
    assert texts < set(CLICKS["query"])
    assert dataset.num_rows("edges/kinds/ad") == 2
    assert _grades(dataset) == [0, 1]
    more = frame({**judged, "grade": [3, 0], "source": ["me", "me"]})
    with pytest.raises(DatasetError, match="judged, row 0, column 'grade'"):
        add_judgements(dataset, more, ad="ad_id")
    added = add_judgements(str(dataset.path), more, ad="ad_id", judged_highest=3)
    assert _grades(added) == [0, 0, 1, 1]
    assert {path.name for path in tmp_path.iterdir()} == {"mine"}
    with pytest.raises(DatasetError, match="exists"):
        write_dataset(tmp_path / "mine", frame(CLICKS), ads=frame(ADS), columns=columns)


def test_a_wrong_row_is_told_and_leaves_nothing(tmp_path, caplog):
    wrong = {**CLICKS, "ad_id": [None, *CLICKS["ad_id"][1:]]}
    edges = {"links": pa.table({"query": ["query 1", None], "anchor": ["x", "y"]})}
    odd = {"clicks": pa.table(wrong), "columns": Columns(clicks_ad="ad_id")}
    whole = {**odd, "clicks": pa.table(CLICKS)}
    for given, place in (
        ({"clicks": pa.table(wrong)}, "clicks: has no column 'ad'; .*columns"),
        (odd, "clicks, row 0"),
        (whole | {"query_edges": edges}, r"query_edges\[.links.\], row 1"),
        (whole | {"ad_edges": {"a/b": pa.table(CLICKS)}}, "'a/b' is not a valid name"),
        ({"clicks": pd.concat([pd.DataFrame(CLICKS)] * 2, axis=1)}, "clicks is no table: "),
        ({"clicks": 7}, "clicks is no table: "),
    ):
        with pytest.raises(DatasetError, match=place) as told:
            write_dataset(tmp_path / "mine", **given)
        assert not re.search(r"--|parquet", str(told.value)), told.value
    lazy = SimpleNamespace(collect=lambda: pa.table(CLICKS))
    with pytest.raises(TypeError, match="clicks"):
        write_dataset(tmp_path / "mine", lazy)
    with pytest.raises(DatasetError, match=r"columns\.ad_text"):
        Columns(ad_text="title")
    assert not list(tmp_path.iterdir())
    write_dataset(tmp_path / "skipped", **odd, skip_bad_rows=True)
    assert "clicks, row 0" in caplog.text
    assert not re.search(r"--|parquet", "\n".join(caplog.messages))


def test_a_retriever_answers_with_a_table(store, dataset_path, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_id = store.run(0.0, dataset_path)
    retriever = load_retriever(run_id, store.output)
    assert tracking_uri(tmp_path) == sqlite_uri(tmp_path), "the next run has its own store"
    found = retriever.search(["robin", "oak"], top_k=3).to_pydict()
    model = store.registry.load(retriever.uri)
    expected = model.answer(["robin", "oak"], 3).to_pylist()
    assert found["query"] == ["robin"] * 3 + ["oak"] * 3
    assert found["rank"] == [1, 2, 3] * 2
    for column, name in (("ad_id", "ad_ids"), ("ad", "ads"), ("score", "scores")):
        assert found[column] == [*expected[0][name], *expected[1][name]]
    assert retriever.search([]).num_rows == 0
    asked = ["robin"]
    assert retriever.search("robin", 3) == retriever.search(asked, 3)
    odd = retriever.search(["robin", "", None, 7], 3)
    assert odd.slice(0, 3) == retriever.search(asked, 3)
    assert odd["query"].to_pylist()[3:] == ["", None, "7"]
    assert odd["ad"].to_pylist()[3:] == [None] * 3
    assert None not in odd["error"].to_pylist()[3:]
    for wrong in ("", None):
        with pytest.raises(RegistryError, match=re.escape(f"the query {wrong!r}: ")):
            retriever.embed(["robin", wrong])
    assert retriever.embed([]).shape == (0, retriever.embed(asked).shape[1])
    for wrong in (True, "3"):
        with pytest.raises(RegistryError, match=re.escape(f"top_k is {wrong!r}")):
            retriever.search(asked, wrong)


@pytest.mark.parametrize("frame", [pd.DataFrame, pa.table])
def test_of_a_table_the_column_of_queries_is_searched(frame, logged_retriever, output):
    retriever = load_retriever(logged_retriever, output)
    texts = ["robin", "oak"]
    expected = retriever.search(texts, 2)
    for name in ("query", "text"):
        table = frame({"id": [1, 2], name: texts})
        for queries in (table, table[name]):
            assert retriever.search(queries, 2) == expected
            assert (retriever.embed(queries) == retriever.embed(texts)).all()
    for wrong in (frame({"id": texts}), {"q1": "robin"}, 7):
        with pytest.raises(TypeError):
            retriever.search(wrong)


def test_a_dataset_is_validated_by_its_path(dataset_path):
    assert validate(str(dataset_path)) == validate(Dataset(dataset_path))
    with pytest.raises(DatasetError):
        validate(dataset_path / "none")


def _headings(notebook):
    """Return the words of the first line, but for numbers, that each cell shows."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [cell.outputs[-1].data["text/plain"].splitlines()[0] for cell in cells]
    return [re.sub(r"[\d.]+", "1", line).split() for line in shown]


@pytest.mark.slow
def test_the_notebook_of_the_guide_runs_and_shows_what_it_showed(tmp_path):
    shown = nbformat.read(ROOT / "docs" / "tutorials" / "notebook.ipynb", as_version=4)
    (tmp_path / "datasets").symlink_to(ROOT / "datasets")
    (folder := tmp_path / "docs" / "tutorials").mkdir(parents=True)
    again = nbformat.from_dict(shown)
    NotebookClient(again, resources={"metadata": {"path": str(folder)}}).execute()
    assert _headings(again) == _headings(shown)
