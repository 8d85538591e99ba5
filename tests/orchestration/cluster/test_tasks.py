"""Functions that run as tasks: their results, and what happens after an error."""

import time
from functools import partial
from pathlib import Path

import pytest
from support import NUM_CPUS

from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.orchestration.cluster.tasks import TASKS_PER_CPU, in_tasks


def test_results_come_in_the_order_of_the_tasks(cluster: None) -> None:
    assert in_tasks([partial(pow, 2, n) for n in range(12)]) == [2**n for n in range(12)]


def test_after_an_error_only_tasks_that_were_sent_before_run(cluster: None, tmp_path: Path) -> None:
    begun, most = tmp_path / "begun", TASKS_PER_CPU * NUM_CPUS

    def fail() -> None:
        begun.touch()
        Dataset(tmp_path / "nowhere")

    def end_after_it(number: int) -> None:
        while not begun.exists():
            time.sleep(0.01)
        time.sleep(0.5)  # in which the error arrives
        (tmp_path / str(number)).touch()

    with pytest.raises(DatasetError, match="nowhere"):
        in_tasks([fail, *(partial(end_after_it, number) for number in range(10 * most))])
    done = {path.name for path in tmp_path.iterdir()}
    time.sleep(1)
    assert done == {path.name for path in tmp_path.iterdir()}
    assert len(done) < 3 * most
