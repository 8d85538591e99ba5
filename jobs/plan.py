"""Plan a training: which machine keeps its arrays in memory, and what is known of its needs.

Examples:
    python jobs/plan.py --queries 540M --ads 360M --edges-per-node 40 --machine g5.2xlarge=8
    python jobs/plan.py --queries 693K --ads 312K --anchors 2.46M 656K --edges-per-node 38.87 4.74
    python jobs/plan.py --queries 10M --ads 10M --encoder bag --epochs 20 --machine epyc

Bytes are computed from the layout of arrays. Hours are given for machines that benchmarks were run
on: docs/how_to/planning.md. Nothing is run.
"""

import re
import sys
from typing import Annotated, Literal

from pydantic import Field

from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.config import NotNegative, Positive, PositiveFloat, Section, overlay
from ramen_ray.planning import (
    ENCODERS,
    Duration,
    EncoderName,
    Machine,
    PlanError,
    PlannedRun,
    SideSize,
    Sizes,
    durations,
    held_by_stage,
    machines_by_stage,
    needs,
    parse_machines,
)
from ramen_ray.presets import PRESETS
from ramen_ray.reports.report_tables import ReportTable, show

GB, WIDTH = 1e9, 140


class PlanRequest(Section):
    """Sizes of the data, what is trained on it, and on which machines."""

    queries: str
    """Train queries: 5000, 320K, 540M, 1.2B."""
    ads: str
    """Ads."""
    anchors: tuple[str, ...] = ()
    """Anchors of each anchor set; by default one set with as many as there are queries and ads."""
    edges_per_node: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (40.0,)
    """Edges of a query in each anchor set, and of an ad."""
    edges_per_ad: tuple[NotNegative, ...] = ()
    """Edges of an ad in each anchor set, if it does not have as many as a query."""
    clicks_per_query: NotNegative = 2.0
    """Clicks of a query."""
    tokens_per_text: PositiveFloat = 8.0
    """Tokens of a text, special tokens included."""
    encoder: EncoderName = "distilbert"
    """A bag of token embeddings, MiniLM (22M weights), or DistilBERT (66M)."""
    machine: str = "this"
    """Machines, as NAME=COUNT; this is the present one."""
    preset: Literal["ramen-ance", "ramen-ngame", "lf-wikiseealsotitles-320k", "unidec-320k"] = (
        "ramen-ance"
    )
    """The method: base, graph, walks, pruning, and their schedule."""
    epochs: Positive | None = None
    """Epochs; default the preset's."""
    batch_size: Positive | None = None
    """Queries of a step over all workers; default the preset's."""
    session_events: str | None = None
    """Rows of a log of sessions that co-session graphs are made from."""
    price_per_hour: PositiveFloat | None = None
    """What one machine costs an hour, in any currency."""


def main() -> None:
    """Print which machines keep the arrays, what is needed, and the hours that are known."""
    request = parse_settings(PlanRequest, __doc__)
    events = 0 if request.session_events is None else _count(request.session_events)
    given = {
        "training.epochs": request.epochs,
        "training.global_batch_size": request.batch_size,
    }
    changes = {key: value for key, value in given.items() if value is not None}
    config = overlay(PRESETS[request.preset](), changes)
    machines = parse_machines(request.machine)
    run = PlannedRun(_sizes(request), ENCODERS[request.encoder], config, *machines)
    for stage, able in machines_by_stage(run).items():
        print(_who_keeps(run, stage, able))
    print()
    show(_needs_table(run), WIDTH)
    print()
    if hours := list(durations(run, events)):
        show(_hours_table(run, hours, request.price_per_hour), WIDTH)
    else:
        name = run.machine.name
        print(f"No hours are known: no benchmark was run on {name} (docs/how_to/planning.md).")
    print(f"next: python jobs/train.py {request.preset} --dataset PATH")


def _sizes(request: PlanRequest) -> Sizes:
    queries, ads = _count(request.queries), _count(request.ads)
    anchors = list(map(_count, request.anchors)) or [queries + ads]
    per_query = request.edges_per_node
    per_ad = request.edges_per_ad or per_query
    if not len(anchors) == len(per_query) == len(per_ad):
        raise PlanError(
            f"{len(anchors)} anchor sets, but {len(per_query)} numbers of edges of a query and "
            f"{len(per_ad)} of an ad; give one of each for every set"
        )
    sides = tuple(
        SideSize(nodes, nodes * edges, count)
        for count, *of_nodes in zip(anchors, per_query, per_ad, strict=True)
        for nodes, edges in zip((queries, ads), of_nodes, strict=True)
    )
    return Sizes(queries, ads, queries * request.clicks_per_query, request.tokens_per_text, sides)


def _count(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)", text.strip().replace(",", ""), re.IGNORECASE)
    scale = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}
    count = round(float(found[1]) * scale[found[2].upper()]) if found else 0
    if not count:
        raise PlanError(f"{text!r} is not a count; write it as 5000, 320K, 2.46M or 1.2B")
    return count


def _who_keeps(run: PlannedRun, stage: str, machines: list[Machine]) -> str:
    held, machine = held_by_stage(run)[stage], run.machine
    on_gpu = f" and {_gb(held.gpu)} on each GPU" if held.gpu else ""
    keeps = "keeps" if held.fits(machine) else "does not keep"
    smallest = (
        f"the smallest known machine that does is {machines[0].name} ({_gb(machines[0].memory)})"
        if machines
        else "no known machine does"
    )
    return (
        f"{stage}: {_gb(held.mapped)} of arrays are read at random, beside {_gb(held.memory)} of "
        f"processes{on_gpu}. {machine.name} ({_gb(machine.memory)}) {keeps} them in memory; "
        f"{smallest}."
    )


def _needs_table(run: PlannedRun) -> ReportTable:
    rows = [
        [need.what, need.accuracy, *(_number(size / GB) for size in need[2:])]
        for need in needs(run)
    ]
    sizes, epochs = run.sizes, run.config.training.epochs
    columns = ["GB of", "accuracy", "disk", "mapped", "memory", "a GPU", "network, an epoch"]
    return ReportTable(
        f"{sizes.queries:,} queries, {sizes.ads:,} ads, {sum(sizes.anchors):,} anchors, "
        f"{sizes.edges:,.0f} edges and {sizes.clicks:,.0f} clicks on {run.count} × "
        f"{run.machine.name}",
        columns,
        rows,
        text_columns=2,
        note=f"{run.steps_per_epoch:,} steps an epoch, {epochs:,} epochs. Mapped arrays and memory "
        "are those of one machine.",
    )


def _hours_table(run: PlannedRun, hours: list[Duration], price: float | None) -> ReportTable:
    rows = [[one.stage, one.source, _number(one.hours), _number(one.beyond)] for one in hours]
    columns = ["stage", "measured by", "hours", "queries over those measured"]
    if price is not None:
        columns.append("price")
        for row, one in zip(rows, hours, strict=True):
            row.append(f"{one.hours * price:,.2f}")
    return ReportTable(
        f"Hours on one {run.machine.name}; of training by one thread or, as gpu_step, by one GPU",
        columns,
        rows,
        text_columns=2,
        note="Hours of more queries than were measured are extrapolated. Several machines were "
        "not measured.",
    )


def _gb(size: float) -> str:
    return f"{_number(size / GB)} GB"


def _number(value: float) -> str:
    if 0 < value < 0.01:
        return "<0.01"
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.2g}"


if __name__ == "__main__":
    sys.exit(run_job(main))
