"""A plan as tables."""

from ramen_ray.planning.costs import unit_costs
from ramen_ray.planning.needs import Need
from ramen_ray.planning.plan import Plan
from ramen_ray.reports.page import ReportTable

GB = 1e9


def plan_table(plan: Plan) -> ReportTable:
    """Return what every stage needs."""
    cluster, machine = plan.run.cluster, plan.run.cluster.machine
    has_gpu = plan.run.on_gpu
    columns = [
        "stage",
        "machine-hours",
        "hours",
        "in one process",
        "memory GB",
        "mapped GB",
    ]
    columns += ["on a GPU GB"] if has_gpu else []
    columns += ["disk GB", "meanwhile GB", "network GB"]

    def row(need: Need) -> list[str]:
        cells = [
            need.stage,
            _number(need.machine_hours(cluster)),
            _number(need.hours(cluster)),
            _number(need.serial_hours(cluster)),
            _number(need.memory / GB),
            _number(need.mapped / GB),
        ]
        cells += [_number(need.gpu_memory / GB)] if has_gpu else []
        return cells + [_number(n / GB) for n in (need.disk, need.scratch, need.network)]

    total = ["all", _number(plan.machine_hours), _number(plan.hours)]
    total += [""] * (len(columns) - len(total))
    gpus = f", {machine.gpus} GPUs" if machine.gpus else ""
    return ReportTable(
        f"{plan.run.sizes.queries:,} queries, {plan.run.sizes.ads:,} ads on "
        f"{cluster.count} × {machine.name}",
        columns,
        [*map(row, plan.needs), total],
        note=f"A machine: {machine.cores} cores, {machine.memory / GB:,.0f} GB{gpus}. Memory, and "
        "mapped arrays that are read at random, are those of one machine. Where the network takes "
        "longer than computing, its hours count.",
    )


def size_table(plan: Plan, epochs_of: str | None) -> ReportTable:
    """Return the sizes that were planned for; ``epochs_of`` names the preset that says how long."""
    run, sizes = plan.run, plan.run.sizes
    epochs = f"epochs, the default of {epochs_of}" if epochs_of else "epochs"
    rows = {
        "queries": sizes.queries,
        "ads": sizes.ads,
        "anchors": sizes.anchors,
        "edges": sizes.edges,
        "clicks": sizes.clicks,
        epochs: run.config.training.epochs,
        "steps": run.steps,
        "texts of a step": run.batch.drawn,
        "weights of the encoder": run.encoder.weights,
    }
    return ReportTable("Sizes", ("", "number"), [[name, f"{n:,.0f}"] for name, n in rows.items()])


def cost_table() -> ReportTable:
    """Return the unit costs and where they come from."""
    return ReportTable(
        "Unit costs",
        ("name", "unit", "source", "value"),
        [[name, one.unit, one.source, f"{one.value:.3g}"] for name, one in unit_costs().items()],
        text_columns=3,
    )


def _number(value: float) -> str:
    if value == 0:
        return "0"
    if value < 0.01:
        return "<0.01"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
