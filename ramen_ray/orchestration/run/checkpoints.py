"""Before a run is resumed: which of its checkpoints are whole, so that Ray Train knows only those.

Ray Train notes its checkpoints in a snapshot, and resumes from the last without a look at it. A
driver killed while the snapshot is written would make the run unusable.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import (
    _CheckpointManagerState,
    _TrainingResultState,
)

from ramen_ray.data.store.checksums import find_damage, is_intact
from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.orchestration.run.setup import (
    CHECKPOINTS,
    REPORT_FILE,
    SCORE,
    SNAPSHOT_FILE,
)


def keep_intact_checkpoints(run: Path) -> None:
    """Remove the damaged checkpoints of a run's folder, and write Ray Train's snapshot anew.

    The run resumes from the newest one that is left, or else starts anew. One that is not the
    newest was the best so far; the best of the others takes its place.
    """
    snapshot = run / SNAPSHOT_FILE
    found = [one for one in sorted(run.glob(CHECKPOINTS)) if not _is_cut_short(one, snapshot)]
    kept: list[Path] = []
    for checkpoint in found:
        is_newest = checkpoint == found[-1]
        otherwise = "the run goes on from " + (kept[-1].name if kept else "its start")
        if not is_newest:
            otherwise = f"the best model so far is lost; to train from the start, delete {run}"
        if is_intact(checkpoint, otherwise):
            kept.append(checkpoint)
    if kept:
        with whole_file(snapshot) as aside:
            aside.write_text(_snapshot(kept))
    else:
        snapshot.unlink(missing_ok=True)


def _is_cut_short(checkpoint: Path, snapshot: Path) -> bool:
    """Say whether a kill stopped Ray Train as it wrote or deleted a checkpoint, which goes then."""
    try:
        is_known = checkpoint.name in json.dumps(json.loads(snapshot.read_text()))
    except (OSError, ValueError):  # there is no snapshot, or it is damaged itself
        is_known = True
    if is_known or find_damage(checkpoint) is None:
        return False
    shutil.rmtree(checkpoint)
    return True


def _snapshot(checkpoints: list[Path]) -> str:
    """Describe checkpoints, from the oldest to the newest, as Ray Train's snapshot does."""
    reports: list[dict[str, Any]] = [
        json.loads((checkpoint / REPORT_FILE).read_text()) for checkpoint in checkpoints
    ]
    results = [
        _TrainingResultState(checkpoint_dir_name=checkpoint.name, metrics=report)
        for checkpoint, report in zip(checkpoints, reports, strict=True)
    ]
    by_score = sorted(range(len(results)), key=lambda number: reports[number][SCORE])
    state = _CheckpointManagerState(
        checkpoint_results=[results[number] for number in by_score],
        checkpoint_report_indices=by_score,
        latest_checkpoint_result=results[-1],
        pending_training_results=[],
        pending_validation_specs=[],
        current_report_index=len(results),
        validated_checkpoint_dir_names=[],
        timed_out_validation_checkpoint_dir_names=[],
        failed_validation_checkpoint_dir_names=[],
    )
    return state.model_dump_json()
