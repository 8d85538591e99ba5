"""The description of a dataset: its numbers against plain loops, and its page."""

import re
from collections import Counter
from fractions import Fraction
from html import unescape

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from random_datasets import random_dataset
from support import query_table, tables_in, tables_of_page, text_table
from transformers import AutoTokenizer
from written_out import column_of

from jobs import describe as job
from jobs import validate as validating
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.reports.description import describe
from ramen_ray.reports.report_tables import write_page

QUANTILES = ("0.5", "0.9", "0.99", "1")
MAX_LENGTH = 5


def _quantiles_by_counting(values):
    """The smallest value that at least a fraction q of the values does not exceed."""
    return [
        f"{min(v for v in values if sum(w <= v for w in values) >= Fraction(q) * len(values)):,}"
        for q in QUANTILES
    ]


def _row(title, values):
    whole = len(values)
    part = sum(values)
    return [title, str(part), str(whole), f"{part / whole if whole else 0:.1%}"]


def _by_loops(dataset):
    """The rows of what is without clicks or edges, and of the distributions."""
    clicks = {split: dataset.read(f"queries/{split}")["ad_ids"].to_pylist() for split in SPLITS}
    num_nodes = {"query": len(clicks["train"]), "ad": dataset.num_rows("ads")}
    of_ad = {s: Counter(ad for ads in rows for ad in ads) for s, rows in clicks.items()}
    train = [of_ad["train"][ad] for ad in range(num_nodes["ad"])]
    without = [_row("train queries without a click", [not ads for ads in clicks["train"]])]
    tested = [ad for ads in clicks["test"] for ad in ads]
    for words, wanted in (("without a train click", 0), ("with exactly one train click", 1)):
        without.append(_row(f"ads {words}", [count == wanted for count in train]))
    for words, wanted in (("without a train click", 0), ("with exactly one train click", 1)):
        of_test = [train[ad] == wanted for ad in tested]
        without.append(_row(f"test clicks on ads {words}", of_test))
    degrees = {}
    for name in dataset.anchor_sets:
        of_anchor = Counter()
        degrees[name] = {}
        for side, count in num_nodes.items():
            table = f"edges/{name}/{side}"
            edges = dataset.read(table).to_pylist() if dataset.has(table) else []
            of_node = Counter(edge[f"{side}_id"] for edge in edges)
            of_anchor.update(edge["anchor_id"] for edge in edges)
            degrees[name][side] = [of_node[node] for node in range(count)]
        anchors = range(dataset.num_rows(f"anchors/{name}"))
        degrees[name]["anchor"] = [of_anchor[anchor] for anchor in anchors]
    named = {"query": "train queries", "ad": "ads"}
    bare = {}
    for side, what in named.items() if degrees else ():
        every = zip(*(of_set[side] for of_set in degrees.values()), strict=True)
        bare[f"{what} without any edge"] = [sum(of_node) for of_node in every]
    for name, of_set in degrees.items():
        bare |= {f"{what} without an edge to {name}": of_set[side] for side, what in named.items()}
        bare[f"{name} anchors without an edge"] = of_set["anchor"]
    without += [
        _row(what, [not count for count in counts]) for what, counts in bare.items() if any(counts)
    ]
    counted = {"clicks": {"query": [len(ads) for ads in clicks["train"]], "ad": train}, **degrees}
    distributed = [
        [
            name,
            per,
            f"{len(counts)}",
            f"{sum(counts) / len(counts):,.2f}",
            *_quantiles_by_counting(counts),
        ]
        for name, of_set in counted.items()
        for per, counts in of_set.items()
    ]
    return without, distributed


def _tokens_by_loops(dataset, encoder, max_length):
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    rows = []
    texts = [f"queries/{split}" for split in SPLITS] + ["ads"]
    for table in texts + [f"anchors/{name}" for name in dataset.anchor_sets]:
        written = column_of(dataset, table)
        tokens = [tokenizer(text)["input_ids"] for text in written]
        lengths = [len(of_text) for of_text in tokens]
        own = [token for of_text in tokens for token in of_text[1:-1]]
        cut = tokenizer(written, truncation=True, max_length=max_length)["input_ids"]
        shares = (
            sum(length > max_length for length in lengths) / len(lengths),
            own.count(tokenizer.unk_token_id) / len(own),
            1 - len(set(map(tuple, cut))) / len(cut),
        )
        counts = [table, *[str(len(written))] * 2, *_quantiles_by_counting(lengths)]
        rows.append([*counts, *(f"{share:.1%}" for share in shares)])
    return rows


def _rows_of(description, title):
    (table,) = (table for table in description.tables if table.title == title)
    return [list(row) for row in table.rows]


@settings(max_examples=6)
@given(seed=st.integers(0, 999), num_ads=st.integers(4, 8), has_graphs=st.booleans())
def test_numbers_of_any_dataset_equal_loops(
    seed, num_ads, has_graphs, encoder_path, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("random")
    dataset = random_dataset(folder / "made", seed, num_ads)
    if not has_graphs:
        tables = tables_in(dataset.path)
        bare = {name: tables[name] for name in tables if name.startswith(("ads", "queries"))}
        dataset = write_dataset(folder / "bare", bare, name="bare")
    described = describe(dataset, encoder_path, MAX_LENGTH)
    without, distributed = _by_loops(dataset)
    assert _rows_of(described, "Without clicks, without edges") == without
    assert _rows_of(described, "Distributions") == distributed
    tokens = _tokens_by_loops(dataset, encoder_path, MAX_LENGTH)
    assert _rows_of(described, "Token lengths") == tokens
    write_page(folder / "page.html", "random", "", described.words, described.tables)


def test_the_page_holds_all_rows_and_refers_to_nothing_outside(
    dataset_path, encoder_path, tmp_path
):
    description = describe(Dataset(dataset_path), encoder_path, MAX_LENGTH)
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
    splits = describe(dataset, encoder_path, MAX_LENGTH).tables[0]
    assert splits.rows[0] == ["train", "2", "3", "1.50", "7.50"]
    assert splits.rows[-1] == ["zero_shot", "2", "3", "1.50", ""]


def test_the_job_prints_and_writes(dataset_path, encoder_path, tmp_path, done):
    output = tmp_path / "outputs"
    flags = ["--encoder", encoder_path, "--max-length", MAX_LENGTH, "--output", output]
    printed = done(job, dataset_path, *flags)
    page = output / "descriptions" / "handmade.html"
    assert f"page:    {page}" in printed
    assert "ads without a train click" in printed
    assert "Largest hubs" in tables_of_page(page)
