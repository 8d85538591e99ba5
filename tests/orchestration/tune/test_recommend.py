"""What a search within some minutes tries, keeps and says; and one on a real Ray."""

import csv
import json
import logging
import math
import shlex
import shutil
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest
from support import ROOT, run_config_of

from ramen_ray.config import ConfigError, EncoderConfig, RunConfig, overlay, write_config
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics import comparison
from ramen_ray.orchestration.run.directory import (
    VALIDATION_ADS_FILE,
    RunDirectory,
    RunError,
)
from ramen_ray.orchestration.run.identity import Inputs, identity_of, without_tuned
from ramen_ray.orchestration.tune import choice
from ramen_ray.orchestration.tune import recommend as module
from ramen_ray.orchestration.tune.candidates import BASES, near, start_of
from ramen_ray.orchestration.tune.experiment import Experiment
from ramen_ray.orchestration.tune.recommend import recommend
from ramen_ray.orchestration.tune.settings import RecommendConfig
from ramen_ray.presets import PRESETS, bag
from ramen_ray.printed_commands import training_command
from ramen_ray.reports.report_tables import as_markdown
from ramen_ray.reports.search_report import TrialRecord
from ramen_ray.tracking.runs import Run, open_run

NUM_VALIDATION = Dataset("datasets/rdocs").num_rows("queries/validation")


@pytest.fixture(autouse=True)
def _few_samples(monkeypatch):
    """Let bootstraps draw a tenth of their samples, which take most of the time."""
    monkeypatch.setattr(comparison, "NUM_SAMPLES", 200)


def _search(output, **settings):
    directory = RunDirectory(output / "search")
    directory.create()
    asked = RecommendConfig(dataset="rdocs", output=str(output), **settings)
    inputs = Inputs.of(start_of(asked, "bag", asked.dataset))
    return module.Search(asked, Experiment(inputs, directory, Run("unused", "unused")))


def _finish(run, p_at_1):
    """Leave what a run does at its end."""
    _leave_checkpoint(run, 20, p_at_1)
    reached = {"P@1": p_at_1, "R@10": p_at_1}
    run.note(finished=True, metrics={"trained": {"validation": reached, "test": reached}})


@cache
def _identity(pretrained, dataset):
    """Return what runs that begin with an encoder are made from."""
    return identity_of(RunConfig(encoder=EncoderConfig(pretrained=pretrained)), Dataset(dataset))


def _finish_as(run, config, p_at_1):
    """Leave what a run of a configuration does at its end, also what it was made from."""
    run.create()
    write_config(config, run.path / "config.json")
    run.note(made_from=_identity(config.encoder.pretrained, config.dataset))
    _finish(run, p_at_1)
    (run.path / VALIDATION_ADS_FILE).touch()


def test_candidates_are_the_bases_that_were_the_best_somewhere():
    with (ROOT / "docs" / "evidence" / "regret.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["dataset"] not in {"mean", "worst"}]
    regrets = {}
    for row in rows:
        if row["rate"] == "1.0":
            setting = row["base"], float(row["epochs"]) / 20
            regrets.setdefault(setting, {})[row["dataset"]] = float(row["regret"])
    chosen = []

    def left(setting):
        sets = next(iter(regrets.values()))
        return sum(min(regrets[each][name] for each in [*chosen, setting]) for name in sets)

    while not chosen or left(chosen[-1]) > 0:
        chosen.append(min(regrets, key=left))
    assert chosen == list(BASES)


def test_candidates_are_bases_and_then_what_is_near_the_best(tmp_path):
    assert _search(tmp_path / "minutes").settings.compared == ("bag",)
    gpus = _search(tmp_path / "gpus", workers={"use_gpu": True})
    assert gpus.settings.compared == ("bag", "minilm-6")
    search = _search(tmp_path, minutes=60)
    for encoder in search.settings.compared:
        search.add(module.bases(search.start(encoder), encoder))
    assert len(search.candidates) == 2 * len(BASES) * 2
    given = {"workers.cpus_per_worker": 2, "output": "outputs", "name": None}
    ours = overlay(search.candidates["minilm-depsl-graph"], given)
    theirs = run_config_of(["minilm", "--base.kind", "depsl"])
    assert ours == overlay(theirs, {"training.selection_metric": "R@10"})
    assert not search.validated
    found = {"bag-unidec-graph": 0.4, "bag-depsl": 0.3, "of-an-earlier-search": 1}
    for name, value in found.items():
        _leave_checkpoint(RunDirectory.of(str(tmp_path), f"search-{name}"), 1, value)
    assert list(search.validated) == ["bag-unidec-graph", "bag-depsl"]
    of_best = near("bag-unidec-graph", search.candidates)
    third = of_best["bag-unidec-graph-third-rate"]
    assert third.optimizer.lr == pytest.approx(0.0005)
    search.add(of_best)
    of_new = near("bag-unidec-graph-third-rate", search.candidates)
    assert "bag-unidec-graph-third-rate-third-rate" in of_new
    assert "bag-unidec-graph-third-rate-triple-rate" not in of_new, "that is what it began with"


def test_a_search_takes_the_runs_that_compare_from_the_store(tmp_path):
    search = _search(tmp_path)
    recipe, other = (search.start("bag") for _ in range(2))
    recipe = module.bases(recipe, "bag")["bag-unidec-graph"]
    other = overlay(recipe, {"loss.temperature": 0.1})
    runs = {"trained": recipe, "tuned": other, "seed": overlay(other, {"seed": 1})}
    runs |= {name: overlay(other, {"loss.margin": 0.2}) for name in ("changed", "running")}
    for number, (name, config) in enumerate(runs.items()):
        _finish_as(RunDirectory.of(str(tmp_path), name), config, 0.3 + 0.1 * number)
    RunDirectory.of(str(tmp_path), "running").note(finished=False)
    changed = RunDirectory.of(str(tmp_path), "changed")
    changed.note(made_from={**changed.notes["made_from"], "torch": "1.0"})
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "config.json").write_text("{")
    search.add(module.bases(search.start("bag"), "bag"))
    search.add_earlier()
    assert search.candidates["bag-unidec-graph"].name == "trained"
    assert [name for name in search.candidates if name in runs] == ["tuned"]
    assert list(search.validated) == ["tuned", "bag-unidec-graph"]
    assert near("tuned", search.candidates)["tuned-third-rate"].loss.temperature == 0.1
    again = _search(tmp_path)
    late = RunDirectory.of(str(tmp_path), "late")
    shutil.copytree(tmp_path / "runs" / "tuned", late.path)
    assert {config.name for config in again.earlier.values()} == {"trained", "tuned"}


def _leave_checkpoint(run, epoch, p_at_1):
    """Leave what a run does after an epoch."""
    report = {"step": epoch, "epoch": epoch, "score": p_at_1, "trained_seconds": 2.0 * epoch}
    folder = run.path / f"checkpoint_{epoch:09d}"
    folder.mkdir(parents=True)
    reached = {"validation/P@1": p_at_1, "validation/R@10": 0.5}
    (folder / "report.json").write_text(json.dumps({**report, **reached}))


def test_what_was_stopped_early_stays_so_and_is_told_by_its_last_epoch(tmp_path):
    search = _search(tmp_path)
    search.add(module.bases(search.start("bag"), "bag"))
    run = RunDirectory.of(str(tmp_path), "search-bag-depsl")
    for epoch, p_at_1 in enumerate((0.1, 0.3, 0.2), 1):
        _leave_checkpoint(run, epoch, p_at_1)
    search.note_end([TrialRecord(run.name, end="stopped early")])
    last = {"P@1": 0.2, "R@10": 0.5}
    stopped = TrialRecord(run.name, {}, 0.35, last, 3, 6.0, end="stopped early")
    assert search.validated == {"bag-depsl": stopped}


class FinishedAtOnce:
    """Trains nothing: a run's chance of a hit is that of its rate, and of the graph."""

    def __init__(self, output, monkeypatch):
        self.trained = []
        self.run = open_run(f"sqlite:///{output}/mlflow.db", "tests", "search", output)
        monkeypatch.setattr(module, "prepared_data", lambda *_: None)
        monkeypatch.setattr(module, "open_experiment", self.open_experiment)
        monkeypatch.setattr(module, "train_all", self.train_all)
        monkeypatch.setattr(choice, "scores_of_run", self.scores)

    def open_experiment(self, inputs, *_):
        directory = RunDirectory.of(inputs.config.output, str(inputs.config.name), "searches")
        directory.create()
        return nullcontext(Experiment(inputs, directory, self.run))

    def train_all(self, _, configs, *__, **limits):
        assert limits["time_budget_s"] > 0
        for name, config in configs.items():
            self.trained.append(name)
            _finish_as(RunDirectory.of(config.output, name), config, self.chance(config))
        return ""

    @staticmethod
    def chance(config):
        rate = config.optimizer.lr / bag("rdocs").optimizer.lr
        return (0.7 - 0.1 * abs(math.log(rate / 9))) * (0.8 if config.base.kind == "depsl" else 1)

    def scores(self, folder, config, *_):
        draw = np.random.default_rng(len(folder.name))
        gains = (draw.random(NUM_VALIDATION) < self.chance(config)).astype(float)
        return {metric: (gains, np.ones(NUM_VALIDATION)) for metric in ("P@1", "R@10")}


def test_a_search_goes_on_near_what_is_better_and_ends_with_further_seeds(
    empty_store, tmp_path, monkeypatch
):
    shutil.copy(empty_store, tmp_path)
    instead = FinishedAtOnce(tmp_path, monkeypatch)
    settings = RecommendConfig(dataset="rdocs", output=str(tmp_path), name="mine")
    found = recommend(settings)
    best = found.config.optimizer.lr / bag("rdocs").optimizer.lr
    assert best > 3, "two steps of three times the rate"
    assert found.config.base.kind in {"unidec", "in_batch"} and found.config.name is None
    again = [name for name in instead.trained if "-seed" in name]
    assert len(again) == 2 * 3 and instead.trained[-len(again) :] == again
    assert found.sentences[0].startswith("train: bag-")
    assert "over the default, bag-unidec-graph: +" in " ".join(found.sentences)
    values = [row[1] for row in found.table.rows]
    assert values == sorted(values, key=float, reverse=True)
    trained = [*instead.trained]
    assert recommend(settings).table == found.table
    assert instead.trained == trained, "the same call trains nothing again"


def test_encoders_that_are_compared_are_not_taken_for_changed_ones(tmp_path, monkeypatch):
    expected = []

    def train_nothing(experiment, _, __, tuned, *___, **limits):
        expected.append(without_tuned(experiment.inputs.made_from, tuned))
        return ""

    monkeypatch.setattr(module, "train_all", train_nothing)
    for encoders in (("bag",), ("bag", "minilm")):
        _search(tmp_path / "-".join(encoders), encoders=encoders).explore()
    assert expected[0].keys() - expected[-1] == {"encoder"}


@pytest.mark.slow
def test_a_search_ends_in_time_with_a_command_and_goes_on_where_it_stopped(
    cluster, tmp_path, caplog
):
    settings = RecommendConfig(dataset="foldoc", minutes=2, output=str(tmp_path))
    with caplog.at_level(logging.INFO):
        found = recommend(settings)
    table = as_markdown(found.table)
    assert "test" not in " ".join([table, *found.sentences, *caplog.messages])
    values = [float(row[1]) + float(row[2]) for row in found.table.rows]
    assert values == sorted(values, reverse=True) and values
    config = run_config_of(shlex.split(training_command(found.config))[2:])
    assert config == found.config
    assert config.encoder == PRESETS["bag"]("foldoc").encoder
    written = {file.name for file in found.report.iterdir()}
    assert written == {"recommendation.md"}
    trained = set(tmp_path.glob("runs/*/checkpoint_*"))
    again = recommend(settings)
    assert (again.table, again.config, again.run.id) == (found.table, found.config, found.run.id)
    assert set(tmp_path.glob("runs/*/checkpoint_*")) == trained


def test_a_search_is_not_mixed_with_one_of_other_queries_or_begun_with_too_few(tmp_path):
    settings = {"dataset": "foldoc", "output": str(tmp_path)}
    directory = RunDirectory(tmp_path / "recommendations" / "mine")
    directory.create()
    directory.note(plan={"train queries": 1000})
    with pytest.raises(RunError, match=r"train queries \(1000 there, 2000 now\)"):
        recommend(RecommendConfig(**settings, name="mine", max_queries=2000))
    with pytest.raises(ConfigError, match=r"100 train queries .* 256 "):
        recommend(RecommendConfig(**settings, max_queries=100))
