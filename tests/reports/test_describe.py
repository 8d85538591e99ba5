"""The description of a dataset: its numbers against plain loops, its page, its MLflow run."""

import re
from collections import Counter
from fractions import Fraction
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.tracking import MlflowClient
from support import node_edges, query_table, tables_of_page, text_table
from transformers import AutoTokenizer

from jobs import describe as job
from jobs import validate as validating
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.method.metrics.ranking import popularity_groups
from ramen_ray.reports.description import Description, describe
from ramen_ray.reports.pages import write_page

QUANTILES = {"median": "0.5", "p90": "0.9", "p99": "0.99", "max": "1"}
MAX_LENGTH = 5


def _quantiles_by_counting(name: str, values: list[int]) -> dict[str, float]:
    """The smallest value that at least a fraction q of the values does not exceed."""
    return {
        f"{name}/{key}": min(
            v for v in values if sum(w <= v for w in values) >= Fraction(q) * len(values)
        )
        for key, q in QUANTILES.items()
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _edges_by_loops(dataset: Dataset, num_nodes: dict[str, int]) -> tuple[dict[str, float], Any]:
    found: dict[str, float] = {}
    linked: dict[str, set[int]] = {side: set() for side in num_nodes}
    for name in dataset.anchor_sets:
        of_anchor: Counter[int] = Counter()
        for side, count in num_nodes.items():
            table = f"edges/{name}/{side}"
            edges = dataset.read(table).to_pylist() if dataset.has(table) else []
            degrees = Counter(edge[f"{side}_id"] for edge in edges)
            of_anchor.update(edge["anchor_id"] for edge in edges)
            linked[side] |= degrees.keys()
            values = [degrees[node] for node in range(count)]
            found[f"{name}_anchors_per_{side}"] = sum(values) / count
            found |= _quantiles_by_counting(f"{name}_anchors_per_{side}", values)
            kind = {"query": "queries", "ad": "ads"}[side]
            found[f"share_{name}_{kind}_without_edge"] = values.count(0) / count
        values = [of_anchor[anchor] for anchor in range(dataset.num_rows(f"anchors/{name}"))]
        found[f"{name}_num_anchors"] = len(values)
        found |= _quantiles_by_counting(f"{name}_nodes_per_anchor", values)
        found[f"share_{name}_anchors_without_edge"] = values.count(0) / len(values)
    return found, linked


def _metrics_by_loops(dataset: Dataset, encoder: Path, max_length: int) -> dict[str, float]:
    clicks = {split: dataset.read(f"queries/{split}")["ad_ids"].to_pylist() for split in SPLITS}
    num_nodes = {"query": len(clicks["train"]), "ad": dataset.num_rows("ads")}
    of_ad = {s: Counter(ad for ads in rows for ad in ads) for s, rows in clicks.items()}
    train = [of_ad["train"][ad] for ad in range(num_nodes["ad"])]
    num_clicks = {split: counts.total() for split, counts in of_ad.items()}
    found: dict[str, float] = {"num_ads": len(train)}
    for split in SPLITS:
        found[f"num_{split}_queries"] = len(clicks[split])
        found[f"num_{split}_clicks"] = num_clicks[split]
    found |= _quantiles_by_counting("clicks_per_query", [len(ads) for ads in clicks["train"]])
    found |= _quantiles_by_counting("queries_per_ad", train)
    found["clicks_per_query"] = num_clicks["train"] / num_nodes["query"]
    found["queries_per_ad"] = num_clicks["train"] / len(train)
    found["share_ads_without_click"] = train.count(0) / len(train)
    found["share_ads_with_one_click"] = train.count(1) / len(train)
    found["share_queries_without_click"] = clicks["train"].count([]) / num_nodes["query"]
    for words, wanted in (("without_click", 0), ("with_one_click", 1)):
        num_found = sum(train[ad] == wanted for ads in clicks["test"] for ad in ads)
        found[f"share_test_clicks_on_ads_{words}"] = _ratio(num_found, num_clicks["test"])
    for group, is_member in popularity_groups(np.array(train)).items():
        found[f"{group}/share_ads"] = is_member.mean()
        for split in ("train", "test"):
            within = sum(of_ad[split][ad] for ad in np.flatnonzero(is_member).tolist())
            found[f"{group}/share_{split}_clicks"] = _ratio(within, num_clicks[split])
    edges, linked = _edges_by_loops(dataset, num_nodes)
    if dataset.anchor_sets:
        found["share_queries_without_edge"] = 1 - len(linked["query"]) / num_nodes["query"]
        found["share_ads_without_edge"] = 1 - len(linked["ad"]) / num_nodes["ad"]
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    texts = [f"queries/{split}" for split in SPLITS] + ["ads"]
    for table in texts + [f"anchors/{name}" for name in dataset.anchor_sets]:
        written = dataset.read(table)["text"].to_pylist()
        tokens = [tokenizer(text)["input_ids"] for text in written]
        lengths = [len(of_text) for of_text in tokens]
        own = [token for of_text in tokens for token in of_text[1:-1]]
        found[f"tokens/{table}/share_unknown"] = own.count(tokenizer.unk_token_id) / len(own)
        cut = tokenizer(written, truncation=True, max_length=max_length)["input_ids"]
        found[f"tokens/{table}/share_repeated"] = 1 - len(set(map(tuple, cut))) / len(cut)
        found |= _quantiles_by_counting(f"tokens/{table}", lengths)
        too_long = sum(length > max_length for length in lengths)
        found[f"tokens/{table}/share_too_long"] = too_long / len(lengths)
    return found | edges


def _subsets(count: int, min_size: int = 0) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, count - 1), min_size=min_size, max_size=4, unique=True)


@st.composite
def tiny_tables(draw: st.DrawFn) -> dict[str, pa.Table]:
    """Tables of a few rows: up to two anchor sets, with edges on one side or on both."""
    num_ads = draw(st.integers(1, 5))
    words = st.lists(st.sampled_from(["robin", "old", "rare", "unseen"]), min_size=1, max_size=8)
    text = words.map(" ".join)

    def texts(column: str, count: int) -> pa.Table:
        return text_table(column, draw(st.lists(text, min_size=count, max_size=count)))

    tables = {"ads": texts("ad_id", num_ads)}
    num_nodes = {"ad": num_ads}
    for split in SPLITS:
        clicks = draw(st.lists(_subsets(num_ads, min_size=1), min_size=1, max_size=4))
        if split == "train":
            clicks += [[]] * draw(st.integers(0, 2))
        tables[f"queries/{split}"] = query_table(["robin"] * len(clicks), clicks)
        num_nodes.setdefault("query", len(clicks))
    for name in ("links", "links_too")[: draw(st.integers(0, 2))]:
        num_anchors = draw(st.integers(1, 3))
        tables[f"anchors/{name}"] = texts("anchor_id", num_anchors)
        for side in draw(st.sampled_from([["ad"], ["query"], ["ad", "query"]])):
            anchors = [draw(_subsets(num_anchors)) for _ in range(num_nodes[side])]
            if not any(anchors):
                anchors[0] = [0]
            tables[f"edges/{name}/{side}"] = node_edges(f"{side}_id", anchors)
    return tables


@pytest.fixture(scope="module")
def description(dataset_path: Path, encoder_path: Path) -> Description:
    return describe(Dataset(dataset_path), str(encoder_path), MAX_LENGTH)


@settings(max_examples=6)
@given(tables=tiny_tables())
def test_numbers_of_any_tiny_dataset_equal_loops(tables, encoder_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    dataset = write_dataset(folder / "tiny", tables, name="tiny")
    described = describe(dataset, str(encoder_path), MAX_LENGTH)
    expected = _metrics_by_loops(dataset, encoder_path, MAX_LENGTH)
    # the graphs' signals have a test of their own
    found = described.metrics
    found = {name: found[name] for name in found if not name.startswith("signal/")}
    assert found == pytest.approx(expected)
    write_page(folder / "page.html", "tiny", "", described.words, described.tables)


def test_the_page_holds_all_rows_and_refers_to_nothing_outside(description, tmp_path):
    sections = description.tables
    file = tmp_path / "pages" / "page.html"
    write_page(file, "handmade", description.note, description.words, sections)
    page = file.read_text(encoding="utf-8")
    assert tables_of_page(file) == {s.title: [list(row) for row in s.rows] for s in sections}
    heads = re.findall(r"<th[^>]*>(.*?)</th>", page)
    assert list(map(unescape, heads)) == [column for s in sections for column in s.columns]
    assert not re.search("<(script|link)", page)
    assert not re.findall('(?:src|href)="(.*?)"', page)


def test_a_terminal_shows_control_characters_and_does_not_act_on_them(
    encoder_path, tmp_path, run_here
):
    text = "\x1b[2J\x1b]0;title\x07 caf\u00e9 \u202egnp.exe \x9b31m \u97b4"
    tables = dict.fromkeys([f"queries/{split}" for split in SPLITS], query_table([text], [[0]]))
    tables["ads"] = text_table("ad_id", ["x"])
    path = write_dataset(tmp_path / "hostile", tables, name="hostile").path
    pq.write_table(pa.table({"a": [1]}), path / "\x1b[31mred.parquet")
    flags = ["--encoder", encoder_path, "--output", tmp_path / "o"]
    calls = (job, path, *flags), (validating, path), (job, tmp_path / "no\x1bwhere")
    codes, said = zip(*(run_here(*call) for call in calls), strict=True)
    assert codes == (0, 0, 2)
    printed = "".join(said)
    assert not set("\x1b\x07\x9b\u202e") & set(printed)
    assert "\\x1b[2J\\x1b]0;title\\x07 caf\u00e9 \\u202egnp.exe" in printed
    assert "\u97b4" in printed
    assert "no\\x1bwhere" in printed


def test_weights_and_the_zero_shot_split_are_counted(encoder_path, tmp_path):
    queries = query_table(["robin", "heron"], [[0], [0, 1]])
    weighted = queries.append_column(
        "weights", pa.array([[2.5], [1.0, 4.0]], pa.list_(pa.float32()))
    )
    tables = {
        **dict.fromkeys(("queries/validation", "queries/test", "queries/zero_shot"), queries),
        "queries/train": weighted,
        "ads": text_table("ad_id", ["a", "b"]),
        "novel_ads": pa.table({"ad_id": [0, 1]}),
    }
    dataset = write_dataset(tmp_path / "weighted", tables, name="weighted")
    splits = describe(dataset, str(encoder_path), MAX_LENGTH).tables[1]
    assert splits.rows[0] == ["train", "2", "3", "1.50", "7.50"]
    assert splits.rows[-1] == ["zero_shot", "2", "3", "1.50", ""]


def test_the_job_prints_writes_and_logs(dataset_path, encoder_path, description, tmp_path, done):
    output = tmp_path / "outputs"
    flags = ["--encoder", encoder_path, "--max-length", MAX_LENGTH, "--mlflow"]
    printed = done(job, dataset_path, *flags, "--output", output)
    page = output / "descriptions" / "handmade.html"
    assert f"page:    {page}" in printed
    assert "ads without a train click" in printed
    (run_id,) = re.findall(r"run: +(\w+)", printed)
    run = MlflowClient(tracking_uri=f"sqlite:///{output}/mlflow.db").get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["dataset"] == "handmade"
    expected = {f"dataset.{key}": value for key, value in description.metrics.items()}
    assert run.data.metrics == pytest.approx(expected)
    (logged,) = output.rglob("mlartifacts/**/handmade.html")
    assert logged.read_bytes() == page.read_bytes()
