import shutil
from pathlib import Path

import pytest

from ramen_ray.command_line import parse_run_config
from ramen_ray.config import ConfigError, RunConfig, overlay, read_config
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.orchestration.runs.run_directory import (
    RunDirectory,
    RunError,
    finished_run,
    open_run_directory,
)
from ramen_ray.presets import tiny


@pytest.fixture
def config(dataset_path: Path, tmp_path: Path) -> RunConfig:
    return overlay(tiny(), {"dataset": str(dataset_path), "output": str(tmp_path)})


@pytest.fixture
def dataset(dataset_path: Path) -> Dataset:
    return Dataset(dataset_path)


def test_an_interrupted_run_is_opened_again(config: RunConfig, dataset: Dataset) -> None:
    with open_run_directory(config, dataset) as first:
        first.note(mlflow_run_id="abc")
    with open_run_directory(config, dataset) as second:
        assert second == first
        assert second.notes["mlflow_run_id"] == "abc"


def test_a_finished_run_is_not_touched_again(config: RunConfig, dataset: Dataset) -> None:
    with open_run_directory(config, dataset) as first:
        first.note(finished=True)
    with open_run_directory(config, dataset) as second:
        assert second.name == f"{first.name}-2"


def test_the_output_of_a_saved_configuration_is_where_its_run_is_now(
    config: RunConfig, dataset: Dataset, tmp_path: Path
) -> None:
    config = overlay(config, {"output": str(tmp_path / "outputs")})
    with open_run_directory(config, dataset) as run:
        run.note(finished=True)
    (tmp_path / "outputs").rename(tmp_path / "elsewhere")
    saved = tmp_path / "elsewhere" / "runs" / run.name / "config.json"
    assert parse_run_config("a job", ["--config", str(saved)]).output == str(tmp_path / "elsewhere")
    copied = shutil.copy(saved, tmp_path / "config.json")
    assert parse_run_config("a job", ["--config", str(copied)]) == config


def test_two_processes_never_share_a_run(config: RunConfig, dataset: Dataset) -> None:
    with open_run_directory(config, dataset) as first, open_run_directory(config, dataset) as other:
        assert other.path != first.path


@pytest.mark.parametrize("content", ["", "{", '{"identity": "x", "checksum": 1}'])
def test_damaged_notes_are_read_from_their_copy(
    content: str, config: RunConfig, dataset: Dataset
) -> None:
    with open_run_directory(config, dataset) as first:
        first.note(mlflow_run_id="abc")
    for name in ("run.json", "config.json"):
        (first.path / name).write_text(content)
    with open_run_directory(config, dataset) as second:
        assert second.notes["mlflow_run_id"] == "abc"
        assert read_config(second.path / "config.json") == config
    for name in ("run.json", ".run.json"):
        (first.path / name).write_text(content)
    with (
        pytest.raises(RunError, match=r"run\.json is damaged, and so is its copy; to train this"),
        open_run_directory(config, dataset),
    ):
        pass


@pytest.mark.parametrize("key", ["workers.num_workers", "experiment"])
def test_where_it_runs_does_not_make_another_run(
    key: str, config: RunConfig, dataset: Dataset
) -> None:
    value: object = 2 if key.startswith("workers") else "other"
    with open_run_directory(config, dataset) as first:
        pass
    with open_run_directory(overlay(config, {key: value}), dataset) as second:
        assert second == first


def test_a_run_of_another_version_of_the_code_is_not_continued(
    config: RunConfig, dataset: Dataset
) -> None:
    named = overlay(config, {"name": "mine"})
    with open_run_directory(named, dataset) as before:
        before.note(identity="as another version computes it")
    with (
        pytest.raises(RunError, match=r"or the version of ramen_ray, differs; choose another name"),
        open_run_directory(named, dataset),
    ):
        pass


def test_a_taken_name_says_which_settings_differ(config: RunConfig, dataset: Dataset) -> None:
    named = overlay(config, {"name": "mine"})
    with open_run_directory(named, dataset):
        pass
    changed = overlay(named, {"optimizer.lr": 0.5, "regularization.lambda_x.links": 0.7})
    with (
        pytest.raises(RunError, match=r"optimizer.lr \(0.005 there, 0.5 now\).*lambda_x.links"),
        open_run_directory(changed, dataset),
    ):
        pass


def test_a_finished_run_is_found_for_its_own_configuration_and_data_only(
    config: RunConfig, dataset: Dataset, tmp_path: Path
) -> None:
    named = overlay(config, {"name": "mine"})
    assert finished_run(named, dataset) is None
    with open_run_directory(named, dataset) as directory:
        assert finished_run(named, dataset) is None
        directory.note(finished=True)
    assert finished_run(named, dataset) == directory
    with pytest.raises(RunError, match=r"optimizer.lr \(0.005 there, 0.5 now\)"):
        finished_run(overlay(named, {"optimizer.lr": 0.5}), dataset)
    tables = {name: dataset.read(name) for name in dataset.tables}
    tables["ads"] = tables["ads"].set_column(1, "text", [["another"] * len(tables["ads"])])
    other = write_dataset(tmp_path / "other", tables, name="handmade")
    with pytest.raises(RunError, match="the content of the dataset, or the version"):
        finished_run(named, other)


@pytest.mark.parametrize("finished", [True, False])
def test_a_name_in_use_is_refused(finished: bool, config: RunConfig, dataset: Dataset) -> None:
    named = overlay(config, {"name": "mine"})
    reason = "is finished" if finished else "is in use"
    with open_run_directory(named, dataset) as directory:
        directory.note(finished=finished)
        if not finished:
            with pytest.raises(RunError, match=reason), open_run_directory(named, dataset):
                pass
    if finished:
        with pytest.raises(RunError, match=reason), open_run_directory(named, dataset):
            pass


def test_a_run_that_failed_at_the_start_leaves_no_folder(
    config: RunConfig, dataset: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="store"), open_run_directory(config, dataset):
        raise OSError("the store")
    assert not list((tmp_path / "runs").iterdir())


def test_a_run_with_a_checkpoint_stays(config: RunConfig, dataset: Dataset) -> None:
    opened: list[RunDirectory] = []
    with pytest.raises(KeyboardInterrupt), open_run_directory(config, dataset) as directory:
        opened.append(directory)
        (directory.path / "checkpoint_000000001").mkdir()
        raise KeyboardInterrupt
    with open_run_directory(config, dataset) as again:
        assert again == opened[0]


def test_a_run_that_failed_leaves_what_was_in_its_folder(
    config: RunConfig, dataset: Dataset, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "mine"
    (folder / "papers").mkdir(parents=True)
    (folder / "papers" / "notes.txt").write_text("the only copy")
    named = overlay(config, {"name": "mine"})
    with pytest.raises(OSError, match="store"), open_run_directory(named, dataset) as directory:
        directory.note(mlflow_run_id="abc")
        raise OSError("the store")
    assert (folder / "papers" / "notes.txt").read_text() == "the only copy"
    assert not (folder / "config.json").exists()
    assert not (folder / "run.json").exists()


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_run_cannot_take_the_folder_of_all_runs(
    name: str, config: RunConfig, dataset: Dataset, tmp_path: Path
) -> None:
    with open_run_directory(overlay(config, {"name": "earlier"}), dataset) as earlier:
        (earlier.path / "checkpoint_000000001").mkdir()
    unchecked = config.model_copy(update={"name": name})
    with pytest.raises(KeyboardInterrupt), open_run_directory(unchecked, dataset):
        raise KeyboardInterrupt
    assert (earlier.path / "checkpoint_000000001").is_dir()
    with pytest.raises(ConfigError, match=r"name: .* is not a valid name"):
        overlay(config, {"name": name})


def test_a_folder_that_cannot_be_made_is_reported(config: RunConfig, dataset: Dataset) -> None:
    runs = Path(config.output) / "runs"
    runs.mkdir()
    (runs / "mine").write_text("a file")
    named = overlay(config, {"name": "mine"})
    with (
        pytest.raises(RunError, match="runs/mine is a file, not the folder of a run"),
        open_run_directory(named, dataset),
    ):
        pass
