"""Sweeps on a real Ray and a real MLflow store: what is tried, stopped, reported and resumed."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import ray
from conftest import SPECIAL_TOKENS
from filelock import FileLock
from mlflow.tracking import MlflowClient
from optuna.samplers import RandomSampler, TPESampler
from ray import cloudpickle, tune
from ray.tune.schedulers import TrialScheduler
from support import ROOT, node_edges, query_table, run_config_of, text_table, wait_until
from transformers import BertConfig, BertTokenizer

from jobs import tune as tune_job
from ramen_ray import long_work
from ramen_ray.config import (
    ConfigError,
    WorkersConfig,
    flatten,
    overlay,
    write_config,
)
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.idle_settings import advice_on_idle
from ramen_ray.long_work import in_background
from ramen_ray.orchestration.run.directory import RunDirectory, RunError
from ramen_ray.orchestration.run.identity import Inputs
from ramen_ray.orchestration.tune import experiment
from ramen_ray.orchestration.tune import sweep as sweep_module
from ramen_ray.orchestration.tune import trials as trials_module
from ramen_ray.orchestration.tune.draws import Drawing, Halving, TrialSearch, check_space
from ramen_ray.orchestration.tune.experiment import STOPPED_EARLY, TABLE_FILE, write_trials
from ramen_ray.orchestration.tune.settings import SweepConfig
from ramen_ray.orchestration.tune.sweep import sweep
from ramen_ray.orchestration.tune.trials import num_held
from ramen_ray.presets import PRESETS, bag, minilm_6, tiny, used_sets, with_base
from ramen_ray.printed_commands import training_command
from ramen_ray.reports.search_report import TrialRecord, effects, plot_effects, write_sweep_report
from ramen_ray.tracking.addresses import TrackingError, tracking_uri
from ramen_ray.tracking.registry import WINNER, Registry
from ramen_ray.tracking.runs import DESCRIPTION_TAG, Run, open_run
from tune_spaces import SPACES


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A dataset that every preset can train on, with a set of each side and the papers' sets."""
    num_queries = max(preset().training.global_batch_size for preset in PRESETS.values())
    tables = {"ads": text_table("ad_id", ["an ad"])}
    for split in ("train", "validation", "test"):
        tables[f"queries/{split}"] = query_table(["a query"] * num_queries, [[0]] * num_queries)
    sides = {"hyper_link": ("query", "ad"), "co_click": ("ad",), "co_session": ("query",)}
    for name, of_set in sides.items():
        tables[f"anchors/{name}"] = text_table("anchor_id", ["an anchor"])
        for side in of_set:
            tables[f"edges/{name}/{side}"] = node_edges(f"{side}_id", [[0]])
    return write_dataset(tmp_path_factory.mktemp("datasets") / "all", tables, name="all").path


@pytest.fixture(scope="module")
def wide_encoder(tmp_path_factory):
    """An encoder of MiniLM's width and layers with few words, whose tokenizer is quick to load."""
    path = tmp_path_factory.mktemp("encoders") / "wide"
    vocabulary = enumerate([*SPECIAL_TOKENS, "a", "an", "query", "ad"])
    BertTokenizer(vocab={token: number for number, token in vocabulary}).save_pretrained(path)
    BertConfig(hidden_size=384, num_hidden_layers=6).save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_space_fits_every_preset(preset, stand_in, wide_encoder):
    config = overlay(PRESETS[preset](str(stand_in)), {"encoder.pretrained": wide_encoder})
    dataset = Dataset(stand_in)
    for space in SPACES.values():
        check_space(Drawing.of(config, space, dataset), dataset)


@pytest.mark.parametrize("base", ["in_batch", "unidec"])
def test_trials_explore_the_graph_and_no_two_train_the_same(base, stand_in):
    config = with_base(bag(str(stand_in)), {"base.kind": base})
    drawing = Drawing.of(config, SPACES["regularization"], Dataset(stand_in))
    search = TrialSearch(drawing, RandomSampler(0), {}, "score", lambda: None)
    search.first = [drawing.own()]
    trials = [search.suggest(str(number)) for number in range(200)]
    configs = [overlay(config, trial) for trial in trials]
    assert overlay(configs[0], {"name": None}) == config, "the first is the configuration's own"
    sets = {"hyper_link": "xz", "co_click": "z", "co_session": "x"}
    weights = {f"regularization.lambda_{side}.{name}" for name in sets for side in sets[name]}
    for trial, drawn in zip(trials, configs, strict=True):
        idle = [key for key in trial if advice_on_idle(drawn, key)]
        assert not idle or not used_sets(drawn)
        assert weights <= trial.keys()
    for key in weights:
        fixed = [trial[key] for trial in trials if not trial["regularization.adaptive"]]
        assert 0 in fixed and len(set(fixed)) > 30
    walked = [drawn for drawn in configs if drawn.walk.enabled]
    assert len({drawn.walk.restart_probability for drawn in walked}) == 5
    unnamed = [flatten(overlay(drawn, {"name": None})) for drawn in configs]
    acting = [
        str({key: value for key, value in drawn.items() if not advice_on_idle(whole, key)})
        for drawn, whole in zip(unnamed, configs, strict=True)
    ]
    assert len(set(acting)) == len(acting)


def test_a_space_without_new_trials_ends_a_sweep(stand_in):
    config = tiny(str(stand_in))

    def space(draw):
        draw.choice("walk.enabled", [False, True])
        draw.choice("walk.top_k", [5, 10])

    drawing = Drawing.of(config, space, Dataset(stand_in))
    search = TrialSearch(drawing, RandomSampler(0), {}, "score", lambda: None)
    trials = [search.suggest(str(number)) for number in range(4)]
    assert len([trial for trial in trials if trial != "FINISHED"]) == 3, "top_k acts on walks only"
    assert trials[3] == "FINISHED"


def test_earlier_trials_are_known_and_others_tried_again(stand_in):
    config = tiny(str(stand_in))

    def space(draw):
        draw.number("loss.margin", 0.1, 0.5)

    def record(margin, end, key="loss.margin"):
        changes = {key: margin}
        value = 1 - abs(margin - 0.2) if end else None
        return TrialRecord(f"{margin}", changes, value, end=end, drawn=changes)

    drawing = Drawing.of(config, space, Dataset(stand_in))
    known = [record(0.1 + 0.01 * number, STOPPED_EARLY) for number in range(40)]
    records = {trial.name: trial for trial in [*known, record(0.4444, "")]}
    search = TrialSearch(drawing, TPESampler(seed=0), records, "score", lambda: None)
    assert search.suggest("a")["name"] == "0.4444", "it has begun and not ended"
    search.on_trial_complete("a", {"score": 0.7})
    drawn = [search.suggest(str(number))["loss.margin"] for number in range(10)]
    assert max(abs(margin - 0.2) for margin in drawn) < 0.15, "the best ones are near 0.2"
    assert not search.learn(record(0.7, STOPPED_EARLY)), "it is out of bounds"
    assert not search.learn(record(0.2, STOPPED_EARLY, "loss.gone"))


def test_spaces_that_do_not_fit_are_refused(stand_in):
    def check(key, *choices):
        config = overlay(tiny(str(stand_in)), {"encoder.kind": "transformer"})

        def space(draw):
            if choices:
                draw.choice(key, choices)

        check_space(Drawing.of(config, space, Dataset(stand_in)), Dataset(stand_in))

    with pytest.raises(ConfigError, match=r"empty.* --space"):
        check("none")
    with pytest.raises(ConfigError, match=r"optimizer\.lrr"):
        check("optimizer.lrr", 0.1)
    with pytest.raises(ConfigError, match=r"loss\.margin"):
        check("loss.margin", 0.1, -2)
    with pytest.raises(ConfigError, match=r"num_layers 7 .* 6 layers"):
        check("encoder.num_layers", 1, 2, 3, 4, 5, 7, 6)


@pytest.mark.parametrize(
    ("workers", "machines", "held"),
    [
        ({"num_workers": 1, "cpus_per_worker": 2}, [{"CPU": 4.0}, {"CPU": 3.0}], 3),
        ({"num_workers": 4, "cpus_per_worker": 1}, [{"CPU": 2.0}], 1),
        ({"gpus_per_worker": 0.2}, [{"CPU": 99.0, "GPU": 3.0}, {"CPU": 4.0, "GPU": 1.0}], 17),
        ({"gpus_per_worker": 0.6, "num_workers": 2}, [{"CPU": 99.0, "GPU": 5.0}], 2),
    ],
)
def test_as_many_runs_at_once_as_the_machines_have_room_for(workers, machines, held):
    use_gpu = "gpus_per_worker" in workers
    assert num_held(WorkersConfig(use_gpu=use_gpu, **workers), machines) == held


def test_a_sweep_says_what_each_setting_did(tmp_path):
    draw = np.random.default_rng(0)
    trials = []
    key = "regularization.lambda_z.links"
    for number, weight in enumerate([0.0, *np.geomspace(0.01, 1, 30)]):
        params = {key: float(weight), "loss.margin": draw.uniform(0.1, 0.5)}
        if not weight:
            params["regularization.lambda_x"] = {}  # as of a trial without a graph
        value = 0.5 + 0.1 * (0.05 < weight < 0.4) + draw.normal(0, 0.002)
        trials.append(TrialRecord(str(number), params, value))
    trials.sort(key=lambda trial: -(trial.value or 0))
    shares = write_sweep_report(tmp_path, trials, "validation/P@1", "")
    plot_effects(tmp_path, trials, list(shares), "validation/P@1", 0.002)
    weight, margin = sorted(effects(trials, shares, 0.002), key=lambda said: "margin" in said)
    assert weight.startswith(key) and "does not matter" not in weight
    assert margin.startswith("loss.margin") and "does not matter" in margin
    assert (tmp_path / "effects.png").stat().st_size > 10_000
    assert "no setting shows" in effects(trials, shares, 1.0)[0]


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (bag("debian"), {"base.kind": "ance"}, "bag --dataset debian --base.kind ance"),
        (bag(), {"output": "-out"}, "bag --dataset rdocs --output=-out"),
        (bag("debian"), {"optimizer.lr": 0.0012, "walk.enabled": True, "training.epochs": 7}, None),
        (
            minilm_6("debian"),
            {"base.refresh_every": 5, "seed": 2},
            "minilm-6 --dataset debian --seed 2",
        ),
        (bag(), {"regularization.lambda_x": {"links_published": 0.5}, "base.loss": "supcon"}, None),
    ],
)
def test_a_command_gives_back_the_configuration(config, changes, words):
    config = overlay(config, changes)
    command = shlex.split(training_command(config))
    assert command[:2] == ["python", "jobs/train.py"]
    assert words is None or command[2:] == words.split()
    known = run_config_of(command[2:])
    idle = {key: value for key, value in flatten(config).items() if advice_on_idle(config, key)}
    assert overlay(known, idle) == config


def margins(draw):
    draw.number("loss.margin", 0.1, 0.5)


CHANGES = {
    "regularization.lambda_x": {"links": 0.1},
    "regularization.lambda_z": {"links": 0.1},
    "walk.enabled": True,
    "training.epochs": 2,
    "training.selection_metric": "R@10",
    "name": "search",
}


def test_a_name_stands_for_one_sweep(config):
    directory = RunDirectory(Path(config.output) / "sweeps" / "taken")
    directory.create()
    mine = overlay(config, {"name": "taken"})
    with (
        FileLock(directory.path / ".lock"),
        pytest.raises(RunError, match="sweeps/taken"),
    ):
        sweep(mine, SETTINGS, margins, training_command)
    directory.note(plan={"training.epochs": 3, "sweep format": 7})
    message = r"sweep format \(7 there, .*training\.epochs \(3 there,"
    with pytest.raises(RunError, match=message):
        sweep(mine, SETTINGS, margins, training_command)


def test_a_sweep_learns_from_one_with_another_metric_or_version_in_no_way(config):
    directory = RunDirectory(Path(config.output) / "sweeps" / "last-week")
    directory.create()
    settings = SETTINGS.model_copy(update={"from_sweep": directory.name})

    def refused(message):
        with pytest.raises(ConfigError, match=f"--from-sweep last-week.*{message}"):
            sweep(overlay(config, {"name": "new"}), settings, margins, training_command)

    refused("has no trials")  # as those of earlier versions
    write_trials(directory.path, {"0": TrialRecord("0", {}, 0.5)})
    refused("has no trials")  # nor notes, which were deleted
    directory.note(plan={"training.selection_metric": "P@1"})
    refused("P@1, not by R@10")
    (directory.path / TABLE_FILE).write_text("odd")
    with pytest.raises(RunError, match=r"trials\.json"):
        sweep(overlay(config, {"name": "new"}), settings, margins, training_command)


class Handed:
    """Takes what Tune is handed, and ends as by Ctrl-C."""

    def __init__(self, trainable, tune_config, **_):
        self.on_workers = cloudpickle.dumps(trainable)
        self.search = tune_config.search_alg
        self.here = cloudpickle.dumps((self.search, tune_config.scheduler))

    def fit(self):
        raise KeyboardInterrupt


@pytest.fixture
def without_ray(monkeypatch):
    """Lets a sweep come as far as Tune; returns what that was handed."""
    handed = []

    def take(*arguments, **settings):
        handed.append(Handed(*arguments, **settings))
        return handed[-1]

    context = SimpleNamespace(gcs_address="127.0.0.1:1")
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(experiment, "start_ray", lambda **_: None)
    monkeypatch.setattr(experiment, "check_resources", lambda _: None)
    monkeypatch.setattr(trials_module, "no_placement_group_left", nullcontext)
    monkeypatch.setattr(tune, "Tuner", take)
    monkeypatch.setattr(sweep_module, "prepared_data", lambda *_: None)
    monkeypatch.setattr(sweep_module, "edges_to_train", lambda *_: None)
    return handed


def test_a_worker_needs_nothing_of_a_user_s_to_train_a_trial(without_ray, config, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        sweep(overlay(config, {"name": "pickled"}), SETTINGS, margins, training_command)
    (handed,) = without_ray
    monkeypatch.setitem(sys.modules, __name__, None)  # a worker cannot import what has the space
    cloudpickle.loads(handed.on_workers)
    with pytest.raises(ModuleNotFoundError, match=__name__):
        cloudpickle.loads(handed.here)


def test_a_dataset_that_changes_between_trials_stops_a_sweep_in_one_line(
    without_ray, config, tmp_path, monkeypatch
):
    dataset = Path(shutil.copytree(config.dataset, tmp_path / "handmade"))

    def change_first(*_, **__):
        shutil.copy(dataset / "queries/validation.parquet", dataset / "queries/test.parquet")
        return []

    monkeypatch.setattr(trials_module.Trials, "fit", change_first)
    with pytest.raises(RunError, match=": dataset ") as failure:
        ours = overlay(config, {"dataset": str(dataset), "name": "meanwhile"})
        sweep(ours, SETTINGS, margins, training_command)
    assert "\n" not in str(failure.value)


def test_a_sweep_begins_with_the_best_of_another_that_its_space_has(without_ray, config, caplog):
    directory = RunDirectory.of(config.output, "week-1", "sweeps")
    directory.create()
    directory.note(plan={"training.selection_metric": "R@10"})
    drawn = {"a": {"loss.margin": 0.2}, "b": {"loss.margin": 0.4}, "c": {"loss.gone": 0.4}}
    write_trials(
        directory.path,
        {
            name: TrialRecord(name, value=0.1 * rank, end="trained to the end", drawn=drawn[name])
            for rank, name in enumerate(drawn)
        },
    )
    settings = SETTINGS.model_copy(update={"from_sweep": "week-1"})
    with pytest.raises(KeyboardInterrupt):
        sweep(overlay(config, {"name": "week-2"}), settings, margins, training_command)
    first, prior, new = (without_ray[0].search.suggest(str(number)) for number in range(3))
    assert first["loss.margin"] == config.loss.margin and prior["loss.margin"] == 0.4
    assert new["loss.margin"] not in {0.2, 0.4}
    assert "1 of 3 trials of --from-sweep week-1" in caplog.text


def test_what_was_cleaned_away_between_calls_is_told_or_not_needed(
    without_ray, config, monkeypatch
):
    directory = RunDirectory.of(config.output, "cleaned", "sweeps")
    ours = overlay(config, {"name": "cleaned"})
    with pytest.raises(KeyboardInterrupt):
        sweep(ours, SETTINGS, margins, training_command)
    params = {f"regularization.lambda_x.set_{number}": 1 / 3 for number in range(12)}
    ended = {
        f"{number}": TrialRecord(f"{number}", params, 0.01 * number, end="trained to the end")
        for number in range(40)
    }
    write_trials(directory.path, ended)  # and no trial has a folder
    kept = sweep(ours, SETTINGS, margins, training_command)
    assert [trial.name for trial in kept.trials] == [*ended][::-1]
    assert len(without_ray) == 1, "the first call alone has trials to train"
    kept.run.add_registered("shop", "1")
    described = MlflowClient(kept.run.uri).get_run(kept.run.id).data.tags[DESCRIPTION_TAG]
    assert "(#/models/shop/versions/1)" in described and kept.run.link_to("trials.csv") in described
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{config.output}/cleaned.db")
    with pytest.raises(TrackingError, match=r"cleaned\.db") as failure:
        sweep(ours, SETTINGS, margins, training_command)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("is_later_call", [False, True])
def test_trials_are_stopped_when_they_lag_behind_but_not_at_their_end(is_later_call):
    course = [("best", 0.9), ("good", 0.8), ("fair", 0.7)]
    known = [TrialRecord(name, course=[[s, v] for s in SHARES]) for name, v in course]
    scheduler = Halving(SHARES[0], spared={"ladder"}, earlier=known if is_later_call else ())
    assert scheduler.set_search_properties("score", "max")
    names = ["poor", "ladder", "late", *(() if is_later_call else dict(course))]
    trials = {name: SimpleNamespace(config={"name": name}, trial_id=name) for name in names}
    for trial in trials.values():
        scheduler.on_trial_add(None, trial)

    def reports(name, score, share, is_last=False):
        found = {"score": score, "share_done": share, "is_last": is_last}
        return scheduler.on_trial_result(None, trials[name], found)

    for share in () if is_later_call else SHARES:
        for name, score in course:
            reports(name, score, share)
    goes_on = TrialScheduler.CONTINUE
    assert reports("poor", 0.1, 0.1) == TrialScheduler.STOP
    assert reports("ladder", 0.1, 0.1) == goes_on
    assert reports("late", 0.95, 0.1) == reports("late", 0.95, 0.2) == goes_on
    assert reports("late", 0.2, 0.35, is_last=True) == goes_on
    assert reports("late", 0.2, 0.95) == TrialScheduler.STOP


def test_a_failing_store_does_not_end_trials(config, monkeypatch, caplog):
    def fail(*arguments):
        raise OSError("the store is locked")

    monkeypatch.setattr(Run, "client", property(fail))
    monkeypatch.setattr(long_work, "FIRST_LINE_S", 0)
    directory = RunDirectory(Path(config.output) / "sweeps" / "locked")
    directory.create()
    drawing = Drawing(config, margins, {})
    records = {"7": TrialRecord("7")}
    run = experiment.Experiment(Inputs.of(config), directory, Run("unused", "unused"))
    shown = sweep_module.Sweep(run, drawing, SETTINGS, training_command, records)
    log = trials_module.Trials(run, lambda *_: config, ["P@1"], 1, on_end=shown.note_ends)
    failed = {"error": "a reason"}
    trial = SimpleNamespace(config={"name": "7"}, status="TERMINATED", last_result=failed)
    log.on_trial_complete(1, [trial], trial)
    assert shown.records["7"].end == "failed: a reason"
    assert "the store is locked" in caplog.text
    assert [file.name for file in run.report.iterdir()] == ["trials.csv"]


SHARES = 0.1, 0.35, 0.95  # of a training, at which trials were validated
SECOND_EPOCH = "checkpoint_000000014"
LAMBDAS = ["regularization.lambda_x.links", "regularization.lambda_z.links"]
SETTINGS = SweepConfig(
    space="own", num_samples=6, search="random", grace_epochs=1, at_once=2, finalists=0
)


def missing_dataset(config):
    """Return a path where there is no dataset at first."""
    return str(Path(config.output) / "nowhere")


def search(config, **changes):
    """Search a space that gives some trials a missing dataset."""

    def space(draw):
        for key in LAMBDAS:
            draw.number(key, 0.01, 1.0, log=True)
        draw.choice("dataset", [config.dataset, missing_dataset(config)])

    settings = SETTINGS.model_copy(update=changes)
    return sweep(overlay(config, {"seed": 2}), settings, space, training_command)


@pytest.fixture(scope="module")
def result(cluster, config):
    """The first search, by a process whose MLflow store is not the cluster's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{config.output}/mine.db")
        yield search(config)


@pytest.mark.slow
def test_a_failing_trial_is_reported_and_the_others_go_on(result, config):
    failed = [trial for trial in result.trials if trial.end.startswith("failed: ")]
    assert {trial.params["dataset"] for trial in failed} == {missing_dataset(config)}
    assert all("nowhere" in trial.end and trial.value is None for trial in failed)
    assert failed and len(result.trials) == 6
    own = {**dict.fromkeys(LAMBDAS, 0.1), "dataset": config.dataset}
    assert own in [dict(trial.params) for trial in result.trials], "the configuration's own values"


def children_of(result):
    client = MlflowClient(tracking_uri=result.run.uri)
    experiment = client.get_run(result.run.id).info.experiment_id
    of_parent = f"tags.`mlflow.parentRunId` = '{result.run.id}'"
    return list(client.search_runs([experiment], of_parent))


@pytest.mark.slow
def test_children_and_parent_are_tracked_and_the_best_one_is_told(result):
    client = MlflowClient(tracking_uri=result.run.uri)
    values = {
        trial.mlflow_run_id: trial.value for trial in result.trials if trial.value is not None
    }
    children = children_of(result)
    finished = [child.info.run_id for child in children if child.info.status == "FINISHED"]
    assert set(finished) == values.keys()
    best = pytest.approx(max(values.values()))
    parent = client.get_run(result.run.id)
    assert parent.data.metrics["best/validation/R_at_10"] == result.trials[0].value == best
    table = pd.read_csv(result.report / "trials.csv")
    assert (len(table), table["validation/R@10"].max()) == (6, best)
    written = [file for file in result.report.parent.rglob("*") if file.is_file()]
    told = [file.name for file in written if result.run.uri.encode() in file.read_bytes()]
    assert not told, "the address of a store may have a password"


@pytest.mark.slow
def test_what_failed_is_tried_again_and_the_rest_is_kept(result, config):
    shutil.copytree(config.dataset, missing_dataset(config))
    again = search(config)
    assert again.run.id == result.run.id
    assert not any(trial.end.startswith("failed: ") for trial in again.trials)
    kept = [trial for trial in result.trials if not trial.end.startswith("failed: ")]
    assert [trial for trial in again.trials if trial in result.trials] == kept
    spans = [(child.info.start_time, child.info.end_time) for child in children_of(again)]
    at_once = [sum(start <= begun < end for start, end in spans) for begun, _ in spans]
    assert len(spans) == 6 and max(at_once) <= 2


@pytest.mark.slow
def test_a_sweep_grows_under_its_name_and_ends_with_finalists(result, config):
    again = search(config)
    runs = Path(config.output) / "runs"
    best = next(trial for trial in again.trials if trial.is_whole)
    shutil.rmtree(RunDirectory.of(config.output, f"search-{best.name}").path)
    trained = _times_of_checkpoints(runs)
    grown = search(config, num_samples=10, finalists=1)
    assert len(grown.trials) == 10 and all(trial in grown.trials for trial in again.trials)
    begun = {path.parent.name for path in _times_of_checkpoints(runs).keys() - trained.keys()}
    of_trials = {name for name in begun if re.match(r"search-\d", name) and "seed" not in name}
    assert len(of_trials) == 4, "four trainings by the second call"
    assert trained.items() <= _times_of_checkpoints(runs).items()
    client = MlflowClient(tracking_uri=grown.run.uri)
    winner = client.get_run(grown.run.id).data.tags[WINNER]
    chosen, test_figures = Registry(grown.run.uri).find_logged(grown.run.id, None)
    assert chosen == winner and test_figures
    assert client.get_run(winner).data.params["seed"] in {"3", "4"}, "they have chosen no trial"
    assert any("over the default, own" in said for said in grown.sentences)


@pytest.mark.slow
def test_a_sweep_out_of_time_ends_its_trials(config, result):
    settings = SETTINGS.model_copy(update={"time_budget": 1.0})
    with pytest.raises(RunError, match="out of time"):
        sweep(overlay(config, {"name": "late"}), settings, margins, training_command)
    client = MlflowClient(tracking_uri=result.run.uri)
    experiment = client.get_run(result.run.id).info.experiment_id
    assert not client.search_runs([experiment], "attributes.status = 'RUNNING'")


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_a_killed_sweep_goes_on_with_the_same_command(
    done, joining, config, empty_store, prepared_by_runs, tmp_path
):
    shutil.copy(empty_store, tmp_path)
    (tmp_path / "prepared").symlink_to(prepared_by_runs)
    file = tmp_path / "config.json"
    changes = {"name": "killed", "output": str(tmp_path), "walk.enabled": False}
    changes["training.epochs"] = 8
    write_config(overlay(config, changes), file)
    words = ["--config", str(file), "--num-samples", "1", "--no-stop-early", "--at-once", "1"]
    command = [sys.executable, str(ROOT / "jobs" / "tune.py"), *words]
    search = RunDirectory(tmp_path / "sweeps" / "killed")
    runs = tmp_path / "runs"

    def notes():
        return {path.parent.name: json.loads(path.read_text()) for path in runs.glob("*/run.json")}

    def checkpoints_under_way():
        under_way = [name for name, run in notes().items() if not run.get("finished")]
        return {path.name for name in under_way for path in (runs / name).glob("checkpoint_0*")}

    first = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT, env=joining)
    wait_until(
        lambda: max(checkpoints_under_way(), default="") >= SECOND_EPOCH, "no trial is under way"
    )
    first.kill()
    first.wait()
    before = notes()
    known = checkpoints_under_way()
    parent = Run(tracking_uri(tmp_path), search.notes["mlflow_run_id"])
    lost = open_run(parent.uri, config.experiment, "unknown to Tune", tmp_path, parent=parent)
    seen = set()

    def watch(ended):
        while not ended.wait(0.05):
            seen.update(checkpoints_under_way())

    with in_background(watch):
        done(tune_job, *words)
    assert min(seen - known) > max(known)
    after = notes()
    assert len(after) == 1
    assert all(run["finished"] for run in after.values())
    for name, one in before.items():
        assert after[name]["mlflow_run_id"] == one["mlflow_run_id"]
    assert lost.client.get_run(lost.id).info.status == "KILLED"
    trained = _times_of_checkpoints(runs)
    assert "best: " in done(tune_job, *words)
    assert _times_of_checkpoints(runs) == trained, "a finished trial is trained again"
    assert notes() == after


def _times_of_checkpoints(runs):
    return {path: path.stat().st_mtime for path in runs.glob("*/checkpoint_0*")}
