"""Will the graph help? What its figures say before training, as a table and in plain words."""

from collections.abc import Mapping

from ramen_ray.data.describe.graph_signal import GraphSignal
from ramen_ray.reports.page import ReportTable

NO_LIFT, STRONG_LIFT = 2.0, 4.0
"""Below the first a graph says next to nothing about clicks, above the second a good deal."""
MUCH_REACH = 0.05
FEW_SHARED = 0.05
MANY_LEAKS = 0.005


def signal_tables(signals: Mapping[str, GraphSignal]) -> list[ReportTable]:
    """Lay out what each anchor set could bring; nothing without anchor sets."""
    figures = ReportTable(
        "Will the graph help?",
        (
            "anchor set",
            "edges per query",
            "edges per ad",
            "test clicks it alone reaches",
            "clicks with a shared anchor",
            "by chance",
            "lift",
            "lift beyond words",
            "leaking edges",
        ),
        [[name, *_cells(signal)] for name, signal in signals.items()],
        note="The graph alone reaches ads without a train click but with edges. A shared anchor is "
        "one that a train query and its clicked ad both have, where both have edges; by chance is "
        "the same with the ads shuffled, and lift the first over the second. Beyond words counts "
        "clicks whose texts have no word in common. Leaking edges join a held-out query to its "
        "answer.",
    )
    readings = ReportTable(
        "What the graph promises",
        ("anchor set", "reading"),
        [[name, reading(signal)] for name, signal in signals.items()],
        text_columns=2,
        note="A judgement before training; jobs/ablate.py measures what the graph brings.",
    )
    return [figures, readings]


def _cells(signal: GraphSignal) -> list[str]:
    metrics = signal.metrics
    return [
        f"{signal.edges_per_query:,.2f}",
        f"{signal.edges_per_ad:,.2f}",
        f"{metrics['share_test_clicks_reached']:.1%}",
        f"{signal.shared.share:.1%}",
        f"{signal.shared.share_by_chance:.1%}",
        f"{signal.shared.lift:,.1f}",
        f"{signal.shared_beyond_words.lift:,.1f}",
        f"{metrics['share_leaking_edges']:.1%}",
    ]


def reading(signal: GraphSignal) -> str:
    """Say in plain words what an anchor set's figures promise."""
    sentences = [_on_clicks(signal), _on_reach(signal)]
    if signal.metrics["share_leaking_edges"] >= MANY_LEAKS:
        sentences.append(
            f"{signal.leaking_edges:,} of its edges give a held-out answer away: what it gains may"
            " be due to them"
        )
    return ". ".join(sentences) + "."


def _on_clicks(signal: GraphSignal) -> str:
    shared, beyond = signal.shared, signal.shared_beyond_words
    if not shared.clicks:
        return "It joins only one side, so that no query shares an anchor with an ad"
    lifts = f"({shared.lift:,.1f} times chance, {beyond.lift:,.1f} beyond words)"
    if shared.lift < NO_LIFT:
        return f"It says little about clicks {lifts}: expect no gain, or a loss at a fixed λ"
    if beyond.lift < NO_LIFT:
        return f"It ties clicks {lifts}, but only where their texts already do: expect little"
    if beyond.share < FEW_SHARED:
        return (
            f"It ties clicks {lifts}, but only {beyond.share:.1%} of those whose texts have no word"
            " in common: expect a gain where texts are alike"
        )
    if beyond.lift < STRONG_LIFT:
        return f"It ties some clicks {lifts}, along with much else: let λ adapt"
    return f"It ties clicks whose texts have no word in common {lifts}: expect a gain"


def _on_reach(signal: GraphSignal) -> str:
    share = signal.metrics["share_test_clicks_reached"]
    if share >= MUCH_REACH:
        return f"{share:.0%} of the test clicks are on ads that are learnt from it alone"
    return f"Ads without a train click that it reaches have {share:.1%} of the test clicks"
