"""Describe a dataset directory, and say whether its graphs will help."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from ramen_ray.data.checks.validation import check
from ramen_ray.data.describe.counts import count_degrees
from ramen_ray.data.describe.graph_signal import GraphSignal, Shared, graph_signals
from ramen_ray.data.engine import engine
from ramen_ray.data.prepared.folder import dataset_statistics
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import shown_path
from ramen_ray.long_work import logged_progress
from ramen_ray.reports.dataset_report import (
    average,
    count,
    distributions,
    hubs,
    samples,
    shares,
    splits,
    token_lengths,
)
from ramen_ray.reports.report_tables import ReportTable


@dataclass(frozen=True)
class Description:
    """What is in a dataset; small, however large that is."""

    note: str  # where the data is from, as far as ``dataset.json`` says so
    words: list[str]  # how large it is, and what its graphs promise
    tables: list[ReportTable]


def describe(dataset: Dataset, encoder: str, max_length: int) -> Description:
    """Describe ``dataset``, whose tables are read as streams.

    The encoder's tokenizer counts tokens; texts with more than ``max_length`` are too long. Raises
    a DatasetError with all errors of the dataset directory, or an EncoderError.
    """
    with logged_progress(f"checking {shown_path(dataset.path)}"):
        check(dataset)
    with logged_progress(f"counting clicks, edges and tokens of {shown_path(dataset.path)}"):
        tokens = token_lengths(dataset, encoder, max_length)
        statistics = dataset_statistics(dataset)
        with engine(Path(gettempdir()), dataset=dataset) as connection:
            degrees = count_degrees(connection, dataset)
            signals = graph_signals(connection, dataset, degrees)
            tables = [
                splits(connection, dataset, statistics),
                shares(connection, degrees),
                distributions(degrees),
                hubs(connection, dataset),
                signal_table(signals),
                tokens,
                samples(connection, dataset),
            ]
    texts = (str(dataset.metadata.get(key) or "") for key in ("source", "licence"))
    return Description(
        " · ".join(filter(None, texts)),
        _words(statistics, signals),
        [table for table in tables if table.rows],
    )


def _words(numbers: Mapping[str, float], signals: Mapping[str, GraphSignal]) -> list[str]:
    sizes = [count(numbers[f"num_{name}"]) for name in ("train_queries", "ads", "test_queries")]
    words = [
        "{} train queries, {} ads, {} test queries.".format(*sizes),
        f"{average(numbers['clicks_per_query'])} clicks per query, "
        f"{average(numbers['queries_per_ad'])} queries per ad.",
    ]
    words += [f"{name}: {reading(signal)}" for name, signal in signals.items()]
    if not signals:
        words.append("No graph; jobs/graph.py makes one from sessions or from texts.")
    return words


NO_LIFT = 2.0
STRONG_LIFT = 4.0
"""Below the first a graph says next to nothing about clicks, above the second a good deal."""
VOID = "void"
TIED = {
    ("query", "ad"): "clicks",
    ("query",): "queries that led to the same ads",
    ("ad",): "ads that were clicked for the same queries",
}
MUCH_REACH = 0.05
FEW_SHARED = 0.05
MANY_LEAKS = 0.005


def signal_table(signals: Mapping[str, GraphSignal]) -> ReportTable:
    """Lay out what each anchor set could bring."""
    return ReportTable(
        "Will the graph help?",
        (
            "anchor set",
            "edges per query",
            "edges per ad",
            "test clicks it alone reaches",
            "tied",
            "by chance",
            "lift",
            "lift beyond words",
            "leaking edges",
        ),
        [[name, *_cells(signal)] for name, signal in signals.items()],
        note="The graph alone reaches ads without a train click but with edges. Tied is the share "
        "of train clicks whose query and ad share an anchor, where both have edges; for a set of "
        "one side, of the pairs that it joins that share a click. By chance is the same with one "
        "end shuffled, and lift the first over the second. Beyond words counts those whose texts "
        "have no word in common. Leaking edges join a held-out query to its answer. void: the set "
        "was made from the clicks.",
    )


def _cells(signal: GraphSignal) -> list[str]:
    has = {side: side in signal.sides for side in ("query", "ad")}
    shared = signal.shared
    beyond = signal.shared_beyond_words
    return [
        _shown(signal.edges_per_query, ",.2f", has["query"]),
        _shown(signal.edges_per_ad, ",.2f", has["ad"]),
        _shown(signal.share_reached, ".1%", has["ad"]),
        _shown(shared.share, ".1%", shared.pairs > 0),
        _shown(shared.share_by_chance, ".1%", shared.pairs > 0),
        VOID if signal.is_void else _shown(shared.lift, ",.1f", shared.pairs > 0),
        VOID if signal.is_void else _shown(beyond.lift, ",.1f", beyond.pairs > 0),
        f"{signal.share_leaking:.1%}",
    ]


def _shown(value: float, form: str, exists: bool) -> str:
    return f"{value:{form}}" if exists else "–"


def reading(signal: GraphSignal) -> str:
    """Say in plain words what an anchor set's figures promise."""
    if signal.is_void:
        first = "It was made from the clicks themselves, so this cannot tell: train with it and see"
    elif not signal.shared.pairs:
        first = "Nothing that it joins is in the train clicks, so that nothing can be told"
    else:
        first = _on_lifts(signal.shared, signal.shared_beyond_words, TIED[signal.sides])
    sentences = [first]
    share = signal.share_reached
    if "ad" not in signal.sides:
        sentences.append(
            "But it has no edges of ads, where a graph gains most: presets leave it out, and "
            "--regularization.lambda-x tries it"
        )
    elif share >= MUCH_REACH:
        sentences.append(f"{share:.0%} of the test clicks are on ads that are learnt from it alone")
    else:
        sentences.append(
            f"Ads without a train click that it reaches have {share:.1%} of the test clicks"
        )
    if signal.share_leaking >= MANY_LEAKS:
        sentences.append(
            f"{signal.leaking_edges:,} of its edges give a held-out answer away: what it gains may"
            " be due to them"
        )
    return ". ".join(sentences) + "."


def _on_lifts(shared: Shared, beyond: Shared, what: str) -> str:
    lifts = f"({shared.lift:,.1f} times chance, {beyond.lift:,.1f} beyond words)"
    if shared.lift < NO_LIFT:
        return f"It says little about clicks {lifts}: expect no gain, or a loss at a fixed λ"
    if beyond.lift < NO_LIFT:
        return f"It ties {what} {lifts}, but only where their texts already do: expect little"
    if beyond.share < FEW_SHARED:
        return (
            f"It ties {what} {lifts}, but only {beyond.share:.1%} of those whose texts have no word"
            " in common: it may gain where texts are alike"
        )
    if beyond.lift < STRONG_LIFT:
        return f"It ties some {what} {lifts}, along with much else: let λ adapt"
    return f"It ties {what} whose texts have no word in common {lifts}: may gain"
