"""Pruning against a plain loop; its task, killed and failing."""

import errno
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import RayError
from support import csr_of, rows_of, shares_of

from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.graph import pruning
from ramen_ray.method.graph.pruning import prune
from ramen_ray.method.model.dual_encoder import TextEmbeddings
from ramen_ray.method.sampling.batches import SamplingSources
from ramen_ray.orchestration.background import task as background
from ramen_ray.orchestration.background.task import BackgroundTask, LateError, Schedule, read_report

EPOCH = 7  # steps of an epoch of the made dataset
EVERY_EPOCH = Schedule(first=1, every=1, num_epochs=9, steps_per_epoch=EPOCH, wait=True)


@given(
    st.lists(st.sets(st.integers(0, 4)).map(sorted), min_size=6, max_size=6),
    *(st.booleans(), st.sampled_from([-0.5, 0.0, 0.3, 0.99]), st.integers(1, 9)),
    st.sampled_from([np.float16, np.float32]),
)
def test_it_keeps_what_a_plain_loop_keeps(rows, weighted, threshold, batch, kind):
    draw = np.random.default_rng(batch)
    edges = csr_of(rows)
    if weighted and len(edges.indices):
        pairs = np.repeat(np.arange(6), np.diff(edges.indptr)), edges.indices
        edges = Csr.from_pairs(*pairs, 6, draw.uniform(0.5, 3, size=len(edges.indices)))
    vectors = draw.normal(size=(8, 3))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(kind)
    nodes, anchors = (TextEmbeddings(vectors, draw.integers(0, 8, size=n)) for n in (6, 5))
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(pruning, "EDGES_PER_BATCH", batch)
        figures = prune(edges, nodes, anchors, threshold, Path(folder))
        pruned = Csr.open(Path(folder))
    similar = nodes.take(np.arange(6)) @ anchors.take(np.arange(5)).T
    kept = [
        [(anchor, share) for anchor, share in zip(*row, strict=True) if of_node[anchor] > threshold]
        for of_node, *row in zip(similar, rows_of(edges), shares_of(edges), strict=True)
    ]
    assert rows_of(pruned) == [[anchor for anchor, _ in row] for row in kept]
    for row, shares in zip(kept, shares_of(pruned), strict=True):
        total = sum(share for _, share in row)
        assert shares == pytest.approx([share / total for _, share in row])
    num_edges = sum(map(len, rows))
    assert figures["share_kept"] == (sum(map(len, kept)) / num_edges if num_edges else 1)
    assert figures["nodes_left_bare"] == sum(
        bool(before) and not after for before, after in zip(rows, kept, strict=True)
    )
    bare = np.array([node for node, row in enumerate(kept) if not row], dtype=int)
    assert (pruned.draw(bare, np.full(len(bare), 0.5)) == -1).all()


def _when_open(gate):
    """Return what copies the weights of a checkpoint as soon as there is a ``gate``."""

    def waits(model, folder):
        while not gate.exists():
            time.sleep(0.05)
        (folder / "copy").write_text((model / "encoder" / "weights").read_text())
        return {"copied": 4}

    return waits


def _task(folder, compute, schedule=EVERY_EPOCH):
    """A task on the checkpoints in ``folder``, whose results are used as shortlists."""
    (folder / "encoder").mkdir(parents=True, exist_ok=True)
    (folder / "encoder" / "weights").write_text("some")

    class Counting:
        def __call__(self, model, folder):
            return compute(model, folder)

        def take(self, result, sources):
            return replace(sources, shortlists=np.array([len(list(result.iterdir()))]))

    return BackgroundTask("counting", folder / "results", Counting(), schedule)


def _advance(task, step):
    """Advance; returns the step of the result in use."""
    before = SamplingSources({})
    sources, figures = task.advance(step, task.folder.parent, before)
    assert (sources is not before) == ("step" in figures)
    assert figures["waited_s"] == task.waited_s
    return task.taken


def test_a_killed_task_is_run_again(cluster, tmp_path):
    attempts = tmp_path / "attempts"
    attempts.mkdir()

    def dies_first(model, folder):
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


def test_a_full_disk_stops_the_run_which_makes_the_result_when_it_goes_on(cluster, tmp_path):
    gate = tmp_path / "gate"

    def needs_room(model, folder):
        if not gate.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return {}

    with pytest.raises(RayError, match="No space left on device"):
        _advance(_task(tmp_path, needs_room), EPOCH)
    gate.touch()
    assert _advance(_task(tmp_path, needs_room), EPOCH) == EPOCH


def test_one_task_runs_at_a_time_and_an_interrupted_one_resumes(cluster, tmp_path):
    waits = _when_open(gate := tmp_path / "gate")

    def advance_to(step, task, epoch):
        while _advance(task, epoch * EPOCH) != step:
            time.sleep(0.05)

    schedule = Schedule(first=1, every=1, num_epochs=6, steps_per_epoch=EPOCH, wait=False)
    first, second = (_task(tmp_path, waits, schedule) for _ in range(2))
    assert _advance(first, EPOCH) is None
    ray.cancel(first._task, force=True)
    (tmp_path / "encoder" / "weights").write_text("others")
    assert _advance(second, EPOCH) is None
    gate.write_text("")
    assert _advance(second, 2 * EPOCH) == EPOCH
    assert (second.result(EPOCH) / "copy").read_text() == "some"
    advance_to(2 * EPOCH, second, 2)
    advance_to(3 * EPOCH, second, 3)
    advance_to(4 * EPOCH, second, 4)
    kept = sorted(path.name for path in second.folder.iterdir())
    assert kept == [f"step_{step * EPOCH:09d}" for step in (3, 4)], "no epoch could use another"
    resumed = _task(tmp_path, waits, schedule)
    kept = {"taken": 3 * EPOCH, "waited_s": 2.5}
    assert resumed.restore(kept, SamplingSources({})).shortlists is not None
    assert resumed.progress == kept
    resumed.cancel()
    resumed.keep_only_taken()
    assert list(second.folder.iterdir()) == [second.result(3 * EPOCH)]


def test_a_late_result_is_told_and_one_that_misses_half_of_the_run_ends_it(
    cluster, tmp_path, caplog, monkeypatch
):
    waits = _when_open(gate := tmp_path / "gate")
    schedule = Schedule(1, 2, num_epochs=8, steps_per_epoch=EPOCH, wait=False, wait_flag="a.flag")
    task = _task(tmp_path, waits, schedule)
    for epoch in (1, 2):
        _advance(task, epoch * EPOCH)
    assert not caplog.text
    with monkeypatch.context() as impatient:
        impatient.setattr(background, "PATIENCE_S", 0)
        _advance(task, 3 * EPOCH)
        assert "2 of 8" in caplog.text
        with pytest.raises(LateError, match=r" 4 of 8 .*cpus_per_worker.*a\.flag"):
            _advance(task, 5 * EPOCH)
        task.cancel()
        resumed = _task(tmp_path, waits, schedule)
        resumed.restore(json.loads(json.dumps(task.progress)), SamplingSources({}))
        with pytest.raises(LateError, match=" 6 of 8 "):
            _advance(resumed, 7 * EPOCH)
    resumed.cancel()
    gate.touch()


def test_a_task_that_fails_each_time_ends_the_run_at_its_half(cluster, tmp_path, caplog):
    def fails(model, folder):
        raise ValueError("no room on the GPU")

    schedule = Schedule(1, 1, num_epochs=6, steps_per_epoch=EPOCH, wait=False)
    task = _task(tmp_path, fails, schedule)
    for epoch in (1, 2, 3):
        _advance(task, epoch * EPOCH)
    assert "2 of 6" in caplog.text
    assert "no room on the GPU" in caplog.text
    with pytest.raises(LateError, match=" 3 of 6 "):
        _advance(task, 4 * EPOCH)


@pytest.mark.parametrize(("every", "num_epochs"), [(2, 8), (3, 4)])
def test_training_waits_for_a_result_when_the_next_is_due_or_the_last_epoch_begins(
    every, num_epochs, cluster, tmp_path, caplog
):
    schedule = Schedule(1, every, num_epochs, steps_per_epoch=EPOCH, wait=False)
    task = _task(tmp_path, _when_open(gate := tmp_path / "gate"), schedule)
    assert [_advance(task, epoch * EPOCH) for epoch in (1, 2)] == [None, None]
    gate.touch()
    assert _advance(task, 3 * EPOCH) == EPOCH
    assert not caplog.text
    task.cancel()


def test_a_damaged_result_is_left_out(cluster, tmp_path, caplog):
    def writes(model, folder):
        (folder / "shortlists").write_text("some")
        return {}

    task = _task(tmp_path, writes)
    for epoch in (1, 2):
        assert _advance(task, epoch * EPOCH) == epoch * EPOCH
    (task.result(2 * EPOCH) / "shortlists").write_text("")
    resumed = _task(tmp_path, writes)
    resumed.restore({"taken": 2 * EPOCH, "waited_s": 0.0}, SamplingSources({}))
    assert resumed.taken == EPOCH
    assert "shortlists" in caplog.text
    assert _advance(resumed, 3 * EPOCH) == 3 * EPOCH


def test_results_of_later_checkpoints_than_the_one_resumed_from_are_not_used(tmp_path):
    def unused(model, folder):
        raise AssertionError

    task = _task(tmp_path, unused)
    for step in (EPOCH, 2 * EPOCH):
        task.result(step).mkdir(parents=True)
    (task.folder / ".pending" / f"step_{3 * EPOCH:09d}").mkdir(parents=True)
    task.forget_after(EPOCH)
    assert list(task.folder.iterdir()) == [task.result(EPOCH)]
    task.forget_after(0)
    assert list(task.folder.iterdir()) == []
