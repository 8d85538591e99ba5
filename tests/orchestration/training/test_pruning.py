"""Pruning against a plain loop; its task, killed or failing; runs that prune as they train."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st
from mlflow.tracking import MlflowClient
from support import ROOT, csr_of, rows_of, wait_until

from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.graph import pruning
from ramen_ray.method.graph.pruning import prune
from ramen_ray.method.model.dual_encoder import DualEncoder, load_model
from ramen_ray.method.model.embeddings import TextEmbeddings
from ramen_ray.method.model.encoder import build_transformer
from ramen_ray.method.sampling.batches import Sources
from ramen_ray.method.sampling.regularizers import Regularizer
from ramen_ray.orchestration import embedding
from ramen_ray.orchestration.background.pruning import GraphPruning
from ramen_ray.orchestration.background.task import (
    BackgroundTask,
    Compute,
    Schedule,
    read_report,
)
from ramen_ray.orchestration.embedding import embed_distinct
from ramen_ray.orchestration.training.results import TrainResult
from ramen_ray.orchestration.training.run import fit
from ramen_ray.orchestration.training.run_directory import RunDirectory

NUM_CPUS = 4
SETS = ["links", "topics"]
SIDES = ("query", "ad")
EPOCH = 7  # steps of an epoch of the made dataset
THRESHOLD = 0.3  # drops some edges of the made dataset, not all
ALIKE = 0.9999  # drops all but those between equal texts
EVERY_EPOCH = Schedule(first=1, every=1, num_epochs=9, steps_per_epoch=EPOCH, wait=True)


def _plain(
    edges: Csr, nodes: np.ndarray, anchors: np.ndarray, threshold: float
) -> list[list[tuple[int, float]]]:
    """Return each node's kept anchors with their weights."""
    kept = []
    for node, (start, stop) in enumerate(zip(edges.indptr, edges.indptr[1:], strict=False)):
        row = []
        for entry in range(start, stop):
            anchor = edges.indices[entry]
            weights = edges.cumulative_weights
            weight = 1.0 if weights is None else weights[entry + 1] - weights[entry]
            if float(nodes[node] @ anchors[anchor]) > threshold:
                row.append((int(anchor), float(weight)))
        kept.append(row)
    return kept


def _entries(edges: Csr) -> list[list[tuple[int, float]]]:
    total = edges.cumulative_weights
    weights = iter(np.ones(len(edges.indices)) if total is None else np.diff(total))
    return [[(anchor, next(weights)) for anchor in row] for row in rows_of(edges)]


def _assert_same(found: Csr, expected: list[list[tuple[int, float]]]) -> None:
    for found_row, row in zip(_entries(found), expected, strict=True):
        assert [anchor for anchor, _ in found_row] == [anchor for anchor, _ in row]
        assert [w for _, w in found_row] == pytest.approx([w for _, w in row])


@given(
    st.lists(st.sets(st.integers(0, 4)).map(sorted), min_size=6, max_size=6),
    *(st.booleans(), st.sampled_from([-0.5, 0.0, 0.3, 0.99]), st.integers(1, 9)),
    st.sampled_from([np.float16, np.float32]),
)
def test_it_keeps_what_a_plain_loop_keeps(
    rows: list[list[int]], weighted: bool, threshold: float, batch: int, kind: type
) -> None:
    draw = np.random.default_rng(batch)
    edges = csr_of(rows)
    if weighted and len(edges.indices):
        pairs = np.repeat(np.arange(6), np.diff(edges.indptr)), edges.indices
        edges = Csr.from_pairs(*pairs, 6, draw.uniform(0.5, 3, size=len(edges.indices)))
    vectors = draw.normal(size=(8, 3))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(kind)
    nodes, anchors = (TextEmbeddings(vectors, draw.integers(0, 8, size=n)) for n in (6, 5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruning, "EDGES_PER_BATCH", batch)
        pruned = prune(edges, nodes, anchors, threshold)
    every = np.arange(6), np.arange(5)
    kept = _plain(edges, nodes.take(every[0]), anchors.take(every[1]), threshold)
    _assert_same(pruned.edges, kept)
    num_edges = sum(map(len, rows))
    assert pruned.share_kept == (sum(map(len, kept)) / num_edges if num_edges else 1)
    assert pruned.num_left_bare == sum(
        bool(before) and not after for before, after in zip(rows, kept, strict=True)
    )
    bare = np.array([node for node, row in enumerate(kept) if not row], dtype=int)
    assert (pruned.edges.draw(bare, np.full(len(bare), 0.5)) == -1).all()


def test_each_distinct_text_is_encoded_once(
    cluster: None,
    prepared: Prepared,
    encoder_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedding, "TEXTS_PER_BATCH", 9)
    model = DualEncoder(build_transformer(str(encoder_path)))
    model.save(tmp_path, 16)
    names = ["queries/train", "ads", "anchors/links"]
    folders = [prepared.path / "tokens" / name for name in names]
    file = tmp_path / "embeddings.npy"
    embedded = embed_distinct(tmp_path, folders, file, False, 1)
    tables = [prepared.queries["train"], prepared.ads, prepared.anchors("links")]
    hashes = np.concatenate([table.hashes for table in tables])
    assert len(np.load(file)) == len(set(hashes.tolist())) < len(hashes)
    for table, found in zip(tables, embedded, strict=True):
        rows = np.arange(len(table))
        assert found.take(rows) == pytest.approx(model.embed_texts(table, rows), abs=1e-3)


def _task(folder: Path, compute: Compute, schedule: Schedule = EVERY_EPOCH) -> BackgroundTask:
    """A task on the checkpoints in ``folder``, whose results are used as shortlists."""
    (folder / "encoder").mkdir(parents=True, exist_ok=True)
    (folder / "encoder" / "weights").write_text("some")

    def take(result: Path, sources: Sources) -> Sources:
        return replace(sources, shortlists=np.array([len(list(result.iterdir()))]))

    device = torch.device("cpu")
    return BackgroundTask("counting", folder / "results", compute, take, schedule, device)


def _advance(task: BackgroundTask, step: int) -> int | None:
    """Advance; returns the step of the result in use."""
    before = Sources({})
    sources, figures = task.advance(step, task.folder.parent, before)
    assert (sources is not before) == ("step" in figures)
    assert figures["waited_s"] == task.waited_s
    return task.taken


def test_a_killed_task_is_run_again(cluster: None, tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    attempts.mkdir()

    def dies_first(model: Path, folder: Path) -> dict[str, float]:
        (folder / "half").write_text("")
        (attempts / str(os.getpid())).write_text("")
        if len(list(attempts.iterdir())) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / "copy").write_text((model / "encoder" / "weights").read_text())
        return {"copied": 4}

    task = _task(tmp_path, dies_first)
    assert _advance(task, EPOCH) == EPOCH
    assert len(list(attempts.iterdir())) == 2
    assert (task.result(EPOCH) / "copy").read_text() == "some"
    assert read_report(task.result(EPOCH)).keys() == {"copied", "seconds"}
    assert [path.name for path in task.folder.iterdir()] == [f"step_{EPOCH:09d}"]
    (task.folder / ".pending" / f"step_{EPOCH:09d}").mkdir(parents=True)  # killed at that moment
    assert _advance(_task(tmp_path, dies_first), EPOCH) == EPOCH
    assert len(list(attempts.iterdir())) == 2


def test_training_goes_on_when_a_task_fails_for_good(
    cluster: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = tmp_path / "gate"

    def needs_gate(model: Path, folder: Path) -> dict[str, float]:
        (folder / "half").write_text(gate.read_text())
        return {}

    task = _task(tmp_path, needs_gate)
    assert _advance(task, EPOCH) is None
    assert "counting of step 7 failed" in caplog.text
    assert list(task.folder.iterdir()) == []
    gate.write_text("open")
    assert _advance(task, 2 * EPOCH) == 2 * EPOCH


def test_one_task_runs_at_a_time_and_an_interrupted_one_resumes(
    cluster: None, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"

    def waits(model: Path, folder: Path) -> dict[str, float]:
        while not gate.exists():
            time.sleep(0.05)
        (folder / "copy").write_text((model / "encoder" / "weights").read_text())
        return {"copied": 4}

    def advance_to(step: int, task: BackgroundTask, epoch: int) -> None:
        while _advance(task, epoch * EPOCH) != step:
            time.sleep(0.05)

    schedule = Schedule(first=1, every=1, num_epochs=6, steps_per_epoch=EPOCH, wait=False)
    first, second = (_task(tmp_path, waits, schedule) for _ in range(2))
    assert _advance(first, EPOCH) is None
    ray.cancel(first._task, force=True)
    (tmp_path / "encoder" / "weights").write_text("others")
    assert _advance(second, EPOCH) is None
    assert _advance(second, 2 * EPOCH) is None
    gate.write_text("")
    advance_to(EPOCH, second, 3)
    assert (second.result(EPOCH) / "copy").read_text() == "some"
    advance_to(3 * EPOCH, second, 4)
    advance_to(4 * EPOCH, second, 5)
    kept = sorted(path.name for path in second.folder.iterdir())
    assert kept == [f"step_{step * EPOCH:09d}" for step in (3, 4)], "no epoch could use another"
    resumed = _task(tmp_path, waits, schedule)
    sources = resumed.restore({"taken": 3 * EPOCH, "waited_s": 2.5}, Sources({}))
    assert sources.shortlists is not None
    assert resumed.progress == {"taken": 3 * EPOCH, "waited_s": 2.5}
    resumed.stop()
    assert list(second.folder.iterdir()) == [second.result(3 * EPOCH)]


def test_a_task_still_running_when_training_ends_is_stopped(cluster: None, tmp_path: Path) -> None:
    def sleeps(model: Path, folder: Path) -> dict[str, float]:
        time.sleep(600)
        return {}

    schedule = Schedule(first=1, every=1, num_epochs=6, steps_per_epoch=EPOCH, wait=False)
    task = _task(tmp_path, sleeps, schedule)
    assert _advance(task, EPOCH) is None
    task.stop()
    assert list(task.folder.iterdir()) == []


@pytest.mark.parametrize("side", SIDES)
def test_a_side_without_weight_is_not_pruned(
    cluster: None, prepared: Prepared, encoder_path: Path, tmp_path: Path, side: str
) -> None:
    model = DualEncoder(build_transformer(str(encoder_path)))
    model.save(tmp_path, 16)
    task = GraphPruning(
        prepared.path, prepared.path / "edges", [Regularizer("links", side)], THRESHOLD, False
    )
    report = task(tmp_path, tmp_path)
    assert report.keys() == {f"share_kept/links/{side}", f"nodes_left_bare/links/{side}"}
    assert [path.name for path in (tmp_path / "links").iterdir()] == [side]
    table = {"query": prepared.queries["train"], "ad": prepared.ads}[side]
    anchors = prepared.anchors("links")
    nodes, anchors = (_half(model.embed_texts(t, np.arange(len(t)))) for t in (table, anchors))
    expected = _plain(prepared.edges("links", side), nodes, anchors, THRESHOLD)
    _assert_same(Csr.open(tmp_path / "links" / side), expected)


@pytest.fixture(scope="module")
def config(small_run: RunConfig) -> RunConfig:
    return overlay(
        small_run,
        {
            "encoder.kind": "transformer",
            "optimizer.lr": 1e-3,
            "pruning.mode": "synchronous",
            "pruning.prune_threshold": THRESHOLD,
            "pruning.warmup_epochs": 1,
            "pruning.every_epochs": 1,
            "training.checkpoint_every_steps": 3,
        },
    )


@pytest.fixture(scope="module")
def unharmed(cluster: None, config: RunConfig) -> TrainResult:
    return fit(overlay(config, {"name": "unharmed"}))


def test_a_synchronous_run_takes_every_generation_where_it_began_it(unharmed: TrainResult) -> None:
    assert _history(unharmed, "graph/step") == [(s, s) for s in (EPOCH, 2 * EPOCH, 3 * EPOCH)]
    waited = [seconds for _, seconds in _history(unharmed, "graph/waited_s")]
    assert 0 < waited[0] < waited[1] < waited[2]
    notes = RunDirectory(unharmed.run_directory).notes
    assert notes["waited_seconds"] == waited[2]
    assert notes["trained_seconds"] > 0
    newest = unharmed.run_directory / "graphs" / f"step_{3 * EPOCH:09d}"
    for name, value in read_report(newest).items():
        assert _history(unharmed, f"graph/{name}")[-1] == (3 * EPOCH, value)
    shares = [read_report(newest)[f"share_kept/{name}/{side}"] for name in SETS for side in SIDES]
    assert 0 < min(shares) <= max(shares) < 1, shares
    assert list(newest.parent.iterdir()) == [newest]


@pytest.mark.slow
def test_a_driver_killed_while_it_waits_for_pruning_resumes(
    config: RunConfig, unharmed: TrainResult, prepared: Prepared, tmp_path: Path
) -> None:
    config = overlay(config, {"name": "driver-killed"})
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.model_dump()))
    command = [sys.executable, str(ROOT / "jobs" / "train.py"), "--config", str(file)]
    graphs = Path(config.output) / "runs" / "driver-killed" / "graphs"
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)
    pending = graphs / ".pending" / f"step_{3 * EPOCH:09d}" / "encoder"
    wait_until(pending.exists, f"no {pending}")
    shutil.copytree(pending, tmp_path / "encoder")
    first.send_signal(signal.SIGKILL)
    first.wait()
    result = fit(config)
    _assert_same_run(result, unharmed)
    model = load_model(tmp_path)
    of_nodes = {
        side: _half(model.embed_texts(table, np.arange(len(table))))
        for side, table in (("query", prepared.queries["train"]), ("ad", prepared.ads))
    }
    for name in SETS:
        table = prepared.anchors(name)
        of_anchors = _half(model.embed_texts(table, np.arange(len(table))))
        for side in SIDES:
            generation = Csr.open(graphs / f"step_{3 * EPOCH:09d}" / name / side)
            expected = _plain(prepared.edges(name, side), of_nodes[side], of_anchors, THRESHOLD)
            _assert_same(generation, expected)


def test_an_asynchronous_run_takes_a_generation_while_it_trains(
    cluster: None, config: RunConfig
) -> None:
    changes = {
        "name": "asynchronous",
        "pruning.mode": "asynchronous",
        "pruning.prune_threshold": ALIKE,
        "training.epochs": 16,
        "training.validate_every": 16,
        "training.checkpoint_every_steps": None,
        "workers.num_workers": 2,
    }
    result = fit(overlay(config, changes))
    taken = _history(result, "graph/step")
    assert taken
    assert all(of_step < step and step % EPOCH == 0 for step, of_step in taken)
    losses = dict(_history(result, "loss/R_x/topics"))
    first = taken[0][0]
    assert max(losses[step] for step in range(first - EPOCH + 1, first + 1)) > 0
    assert max(losses[step] for step in range(first + 1, first + EPOCH + 1)) == 0
    graphs = {path.name for path in (result.run_directory / "graphs").iterdir()}
    assert ".pending" not in graphs


def _half(vectors: np.ndarray) -> np.ndarray:
    return vectors.astype(np.float16).astype(np.float32)


def _assert_same_run(result: TrainResult, unharmed: TrainResult) -> None:
    assert result.metrics == unharmed.metrics
    assert _history(result, "loss/total") == _history(unharmed, "loss/total")
    for name in SETS:
        share = f"graph/share_kept/{name}/query"
        assert _history(result, share) == _history(unharmed, share)


def _history(result: TrainResult, metric: str) -> list[tuple[int, float]]:
    client = MlflowClient(tracking_uri=result.run.uri)
    points = client.get_metric_history(result.run.id, metric)
    return sorted((point.step, point.value) for point in points)
