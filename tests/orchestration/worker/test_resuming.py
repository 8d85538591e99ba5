"""Which checkpoints a run goes on from when some of its files are damaged."""

import json
from pathlib import Path

import pytest

from ramen_ray.data.store.checksums import write_checksums
from ramen_ray.orchestration.run.setup import REPORT_FILE, SNAPSHOT_FILE
from ramen_ray.orchestration.run.checkpoints import keep_intact_checkpoints

SCORES = {5: 0.2, 10: 0.9, 15: 0.5}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step, score in SCORES.items():
        checkpoint = tmp_path / f"checkpoint_{step:09d}"
        checkpoint.mkdir()
        (checkpoint / "state.pt").write_bytes(b"state")
        (checkpoint / REPORT_FILE).write_text(json.dumps({"step": step, "score": score}))
        write_checksums(checkpoint)
    names = ", ".join(path.name for path in tmp_path.glob("checkpoint_0*"))
    (tmp_path / SNAPSHOT_FILE).write_text(f"{{half of what names {names}")
    return tmp_path


@pytest.mark.parametrize(
    ("damaged", "messages"),
    [
        ([], []),
        ([15], ["the run goes on from checkpoint_000000010"]),
        ([10], ["the best model so far is lost; to train from the start, delete"]),
        ([15, 10, 5], ["lost", "lost", "goes on from its start"]),
    ],
)
def test_ray_train_is_told_of_whole_checkpoints_only(
    damaged: list[int], messages: list[str], run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in damaged:
        (run / f"checkpoint_{step:09d}" / "state.pt").write_bytes(b"")
    keep_intact_checkpoints(run)
    assert len(caplog.records) == len(messages)
    for record, expected in zip(caplog.records, messages, strict=True):
        assert "state.pt has 0 bytes instead of 5" in record.message
        assert expected in record.message
    kept = [step for step in SCORES if step not in damaged]
    assert sorted(int(path.name[-9:]) for path in run.glob("checkpoint_0*")) == kept
    if not kept:
        assert not (run / SNAPSHOT_FILE).exists()
        return
    snapshot = json.loads((run / SNAPSHOT_FILE).read_text())
    steps = [result["metrics"]["step"] for result in snapshot["checkpoint_results"]]
    assert steps == sorted(kept, key=lambda step: SCORES[step])
    assert snapshot["latest_checkpoint_result"]["metrics"]["step"] == kept[-1]


def test_a_checkpoint_that_a_kill_cut_short_goes_without_a_word(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = [path.name for path in run.glob("checkpoint_0*")]
    (run / SNAPSHOT_FILE).write_text(json.dumps(known))
    half_written = run / "checkpoint_000000020"
    half_written.mkdir()
    (half_written / "state.pt").write_bytes(b"sta")
    keep_intact_checkpoints(run)
    assert not half_written.exists()
    assert caplog.records == []
