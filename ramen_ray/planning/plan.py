"""The plan: what every stage needs for data of given sizes, and what would break."""

from collections.abc import Iterator
from dataclasses import dataclass

from ramen_ray.planning.arrays import LARGEST_INT32
from ramen_ray.planning.data_stages import (
    co_session,
    describe,
    import_clicks,
    import_edges,
    prepare,
    validate,
    walk,
)
from ramen_ray.planning.needs import Need
from ramen_ray.planning.training_stages import (
    Training,
    background,
    index,
    pages_per_step,
    train,
)

LONG_HOURS, MONTH_HOURS = 24.0, 720.0
GB = 1e9


@dataclass(frozen=True)
class Plan:
    """What a run needs.

    Attributes:
        run: what was planned.
        needs: of each stage, in their order.
    """

    run: Training
    needs: list[Need]

    @property
    def machine_hours(self) -> float:
        """Of all stages."""
        return sum(need.machine_hours(self.run.cluster) for need in self.needs)

    @property
    def hours(self) -> float:
        """Of all stages, one after another."""
        return sum(need.hours(self.run.cluster) for need in self.needs)

    def need(self, stage: str) -> Need:
        """Return the need of one stage."""
        return next(need for need in self.needs if need.stage == stage)


def make_plan(run: Training, session_events: int = 0) -> Plan:
    """Plan all stages from a user's tables to an index.

    Args:
        run: sizes, encoder, method and machines.
        session_events: rows of a log from which co-session graphs are made; 0 for none.
    """
    sizes, cluster, settings = run.sizes, run.cluster, run.config.walk
    needs = [import_clicks(sizes, cluster)]
    if sizes.graphs:
        needs.append(import_edges(sizes, cluster))
    if session_events:
        needs.append(co_session(session_events, cluster))
    needs += [validate(sizes, cluster), describe(sizes, cluster), prepare(sizes, cluster)]
    if settings.enabled and sizes.graphs:
        needs.append(walk(sizes, cluster, settings.num_hops, settings.top_k))
    return Plan(run, [*needs, train(run), *background(run), index(run)])


def what_breaks(plan: Plan) -> list[str]:
    """Say which limits of the machines, or of this program, a plan exceeds."""
    return [*_too_large(plan), *_too_slow(plan), *_without_gpus(plan), *_too_many(plan)]


def _too_large(plan: Plan) -> Iterator[str]:
    machine = plan.run.cluster.machine
    has = f"a machine has {_gb(machine.memory)}"
    for need in plan.needs:
        if need.memory > machine.memory:
            yield f"{need.stage}: a machine's processes need {_gb(need.memory)} of memory; {has}"
        elif need.memory + need.mapped > machine.memory:
            yield (
                f"{need.stage}: {_gb(need.mapped)} of arrays are read at random, and {has}: pages "
                f"would be read again and again"
            )
        if need.gpu_memory > machine.gpu_memory > 0:
            yield (
                f"{need.stage}: {_gb(need.gpu_memory)} on a GPU, "
                f"which has {_gb(machine.gpu_memory)}"
            )
    yield from _disk_and_folder(plan)


def _disk_and_folder(plan: Plan) -> Iterator[str]:
    machine, count = plan.run.cluster.machine, plan.run.cluster.count
    kept = sum(need.disk for need in plan.needs)
    scratch = max(need.scratch for need in plan.needs)
    if kept + scratch > machine.disk * count:
        yield (
            f"disk: {_gb(kept)} stay and {_gb(scratch)} come and go; the machines' own disks have "
            f"{_gb(machine.disk * count)}, so the shared folder needs this room"
        )
    for need in plan.needs:
        if need.spilled > machine.disk * count:
            yield (
                f"{need.stage}: Ray writes {_gb(need.spilled)} of lists to the machines' own "
                f"disks, since they cannot hold all ads at once; the disks have "
                f"{_gb(machine.disk * count)}"
            )
    training = plan.need("training")
    if training.memory + training.mapped > machine.memory and count > 1 and plan.run.steps:
        steps_per_s = plan.run.steps / (training.hours(plan.run.cluster) * 3600)
        rate = pages_per_step(plan.run) * steps_per_s
        yield (
            f"shared folder: training would read up to {_gb(rate * count)} a second of pages at "
            f"random, since a machine cannot keep the arrays in memory"
        )


def _too_slow(plan: Plan) -> Iterator[str]:
    cluster = plan.run.cluster
    for need in plan.needs:
        serial, network = need.serial_hours(cluster), need.network_hours(cluster)
        if serial > LONG_HOURS:
            yield (
                f"{need.stage}: {serial:,.0f} hours in one process or GPU, whatever the number of "
                f"machines"
            )
        if need.hours(cluster) > MONTH_HOURS:
            yield f"{need.stage}: {need.hours(cluster):,.0f} hours on all machines"
        if network > max(need.compute_hours(cluster), 1.0):
            yield (
                f"{need.stage}: the network takes {network:,.0f} hours, computing "
                f"{need.compute_hours(cluster):,.0f}"
            )


def _without_gpus(plan: Plan) -> Iterator[str]:
    """Name background tasks that take longer than training, and have no share of a GPU."""
    run, roomy = plan.run, plan.run.with_room_for_tasks()
    if run.gpu_of_task == roomy.gpu_of_task:
        return
    training = plan.need("training").hours(run.cluster)
    for on_cpus, on_gpus in zip(background(run), background(roomy), strict=True):
        hours = on_cpus.hours(run.cluster)
        if hours > max(training, 1.0):
            yield (
                f"{on_cpus.stage}: {_hours(hours)}, longer than training ({_hours(training)}), on "
                f"CPUs, since the workers leave no quarter of a GPU; set --workers.gpus-per-worker "
                f"{roomy.config.workers.gpus_per_worker:g} for {_hours(on_gpus.hours(run.cluster))}"
            )


def _too_many(plan: Plan) -> Iterator[str]:
    sizes = plan.run.sizes
    counts = {"queries": sizes.queries, "ads": sizes.ads}
    counts |= {f"anchors of set {n}": graph.anchors for n, graph in enumerate(sizes.graphs)}
    for what, count in counts.items():
        if count > LARGEST_INT32:
            yield f"ids: {count:,} {what} do not fit into 4 bytes, so edges take twice the room"


def _hours(hours: float) -> str:
    return f"{hours:.2g} hours" if hours < 10 else f"{hours:,.0f} hours"


def _gb(size: float) -> str:
    return f"{size / GB:,.1f} GB" if size < 100 * GB else f"{size / GB:,.0f} GB"
