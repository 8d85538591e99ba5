from pathlib import Path

import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from ramen_ray.reports.run import metrics_table
from ramen_ray.tracking.runs import (
    StepLogger,
    TrackingError,
    close_run,
    log_parameters,
    open_run,
    read_history,
    tracking_uri,
    ui_command,
)


@pytest.fixture(scope="module")
def store(output: Path) -> tuple[str, Path]:
    return f"sqlite:///{output}/mlflow.db", output


@pytest.fixture
def run_id(store: tuple[str, Path]) -> str:
    uri, output = store
    return open_run(uri, "tests", "a run", output, None)


def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert tracking_uri(tmp_path) == "http://tracking:5000"
    assert ui_command("http://tracking:5000") == "open http://tracking:5000"


def test_a_reopened_run_is_the_same_and_runs_again(store: tuple[str, Path], run_id: str) -> None:
    uri, output = store
    close_run(uri, run_id, "FAILED")
    assert open_run(uri, "tests", "a run", output, run_id) == run_id
    assert MlflowClient(uri).get_run(run_id).info.status == "RUNNING"


def test_parameters_may_be_logged_twice(store: tuple[str, Path], run_id: str) -> None:
    uri, _ = store
    for _ in range(2):
        log_parameters(uri, run_id, {"optimizer.lr": 0.1, "name": None}, {"dataset": "made"})
    assert MlflowClient(uri).get_run(run_id).data.params == {"optimizer.lr": "0.1", "name": "None"}


def test_repeated_steps_are_logged_once(store: tuple[str, Path], run_id: str) -> None:
    uri, _ = store
    losses, known = np.arange(8.0).reshape(8, 1), np.ones((8, 1), dtype=bool)
    first = StepLogger(uri, run_id)
    first.log_losses(["loss/task"], losses[:5], known[:5], 5)
    first.log_validation({"validation/P@1": 0.25}, 5)
    resumed = StepLogger(uri, run_id)
    resumed.log_losses(["loss/task"], losses[3:], known[3:], 8)
    resumed.log_validation({"validation/P@1": 0.25}, 5)
    assert read_history(uri, run_id, "loss/task") == (list(range(1, 9)), losses[:, 0].tolist())
    assert read_history(uri, run_id, "validation/P@1") == ([5], [0.25])


def test_more_values_than_a_batch_may_hold(store: tuple[str, Path], run_id: str) -> None:
    uri, _ = store
    values = np.arange(2100.0).reshape(700, 3)
    known = np.ones(values.shape, dtype=bool)
    known[1::2, 0] = False
    StepLogger(uri, run_id).log_losses(["a", "b", "c"], values, known, 700)
    assert read_history(uri, run_id, "c")[1] == values[:, 2].tolist()
    assert read_history(uri, run_id, "a") == (list(range(1, 701, 2)), values[::2, 0].tolist())


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    uri = "sqlite:////proc/nowhere/mlflow.db"
    with pytest.raises(TrackingError, match="cannot use the MLflow store sqlite:////proc/nowhere"):
        open_run(uri, "tests", "a run", tmp_path, None)


def test_the_table_is_in_per_cent_by_split_and_row() -> None:
    names = ("P@1", "P@3", "P@5", "N@5", "PSP@1", "PSP@5", "R@10", "R@100")
    metrics = {
        row: {"test": dict.fromkeys(names, value)}
        for row, value in (("untrained", 0.125), ("trained", 0.5))
    }
    table = metrics_table(metrics)
    cells = [list(column.cells) for column in table.columns]
    assert cells[1] == ["untrained", "trained"]
    assert cells[2] == ["12.50", "50.00"]
