"""The description of a dataset as tables."""

from textwrap import shorten

from ramen_ray.data.describe.content import Description, Share
from ramen_ray.reports.graph_report import reading, signal_table
from ramen_ray.reports.report_tables import ReportTable

SHOWN_CHARACTERS = 120
SHOWN_TEXTS = 10


def dataset_tables(description: Description) -> list[ReportTable]:
    """Return a description's tables, summary first; tables of anchors only if there are any."""
    tables = [
        _summary(description),
        _splits(description),
        _shares(description),
        _popularity(description),
        _distributions(description),
        _hubs(description),
        signal_table(description.signals),
        _tokens(description),
        _samples(description),
    ]
    return [table for table in tables if table.rows]


def dataset_words(description: Description) -> list[str]:
    """Say in a few sentences how large a dataset is, and what its graphs promise."""
    numbers = description.statistics
    sizes = [_count(numbers[f"num_{name}"]) for name in ("train_queries", "ads", "test_queries")]
    words = [
        "{} train queries, {} ads, {} test queries.".format(*sizes),
        f"{_average(numbers['clicks_per_query'])} clicks per query, "
        f"{_average(numbers['queries_per_ad'])} queries per ad.",
    ]
    words += [f"{name}: {reading(signal)}" for name, signal in description.signals.items()]
    if not description.signals:
        words.append("No graph; jobs/graph.py makes one from sessions or from texts.")
    return words


def dataset_note(description: Description) -> str:
    """Return where the data is from, as far as ``dataset.json`` says so."""
    texts = (str(description.metadata.get(key) or "") for key in ("source", "licence"))
    return " · ".join(filter(None, texts))


def _summary(description: Description) -> ReportTable:
    numbers = description.statistics
    counts = [
        *(_count(numbers[key]) for key in ("num_train_queries", "num_ads", "num_test_queries")),
        *(_average(numbers[key]) for key in ("queries_per_ad", "clicks_per_query")),
    ]
    rows = [
        [
            name,
            _count(numbers[f"{name}_num_anchors"]),
            _average(numbers[f"{name}_anchors_per_query"]),
            _average(numbers[f"{name}_anchors_per_ad"]),
        ]
        for name in description.hubs
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


def _splits(description: Description) -> ReportTable:
    columns = ["split", "queries", "clicks", "clicks per query"]
    has_weights = any(size.weight is not None for size in description.splits.values())
    if has_weights:
        columns.append("click weight")
    kinds = []
    if any(name.endswith("_judgements") for name in description.statistics):
        kinds = ["judgements", "low_judgements"]
    columns += [kind.replace("_", " ") for kind in kinds]
    rows = []
    for split, size in description.splits.items():
        per_query = _average(size.num_clicks / size.num_queries)
        row = [split, _count(size.num_queries), _count(size.num_clicks), per_query]
        if has_weights:
            row.append("" if size.weight is None else _average(size.weight))
        row += [_count(description.statistics.get(f"num_{split}_{kind}", 0)) for kind in kinds]
        rows.append(row)
    return ReportTable("Splits", columns, rows)


def _shares(description: Description) -> ReportTable:
    # a graph need not link both sides
    return ReportTable(
        "Without clicks, without edges",
        ("", "number", "of", "share"),
        [
            [share.what, _count(share.part), _count(share.whole), _per_cent(share)]
            for metric, share in description.shares.items()
            if not (metric.endswith("_without_edge") and share.part == share.whole)
        ],
        note="Batches are drawn from clicks: what has no train click is learnt by its edges only.",
    )


def _popularity(description: Description) -> ReportTable:
    rows = []
    for name, group in description.groups.items():
        span = "no ad" if group.clicks is None else "{:,} to {:,}".format(*group.clicks)
        shares = [group.shares[whole] for whole in ("ads", "train_clicks", "test_clicks")]
        rows.append([name, span, _count(shares[0].part), *map(_per_cent, shares)])
    return ReportTable(
        "Head, torso and tail",
        ("group", "train clicks of an ad", "ads", "of ads", "of train clicks", "of test clicks"),
        rows,
        note="Ads by train clicks, each group with about a third of the clicks; ads with equally "
        "many clicks stay together, and ads without any are tail.",
    )


def _distributions(description: Description) -> ReportTable:
    return ReportTable(
        "Distributions",
        ("of", "per", "mean", "median", "p90", "p99", "max"),
        [
            [
                degrees.graph,
                degrees.per,
                _average(degrees.distribution.total / degrees.distribution.size),
                *map(_count, degrees.distribution.quantiles.values()),
            ]
            for degrees in description.degrees.values()
        ],
        text_columns=2,
        note="Clicks are train clicks; an anchor's edges are those to queries and to ads.",
    )


def _hubs(description: Description) -> ReportTable:
    rows = [
        [name, _short(hub.text), _count(hub.num_queries), _count(hub.num_ads), f"{hub.share:.1%}"]
        for name, hubs in description.hubs.items()
        for hub in hubs
    ]
    return ReportTable(
        "Largest hubs",
        ("anchor set", "anchor", "queries", "ads", "of the set's edges"),
        rows,
        text_columns=2,
        note="An anchor that links a large part of the nodes pulls unrelated texts together.",
    )


def _tokens(description: Description) -> ReportTable:
    limit = description.max_length
    rows = [
        [
            table,
            _count(tokens.lengths.size),
            _count(tokens.num_texts),
            *map(_count, tokens.lengths.quantiles.values()),
            _per_cent(tokens.share_above(limit)),
            f"{tokens.figures.share_unknown:.1%}",
            f"{tokens.figures.share_repeated:.1%}",
        ]
        for table, tokens in description.tokens.items()
    ]
    return ReportTable(
        "Token lengths",
        (
            *("table", "counted", "texts", "median", "p90", "p99", "max", f"over {limit}"),
            *("unknown", "repeated"),
        ),
        rows,
        note=f"Before truncation, with special tokens, by the tokenizer of {description.tokenizer}."
        " Larger tables are sampled with a fixed seed. Unknown is the share of tokens that its"
        " vocabulary does not have; repeated, of texts that begin with the same"
        f" {limit} tokens as an earlier one.",
    )


def _samples(description: Description) -> ReportTable:
    names = list(description.samples[0].anchors) if description.samples else []
    return ReportTable(
        "Some train queries",
        ("query", "ads", *(f"{name} anchors" for name in names)),
        [
            [
                _short(sample.text),
                _listed(sample.ads),
                *(_listed(anchors) for anchors in sample.anchors.values()),
            ]
            for sample in description.samples
        ],
        text_columns=2 + len(names),
        note="Drawn with a fixed seed.",
    )


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _average(value: float) -> str:
    return f"{value:,.2f}"


def _per_cent(share: Share) -> str:
    return f"{share.value:.1%}"


def _short(text: str) -> str:
    return shorten(text, SHOWN_CHARACTERS, placeholder=" …")


def _listed(texts: list[str]) -> str:
    more = len(texts) - SHOWN_TEXTS
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*map(_short, texts[:SHOWN_TEXTS]), *rest])
