"""Searches on a real Ray and a real MLflow store: what is tried, stopped, told and gone on with."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import ray
from mlflow.tracking import MlflowClient
from ray import tune
from support import wait_until

from jobs import tune as tune_job
from ramen_ray.command_line import parse_run_config, run_job, training_command
from ramen_ray.config import ConfigError, RunConfig, overlay
from ramen_ray.orchestration.run_directory import RunError
from ramen_ray.orchestration.search_space import check_space, grid
from ramen_ray.orchestration.sweep import SweepConfig, SweepResult, sweep
from ramen_ray.orchestration.trials import STOPPED_EARLY
from ramen_ray.presets import PRESETS, debian, foldoc, tiny
from tune_spaces import SPACES

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_space_fits_every_preset(preset: str, space: str) -> None:
    config = PRESETS[preset]()
    check_space(config, SPACES[space](config))


def test_spaces_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        check_space(tiny(), {})
    with pytest.raises(ConfigError, match=r"samples optimizer\.lrr, which the configuration lacks"):
        check_space(tiny(), {"optimizer.lrr": tune.uniform(0, 1)})
    with pytest.raises(ConfigError, match=r"loss\.margin"):
        check_space(tiny(), {"loss.margin": tune.uniform(-2, -1)})
    with pytest.raises(ConfigError, match=r"loss\.margin: a grid needs choices, or a sampler with"):
        grid({"loss.margin": tune.randn(0.3, 0.1)})


def test_a_grid_has_all_choices_and_the_bounds_of_ranges() -> None:
    space = {
        "a": tune.choice([False, True]),
        "b": tune.loguniform(0.01, 1),
        "c": tune.uniform(0, 1),
    }
    points = grid(space)
    assert points["a"] == [False, True]
    assert points["b"] == pytest.approx([0.01, 0.1, 1])
    assert points["c"] == pytest.approx([0, 0.5, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["tiny", "--space", "all"],
            "--space all: there are only regularization, optimizer, mining",
        ),
        (["tinny"], "unknown preset 'tinny'; presets are foldoc, debian"),
        (["tiny", "--num-samples", "0"], "num_samples: Input should be greater than 0"),
        (["tiny", "--training.selection-metric", "Q@1"], "'Q@1' is not one of P@1"),
        (
            ["tiny", "--space", "optimizer", "--optimizer.lr", "0"],
            "lr Input should be greater than 0",
        ),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["tune.py", *arguments])
    assert run_job(tune_job.main) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("error: ")
    assert message in said


@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        (foldoc, {}),
        (debian, {"optimizer.lr": 0.0012, "walk.enabled": True, "training.epochs": 7}),
        (
            foldoc,
            {
                "dataset": str(ROOT / "datasets" / "debian"),
                "regularization.lambda_x": {"depends": 0.5, "tags": 0.2, "sources": 0.0},
                "regularization.lambda_z": {"depends": 0.1, "tags": 0.1, "sources": 0.1},
                "base.double_cluster_size_at": (3, 4),
                "encoder.num_layers": None,
            },
        ),
    ],
)
def test_a_command_gives_back_the_configuration(preset, changes) -> None:
    config = overlay(preset(), changes)
    words = shlex.split(training_command(config))
    assert words[:2] == ["python", "jobs/train.py"]
    back = parse_run_config("train", words[2:])
    assert overlay(back, {"dataset": config.dataset}) == config


@pytest.fixture(scope="module")
def config(dataset_path: Path, encoder_path: Path, tmp_path_factory) -> RunConfig:
    weights = {"links": 0.1}
    return overlay(
        tiny(),
        {
            "dataset": str(dataset_path),
            "output": str(tmp_path_factory.mktemp("outputs")),
            "encoder.pretrained": str(encoder_path),
            "regularization.lambda_x": weights,
            "regularization.lambda_z": weights,
            "walk.enabled": True,
            "training.epochs": 2,
            "training.global_batch_size": 8,
            "training.selection_metric": "R@10",
            "workers.cpus_per_worker": 1,
            "name": "search",
        },
    )


LAMBDAS = ["regularization.lambda_x.links", "regularization.lambda_z.links"]
SETTINGS = SweepConfig(space="own", num_samples=5, grace_epochs=1)


def search(config: RunConfig) -> SweepResult:
    """Search with samplers by which some trials cannot load their encoder."""
    space = {key: tune.loguniform(0.01, 1.0) for key in LAMBDAS}
    space["encoder.pretrained"] = tune.choice([config.encoder.pretrained, "nowhere"])
    if not ray.is_initialized():
        ray.init(address="local", num_cpus=3, log_to_driver=False)
    return sweep(config, SETTINGS, space, training_command)


@pytest.fixture(scope="module")
def result(config: RunConfig) -> Iterator[SweepResult]:
    yield search(config)
    ray.shutdown()


@pytest.mark.slow
def test_a_failing_trial_is_told_and_the_others_go_on(result: SweepResult) -> None:
    failed = [trial for trial in result.trials if trial.end.startswith("failed: ")]
    assert {trial.params["encoder.pretrained"] for trial in failed} == {"nowhere"}
    assert all("nowhere" in trial.end and trial.value is None for trial in failed)
    assert failed and len(failed) < len(result.trials) == 5


@pytest.mark.slow
def test_the_first_trial_has_the_configuration_s_own_values(
    result: SweepResult, config: RunConfig
) -> None:
    own = {**dict.fromkeys(LAMBDAS, 0.1), "encoder.pretrained": config.encoder.pretrained}
    assert own in [dict(trial.params) for trial in result.trials]


@pytest.mark.slow
def test_children_and_parent_are_tracked(result: SweepResult) -> None:
    client = MlflowClient(tracking_uri=result.tracking_uri)
    parent = client.get_run(result.mlflow_run_id)
    of_parent = f"tags.`mlflow.parentRunId` = '{result.mlflow_run_id}'"
    children = client.search_runs([parent.info.experiment_id], of_parent)
    values = {trial.mlflow_run_id: trial.value for trial in result.trials if trial.value}
    assert {child.info.run_id for child in children if child.info.status == "FINISHED"} == set(
        values
    )
    for trial in result.trials:
        if trial.value is None:
            continue
        history = client.get_metric_history(trial.mlflow_run_id, "validation/R_at_10")
        reached = [point.value for point in history]
        assert trial.value in [pytest.approx(value) for value in reached]
        if trial.end != STOPPED_EARLY:  # one that is ended may validate once more meanwhile
            assert max(reached) == pytest.approx(trial.value)
    assert parent.data.metrics["best/validation/R_at_10"] == pytest.approx(max(values.values()))
    names = {file.path for file in client.list_artifacts(result.mlflow_run_id)}
    assert {"trials.csv", "best_command.txt"} <= names


@pytest.mark.slow
def test_the_table_and_the_command_are_of_the_best(result: SweepResult, config: RunConfig) -> None:
    table = pd.read_csv(result.report / "trials.csv")
    assert len(table) == 5
    best = result.trials[0]
    assert table["validation/R@10"].max() == pytest.approx(best.value)
    back = parse_run_config("train", shlex.split(result.command)[2:])
    assert back.regularization.lambda_x["links"] == best.params["regularization.lambda_x.links"]


@pytest.mark.slow
def test_a_finished_search_is_told_again(result: SweepResult, config: RunConfig) -> None:
    again = search(config)
    assert again.trials == result.trials
    assert again.mlflow_run_id == result.mlflow_run_id


@pytest.mark.slow
def test_a_search_out_of_time_ends_its_trials(config: RunConfig, result: SweepResult) -> None:
    settings = SETTINGS.model_copy(update={"time_budget": 1.0})
    space = {key: tune.loguniform(0.01, 1.0) for key in LAMBDAS}
    with pytest.raises(RunError, match="no trial has been validated: out of time"):
        sweep(overlay(config, {"name": "late"}), settings, space, training_command)
    client = MlflowClient(tracking_uri=result.tracking_uri)
    experiment = client.get_run(result.mlflow_run_id).info.experiment_id
    assert not client.search_runs([experiment], "attributes.status = 'RUNNING'")


@pytest.mark.timeout(1800)
def test_a_killed_search_goes_on_with_the_same_command(config: RunConfig, tmp_path: Path) -> None:
    ray.shutdown()
    file = tmp_path / "config.json"
    changes = {"name": "killed", "output": str(tmp_path), "training.epochs": 20}
    file.write_text(json.dumps(overlay(config, changes).model_dump()))
    command = [sys.executable, str(ROOT / "jobs" / "tune.py"), "--config", str(file)]
    command += ["--num-samples", "3", "--no-stop-early"]
    ends, runs = tmp_path / "sweeps" / "killed" / "ends", tmp_path / "runs"

    def facts() -> dict[str, dict[str, Any]]:
        return {path.parent.name: json.loads(path.read_text()) for path in runs.glob("*/run.json")}

    def is_one_done_and_one_under_way() -> bool:
        begun = {path.parent.name for path in runs.glob("*/checkpoint_*")}
        finished = {name for name, run in facts().items() if run.get("finished")}
        return any(ends.glob("[!.]*")) and bool(begun - finished)

    first = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT)
    wait_until(is_one_done_and_one_under_way, "no trial is done while another is under way")
    first.kill()
    first.wait()
    before = facts()
    trained = _checkpoints_of_finished_runs(runs)
    assert trained
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    after = facts()
    assert len(after) == 3
    assert all(run["finished"] for run in after.values())
    for name, known in before.items():
        assert after[name]["mlflow_run_id"] == known["mlflow_run_id"]
    assert trained.items() <= _checkpoints_of_finished_runs(runs).items()


def _checkpoints_of_finished_runs(runs: Path) -> dict[Path, float]:
    """Return when each was written."""
    known = {file.parent: json.loads(file.read_text()) for file in runs.glob("*/run.json")}
    finished = [run for run, facts in known.items() if facts.get("finished")]
    return {path: path.stat().st_mtime for run in finished for path in run.glob("checkpoint_0*")}
