"""The plan against what it plans: files, graphs, batches and encoders that are really made."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import RunHere
from numpy.typing import NDArray
from support import node_edges, prepare_in_process, query_table, text_table
from transformers import BertConfig, BertModel, BertTokenizer, DistilBertConfig, DistilBertModel

from jobs import plan as plan_job
from ramen_ray.config import EncoderConfig, overlay
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import write_dataset
from ramen_ray.method.graph.walk import WalkGraph
from ramen_ray.method.model.encoder import TransformerEncoder
from ramen_ray.method.model.packing import packed
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.sampling.batches import Batch, Sources
from ramen_ray.method.sampling.regularizers import Regularizer
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.orchestration.runs.components import build_encoder, build_sampler
from ramen_ray.planning import arrays, data_stages, training_stages
from ramen_ray.planning.batches import batch_of
from ramen_ray.planning.costs import cost, unit_costs
from ramen_ray.planning.machines import Cluster, Machine, PlanError, parse_cluster
from ramen_ray.planning.needs import Need
from ramen_ray.planning.plan import make_plan, what_breaks
from ramen_ray.planning.sizes import ENCODERS, Graph, Sizes, parse_count
from ramen_ray.planning.training_stages import Training
from ramen_ray.presets import MINILM, PRESETS, tiny

GIB = 2**30
SMALL = Machine("small", cores=4, memory=16 * GIB, disk=1e12, network=1e9)
WITH_GPU = Machine(
    "gpu", 8, 64 * GIB, 1, 24 * GIB, gpu_bf16=1e14, gpu_fp32=2e13, disk=3e10, network=1e9
)


@pytest.mark.parametrize(
    ("text", "count"),
    [("5000", 5000), ("320K", 320_000), ("2.46M", 2_460_000), ("1.2b", 1_200_000_000)],
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "-3", "5 M K", "M", "1e6", "nan"])
def test_what_is_not_a_count(text: str) -> None:
    with pytest.raises(PlanError, match="is not a count; write it as"):
        parse_count(text)


def _made(folder: Path, encoder: Path, num_queries: int) -> tuple[Prepared, Sizes]:
    """A prepared dataset with random edges of two sets, and its sizes."""
    draw = np.random.default_rng(num_queries)
    num_ads = num_queries // 2
    shapes = {"links": (num_queries, 7, 4), "topics": (num_queries // 5, 3, 2)}

    def lists(count: int, limit: int, most: int) -> list[list[int]]:
        return [
            draw.choice(limit, size, replace=False).tolist()
            for size in draw.integers(1, most + 1, count)
        ]

    def texts(count: int) -> list[str]:
        return [f"robin heron {number} finch" for number in range(count)]

    clicks = lists(num_queries, num_ads, 4)
    tables = {
        "ads": text_table("ad_id", texts(num_ads)),
        "queries/train": query_table(texts(num_queries), clicks),
        "queries/validation": query_table(["raven"], [[0]]),
        "queries/test": query_table(["stork"], [[0]]),
    }
    graphs = []
    for name, (num_anchors, most_of_query, most_of_ad) in shapes.items():
        tables[f"anchors/{name}"] = text_table("anchor_id", texts(num_anchors))
        of = {}
        for side, count, most in (
            ("query", num_queries, most_of_query),
            ("ad", num_ads, most_of_ad),
        ):
            linked = lists(count, num_anchors, most)
            weights = [draw.random(len(row)) + 0.5 for row in linked]
            tables[f"edges/{name}/{side}"] = node_edges(f"{side}_id", linked, weights)
            of[side] = sum(map(len, linked)) / count
        graphs.append(Graph(num_anchors, of["query"], of["ad"]))
    dataset = write_dataset(folder / "made", tables, name="made")
    data = prepare_in_process(dataset, folder / "prepared", str(encoder), 16, False)
    num_clicks = sum(map(len, clicks))
    token_tables = [data.queries["train"], data.ads, *(data.anchors(name) for name in shapes)]
    num_tokens = sum(len(table.token_ids) for table in token_tables)
    num_texts = sum(map(len, token_tables))
    sizes = Sizes(
        num_queries, num_ads, tuple(graphs), num_clicks / num_queries, num_tokens / num_texts
    )
    return data, sizes


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, encoder_path: Path
) -> Callable[[int], tuple[Prepared, Sizes]]:
    return lambda count: _made(tmp_path_factory.mktemp("planned"), encoder_path, count)


@pytest.mark.parametrize("num_queries", [500, 2_000])
def test_prepared_bytes_are_those_of_the_files(
    num_queries: int, made: Callable[[int], tuple[Prepared, Sizes]]
) -> None:
    data, sizes = made(num_queries)
    held_out = ("validation", "test", "filters")
    files = [
        file
        for file in data.path.rglob("*.npy")
        if not any(part in held_out for part in file.relative_to(data.path).parts)
        and file.name not in ("novel_ads.npy", "occurring_tokens.npy")
    ]
    headers = 128 * len(files)
    on_disk = sum(file.stat().st_size for file in files) - headers
    weights_of_clicks = data.path / "clicks" / "train" / "cumulative_weights.npy"
    assert not weights_of_clicks.exists()
    assert arrays.prepared_bytes(sizes) == pytest.approx(on_disk, rel=0.01)


def test_a_walks_graph_is_as_large_as_planned() -> None:
    draw = np.random.default_rng(0)
    pairs = np.unique(draw.integers(0, 3_000, (20_000, 2)), axis=0)
    edges = Csr.from_pairs(pairs[:, 0], pairs[:, 1], 3_000)
    graph = WalkGraph.of(edges, max_anchor_degree=500)
    held = (array for csr in (graph.forward, graph.backward) for array in (csr.indptr, csr.indices))
    planned = arrays.walk_graph_bytes(3_000, 3_000, len(pairs))
    assert planned == pytest.approx(sum(array.nbytes for array in held), rel=0.01)


@pytest.mark.parametrize("nodes", ["all", "clicked"])
@pytest.mark.parametrize("base", ["in_batch", "ance", "depsl"])
def test_a_step_is_as_large_as_those_of_a_sampler(
    nodes: str, base: str, made: Callable[[int], tuple[Prepared, Sizes]]
) -> None:
    data, sizes = made(500)
    batch = 64
    changes = {
        "base.kind": base,
        "regularization.nodes": nodes,
        "training.global_batch_size": batch,
    }
    config = overlay(tiny(), changes)
    regularizers = [
        Regularizer(name, side) for name in ("links", "topics") for side in ("query", "ad")
    ]
    training_data = TrainingData.from_prepared(data, regularizers)
    sampler = build_sampler(config, data, training_data)
    planned = batch_of(config, sizes)
    shape = sizes.queries, 20
    shortlists = np.random.default_rng(0).integers(0, sizes.ads, shape, dtype=np.int32)
    has_shortlists = config.base.parts.hard_negatives == "shortlists"
    sources = Sources(training_data.graphs, shortlists=shortlists if has_shortlists else None)
    steps = [_counts(sampler.draw(step, sources, regularizers)) for step in range(20)]
    assert {drawn for drawn, _, _ in steps} == {planned.drawn}
    _, encoded, pairs = np.mean(steps, axis=0)
    assert planned.distinct == pytest.approx(encoded, rel=0.1)
    assert planned.pairs == pytest.approx(pairs, rel=0.1)


def _counts(batch: Batch) -> tuple[int, int, int]:
    """Texts that a batch draws, and encodes, and pairs of a node and what it is compared with."""
    ads = [batch.ads.ravel(), batch.hard_negatives.ravel()]
    pairs = len(batch.queries) * len(np.unique(np.concatenate(ads)))
    drawn = len(batch.queries) + sum(map(len, ads))
    anchors: dict[str, list[NDArray[np.int64]]] = {}
    for regularizer, (nodes, own) in batch.anchors.items():
        of_batch = batch.queries if regularizer.side == "query" else batch.ads
        anchors.setdefault(regularizer.anchor_set, []).append(own.ravel())
        drawn += own.size
        if not np.isin(nodes, of_batch).all():
            ads.append(nodes.ravel())
            drawn += nodes.size
    pools = {name: len(np.unique(np.concatenate(own))) for name, own in anchors.items()}
    pairs += sum(
        nodes.size * pools[regularizer.anchor_set]
        for regularizer, (nodes, _) in batch.anchors.items()
    )
    encoded = len(batch.queries) + len(np.unique(np.concatenate(ads))) + sum(pools.values())
    return drawn, encoded, pairs


def test_encoders_have_as_many_weights_as_planned() -> None:
    with torch.device("meta"):
        distilbert = DistilBertModel(DistilBertConfig())
    bag = build_encoder(EncoderConfig(kind="bag", pretrained=MINILM))
    minilm = build_encoder(EncoderConfig(pretrained=MINILM))
    for name, model in {"bag": bag, "minilm": minilm, "distilbert": distilbert}.items():
        embeddings = [p.numel() for n, p in model.named_parameters() if "embedding" in n]
        planned = ENCODERS[name]
        assert planned.embeddings == pytest.approx(sum(embeddings), rel=0.01)
        weights = sum(parameter.numel() for parameter in model.parameters())
        assert planned.weights == pytest.approx(weights, rel=0.02)
    assert ENCODERS["minilm"].dim == minilm.dim


def test_operations_are_those_that_torch_counts() -> None:
    """A transformer's products of matrices, counted by torch's own counter."""
    from torch.utils.flop_counter import FlopCounterMode

    texts, tokens = 4, 16
    config = DistilBertConfig(attn_implementation="eager")
    with torch.device("meta"):
        model = DistilBertModel(config)
        ids = torch.zeros((texts, tokens), dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with counter:
        model(input_ids=ids).last_hidden_state.sum().backward()
    counted = counter.get_total_flops()
    planned = ENCODERS["distilbert"].operations(texts, tokens, is_training=True)
    assert planned == pytest.approx(counted, rel=0.03)


def _run(queries: int, machine: Machine, count: int, **changes: object) -> Training:
    sizes = Sizes(queries, queries, (Graph(queries, 5, 5),), 2, 8)
    config = overlay(PRESETS["ramen-ance"](), {"training.epochs": 12, **changes})
    return Training(sizes, ENCODERS["distilbert"], config, Cluster(machine, count))


LEAVING_A_QUARTER = {"workers.gpus_per_worker": 0.75}
TEXT = 8 * (2 * 42_527_232 + 4 * 6 * 768 * 8)
"""Operations on a text of 8 tokens, by DistilBERT."""


@pytest.mark.parametrize(("gpus_per_worker", "on_gpu"), [(1.0, False), (0.76, False), (0.75, True)])
def test_tasks_have_a_quarter_of_a_gpu_if_the_workers_leave_it(
    gpus_per_worker: float, on_gpu: bool
) -> None:
    run = _run(100_000, WITH_GPU, 4, **{"workers.gpus_per_worker": gpus_per_worker})
    plan, gpu = make_plan(run), 1e14 * cost("gpu_share")
    pruning, shortlists = plan.need("pruning"), plan.need("shortlists")
    times, texts = 1, 300_000
    on_cpus, on_gpus = TEXT / cost("core_operations"), TEXT / (0.25 * gpu)
    assert pruning.cpu_s == pytest.approx(0 if on_gpu else times * texts * on_cpus)
    assert pruning.gpu_s == pytest.approx(times * texts * on_gpus if on_gpu else 0)
    times, texts, products = 2, 200_000, 2 * 1e5 * 1e5 * 768
    rate = 0.25 * 2e13 * cost("gpu_search_share") if on_gpu else cost("core_search_operations")
    seconds = times * (texts * (on_gpus if on_gpu else on_cpus) + products / rate)
    assert shortlists.serial_gpu_s == pytest.approx(seconds if on_gpu else 0)
    assert shortlists.serial_s == pytest.approx(0 if on_gpu else seconds)
    assert shortlists.gpu_memory == (1e5 * 768 * 4 if on_gpu else 0)
    assert plan.need("index of the ads").serial_gpu_s == pytest.approx(1e5 * TEXT / gpu)


def test_a_plan_says_which_tasks_would_be_shorter_on_a_gpu() -> None:
    def said(machine: Machine, encoder: str = "distilbert", **changes: object) -> str:
        run = replace(_run(1_000_000, machine, 1, **changes), encoder=ENCODERS[encoder])
        return "\n".join(what_breaks(make_plan(run)))

    cluster = Cluster(WITH_GPU, 1)
    whole, less = (
        make_plan(_run(1_000_000, WITH_GPU, 1, **changes)) for changes in ({}, LEAVING_A_QUARTER)
    )
    slow, training, fast = (
        plan.need(stage).hours(cluster)
        for plan, stage in ((whole, "shortlists"), (whole, "training"), (less, "shortlists"))
    )
    assert 1 < training < 10 < slow
    assert fast < 1
    assert (
        f"shortlists: {slow:.0f} hours, longer than training ({training:.2g} hours), on CPUs, "
        f"since the workers leave no quarter of a GPU; set --workers.gpus-per-worker 0.75 for "
        f"{fast:.2g} hours"
    ) in said(WITH_GPU)
    advice = "gpus-per-worker"
    assert advice not in said(WITH_GPU, **LEAVING_A_QUARTER)
    assert advice not in said(SMALL)
    assert advice not in said(WITH_GPU, "bag")


def test_training_maps_all_graphs_and_the_shortlists() -> None:
    """Per set and side, 8 bytes a node, and 12 an edge: at most 10 of a node after walks."""

    def mapped(**changes: object) -> float:
        run = _run(1000, SMALL, 1, **{"training.global_batch_size": 100, **changes})
        return make_plan(run).need("training").mapped - arrays.prepared_bytes(run.sizes)

    walks, pruning = {"walk.enabled": True}, {"pruning.mode": "synchronous"}
    no_walks, no_pruning = {"walk.enabled": False}, {"pruning.mode": "never"}
    no_lists = {"base.kind": "in_batch"}
    walked, own, lists = 2 * (8_000 + 120_000), 2 * (8_000 + 60_000), 4 * 1000 * 100
    assert mapped(**no_walks, **no_pruning, **no_lists) == 0
    assert mapped(**no_walks, **no_pruning) == lists
    assert mapped(**walks, **no_pruning, **no_lists) == walked
    assert mapped(**no_walks, **pruning, **no_lists) == own
    assert mapped(**walks, **pruning) == 2 * walked + lists
    assert mapped(**walks, **pruning, **{"training.epochs": 4}) == walked  # nothing is made yet


def test_pages_of_a_step_are_those_of_texts_graphs_and_shortlists() -> None:
    run = _run(100_000, SMALL, 2)
    texts = 1024 * (1 + 2) + 2 * 1024  # queries, ads and hard negatives, anchors of both
    assert training_stages.pages_per_step(run) == 4096 * (texts * (4 + 2) + 1024)


def test_machines_exchange_embeddings_and_two_kinds_of_gradients() -> None:
    run = _run(100_000, WITH_GPU, 4)
    training = make_plan(run).need("training")
    steps, texts = 12 * (100_000 // 1024), 5 * 1024
    ring = 3 / 4  # of an array, that a machine sends to reduce it, or to gather it
    gathered = 4 * ring * texts * 768 * 4
    reduced = 4 * 2 * ring * 4 * (texts * 768 + 42_527_232 + 23_835_648)
    assert training.network == pytest.approx(steps * (gathered + reduced) + 4 * training.mapped)


def test_on_a_gpu_drawing_and_computing_overlap() -> None:
    def training(machine: Machine, count: int) -> tuple[Need, Cluster]:
        run = _run(1_000_000, machine, count)
        return make_plan(run).need("training"), run.cluster

    steps = 12 * (1_000_000 // 1024)
    drawn = steps * 5 * 1024 * cost("draw_text_s") / 3600
    for count in (1, 1000):
        need, cluster = training(WITH_GPU, count)
        computed = need.gpu_s / count / 3600
        assert need.compute_hours(cluster) == pytest.approx(max(drawn, computed))
        assert (computed > drawn) == (count == 1)
        assert need.serial_hours(cluster) == pytest.approx(drawn)
    need, cluster = training(SMALL, 2)
    assert need.compute_hours(cluster) == pytest.approx(need.cpu_s / 8 / 3600 + drawn)


@pytest.mark.parametrize("use_bf16", [False, True])
def test_activations_are_those_that_torch_saves(use_bf16: bool) -> None:
    """Two layers of MiniLM's width on a CPU, whose eager attention under bf16 saves most."""
    config = BertConfig(
        vocab_size=100,
        hidden_size=384,
        num_hidden_layers=2,
        num_attention_heads=12,
        intermediate_size=1536,
    )
    tokenizer = BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3})
    encoder = TransformerEncoder(BertModel(config, add_pooling_layer=False), tokenizer)
    weights = {parameter.untyped_storage().data_ptr() for parameter in encoder.parameters()}
    shapes = {size for one in encoder.parameters() for size in (one.shape, one.shape[::-1])}
    lengths = np.full(400, 8)
    texts = TokenBatch(np.arange(lengths.sum()) % 100, lengths)
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights and tensor.shape not in shapes:  # autocast's copies of weights
            saved[place] = tensor
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=use_bf16):
        encoder(texts)
    tokens = sum(pack.token_ids.size for pack in packed(texts))
    found = sum(one.untyped_storage().nbytes() for one in saved.values()) / (tokens * 384 * 2)
    stages = training_stages
    planned = stages.ACTIVATIONS_BF16 if use_bf16 else stages.ACTIVATIONS_FP32
    assert found == pytest.approx(planned, rel=0.12)


def test_activations_are_planned_by_what_trains() -> None:
    """Weights with gradients and moments; five texts a query, of 8 tokens; six layers of 768."""
    weights, tokens = 16 * (42_527_232 + 23_835_648), 1024 * 5 * 8
    on_gpus = make_plan(_run(100_000, WITH_GPU, 4)).need("training")
    on_cpus = make_plan(_run(100_000, SMALL, 4)).need("training")
    assert on_gpus.gpu_memory == pytest.approx(weights + 60 * 6 * 768 * tokens / 4)
    order = 8 * 200_000 + 8 * 100_000 + 24 * 25_000
    states = on_cpus.memory - cost("ray_bytes") - order
    assert states == pytest.approx(weights + 67 * 6 * 768 * tokens / 4)


def test_more_machines_shorten_what_they_share_and_nothing_else() -> None:
    one, four = (make_plan(_run(1_000_000, SMALL, count)) for count in (1, 4))
    hours = {
        need.stage: (need.compute_hours(one.run.cluster), after.compute_hours(four.run.cluster))
        for need, after in zip(one.needs, four.needs, strict=True)
    }
    for stage in ("shortlists", "index of the ads"):
        assert hours[stage][0] == hours[stage][1]
    assert hours["validation"][1] < hours["validation"][0]  # but for the check that takes longest
    assert hours["training"][1] < 0.3 * hours["training"][0]
    assert one.need("training").network == 0 < four.need("training").network


def test_an_index_in_cells_that_is_too_large_goes_through_files() -> None:
    small, large = (
        make_plan(_run(100_000_000, SMALL, 1, **{"workers.gb_per_shard": gb})).need(
            "index of the ads"
        )
        for gb in (4, 8)
    )
    assert small.disk > 30e9
    assert large.memory - small.memory == pytest.approx(4e9)
    assert small.memory < 12e9
    assert small.scratch == small.disk
    assert make_plan(_run(3_000_000, SMALL, 1)).need("index of the ads").scratch == 0


def test_the_longest_task_runs_beside_the_others() -> None:
    need = Need("a stage", cpu_s=3600, longest_s=1200, serial_s=360)
    two, eight = (Cluster(replace(SMALL, cores=cores), 1) for cores in (2, 8))
    assert need.compute_hours(two) == pytest.approx(0.5 + 0.1)
    assert need.compute_hours(eight) == pytest.approx(1 / 3 + 0.1)
    assert need.serial_hours(eight) == pytest.approx(1 / 3 + 0.1)


MEASURED_S = {
    "import of clicks": (11, 88),
    "import of edges": (24, 255),
    "validation": (7.8, 111),
    "description": (17, 229),
    "preparation": (80, 683),
    "pruning": (30, 334),
    "walks": (23, 294),
    "co-session graphs": (37, 399),
}
"""Seconds at 1M and 10M queries, as many ads and anchors and 4.55 edges a node, of two cores of
speed 1 (docs/benchmarks.md), with Ray started before."""


def test_hours_are_about_those_that_were_measured() -> None:
    cluster = Cluster(Machine("measured", 2, 24 * GIB), 1)
    for place, count in enumerate((10**6, 10**7)):
        sizes = Sizes(count, count, (Graph(count, 4.55, 4.55),), 2, 7.5)
        changes = {"training.epochs": 8, "pruning.warmup_epochs": 6}
        config = overlay(PRESETS["ramen-ance"](), changes)
        plan = make_plan(Training(sizes, ENCODERS["bag"], config, cluster), 5 * count)
        unwalked = overlay(config, {"walk.enabled": False})
        pruning = make_plan(Training(sizes, ENCODERS["bag"], unwalked, cluster)).need("pruning")
        for stage, measured in MEASURED_S.items():
            need = pruning if stage == "pruning" else plan.need(stage)
            has_start = stage not in ("pruning", "walks")
            seconds = 3600 * need.hours(cluster) - has_start * cost("job_start_s") / 2
            assert 1 / 1.5 < seconds / measured[place] < 1.5, stage


def test_more_ads_than_one_process_holds_are_searched_in_shards() -> None:
    def shortlists(queries: int, count: int, gb_per_shard: float) -> Need:
        changes = {"workers.gb_per_shard": gb_per_shard, **LEAVING_A_QUARTER}
        run = _run(queries, WITH_GPU, count, **changes)
        return make_plan(run).need("shortlists")

    of_ad, code = 768 * 4, 768 + 768 / 8 + 8
    whole, half = (shortlists(1_000_000, 4, of_ad / 1e3 * one) for one in (1, 0.5))
    assert whole.memory - cost("ray_bytes") == 2 * of_ad * 1e6
    assert half.memory - cost("ray_bytes") == pytest.approx(code * 1e6 + 2**29, rel=0.01)
    # 18 shards: 4 machines hold all at once; one, which has 8 cores, 18, 9, then 5
    one, four = (shortlists(10_000_000, count, 0.5) for count in (1, 4))
    lists, queries, ads = 10**7 * 100 * 12, 10**7 * of_ad, 10**7 * of_ad
    assert (one.spilled, four.spilled) == (2 * lists, 0)
    assert one.scratch - four.scratch == 2 * lists
    times = 11 // 5
    assert (one.network, four.network) == (
        0,
        times * (2 * (ads + 10**7 * code) + queries + 18 * (queries + lists)),
    )
    assert one.cpu_s / 8 * 5 == pytest.approx(four.cpu_s / 32 * 18)


def test_what_does_not_fit_the_machines_own_disks() -> None:
    breaks = what_breaks(make_plan(_run(100_000_000, SMALL, 1)))
    assert not any("Ray writes" in one for one in breaks)
    small_disk = replace(SMALL, disk=1e11)
    breaks = what_breaks(make_plan(_run(100_000_000, small_disk, 1)))
    assert any(one.startswith("shortlists: Ray writes 240 GB of lists") for one in breaks)


def test_a_wider_encoder_searches_longer() -> None:
    def searched(encoder: str) -> float:
        run = replace(_run(2_000_000, SMALL, 1), encoder=ENCODERS[encoder])
        encoding, _ = run.encoding(4_000_000, gpu=0)
        return make_plan(run).need("shortlists").serial_s / 2 - encoding

    assert searched("distilbert") == pytest.approx(2 * searched("minilm"))


def test_sizes_are_those_of_the_code() -> None:
    from ramen_ray.method.retrieval import shortlists
    from ramen_ray.orchestration import search
    from ramen_ray.orchestration.background import task
    from ramen_ray.orchestration.cluster import resources
    from ramen_ray.reports import description

    assert training_stages.GPU_OF_TASK == resources.GPU_SHARE
    assert training_stages.RESULTS == task.NUM_KEPT
    assert training_stages.SHARD_BYTES == search.BYTES_BESIDES
    assert training_stages.SAMPLED_QUERIES == shortlists.SAMPLED_QUERIES
    assert data_stages.SAMPLED_TEXTS == description.TEXTS_PER_TABLE


def test_costs_grow_with_the_sizes() -> None:
    plans = [
        make_plan(_run(count, WITH_GPU, 2, **LEAVING_A_QUARTER), count)
        for count in (10**6, 10**7, 10**8)
    ]
    for smaller, larger in pairwise(plans):
        for before, after in zip(smaller.needs, larger.needs, strict=True):
            assert before.stage == after.stage
            assert after.hours(larger.run.cluster) > before.hours(smaller.run.cluster)
            if before.stage != "shortlists":  # more are searched in shards
                assert after.memory >= before.memory
        assert larger.machine_hours > 5 * smaller.machine_hours


def test_the_schedule_decides_what_is_made() -> None:
    def stages(**changes: object) -> set[str]:
        return {need.stage for need in make_plan(_run(10_000, SMALL, 1, **changes)).needs}

    everything = stages()
    assert everything > {"walks", "pruning", "shortlists", "index of the ads"}
    short = {"training.epochs": 4}
    assert stages(**short) == everything - {"pruning", "shortlists"}
    off = {"walk.enabled": False, "pruning.mode": "never", "base.kind": "in_batch"}
    assert stages(**off) == everything - {"walks", "pruning", "shortlists"}


def test_what_breaks_names_the_stage_and_both_figures() -> None:
    assert what_breaks(make_plan(_run(100_000, WITH_GPU, 1, **LEAVING_A_QUARTER))) == []
    said = "\n".join(what_breaks(make_plan(_run(700_000_000, WITH_GPU, 8))))
    for words in (
        "pruning: a machine's processes need",
        "a machine has 68.7 GB",
        "of arrays are read at random",
        "disk:",
        "shared folder:",
    ):
        assert words in said
    assert "ids:" not in said
    one_shard = {"workers.gb_per_shard": 100.0}
    in_one_task = _run(20_000_000, WITH_GPU, 1, **one_shard, **LEAVING_A_QUARTER)
    assert "shortlists: 61.4 GB on a GPU, which has 25.8 GB" in what_breaks(make_plan(in_one_task))
    said = "\n".join(what_breaks(make_plan(_run(3_000_000_000, WITH_GPU, 8))))
    assert "ids: 3,000,000,000 queries do not fit into 4 bytes" in said
    assert "hours in one process or GPU, whatever the number of machines" in said


@pytest.mark.parametrize("preset", ["ramen-ance", "ramen-ngame", "unidec-320k"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_method_and_encoder_can_be_planned(preset: str, encoder: str) -> None:
    sizes = Sizes(10**6, 10**6, (Graph(10**6, 5, 5),), 2, 8)
    for machine in (SMALL, WITH_GPU):
        run = Training(sizes, ENCODERS[encoder], PRESETS[preset](), Cluster(machine, 2))
        plan = make_plan(run, session_events=10**6)
        assert np.isfinite([plan.hours, plan.machine_hours]).all()
        assert all(need.hours(run.cluster) > 0 for need in plan.needs)


def test_every_unit_cost_says_where_it_comes_from() -> None:
    for name, one in unit_costs().items():
        assert one.value > 0, name
        assert one.unit
        assert one.source.split(":")[0] in ("measured", "fitted", "sheet", "assumed"), name


def test_this_machine_is_described_and_others_have_sheets() -> None:
    here = parse_cluster("this=2", reference_s=1.0)
    assert here.count == 2
    assert here.machine.cores >= 1
    assert 2**28 < here.machine.memory < 2**45
    sheet = parse_cluster("g5.2xlarge=8", 1.0)
    assert (sheet.cores, sheet.gpus) == (64, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--queries", "many"], "'many' is not a count"),
        (["--machine", "z9=2"], "no sheet of a machine 'z9'; known are g5.2xlarge"),
        (["--machine", "g5.2xlarge=0"], "'0' is not a number of machines"),
        (["--anchors", "1M", "2M"], "2 anchor sets, but 1 numbers of edges of a query"),
        (["--epochs", "0"], "epochs"),
    ],
)
def test_bad_requests(arguments: list[str], message: str, run_here: RunHere) -> None:
    given = ["--queries", "1M", "--ads", "1M", "--machine", "g5.2xlarge", *arguments]
    code, said = run_here(plan_job, *given)
    assert code == 2
    assert message in said


def test_the_job_prints_the_plan(run_here: RunHere) -> None:
    flags = [
        "--queries",
        "540M",
        "--ads",
        "360M",
        "--edges-per-node",
        "40",
        "--encoder",
        "distilbert",
    ]
    code, said = run_here(plan_job, *flags, "--machine", "g5.2xlarge=8", "--show-costs")
    assert code == 0
    assert "epochs, the default of ramen-ance" in said
    for words in ("540,000,000 queries", "walks", "training", "Unit costs", "would break:"):
        assert words in said


def test_planning_needs_no_ray() -> None:
    code = "import sys, jobs.plan; sys.exit('ray' in sys.modules or 'mlflow' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0
    )
