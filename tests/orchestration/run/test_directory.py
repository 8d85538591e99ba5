import re
import shutil

import pytest
from support import run_config_of, with_tables

from ramen_ray.config import overlay, read_config
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.long_work import warn_once
from ramen_ray.orchestration.run.directory import RunError
from ramen_ray.orchestration.run.identity import (
    Inputs,
    finished_run,
    identity_of,
    open_run_directory,
)
from ramen_ray.presets import tiny


@pytest.fixture
def config(dataset_path, encoder_path, tmp_path):
    shutil.copytree(encoder_path, tmp_path / "encoder")
    where = {"dataset": str(dataset_path), "output": str(tmp_path)}
    return overlay(tiny(), {**where, "encoder.pretrained": str(tmp_path / "encoder")})


@pytest.fixture
def dataset(dataset_path):
    return Dataset(dataset_path)


def _inputs(config, dataset):
    return Inputs(config, dataset, identity_of(config, dataset))


def _opened(config, dataset):
    return open_run_directory(_inputs(config, dataset))


def _refused(config, dataset, message):
    with pytest.raises(RunError, match=message), _opened(config, dataset):
        pass


def test_a_run_is_opened_again_until_it_is_finished(config, dataset):
    with _opened(config, dataset) as first:
        first.note(mlflow_run_id="abc")
    with _opened(config, dataset) as second, _opened(config, dataset) as meanwhile:
        assert second == first
        assert second.notes["mlflow_run_id"] == "abc"
        assert meanwhile.name == f"{first.name}-2", "two processes never share a run"
        second.note(finished=True)
    with _opened(config, dataset) as third:
        assert third == meanwhile, "a finished run is not touched again"
        third.note(finished=True)
        with _opened(config, dataset) as fourth:
            assert fourth.name == f"{first.name}-3"


def test_the_output_of_a_saved_configuration_is_where_its_run_is_now(config, dataset, tmp_path):
    config = overlay(config, {"output": str(tmp_path / "outputs")})
    with _opened(config, dataset) as run:
        run.note(finished=True)
    (tmp_path / "outputs").rename(tmp_path / "elsewhere")
    saved = tmp_path / "elsewhere" / "runs" / run.name / "config.json"
    assert run_config_of(["--config", str(saved)]).output == str(tmp_path / "elsewhere")
    copied = shutil.copy(saved, tmp_path / "config.json")
    assert run_config_of(["--config", str(copied)]) == config


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_run_with_damaged_notes_is_refused_with_what_to_do(content, config, dataset):
    with _opened(config, dataset) as first:
        first.note(mlflow_run_id="abc")
    (first.path / "config.json").write_text(content)
    with _opened(config, dataset) as second:
        assert second.notes["mlflow_run_id"] == "abc"
        assert read_config(second.path / "config.json") == config
    (first.path / "run.json").write_text(content)
    _refused(config, dataset, r"run\.json")


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("changed", ["encoder", "ramen_ray", "transformers"])
def test_what_a_run_was_made_from_must_be_the_same_unless_it_is_allowed(
    changed, finished, config, dataset, caplog
):
    def opened(chosen):
        if finished:
            return finished_run(_inputs(chosen, dataset))
        with _opened(chosen, dataset) as directory:
            return directory

    named = overlay(config, {"name": "mine"})
    with _opened(named, dataset) as before:
        before.note(finished=finished)
    now = identity_of(named, dataset)
    before.note(made_from={**now, changed: "other"})
    said = rf"{changed} \('other' there, '{re.escape(now[changed])}' now\)"
    with pytest.raises(RunError, match=rf"{before.path} .*: {said}"):
        opened(named)
    warn_once.cache_clear()  # a process says it once
    allowed = overlay(named, {"allow_changed": True})
    assert opened(allowed) == before
    assert opened(allowed) == before
    (record,) = caplog.records
    assert re.search(said, record.message)
    assert not read_config(before.path / "config.json").allow_changed
    if not finished:
        assert opened(named) == before, "it is made from that now"


@pytest.mark.parametrize("finished", [False, True])
def test_a_name_is_of_one_configuration_of_one_dataset_and_one_version(
    finished, config, dataset, tmp_path
):
    def refuses(message, chosen, data=dataset):
        with pytest.raises(RunError, match=message):
            if finished:
                finished_run(_inputs(chosen, data))
            with _opened(chosen, data):
                pass

    named = overlay(config, {"name": "mine"})
    assert finished_run(_inputs(named, dataset)) is None
    with _opened(named, dataset) as directory:
        directory.note(finished=finished)
    found = finished_run(_inputs(named, dataset))
    assert found == (directory if finished else None)
    changed = overlay(named, {"optimizer.lr": 0.5, "regularization.lambda_x.links": 0.7})
    refuses(r"optimizer.lr \(0.005 there, 0.5 now\).*lambda_x.links", changed)
    ads = dataset.read("ads")
    tables = {"ads": ads.set_column(1, "text", [["another"] * len(ads)])}
    other = with_tables(dataset, tmp_path / "other", tables)
    refuses("dataset .*; ads: different", named, other)
    for name in ("anchors/{}", "edges/{}/ad"):
        tables[name.format("seller")] = dataset.read(name.format("links"))
    other = with_tables(dataset, tmp_path / "more", tables)
    command = f"python jobs/graph.py remove {other.path} --name seller"
    refuses(
        rf"anchors/seller, edges/seller/ad: new.*\({command}\)",
        overlay(named, {"dataset": str(other.path)}),
        other,
    )


def test_a_name_in_use_is_refused(config, dataset):
    named = overlay(config, {"name": "mine"})
    with _opened(named, dataset) as directory:
        _refused(named, dataset, "mine")
        directory.note(finished=True)
    _refused(named, dataset, "mine")
    (directory.path.parent / "file").write_text("")
    _refused(overlay(config, {"name": "file"}), dataset, "file")


def test_a_run_that_failed_leaves_a_checkpoint_and_what_others_have_in_its_folder(
    config, dataset, tmp_path
):
    with pytest.raises(OSError, match="store"), _opened(config, dataset):
        raise OSError("the store")
    assert not list((tmp_path / "runs").iterdir())
    goes_on = pytest.raises(KeyboardInterrupt, match="goes on after step 7")
    with goes_on, _opened(config, dataset) as directory:
        (directory.path / "checkpoint_000000007").mkdir()
        raise KeyboardInterrupt
    with _opened(config, dataset) as again:
        assert again == directory
    (papers := tmp_path / "runs" / "mine" / "papers").mkdir(parents=True)
    named = overlay(config, {"name": "mine"})
    with pytest.raises(OSError, match="store"), _opened(named, dataset) as directory:
        directory.note(mlflow_run_id="abc")
        raise OSError("the store")
    assert papers.is_dir()
