"""The tables of a dataset's description."""

from collections.abc import Mapping
from textwrap import shorten

import numpy as np

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.describe.counts import (
    ClickCounts,
    EdgeCounts,
    sample_ids,
    share_of,
    texts_by_id,
)
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import TRAIN
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.method.model.texts import measure_tokens
from ramen_ray.reports.report_tables import ReportTable

SEED = 0
NUM_HUBS = 5
NUM_SAMPLES = 3
TEXTS_PER_TABLE = 100_000
UNCUT = 2**31
SHOWN_CHARACTERS = 120
SHOWN_TEXTS = 10
PER_CENT = {"median": 50, "p90": 90, "p99": 99, "max": 100}

Counted = tuple[str, int, int]
"""What is counted, how many there are, and of how many."""


def splits(numbers: Mapping[str, float], clicks: Mapping[str, ClickCounts]) -> ReportTable:
    """Lay out the sizes of the splits."""
    columns = ["split", "queries", "clicks", "clicks per query"]
    has_weights = any(counts.weight is not None for counts in clicks.values())
    if has_weights:
        columns.append("click weight")
    kinds = []
    if any(name.endswith("_judgements") for name in numbers):
        kinds = ["judgements", "low_judgements"]
    columns += [kind.replace("_", " ") for kind in kinds]
    rows = []
    for split, counts in clicks.items():
        per_query = counts.per_query
        row = [split, count(len(per_query)), count(per_query.sum()), average(per_query.mean())]
        if has_weights:
            row.append("" if counts.weight is None else average(counts.weight))
        row += [count(numbers.get(f"num_{split}_{kind}", 0)) for kind in kinds]
        rows.append(row)
    return ReportTable("Splits", columns, rows)


def shares(clicks: Mapping[str, ClickCounts], edges: Mapping[str, EdgeCounts]) -> ReportTable:
    """Count nodes without clicks or edges, and test clicks on rare ads."""
    train = clicks["train"].per_ad
    test = clicks["test"].per_ad
    without = "ads without a train click"
    with_one = "ads with exactly one train click"
    counted = [
        _counted("train queries without a click", clicks["train"].per_query == 0),
        _counted(without, train == 0),
        _counted(with_one, train == 1),
        _counted(f"test clicks on {without}", train == 0, test),
        _counted(f"test clicks on {with_one}", train == 1, test),
    ]
    degrees: dict[str, Int64s] = {}
    if edges:
        sets = edges.values()
        degrees["train queries without any edge"] = np.sum([each.per_query for each in sets], 0)
        degrees["ads without any edge"] = np.sum([each.per_ad for each in sets], 0)
    for name, of_set in edges.items():
        degrees[f"train queries without an edge to {name}"] = of_set.per_query
        degrees[f"ads without an edge to {name}"] = of_set.per_ad
        degrees[f"{name} anchors without an edge"] = of_set.per_anchor
    # a graph need not link both sides
    counted += [_counted(what, each == 0) for what, each in degrees.items() if each.any()]
    return ReportTable(
        "Without clicks, without edges",
        ("", "number", "of", "share"),
        [
            [what, count(part), count(whole), f"{share_of(part, whole):.1%}"]
            for what, part, whole in counted
        ],
        note="Batches are drawn from clicks: what has no train click is learnt by its edges only.",
    )


def _counted(what: str, member: Booleans, counts: Int64s | None = None) -> Counted:
    """Count the members among all nodes or, given the nodes' ``counts``, sum their counts."""
    if counts is None:
        return what, int(member.sum()), len(member)
    return what, int(counts[member].sum()), int(counts.sum())


def distributions(train: ClickCounts, edges: Mapping[str, EdgeCounts]) -> ReportTable:
    """Lay out how many nodes have how many train clicks, and edges of each anchor set."""
    degrees = [("clicks", "query", train.per_query), ("clicks", "ad", train.per_ad)]
    for name, of_set in edges.items():
        degrees.append((name, "query", of_set.per_query))
        degrees.append((name, "ad", of_set.per_ad))
        degrees.append((name, "anchor", of_set.per_anchor))
    return ReportTable(
        "Distributions",
        ("of", "per", "nodes", "mean", *PER_CENT),
        [
            [
                graph,
                per,
                count(len(values)),
                average(values.mean()),
                *map(count, _quantiles(values)),
            ]
            for graph, per, values in degrees
        ],
        text_columns=2,
        note="Clicks are train clicks; an anchor's edges are those to queries and to ads. Means, "
        "as in Table 9 of the RAMEN paper, are over all nodes, also without clicks or edges.",
    )


def _quantiles(values: Int64s) -> list[int]:
    """Return median, p90, p99 and max: the smallest value that such a share does not exceed."""
    places = -(-np.array([*PER_CENT.values()]) * len(values) // 100) - 1
    return np.sort(values)[places].tolist()


def hubs(dataset: Dataset, edges: Mapping[str, EdgeCounts]) -> ReportTable:
    """List the anchors of each set with most edges, most first."""
    rows = []
    for name, counts in edges.items():
        degrees = counts.per_anchor
        largest = np.argsort(-degrees, kind="stable")[:NUM_HUBS].tolist()
        texts = texts_by_id(dataset, f"anchors/{name}", largest)
        for anchor in largest:
            ends = (counts.queries_per_anchor[anchor], counts.ads_per_anchor[anchor])
            share = f"{degrees[anchor] / degrees.sum():.1%}"
            rows.append([name, _short(texts[anchor]), *map(count, ends), share])
    return ReportTable(
        "Largest hubs",
        ("anchor set", "anchor", "queries", "ads", "of the set's edges"),
        rows,
        text_columns=2,
        note="An anchor that links a large part of the nodes pulls unrelated texts together.",
    )


def token_lengths(dataset: Dataset, encoder: str, max_length: int) -> ReportTable:
    """Count the tokens of each table's texts, by an encoder's tokenizer."""
    tokenizer = text_tokenizer(load_tokenizer(encoder), UNCUT, add_special_tokens=True)
    tables = [
        *(f"queries/{split}" for split in dataset.splits),
        "ads",
        *(f"anchors/{name}" for name in dataset.anchor_sets),
    ]
    rows = []
    for table in tables:
        num_texts = dataset.num_rows(table)
        ids = sample_ids(num_texts, TEXTS_PER_TABLE, SEED)
        texts = dataset.rows_with_ids(table, ids)["text"].to_pylist()
        lengths, figures = measure_tokens(tokenizer, texts, max_length)
        too_long = (lengths > max_length).mean()
        counts = (len(lengths), num_texts, *_quantiles(lengths))
        shares = (too_long, figures.share_unknown, figures.share_repeated)
        rows.append([table, *map(count, counts), *(f"{share:.1%}" for share in shares)])
    return ReportTable(
        "Token lengths",
        ("table", "counted", "texts", *PER_CENT, f"over {max_length}", "unknown", "repeated"),
        rows,
        note=f"Before truncation, with special tokens, by the tokenizer of {encoder}. Larger"
        " tables are sampled with a fixed seed. Unknown is the share of tokens that its"
        " vocabulary does not have; repeated, of texts that begin with the same"
        f" {max_length} tokens as an earlier one.",
    )


def samples(dataset: Dataset) -> ReportTable:
    """Show some train queries, drawn by SEED, with their ads and anchors, as text."""
    ids = sample_ids(dataset.num_rows(TRAIN), NUM_SAMPLES, SEED)
    queries = dataset.rows_with_ids(TRAIN, ids).to_pylist()
    ads = texts_by_id(dataset, "ads", {ad for query in queries for ad in query["ad_ids"]})
    anchors = {
        name: _anchors_of(dataset, name, ids)
        for name in dataset.anchor_sets
        if dataset.has(f"edges/{name}/query")
    }
    rows = [
        [
            _short(query["text"]),
            _listed([ads[ad] for ad in query["ad_ids"]]),
            *(_listed(of_query[query["query_id"]]) for of_query in anchors.values()),
        ]
        for query in queries
    ]
    return ReportTable(
        "Some train queries",
        ("query", "ads", *(f"{name} anchors" for name in anchors)),
        rows,
        text_columns=2 + len(anchors),
        note="Drawn with a fixed seed.",
    )


def _anchors_of(dataset: Dataset, anchor_set: str, query_ids: list[int]) -> dict[int, list[str]]:
    edges = dataset.rows_with_ids(f"edges/{anchor_set}/query", query_ids).to_pylist()
    ids = {edge["anchor_id"] for edge in edges}
    texts = texts_by_id(dataset, f"anchors/{anchor_set}", ids)
    of_query: dict[int, list[str]] = {query: [] for query in query_ids}
    for edge in edges:
        of_query[edge["query_id"]].append(texts[edge["anchor_id"]])
    return of_query


def count(value: float) -> str:
    """Write a number without decimals."""
    return f"{value:,.0f}"


def average(value: float) -> str:
    """Write a number with two decimals."""
    return f"{value:,.2f}"


def _short(text: str) -> str:
    return shorten(text, SHOWN_CHARACTERS, placeholder=" …")


def _listed(texts: list[str]) -> str:
    more = len(texts) - SHOWN_TEXTS
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*map(_short, texts[:SHOWN_TEXTS]), *rest])
