"""The plan against what it plans: files, graphs, batches, encoders and steps, really made."""

import subprocess
import sys
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TOPICS
from numpy.typing import NDArray
from short_runs import ConfiguredRun, run_two_workers
from support import ROOT, node_edges, prepare_in_process, query_table, text_table
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from transformers import BertConfig, BertModel, BertTokenizer, DistilBertConfig, DistilBertModel

from jobs import plan as plan_job
from ramen_ray import planning
from ramen_ray.config import EncoderConfig, RunConfig, overlay
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import write_dataset
from ramen_ray.method.graph.walk import WalkGraph, WalkSettings, most_visited
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import TransformerEncoder, build_bag
from ramen_ray.method.model.texts import TokenBatch, packed
from ramen_ray.method.retrieval.index import filled_index
from ramen_ray.method.sampling.batches import Batch, DrawState
from ramen_ray.method.sampling.training_data import Regularizer, TrainingData
from ramen_ray.method.training.step import train_steps
from ramen_ray.orchestration.run.build import (
    build_encoder,
    build_objective,
    build_sampler,
    build_state,
)
from ramen_ray.planning import (
    ENCODERS,
    GIB,
    EncoderSize,
    Machine,
    Need,
    PlannedRun,
    SideSize,
    Sizes,
    batch_of,
    held_by_stage,
    known_machines,
    needs,
)
from ramen_ray.presets import MINILM, PRESETS, tiny

SMALL = Machine("small", 16 * GIB)
WITH_GPU = Machine("gpu", 64 * GIB, 1, 24 * GIB)


NUM_QUERIES, NUM_ADS = 1_000, 500
OF_SET = {"links": ("small", 1_000, 7, 4), "topics": ("great", 200, 3, 2)}
"""Of each anchor set: its word, its size, and the most edges of a query and of an ad."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, encoder_path: Path) -> tuple[Prepared, Sizes]:
    """A prepared dataset with random edges of two sets, and its sizes."""
    draw, folder = np.random.default_rng(NUM_QUERIES), tmp_path_factory.mktemp("planned")
    words = [word for topic in TOPICS.values() for word in topic]

    def lists(count: int, limit: int, most: int) -> list[list[int]]:
        degrees = draw.integers(1, most + 1, count)
        return [draw.choice(limit, degree, replace=False).tolist() for degree in degrees]

    def texts(word: str, count: int) -> list[str]:
        digits = [np.arange(count) // len(words) ** place % len(words) for place in range(3)]
        rows = zip(*digits, strict=True)
        return [f"{word} {' '.join(words[one] for one in row)}" for row in rows]

    clicks = lists(NUM_QUERIES, NUM_ADS, 4)
    tables = {
        "ads": text_table("ad_id", texts("old", NUM_ADS)),
        "queries/train": query_table(texts("new", NUM_QUERIES), clicks),
        "queries/validation": query_table(["raven"], [[0]]),
        "queries/test": query_table(["stork"], [[0]]),
    }
    sides = []
    for name, (word, num_anchors, *most) in OF_SET.items():
        tables[f"anchors/{name}"] = text_table("anchor_id", texts(word, num_anchors))
        for side, count, degree in zip(("query", "ad"), (NUM_QUERIES, NUM_ADS), most, strict=True):
            linked = lists(count, num_anchors, degree)
            weights = [draw.random(len(row)) + 0.5 for row in linked]
            tables[f"edges/{name}/{side}"] = node_edges(f"{side}_id", linked, weights)
            sides.append(SideSize(count, sum(map(len, linked)), num_anchors))
    dataset = write_dataset(folder / "made", tables, name="made")
    data = prepare_in_process(dataset, folder / "prepared", str(encoder_path), 16, False)
    token_tables = [data.queries["train"], data.ads, *(data.anchors(name) for name in OF_SET)]
    num_tokens = sum(len(table.token_ids) for table in token_tables)
    mean_tokens = num_tokens / sum(map(len, token_tables))
    num_clicks = sum(map(len, clicks))
    return data, Sizes(NUM_QUERIES, NUM_ADS, num_clicks, mean_tokens, tuple(sides))


def test_prepared_bytes_are_those_of_the_files(made):
    data, sizes = made
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
    assert planning.prepared_bytes(sizes) == pytest.approx(on_disk, rel=0.01)


@pytest.mark.parametrize(
    ("nodes", "base"), [("all", "in_batch"), ("clicked", "ance"), ("all", "depsl")]
)
def test_a_step_is_as_large_as_those_of_a_sampler(nodes, base, made):
    data, sizes = made
    batch = 64
    changes = {"base.kind": base, "regularization.nodes": nodes}
    config = overlay(tiny(), {**changes, "training.global_batch_size": batch})
    regularizers = [Regularizer(name, side) for name in OF_SET for side in ("query", "ad")]
    training_data = TrainingData.from_prepared(data, regularizers)
    sampler = build_sampler(config, data, training_data)
    planned = batch_of(config, sizes)
    shape = sizes.queries, 20
    shortlists = np.random.default_rng(0).integers(0, sizes.ads, shape, dtype=np.int32)
    has_shortlists = config.base.parts.hard_negatives == "shortlists"
    draws = DrawState(training_data.graphs, shortlists=shortlists if has_shortlists else None)
    steps = [_counts(sampler.draw(step, draws, regularizers)) for step in range(20)]
    encoded, pairs = np.mean(steps, axis=0)
    assert planned.distinct == pytest.approx(encoded, rel=0.1)
    assert planned.pairs == pytest.approx(pairs, rel=0.1)


def _counts(batch: Batch) -> tuple[int, int]:
    """Texts that a batch encodes, and pairs of a node and what it is compared with."""
    ads = [batch.ads.ravel(), batch.hard_negatives.ravel()]
    pairs = len(batch.queries) * len(np.unique(np.concatenate(ads)))
    anchors: dict[str, list[NDArray[np.int64]]] = {}
    for regularizer, (nodes, own) in batch.anchors.items():
        of_batch = batch.queries if regularizer.side == "query" else batch.ads
        anchors.setdefault(regularizer.anchor_set, []).append(own.ravel())
        if not np.isin(nodes, of_batch).all():
            ads.append(nodes.ravel())
    pools = {name: len(np.unique(np.concatenate(own))) for name, own in anchors.items()}
    pairs += sum(
        nodes.size * pools[regularizer.anchor_set]
        for regularizer, (nodes, _) in batch.anchors.items()
    )
    encoded = len(batch.queries) + len(np.unique(np.concatenate(ads))) + sum(pools.values())
    return encoded, pairs


def test_encoders_have_as_many_weights_as_planned():
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


def test_operations_are_those_that_torch_counts():
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
    planned = ENCODERS["distilbert"].operations(texts, tokens)
    assert planned == pytest.approx(counted, rel=0.03)


@pytest.mark.parametrize("use_bf16", [False, True])
def test_activations_are_those_that_torch_saves(use_bf16):
    """Two layers of MiniLM's width on a CPU, whose eager attention under bf16 saves most."""
    sizes = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
    config = BertConfig(vocab_size=100, num_hidden_layers=2, **sizes)
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
    planned = planning.ACTIVATIONS_BF16 if use_bf16 else planning.ACTIVATIONS
    assert found == pytest.approx(planned, rel=0.12)


def _need(run: PlannedRun, what: str) -> Need:
    return next(need for need in needs(run) if need.what == what)


def _planned(sizes: Sizes, **changes: object) -> PlannedRun:
    return PlannedRun(sizes, ENCODERS["bag"], overlay(tiny(), changes), SMALL)


def test_walks_read_and_leave_as_much_as_planned():
    draw = np.random.default_rng(0)
    pairs = np.unique(draw.integers(0, 3_000, (20_000, 2)), axis=0)
    edges = Csr.from_pairs(pairs[:, 0], pairs[:, 1], 3_000)
    graph = WalkGraph.of(edges, max_anchor_degree=500)
    sizes = Sizes(3_000, 1, 0, 8, (SideSize(3_000, len(pairs), 3_000),))
    run = _planned(sizes, **{"walk.enabled": True})
    arrays = [
        array for csr in (graph.forward, graph.backward) for array in (csr.indptr, csr.indices)
    ]
    mapped = held_by_stage(run)["walks"].mapped
    assert mapped == pytest.approx(sum(array.nbytes for array in arrays), rel=0.01)
    walked = most_visited(graph, 0, 3_000, WalkSettings(400, 0.8, 500, 10), seed=0)
    assert walked.cumulative_weights is not None
    left = walked.indptr.nbytes + 4 * len(walked.indices) + walked.cumulative_weights.nbytes
    assert 0.99 * left <= _need(run, "walked graph").disk <= 1.2 * left


@pytest.mark.parametrize(("kind", "ads"), [("flat", 2_000), ("hnsw", 2_000), ("ivf_pq", 10_000)])
def test_an_index_is_as_large_as_planned(kind, ads):
    import faiss

    embeddings = np.random.default_rng(0).standard_normal((ads, 16), dtype=np.float32)
    written = faiss.serialize_index(filled_index(kind, embeddings)).nbytes
    assert planning.index_bytes(ads, 16, kind) == pytest.approx(written, rel=0.05)


def test_what_a_worker_holds_and_saves_for_each_weight(made, tmp_path):
    """Weights, gradients and two moments are in memory; all but gradients in a checkpoint."""
    data, sizes = made
    run = _planned(sizes, **{"regularization.lambda_x": {}, "regularization.lambda_z": {}})
    trained = ConfiguredRun(run.config, data)
    model, state = trained.model, trained.state
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    state.optimizer.step()
    moments = [one for of in state.optimizer.state.values() for one in of.values()]
    held = [*model.parameters(), *(one.grad for one in model.parameters()), *moments]
    assert sum(one.nbytes for one in held) == pytest.approx(
        planning.STATES * run.encoder.weights, rel=0.01
    )
    trained.save(tmp_path / "one")
    saved = sum(file.stat().st_size for file in (tmp_path / "one").rglob("*") if file.is_file())
    assert _need(run, "checkpoints").disk == pytest.approx(3 * saved, rel=0.02)


STEPS = 5


def _exchanging(rank: int, folder: Path, prepared: Path, encoder: Path, config: RunConfig) -> None:
    """Train some steps as one of two workers, and write how many bytes each collective has had."""
    counted = {"gathered": 0, "summed": 0}
    gather, total = distributed.all_gather_single, distributed.all_reduce

    def counted_gather(into: torch.Tensor, part: torch.Tensor, **options: object) -> None:
        counted["gathered"] += into.nbytes * into.is_floating_point()
        gather(into, part, **options)

    def counted_sum(values: torch.Tensor, **options: object) -> object:
        counted["summed"] += values.nbytes
        return total(values, **options)

    distributed.all_gather_single, distributed.all_reduce = counted_gather, counted_sum
    data, objective = Prepared(prepared), build_objective(config)
    model = DualEncoder(build_bag(str(encoder)))
    trained = torch.nn.parallel.DistributedDataParallel(model)

    trained.register_comm_hook(None, allreduce_hook)  # calls what is counted
    training_data = TrainingData.from_prepared(data, objective.regularizers)
    sampler = build_sampler(config, data, training_data)
    list(train_steps(build_state(config, model, trained, sampler), sampler, objective, STEPS))
    torch.save(counted, folder / f"{rank}.pt")


def test_two_workers_exchange_as_much_as_planned(made, encoder_path, tmp_path):
    """In a ring an array is gathered by passing on each part once, and summed by twice that."""
    data, sizes = made
    weights = {"links": 0.1, "topics": 0.1}
    changes = {"regularization.lambda_x": weights, "regularization.lambda_z": weights}
    config = overlay(tiny(), {**changes, "training.global_batch_size": 64})
    run_two_workers(_exchanging, tmp_path, data.path, encoder_path, config)
    counted = torch.load(tmp_path / "0.pt")
    model = build_bag(str(encoder_path))
    weights_of = EncoderSize(0, model.dim, 0, sum(one.numel() for one in model.parameters()))
    run = PlannedRun(sizes, weights_of, config, SMALL, count=2)
    planned = _need(run, "gradients and embeddings").network / run.steps_per_epoch
    passed = (counted["gathered"] + 2 * counted["summed"]) / STEPS
    assert planned == pytest.approx(passed, rel=0.1)


def _run(queries: int, machine: Machine, count: int = 1, **changes: object) -> PlannedRun:
    sides = (SideSize(queries, 5 * queries, queries),) * 2
    sizes = Sizes(queries, queries, 2 * queries, 8, sides)
    config = overlay(PRESETS["ramen-ance"](), {"training.epochs": 12, **changes})
    return PlannedRun(sizes, ENCODERS["distilbert"], config, machine, count)


def test_training_maps_what_its_schedule_makes():
    def made(**changes: object) -> set[str]:
        return {need.what for need in needs(_run(100_000, SMALL, **changes)) if need.mapped}

    everything = {"prepared arrays", "walked graph", "pruned graphs", "shortlists"}
    assert made() == everything
    assert made(**{"training.epochs": 4}) == everything - {"pruned graphs", "shortlists"}
    off = {"walk.enabled": False, "pruning.mode": "never", "base.kind": "in_batch"}
    assert made(**off) == {"prepared arrays"}
    assert set(held_by_stage(_run(100_000, SMALL, **off))) == {"training"}


def test_the_smallest_machine_that_keeps_the_arrays_is_named_first():
    run = _run(200_000_000, known_machines()["g5.2xlarge"])
    found = planning.machines_by_stage(run)["training"]
    held = held_by_stage(run)["training"]
    assert not held.fits(run.machine)
    enough = [one for one in known_machines().values() if one.gpus and one.memory > held.mapped]
    assert found[0].memory == min(one.memory for one in enough)
    assert [one.memory for one in found] == sorted(one.memory for one in found)
    bag = replace(run, encoder=ENCODERS["bag"])
    assert {one.gpus for one in planning.machines_by_stage(bag)["training"]} > {0}
    assert planning.machines_by_stage(_run(20_000_000_000, SMALL))["training"] == []


def test_a_gpu_that_is_too_small_keeps_nothing():
    small = replace(WITH_GPU, gpu_memory=1 * GIB)
    large, little = (held_by_stage(_run(10_000, one))["training"] for one in (WITH_GPU, small))
    assert large == little
    assert large.fits(WITH_GPU)
    assert not large.fits(small)


MEASURED_S = {
    "clicks": (11, 88),
    "edges": (24, 255),
    "validate": (7.8, 111),
    "describe": (17, 229),
    "prepare": (80, 683),
    "prune": (30, 334),
    "walk": (23, 294),
    "sessions": (37, 399),
}
"""Seconds at 1M and 10M queries, as many ads and anchors and 4.55 edges a node, of two cores
(docs/evidence/scale.csv), with Ray started before."""


def test_hours_are_those_that_were_measured():
    for place, count in enumerate((10**6, 10**7)):
        sizes = Sizes(count, count, 2 * count, 7.5, (SideSize(count, 4.55 * count, count),) * 2)
        changes = {"training.epochs": 8, "pruning.warmup_epochs": 6}
        config = overlay(PRESETS["ramen-ance"](), changes)
        run = PlannedRun(sizes, ENCODERS["bag"], config, known_machines()["epyc"])
        hours = {one.stage: one.hours for one in planning.durations(run, 5 * count)}
        assert set(hours) == {*MEASURED_S, "train"}
        for stage, measured in MEASURED_S.items():
            start = run.machine.costs[stage].get("start_s", 0)
            seconds = 3600 * hours[stage] - start
            assert 1 / 1.35 < seconds / measured[place] < 1.35, stage


def test_no_hours_without_a_measurement():
    """A transformer on a machine that only a bag was measured on has none of training."""
    epyc = known_machines()["epyc"]
    stages = {one.stage for one in planning.durations(_run(10**6, epyc))}
    assert stages.isdisjoint({"train", "prune", "gpu_step"})
    assert not list(planning.durations(_run(10**6, WITH_GPU)))
    cost = {"operation_s": 1e-14, "most_queries": 200_000, "source": "benchmarks.gpu_step"}
    measured = replace(WITH_GPU, costs={"gpu_step": cost})
    (step,) = planning.durations(_run(10**6, measured))
    texts = batch_of(_run(10**6, measured).config, _run(10**6, measured).sizes).distinct
    operations = ENCODERS["distilbert"].operations(texts, 8)
    assert step.hours == pytest.approx(12 * (10**6 // 1024) * operations * 1e-14 / 3600)
    assert step.beyond == 5


def test_every_cost_says_where_it_comes_from():
    costs = [cost for one in known_machines().values() for cost in one.costs.values()]
    assert costs
    for cost in costs:
        assert cost["source"].startswith("benchmarks.")
        assert cost["most_queries"] > 0
        assert any(key.endswith("_s") and value > 0 for key, value in cost.items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--queries", "many"], "'many' is not a count; write it as 5000"),
        (["--queries", "0"], "'0' is not a count"),
        (["--ads", "1e6"], "'1e6' is not a count"),
        (["--machine", "z9=2"], "there is no machine 'z9'; known are this, g5.2xlarge"),
        (["--machine", "g5.2xlarge=0"], "'0' is not a number of machines"),
        (["--anchors", "1M", "2M"], "2 anchor sets, but 1 numbers of edges of a query"),
        (["--epochs", "0"], "epochs"),
    ],
)
def test_bad_requests(arguments, message, refused):
    given = ["--queries", "1M", "--ads", "1M", "--machine", "g5.2xlarge", *arguments]
    assert message in refused(plan_job, *given)


def test_the_job_says_first_who_keeps_the_arrays(done):
    flags = "--queries 540M --ads 360M --edges-per-node 40 --machine g5.2xlarge=8 --epochs 20"
    said = done(plan_job, *flags.split())
    first = said.splitlines()[0]
    assert first.startswith("training: 959 GB of arrays are read at random")
    assert "g5.2xlarge (34 GB) does not keep them in memory" in first
    assert "the smallest known machine that does is p4d.24xlarge (1,237 GB)" in first
    assert "540,000,000 queries, 360,000,000 ads" in said
    assert "527,343 steps an epoch" in said
    assert "No hours are known: no benchmark was run on g5.2xlarge" in said
    priced = [*flags.replace("g5.2xlarge=8", "epyc").split(), "--price-per-hour", "100"]
    said = done(plan_job, *priced)
    assert "extrapolated" in said
    (edges,) = (line.split("│") for line in said.splitlines() if line.startswith("│ edges "))
    hours, price = (float(edges[cell].replace(",", "")) for cell in (3, 5))
    assert price == pytest.approx(100 * hours, rel=0.05)


def test_every_method_and_encoder_can_be_planned(done):
    machines = cycle(("epyc=2", "g5.48xlarge=2"))
    for preset, encoder in product(("ramen-ance", "ramen-ngame", "unidec-320k"), ENCODERS):
        flags = f"--queries 1M --ads 1.2M --encoder {encoder} --machine {next(machines)}"
        done(plan_job, *flags.split(), "--preset", preset)


def test_planning_needs_no_ray():
    code = "import sys, jobs.plan; sys.exit('ray' in sys.modules or 'mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
