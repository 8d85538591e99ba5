"""Functions that run as tasks: their results, and what happens after an error."""

from functools import partial
from pathlib import Path

import pytest

from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.orchestration.cluster import tasks
from ramen_ray.orchestration.cluster.tasks import in_tasks


def test_results_come_in_the_order_of_the_tasks(cluster: None) -> None:
    assert in_tasks([partial(pow, 2, n) for n in range(12)]) == [2**n for n in range(12)]


def test_after_an_error_no_task_starts(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TASKS_PER_CPU", 1e-9)  # one at a time
    before, after = (partial(Path.touch, tmp_path / name) for name in ("before", "after"))
    with pytest.raises(DatasetError, match="nowhere"):
        in_tasks([before, partial(Dataset, tmp_path / "nowhere"), *[after] * 10])
    assert [path.name for path in tmp_path.iterdir()] == ["before"]
