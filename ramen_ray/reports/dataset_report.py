"""The tables of a dataset's description, and the figures in them."""

from collections.abc import Iterable, Mapping
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
from ramen_ray.method.metrics.ranking import popularity_groups
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.method.model.texts import measure_tokens
from ramen_ray.reports.report_tables import ReportTable
from ramen_ray.tracking.runs import prefixed

SEED = 0
NUM_HUBS = 5
NUM_SAMPLES = 3
TEXTS_PER_TABLE = 100_000
UNCUT = 2**31
SHOWN_CHARACTERS = 120
SHOWN_TEXTS = 10
PER_CENT = {"median": 50, "p90": 90, "p99": 99, "max": 100}

Section = tuple[ReportTable, dict[str, float]]
"""A table, and figures that are worth comparing between datasets, by name."""
Counted = tuple[str, int, int]
"""What is counted, how many there are, and of how many."""


def summary(numbers: Mapping[str, float], anchor_sets: Iterable[str]) -> ReportTable:
    """Lay out the numbers of RAMEN's Table 9."""
    counts = [
        *(count(numbers[key]) for key in ("num_train_queries", "num_ads", "num_test_queries")),
        *(average(numbers[key]) for key in ("queries_per_ad", "clicks_per_query")),
    ]
    rows = [
        [
            name,
            count(numbers[f"{name}_num_anchors"]),
            average(numbers[f"{name}_anchors_per_query"]),
            average(numbers[f"{name}_anchors_per_ad"]),
        ]
        for name in anchor_sets
    ] or [["none", "", "", ""]]
    blank = [""] * len(counts)
    columns = ("train queries", "ads", "test queries", "queries per ad", "clicks per query")
    return ReportTable(
        "Summary",
        (*columns, "anchor set", "anchors", "anchors per query", "anchors per ad"),
        [[*counts, *rows[0]], *([*blank, *row] for row in rows[1:])],
        text_columns=0,
        note="The columns of Table 9 of the RAMEN paper. Averages are over all ads and all train "
        "queries, including those without clicks or edges.",
    )


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


def shares(clicks: Mapping[str, ClickCounts], edges: Mapping[str, EdgeCounts]) -> Section:
    """Count nodes without clicks or edges, and test clicks on rare ads."""
    queries = clicks["train"].per_query
    train = clicks["train"].per_ad
    test = clicks["test"].per_ad
    without = "ads without a train click"
    with_one = "ads with exactly one train click"
    counted: dict[str, Counted] = {
        "queries_without_click": _counted("train queries without a click", queries == 0),
        "ads_without_click": _counted(without, train == 0),
        "ads_with_one_click": _counted(with_one, train == 1),
        "test_clicks_on_ads_without_click": _counted(f"test clicks on {without}", train == 0, test),
        "test_clicks_on_ads_with_one_click": _counted(
            f"test clicks on {with_one}", train == 1, test
        ),
    }
    if edges:
        no_query = ~np.any([of_set.per_query for of_set in edges.values()], axis=0)
        no_ad = ~np.any([of_set.per_ad for of_set in edges.values()], axis=0)
        counted["queries_without_edge"] = _counted("train queries without any edge", no_query)
        counted["ads_without_edge"] = _counted("ads without any edge", no_ad)
    for name, of_set in edges.items():
        for key, what, degrees in (
            ("queries", f"train queries without an edge to {name}", of_set.per_query),
            ("ads", f"ads without an edge to {name}", of_set.per_ad),
            ("anchors", f"{name} anchors without an edge", of_set.per_anchor),
        ):
            counted[f"{name}_{key}_without_edge"] = _counted(what, degrees == 0)
    rows = [
        [what, count(part), count(whole), f"{share_of(part, whole):.1%}"]
        for key, (what, part, whole) in counted.items()
        # a graph need not link both sides
        if not (key.endswith("_without_edge") and part == whole)
    ]
    table = ReportTable(
        "Without clicks, without edges",
        ("", "number", "of", "share"),
        rows,
        note="Batches are drawn from clicks: what has no train click is learnt by its edges only.",
    )
    return table, {f"share_{key}": share_of(*of_key[1:]) for key, of_key in counted.items()}


def _counted(what: str, member: Booleans, counts: Int64s | None = None) -> Counted:
    """Count the members among all nodes or, given the nodes' ``counts``, sum their counts."""
    if counts is None:
        return what, int(member.sum()), len(member)
    return what, int(counts[member].sum()), int(counts.sum())


def popularity(train: Int64s, test: Int64s) -> Section:
    """Describe groups of ads by their train and test clicks (ads,)."""
    rows = []
    metrics: dict[str, float] = {}
    for name, member in popularity_groups(train).items():
        clicks = train[member]
        span = f"{clicks.min():,} to {clicks.max():,}" if len(clicks) else "no ad"
        counted = (
            _counted("ads", member),
            _counted("train_clicks", member, train),
            _counted("test_clicks", member, test),
        )
        shares = {what: share_of(part, whole) for what, part, whole in counted}
        metrics |= {f"{name}/share_{what}": share for what, share in shares.items()}
        rows.append([name, span, count(len(clicks)), *(f"{s:.1%}" for s in shares.values())])
    table = ReportTable(
        "Head, torso and tail",
        ("group", "train clicks of an ad", "ads", "of ads", "of train clicks", "of test clicks"),
        rows,
        note="Ads by train clicks, each group with about a third of the clicks; ads with equally "
        "many clicks stay together, and ads without any are tail.",
    )
    return table, metrics


def distributions(train: ClickCounts, edges: Mapping[str, EdgeCounts]) -> Section:
    """Lay out how many nodes have how many train clicks, and edges of each anchor set."""
    degrees = {
        "clicks_per_query": ("clicks", "query", train.per_query),
        "queries_per_ad": ("clicks", "ad", train.per_ad),
    }
    for name, of_set in edges.items():
        degrees[f"{name}_anchors_per_query"] = name, "query", of_set.per_query
        degrees[f"{name}_anchors_per_ad"] = name, "ad", of_set.per_ad
        degrees[f"{name}_nodes_per_anchor"] = name, "anchor", of_set.per_anchor
    rows = []
    metrics: dict[str, float] = {}
    for metric, (graph, per, values) in degrees.items():
        quantiles = _quantiles(values)
        metrics |= prefixed(f"{metric}/", quantiles)
        rows.append([graph, per, average(values.mean()), *map(count, quantiles.values())])
    table = ReportTable(
        "Distributions",
        ("of", "per", "mean", *PER_CENT),
        rows,
        text_columns=2,
        note="Clicks are train clicks; an anchor's edges are those to queries and to ads.",
    )
    return table, metrics


def _quantiles(values: Int64s) -> dict[str, float]:
    """Return median, p90, p99 and max: the smallest value that such a share does not exceed."""
    places = -(-np.array([*PER_CENT.values()]) * len(values) // 100) - 1
    chosen = np.sort(values)[places].astype(float).tolist()
    return dict(zip(PER_CENT, chosen, strict=True))


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


def token_lengths(dataset: Dataset, encoder: str, max_length: int) -> Section:
    """Count the tokens of each table's texts, by an encoder's tokenizer."""
    tokenizer = text_tokenizer(load_tokenizer(encoder), UNCUT, add_special_tokens=True)
    tables = [
        *(f"queries/{split}" for split in dataset.splits),
        "ads",
        *(f"anchors/{name}" for name in dataset.anchor_sets),
    ]
    rows = []
    metrics: dict[str, float] = {}
    for table in tables:
        num_texts = dataset.num_rows(table)
        ids = sample_ids(num_texts, TEXTS_PER_TABLE, SEED)
        texts = dataset.rows_with_ids(table, ids)["text"].to_pylist()
        lengths, figures = measure_tokens(tokenizer, texts, max_length)
        quantiles = _quantiles(lengths)
        shares = {
            "share_too_long": float((lengths > max_length).mean()),
            "share_unknown": figures.share_unknown,
            "share_repeated": figures.share_repeated,
        }
        metrics |= prefixed(f"tokens/{table}/", quantiles | shares)
        counts = (len(lengths), num_texts, *quantiles.values())
        rows.append([table, *map(count, counts), *(f"{s:.1%}" for s in shares.values())])
    section = ReportTable(
        "Token lengths",
        ("table", "counted", "texts", *PER_CENT, f"over {max_length}", "unknown", "repeated"),
        rows,
        note=f"Before truncation, with special tokens, by the tokenizer of {encoder}. Larger"
        " tables are sampled with a fixed seed. Unknown is the share of tokens that its"
        " vocabulary does not have; repeated, of texts that begin with the same"
        f" {max_length} tokens as an earlier one.",
    )
    return section, metrics


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
