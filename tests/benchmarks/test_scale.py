"""The plan against measured runs of preparation, walks and training, at two sizes."""

from pathlib import Path

import pytest

from benchmarks.scale.fitting import fit
from benchmarks.scale.generated import CLICKS_PER_QUERY, Shape
from benchmarks.scale.measuring import measure_size
from benchmarks.scale.stages import ANCHOR_SET, BATCH_SIZE, STEPS, prepared_in
from ramen_ray.config import overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.planning.costs import cost
from ramen_ray.planning.machines import Cluster, this_machine
from ramen_ray.planning.plan import make_plan
from ramen_ray.planning.sizes import ENCODERS, Graph, Sizes
from ramen_ray.planning.training_stages import Training
from ramen_ray.presets import PRESETS

FACTOR = 1.5
SHAPES = [Shape(10_000, 10), Shape(40_000, 10)]


def test_fitted_unit_costs_give_the_seconds_back() -> None:
    start, text, edge = 7.0, 3e-6, 2e-7
    rows = [
        {"texts": texts, "edges": edges, "seconds": (start + text * texts + edge * edges) / 4}
        for texts, edges in ((3e4, 1e5), (3e5, 1e6), (3e5, 4e6), (3e6, 1e7))
    ]
    found = fit("validate", rows, cores=4)
    assert found["validate_start_s"] == pytest.approx(start, rel=1e-3)
    assert found["validate_text_s"] == pytest.approx(text, rel=1e-3)
    assert found["validate_edge_s"] == pytest.approx(edge, rel=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_plan_agrees_with_its_run(shape: Shape, tmp_path: Path) -> None:
    """Seconds of preparation, walks and training on a quiet machine, and bytes on the disk.

    The steps are measured in one process with one thread.
    """
    stages = ["start", "clicks", "edges", "prepare", "walk", "train"]
    found = measure_size(shape, tmp_path, stages)
    data = prepared_in(tmp_path)
    run = _planned(data)
    plan, machine = make_plan(run), run.cluster.machine
    start = cost("job_start_s") / run.cluster.cores
    planned = {
        "start": start,
        "prepare": 3600 * plan.need("preparation").hours(run.cluster) - start,
        "walk": 3600 * plan.need("walks").hours(run.cluster),
        "train": STEPS / run.steps * plan.need("training").processor_s / machine.speed,
    }
    ratios = {stage: planned[stage] / found[stage]["seconds"] for stage in planned}
    wrong = {stage: ratio for stage, ratio in ratios.items() if not 1 / FACTOR < ratio < FACTOR}
    assert not wrong, f"planned over measured: {ratios}, at speed {machine.speed:.2f}"
    folders = {"preparation": data.path, "walks": tmp_path / "walked"}
    for stage, folder in folders.items():
        on_disk = sum(file.stat().st_size for file in folder.rglob("*.npy"))
        assert 1 / FACTOR < plan.need(stage).disk / on_disk < FACTOR


def _planned(data: Prepared) -> Training:
    """The run that the stages measure: walks, and a bag with R_x and R_z of one set."""
    num_queries, num_ads = len(data.queries["train"]), len(data.ads)
    edges = [len(data.edges(ANCHOR_SET, side).indices) for side in ("query", "ad")]
    texts = [data.queries["train"], data.ads, data.anchors(ANCHOR_SET)]
    tokens = sum(len(one.token_ids) for one in texts) / sum(map(len, texts))
    graph = Graph(len(texts[2]), edges[0] / num_queries, edges[1] / num_ads)
    sizes = Sizes(num_queries, num_ads, (graph,), CLICKS_PER_QUERY, tokens)
    changes = {
        "base.kind": "in_batch",
        "regularization.nodes": "all",
        "training.global_batch_size": BATCH_SIZE,
    }
    config = overlay(PRESETS["ramen-ance"](), changes)
    machine = this_machine(cost("reference_s"))
    return Training(sizes, ENCODERS["bag"], config, Cluster(machine, 1))
