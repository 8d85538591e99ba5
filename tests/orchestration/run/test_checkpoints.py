"""The checkpoints of a run: which are kept, which a run goes on from, and who may write them."""

import pytest
import torch
from short_runs import run_two_workers

from ramen_ray.data.store.made_folder import find_damage
from ramen_ray.orchestration.run.checkpoints import (
    SCORE,
    Checkpoints,
    kept_in,
)
from ramen_ray.orchestration.run.directory import RunError

SCORES = {5: 0.2, 10: 0.9, 15: 0.5, 20: 0.9, 25: 0.1}
CPU = torch.device("cpu")


def _write(checkpoints, step, score):
    report = {"step": step, SCORE: score, "validation/P@1": score}
    with checkpoints.written(report, is_shared=False) as folder:
        (folder / "state.pt").write_bytes(b"state")


def _steps(run):
    return [one.step for one in kept_in(run)]


def test_the_best_and_the_last_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, CPU)
    assert checkpoints.last() is None
    done = []
    for step, score in SCORES.items():
        _write(checkpoints, step, score)
        done.append(step)
        best = max(done, key=lambda one: (SCORES[one], one))
        assert _steps(tmp_path) == sorted({best, step})
        last = checkpoints.last()
        assert last.report == {"step": step, SCORE: score, "validation/P@1": score}
        assert last.step == step
        assert checkpoints.best().step == best
        assert find_damage(last.folder) is None
    kept = ["checkpoint_000000020", "checkpoint_000000025", "run.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == kept


def _write_share(rank, run):
    report = {"step": 5, SCORE: 0.5}
    with Checkpoints(run, CPU).written(report, is_shared=True) as folder:
        (folder / "heads").mkdir()
        (folder / "heads" / f"share-{rank}").write_text(f"of {rank}")


def test_a_checkpoint_has_the_shares_of_all_workers(tmp_path):
    run_two_workers(_write_share, tmp_path)
    (checkpoint,) = kept_in(tmp_path)
    assert find_damage(checkpoint.folder) is None
    shares = {file.name: file.read_text() for file in (checkpoint.folder / "heads").iterdir()}
    assert shares == {"share-0": "of 0", "share-1": "of 1"}
    (checkpoint.folder / "heads" / "share-1").write_text("of 7")
    assert "share-1" in str(find_damage(checkpoint.folder))
    (checkpoint.folder / "checksums-2-of-2.json").unlink()
    assert "1 of 2" in str(find_damage(checkpoint.folder))


def test_a_failure_leaves_no_half_of_a_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path, CPU)
    _write(checkpoints, 5, 0.5)
    with (
        pytest.raises(ZeroDivisionError),
        checkpoints.written({"step": 10, SCORE: 0.6}, is_shared=False) as folder,
    ):
        (folder / "state.pt").write_bytes(b"sta")
        raise ZeroDivisionError
    assert _steps(tmp_path) == [5]
    again = Checkpoints(tmp_path, CPU)
    _write(again, 10, 0.6)
    assert _steps(tmp_path) == [10]
    assert not list(tmp_path.glob(".ramen_ray-*"))


def test_a_writer_that_was_cut_off_writes_no_more(tmp_path):
    cut_off = Checkpoints(tmp_path, CPU)
    successor = Checkpoints(tmp_path, CPU)
    with pytest.raises(RunError, match=str(tmp_path)):
        _write(cut_off, 5, 0.5)
    assert _steps(tmp_path) == []
    _write(successor, 5, 0.4)
    with (
        pytest.raises(RunError, match=str(tmp_path)),
        cut_off.written({"step": 10, SCORE: 1.0}, is_shared=False),
    ):
        _write(successor, 10, 0.3)  # meanwhile
    assert [one.report[SCORE] for one in kept_in(tmp_path)] == [0.4, 0.3]
