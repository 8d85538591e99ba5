"""Work that kills its process is not retried without end."""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import ray

from ramen_ray.orchestration.cluster.attempts import MAX_ATTEMPTS, limited_attempts
from ramen_ray.orchestration.cluster.resources import ClusterError, quiet_ray_data, user_errors


def test_work_that_ends_its_process_is_given_up(cluster: None, tmp_path: Path) -> None:
    def deadly(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with limited_attempts(tmp_path / "attempts", "clicks.csv"):
            with (tmp_path / "begun").open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    quiet_ray_data()
    rows = ray.data.range(1).map_batches(deadly)
    with pytest.raises(ClusterError, match=r"clicks\.csv: 4 processes have died"), user_errors():
        rows.materialize()
    assert (tmp_path / "begun").read_text() == "x" * MAX_ATTEMPTS


def test_work_that_ends_or_fails_leaves_no_mark(tmp_path: Path) -> None:
    for _ in range(2 * MAX_ATTEMPTS):
        with pytest.raises(ValueError, match="bad"), limited_attempts(tmp_path, "clicks.csv"):
            raise ValueError("bad")
    assert list(tmp_path.iterdir()) == []


def test_work_ends_also_where_its_marks_were_removed(tmp_path: Path) -> None:
    with limited_attempts(tmp_path / "attempts", "clicks.csv"):
        shutil.rmtree(tmp_path / "attempts")
