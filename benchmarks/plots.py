"""The pictures of the evidence pages, drawn from the tables beside them in docs/evidence.

python -m benchmarks.plots
"""

import csv
from collections.abc import Mapping

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.common import ROOT

EVIDENCE = ROOT / "docs" / "evidence"
COLOURS = {"rdocs": "tab:blue", "foldoc": "tab:orange", "debian": "tab:green"}
GRAPH = {
    "RAMEN on in_batch": "RAMEN",
    "on ance": "ance + RAMEN",
    "on ngame": "ngame + RAMEN",
    "on depsl": "depsl + RAMEN",
    "on unidec": "unidec: both + RAMEN",
    "a quarter of the clicks": "quarter of the clicks: RAMEN",
    "edges as published": "as published: RAMEN",
    "anchors in every fourth step": "every fourth step",
    "clicked ads only, fixed λ": "fixed λ, clicked nodes",
    "queries only": "query graph only",
    "half of the edges random": "half-random graph",
    "all edges random": "shuffled graph",
    "all edges random, on unidec": "unidec: both, shuffled graph",
    "all edges random, fixed λ": "shuffled graph, fixed λ",
    "edges taken as clicks (AugGT)": "AugGT",
}
"""What a line says, and the variant that it shows; over the first that this is compared with."""
OAK = {
    "RAMEN": "RAMEN",
    "OAK, links by its linker": "OAK, links by the trained linker",
    "OAK, links by RAMEN's encoder": "OAK, links by RAMEN",
    "OAK, true links (oracle)": "OAK, oracle links",
    "its linker, no trained bank": "OAK without a trained bank, trained linker",
    "its linker, no calibration": "OAK without calibration, trained linker",
    "its linker, no encoder's term": "OAK without the encoder's term, trained linker",
}
JUDGED = {
    "clicks by their number": "clicks by their number",
    "clicks by COEC": "clicks by COEC",
    "shown in vain": "shown in vain",
    "500 judgements": "500 judgements",
    "2,000 judgements": "2,000 judgements",
    "8,000 judgements": "8,000 judgements",
    "8,000, as positives too": "8,000 judgements, as positives",
    "8,000, grades too": "8,000 judgements, graded",
    "three seeds as a teacher": "a teacher",
    "half of debian's names": "half of the names judged",
}
NEW_ADS = {
    "graph": "RAMEN: text alone",
    "graph that has the new ads": "RAMEN, new ads' edges kept: text alone",
    "graph, no new ad's text seen": "RAMEN, new ads' texts unseen: text alone",
    "one click of each, trained again": "base, trained again with the revealed clicks: text alone",
    "combiner (draft)": "base: combiner (draft)",
    "graph: combiner (draft)": "RAMEN: combiner (draft)",
    "combiner (release)": "base: combiner (release)",
    "graph: combiner (release)": "RAMEN: combiner (release)",
}
TRANSFORMERS = {
    "a bag": "unidec: both + RAMEN",  # of results.csv
    "one layer": "minilm-unidec: graph",
    "one layer, fixed λ": "minilm-unidec: graph, fixed λ",
    "one layer, queries' edges too": "minilm-unidec: graph of queries too",
    "one layer, shuffled graph": "minilm-unidec: shuffled graph",
    "one layer, shuffled, fixed λ": "minilm-unidec: shuffled graph, fixed λ",
    "six layers": "minilm-6-unidec: graph",
}
RIVALS = {
    "tab:gray": ("TF-IDF, characters", "BM25"),
    "tab:purple": ("MiniLM, zero-shot", "MiniLM, trained", "static, trained"),
    "tab:brown": ("PECOS XR-Linear + texts", "napkinXC PLT + texts", "omikuji Bonsai + texts"),
    "tab:red": ("in_batch", "in_batch + RAMEN", "OAK", "unidec", "unidec + RAMEN"),
}
"""What is drawn of the peers, by the colour of its kind."""
STYLE = {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}


def main() -> None:
    matplotlib.rcParams.update(STYLE)
    _forest("results", GRAPH, "points that the graph adds to its base")
    _forest("transformer_gain", TRANSFORMERS, "points that the graph adds", beside="results")
    _forest("oak", OAK, "points over ance")
    _forest("new_ads", NEW_ADS, "points over none", ("R@10 of new ads", "R@10 of all ads"))
    _forest("judgements", JUDGED, "points over clicks alone", ("bad@5", "truth R@10"))
    _peers()
    _scale()


def _rows(name: str) -> list[dict[str, str]]:
    with (EVIDENCE / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _forest(
    name: str,
    lines: Mapping[str, str],
    meaning: str,
    metrics: tuple[str, str] = ("P@1", "R@10"),
    beside: str = "",
) -> None:
    """Draw differences with their intervals, for each line and dataset; also of a table beside."""
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in _rows(name) + (_rows(beside) if beside else []):
        if row["over"] and row["variant"] in lines.values():
            found.setdefault((row["dataset"], row["variant"], row["metric"]), row)
    colours = COLOURS | {"shop_shown": "tab:purple"}
    datasets = [dataset for dataset in colours if any(key[0] == dataset for key in found)]
    figure = Figure(figsize=(10, 1.4 + 0.45 * len(lines)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, metric in zip(panels, metrics, strict=True):
        for place, dataset in enumerate(datasets):
            shift = 0.24 * (place - (len(datasets) - 1) / 2)
            for height, variant in enumerate(lines.values()):
                if one := found.get((dataset, variant, metric)):
                    _interval(axes, height + shift, one, colours[dataset])
        axes.axvline(0, color="0.4", linewidth=0.8)
        axes.set(title=metric, xlabel=meaning, ylim=(len(lines) - 0.4, -0.6))
    panels[0].set_yticks(range(len(lines)), list(lines))
    marks = [Line2D([], [], color=colours[one], marker="o", label=one) for one in datasets]
    figure.legend(handles=marks, loc="outside upper center", ncols=len(marks), frameon=False)
    figure.savefig(EVIDENCE / f"{name}.png", dpi=130)


def _interval(axes: Axes, height: float, one: Mapping[str, str], colour: str) -> None:
    """Draw a difference and its interval; hollow where 0 is inside."""
    value, low, high = (float(one[key]) for key in ("difference", "low", "high"))
    inside = "white" if low <= 0 <= high else colour
    axes.plot((low, high), (height, height), color=colour, linewidth=1.6)
    axes.plot(value, height, "o", color=colour, markerfacecolor=inside, markersize=6)


def _peers() -> None:
    """Draw P@1 of each rival, and beside it the seconds that its training took."""
    found = {(one["dataset"], one["rival"]): one for one in _rows("peers")}
    names = [name for group in RIVALS.values() for name in group]
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    panels = figure.subplots(1, len(COLOURS), sharey=True)
    for axes, dataset in zip(panels, COLOURS, strict=True):
        for colour, group in RIVALS.items():
            for rival in group:
                if one := found.get((dataset, rival)):
                    place = (float(one["P@1"]), names.index(rival))
                    axes.plot(*place, "o", color=colour, markersize=7)
                    seconds = f"{one['training, s']} s"
                    axes.annotate(seconds, place, (7, -4), textcoords="offset points", fontsize=9)
        axes.set(title=dataset, xlabel="P@1, per cent", ylim=(len(names) - 0.5, -0.5))
        axes.margins(x=0.3)
    panels[0].set_yticks(range(len(names)), names)
    figure.savefig(EVIDENCE / "peers.png", dpi=130)


def _scale() -> None:
    """Draw what a row of each stage takes, by the number of queries."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots()
    for one in _rows("scale"):
        times = [float(one[key]) for key in ("µs a row at 20K", "at 100K", "at 1M", "at 10M")]
        axes.loglog((2e4, 1e5, 1e6, 1e7), times, "o-", label=one["stage"])
    axes.set(xlabel="queries", ylabel="microseconds a row")
    figure.legend(loc="outside right", frameon=False)
    figure.savefig(EVIDENCE / "scale.png", dpi=130)


if __name__ == "__main__":
    main()
