"""Several machines: training over all of them, machines that are lost, machines that join."""

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import mlflow
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray.util import placement_group_table
from support import WAITS_FOR_TASKS, tables_in, text_table, wait_until
from written_out import column_of

from ramen_ray.config import WorkersConfig, overlay
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.method.distributed import world
from ramen_ray.orchestration.cluster.joining import ClusterError
from ramen_ray.orchestration.deploy.predict import predict
from ramen_ray.orchestration.deploy.prediction_files import Asked
from ramen_ray.orchestration.embed import FEW_TEXTS
from ramen_ray.orchestration.run import processes
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.fit import fit
from ramen_ray.orchestration.run.processes import START_TIMEOUT, train_in_workers
from ramen_ray.orchestration.tune.settings import SweepConfig
from ramen_ray.orchestration.tune.sweep import sweep
from ramen_ray.printed_commands import training_command
from ramen_ray.tracking.registry import Registry, uri_of
from tune_spaces import SPACES

pytestmark = pytest.mark.slow

AMID = {
    "preparation": "prepared/.*/content/attempts",
    "walking": "walked/*/*/.ramen_ray-*",
    "training": "runs/*/checkpoint_0*",
    "shortlists": "runs/*/shortlists/.pending/step_*",
    "pruning": "runs/*/graphs/.pending/step_*",
}
"""What is in a run's output while it does something."""


@pytest.fixture(scope="module")
def config(small_run, dataset_path, tmp_path_factory):
    """A run with all kinds of tasks, and so many texts that Ray Data embeds them for pruning."""
    tables = tables_in(dataset_path)
    words = sorted(set(" ".join(tables["ads"]["text"].to_pylist()).split()))
    more = [" ".join(pair) for pair in product(words, words)][:FEW_TEXTS]
    tables["ads"] = text_table("ad_id", [*tables["ads"]["text"].to_pylist(), *more])
    larger = write_dataset(tmp_path_factory.mktemp("larger") / "larger", tables, name="larger")
    changes = {
        "dataset": str(larger.path),
        "output": str(tmp_path_factory.mktemp("outputs")),
        "walk.enabled": True,
        **WAITS_FOR_TASKS,
        "training.checkpoint_every_steps": 3,
        "workers.num_workers": 2,  # on machines of one CPU: one on each
        "workers.startup_timeout_s": 600,
    }
    return overlay(small_run, changes)


@pytest.fixture(scope="module")
def unharmed(machines, config, empty_store):
    machines.become(1, 1)
    shutil.copy(empty_store, config.output)
    return fit(overlay(config, {"name": "unharmed"}))


def _disturbed(job, begins, disturb):
    """Run a job in another thread, and disturb it when something begins."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job)
        wait_until(lambda: begins() or running.done(), "it does not begin")
        disturb()
        return running.result()


@pytest.mark.parametrize("stage", AMID)
def test_a_machine_lost_amid_a_stage_changes_nothing(
    stage, machines, config, unharmed, empty_store, tmp_path
):
    machines.become(1, 1)
    shutil.copy(empty_store, tmp_path)
    made_before = {"preparation": [], "walking": ["prepared"]}.get(stage, ["prepared", "walked"])
    for made in made_before:
        (tmp_path / made).symlink_to(Path(config.output) / made)

    run = overlay(config, {"output": str(tmp_path), "name": "disturbed"})
    amid = []

    def begins():
        return any(tmp_path.glob(AMID[stage]))

    def replace_one():
        machines.lose()
        amid.append(begins())
        machines.add()

    assert _disturbed(lambda: fit(run), begins, replace_one).metrics == unharmed.metrics
    assert amid == [True], "the machine was lost too late"


def test_a_run_without_enough_machines_says_so_and_goes_on_when_there_are(
    machines, config, unharmed, monkeypatch
):
    monkeypatch.setenv(START_TIMEOUT, "")
    monkeypatch.delenv(START_TIMEOUT)
    machines.become(1, 1)
    workers = {"workers.startup_timeout_s": 5, "workers.max_failures": 1}
    run = overlay(config, {"name": "left-alone", **workers})
    folder = Path(config.output) / "runs" / "left-alone"
    with pytest.raises(ClusterError):
        _disturbed(lambda: fit(run), lambda: any(folder.glob("checkpoint_0*")), machines.lose)
    patient = overlay(run, {"workers.startup_timeout_s": 600})

    def waits():
        return any(group["state"] == "PENDING" for group in placement_group_table().values())

    assert _disturbed(lambda: fit(patient), waits, machines.add).metrics == unharmed.metrics


def test_a_run_goes_on_with_fewer_workers(machines, config, unharmed, monkeypatch):
    monkeypatch.setenv(START_TIMEOUT, "")
    monkeypatch.delenv(START_TIMEOUT)
    machines.become(1, 1)
    run = overlay(config, {"name": "fewer", "workers.min_workers": 1})
    folder = RunDirectory.of(config.output, "fewer").path
    fewer = _disturbed(lambda: fit(run), lambda: any(folder.glob("checkpoint_0*")), machines.lose)
    for row, of_splits in unharmed.metrics.items():
        for split, metrics in of_splits.items():
            assert fewer.metrics[row][split] == pytest.approx(metrics, abs=0.02), (row, split)


def test_a_machine_that_joins_gets_a_worker(machines, tmp_path, monkeypatch):
    monkeypatch.setenv(START_TIMEOUT, "20")
    monkeypatch.setattr(processes, "SECONDS_BETWEEN_RESIZES", 1.0)
    machines.become(1)

    def wait_for_another(worker):
        num_workers = world()[1]
        (tmp_path / f"{num_workers}").touch()
        while num_workers == 1:
            time.sleep(0.1)
        return num_workers

    def train():
        workers = WorkersConfig(num_workers=3, min_workers=1, cpus_per_worker=1)
        return train_in_workers(wait_for_another, workers, tmp_path)

    assert _disturbed(train, (tmp_path / "1").exists, machines.add) == 2


def test_a_machine_that_is_taken_away_after_a_notice_counts_as_no_failure(
    machines, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "1")
    monkeypatch.setenv("RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S", "0.2")
    machines.become(1)
    leaving = machines.add()

    def wait_for_a_notice(worker):
        (tmp_path / f"began{world()[0]}").touch()
        while not (tmp_path / "noticed").exists():
            if worker.machine_leaves():
                (tmp_path / f"told{world()[0]}").touch()
                time.sleep(600)  # Ray Train ends it when the machine has to be gone
        return world()[1]

    def train():
        workers = WorkersConfig(num_workers=2, cpus_per_worker=1, max_failures=0)
        return train_in_workers(wait_for_a_notice, workers, tmp_path)

    def both(what):
        return len(list(tmp_path.glob(f"{what}?"))) == 2

    def take_away():
        machines.add()
        machines.drain(leaving, within_s=20)
        wait_until(lambda: both("told"), "workers are not told that a machine leaves")
        (tmp_path / "noticed").touch()

    assert _disturbed(train, lambda: both("began"), take_away) == 2
    machines.lose(leaving)


def test_a_sweep_with_a_machine_less_has_the_same_results(machines, config):
    alone = {"walk.enabled": False, "base.kind": "in_batch", "pruning.mode": "never"}
    changes = {**alone, "training.epochs": 12, "workers.num_workers": 1}
    trained = overlay(config, {**changes, "workers.startup_timeout_s": 1})
    settings = SweepConfig(space="optimizer", search="random", num_samples=2, stop_early=False)
    runs = Path(config.output) / "runs"

    def swept(name):
        named = overlay(trained, {"name": name})
        return sweep(named, settings, SPACES["optimizer"], training_command)

    def both_train():
        return len({file.parent for file in runs.glob("disturbed-*/checkpoint_0*")}) == 2

    machines.become(1, 1)
    expected = swept("undisturbed")
    disturbed = _disturbed(lambda: swept("disturbed"), both_train, machines.lose)
    assert _values(disturbed) == _values(expected)
    assert len(_values(disturbed)) == 2


def _values(result):
    return sorted((str(trial.params), trial.value) for trial in result.trials)


def test_a_table_is_answered_with_a_machine_less(machines, unharmed, dataset_path, tmp_path):
    machines.become(1, 1)
    registry = Registry(unharmed.run.uri)
    model = uri_of(registry.find_logged(unharmed.run.id, None)[1])
    distinct = column_of(Dataset(dataset_path), "queries/train")
    texts = np.resize(np.array(distinct, dtype=object), 20 * 10_000)
    queries = tmp_path / "queries.parquet"
    answers = tmp_path / "answers"
    pq.write_table(pa.table({"text": texts}), queries, row_group_size=10_000)

    made = []

    def disturb():
        machines.lose()
        made.extend(answers.glob("part-*.parquet"))

    def job():
        return predict(registry, model, Asked(str(queries), 3), answers)

    done = _disturbed(job, lambda: any(answers.glob("part-*.parquet")), disturb)
    assert len(made) < 20, "the machine was lost too late"
    assert (done.rows, done.errors, done.partitions) == (len(texts), 0, 20)
    found = pq.read_table(answers)
    assert found["text"].to_pylist() == texts.tolist()
    ads = registry.load(model).answer(distinct, 3)["ads"].to_pylist()
    assert found["ads"].to_pylist() == [ads[row % len(distinct)] for row in range(len(texts))]
    mlflow.set_tracking_uri(None)
