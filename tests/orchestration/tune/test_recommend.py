"""What a search within some minutes tries, keeps and says; and one on a real Ray."""

import json
import logging
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import run_config_of

from ramen_ray.config import ConfigError, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.run.directory import Identity, RunDirectory, RunError
from ramen_ray.orchestration.tune import recommend as module
from ramen_ray.orchestration.tune.halves import choosing_queries
from ramen_ray.orchestration.tune.recommend import recommend
from ramen_ray.orchestration.tune.settings import RecommendConfig
from ramen_ray.presets import PRESETS
from ramen_ray.printed_commands import training_command
from ramen_ray.reports.search_report import TrialRecord, candidates_table, verdict
from ramen_ray.tracking.runs import Run

LEVEL = (0.001, -0.01, 0.01)
BETTER = (0.02, 0.01, 0.03)


def _record(p_at_1: float, is_whole: bool = True, name: str = "") -> TrialRecord:
    metrics = {"P@1": p_at_1, "R@10": p_at_1 + 0.1}
    return TrialRecord(name, {}, p_at_1 + 0.05, metrics, 20, 12.0, is_whole, "ended")


def test_a_verdict_says_what_matters_what_does_not_and_how_sure_that_is():
    found = {"unidec-graph": _record(0.4), "unidec": _record(0.39), "x": _record(0.2, False)}
    gains = {"in_batch": {"P@1": BETTER, "R@10": LEVEL}, "unidec": {"P@1": LEVEL, "R@10": LEVEL}}
    found["late"] = replace(found["x"], end="")
    chosen, first, second, third, late = verdict(found, "unidec-graph, the default", gains, 700)
    assert chosen == "train: unidec-graph, the default"
    assert late.startswith("1 of 4 were out of time")
    assert first.startswith("what matters: over in_batch: P@1 +2.0 [+1.0, +3.0]")
    assert second.startswith("what does not show: over unidec: P@1 +0.1 [-1.0, +1.0]")
    assert third.startswith("how sure: 2 of 4 candidates")
    *_, level, stopped, _ = candidates_table(found, gains).splitlines()
    assert "| 39.00 | 49.00 | +0.1 [-1.0, +1.0] | +0.1 [-1.0, +1.0] | 20 |" in level
    assert stopped.endswith("| 20.00 | 30.00 |  |  | 20 | 12 | ended |")


@pytest.mark.parametrize(
    ("right_of_chooses", "right_of_others", "chosen"),
    [
        ({}, {}, "bag-unidec-graph"),
        ({"bag-ance": 0.9}, {}, "bag-unidec-graph"),  # it was chosen, and is no better
        ({"bag-ance": 0.9}, {"bag-ance": 0.9}, "bag-ance"),
        ({}, {"bag-ance": 0.9}, "bag-unidec-graph"),  # the other half does not choose
    ],
)
def test_one_half_of_validation_chooses_and_the_other_measures(
    right_of_chooses, right_of_others, chosen, tmp_path, monkeypatch
):
    directory = RunDirectory(tmp_path / "search")
    directory.create()
    settings = RecommendConfig(dataset="rdocs", output=str(tmp_path))
    search = module._Search(settings, directory, Dataset(settings.dataset))
    search.candidates = {name: search.bases()[name] for name in ("bag-unidec-graph", "bag-ance")}
    reached = {"P@1": 0.5, "R@10": 0.5}
    for name in search.candidates:
        run = RunDirectory.of(str(tmp_path), search.name_of(name))
        _leave_checkpoint(run, 20, 0.5)
        run.note(finished=True, metrics={"trained": {"validation": reached, "test": reached}})
    chooses = choosing_queries(search.dataset, settings.seed)
    chances = np.random.default_rng(1).random(len(chooses))

    def scores(folder: Path, *_: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        name = folder.name.removeprefix("search-")
        halves = (right_of_chooses.get(name, 0.5), right_of_others.get(name, 0.5))
        gains = (chances < np.where(chooses, *halves)).astype(float)
        return {metric: (gains, np.ones(len(chooses))) for metric in ("P@1", "R@10")}

    monkeypatch.setattr(module, "scores_of_run", scores)
    halves = search.halves(None)
    assert search.choice(halves)[0] == chosen
    late = {name: scores for name, scores in halves.scores.items() if name == "bag-ance"}
    assert search.choice(replace(halves, scores=late))[0] == "bag-ance"
    assert search.choice(replace(halves, scores={}))[0] in search.validated
    for name, record in search.measured(halves).items():
        gains, _ = scores(Path(f"search-{name}"))["P@1"]
        assert record.metrics["P@1"] == pytest.approx(gains[~chooses].mean())
    assert 0.4 < chooses.mean() < 0.6


def test_candidates_are_all_bases_and_then_what_is_near_the_best(tmp_path):
    settings = RecommendConfig(dataset="rdocs", encoders=("bag", "minilm"), output=str(tmp_path))
    directory = RunDirectory(tmp_path / "search")
    directory.create()
    search = module._Search(settings, directory, Dataset(settings.dataset))
    bases = search.bases()
    assert len(bases) == 2 * len(module.BASES) * 2
    assert not bases["bag-ance"].regularization.lambda_z
    ours = overlay(bases["minilm-depsl-graph"], {"workers.cpus_per_worker": 2, "output": "outputs"})
    theirs = run_config_of(["minilm", "--base.kind", "depsl"])
    assert ours == overlay(theirs, {"training.selection_metric": "R@10"})
    search.candidates |= bases
    assert search.near() == {}
    found = {"bag-unidec-graph": 0.4, "bag-ance": 0.3, "of-an-earlier-search": 1}
    for name, value in found.items():
        _leave_checkpoint(RunDirectory.of(str(tmp_path), f"search-{name}"), 1, value)
    assert list(search.validated) == ["bag-unidec-graph", "bag-ance"]
    near = {name.removeprefix("bag-unidec-graph-"): one for name, one in search.near().items()}
    times = ("rate", "classifier-rate", "lambda")
    assert set(near) == {
        *(f"{word}-{what}" for word in ("third", "triple") for what in times),
        *("twice-the-epochs", "only-links", "only-categories"),
    }
    assert near["third-rate"].optimizer.lr == pytest.approx(0.0005)
    assert near["only-links"].regularization.lambda_z.keys() == {"links"}


def _leave_checkpoint(run: RunDirectory, epoch: int, p_at_1: float) -> None:
    """Leave what a run does after an epoch."""
    report = {"step": epoch, "epoch": epoch, "score": p_at_1, "trained_seconds": 2.0 * epoch}
    folder = run.path / f"checkpoint_{epoch:09d}"
    folder.mkdir(parents=True)
    reached = {"validation/P@1": p_at_1, "validation/R@10": 0.5}
    (folder / "report.json").write_text(json.dumps({**report, **reached}))


def test_the_best_epoch_and_the_end_of_a_candidate_outlive_the_process(tmp_path):
    directory = RunDirectory(tmp_path / "search")
    directory.create()
    directory.note(used_seconds=5.0)
    settings = RecommendConfig(dataset="rdocs", output=str(tmp_path))
    parts = settings, directory, Dataset(settings.dataset)
    search, again = module._Search(*parts), module._Search(*parts)
    again.candidates = search.bases()
    assert not again.validated
    run = RunDirectory.of(str(tmp_path), "search-bag-ance")
    for epoch, p_at_1 in enumerate((0.1, 0.3, 0.2), 1):
        _leave_checkpoint(run, epoch, p_at_1)
    best, last = {"P@1": 0.3, "R@10": 0.5}, {"P@1": 0.2, "R@10": 0.5}
    assert again.validated == {"bag-ance": TrialRecord(run.name, {}, 0.4, best, 3, 6.0)}
    search.note_end([TrialRecord(run.name, end="stopped early")])
    stopped = TrialRecord(run.name, {}, 0.4, best, 3, 6.0, end="stopped early")
    assert again.validated == {"bag-ance": stopped}
    other = RunDirectory.of(str(tmp_path), "search-bag-unidec")
    _leave_checkpoint(other, 20, 0.1)
    other.note(finished=True, metrics={"trained": {"validation": last, "test": last}})
    whole = TrialRecord(other.name, {}, 0.35, last, 20, 40.0, True, "trained to the end (40 s)")
    assert again.validated == {"bag-ance": stopped, "bag-unidec": whole}
    assert directory.notes["used_seconds"] >= 5


def test_encoders_that_are_compared_are_not_taken_for_changed_ones(tmp_path, monkeypatch):
    expected: list[Identity] = []

    def train_nothing(*arguments: Any, **limits: Any) -> dict[str, str]:
        expected.append(arguments[3])
        return {}

    monkeypatch.setattr(module, "train_all", train_nothing)
    for encoders in (("bag",), ("bag", "minilm")):
        settings = RecommendConfig(dataset="rdocs", encoders=encoders, output=str(tmp_path))
        directory = RunDirectory(tmp_path / "-".join(encoders))
        directory.create()
        search = module._Search(settings, directory, Dataset(settings.dataset))
        search.train(search.bases(), 1.0, Run("unused", "unused"))
    assert expected[0].keys() - expected[1] == {"encoder"}


@pytest.mark.slow
def test_a_search_ends_in_time_with_a_command_and_goes_on_where_it_stopped(
    cluster, tmp_path, caplog
):
    settings = RecommendConfig(dataset="foldoc", minutes=2, output=str(tmp_path))
    with caplog.at_level(logging.INFO):
        found = recommend(settings)
    assert "test" not in " ".join([found.table, *found.sentences, *caplog.messages])
    rows = [line.split("|")[1:4] for line in found.table.splitlines()[2:]]
    values = [float(p_at_1) + float(r_at_10) for _, p_at_1, r_at_10 in rows]
    assert values == sorted(values, reverse=True) and values
    config = run_config_of(shlex.split(training_command(found.config))[2:])
    assert config == found.config
    assert config.encoder == PRESETS["bag"]("foldoc").encoder
    written = {file.name for file in found.report.iterdir()}
    assert written == {"recommendation.md", "recommendation.png"}
    trained = set(tmp_path.glob("runs/*/checkpoint_*"))
    again = recommend(settings)
    assert (again.table, again.config, again.run.id) == (found.table, found.config, found.run.id)
    assert set(tmp_path.glob("runs/*/checkpoint_*")) == trained


def test_a_search_is_not_mixed_with_one_of_other_queries_or_begun_with_too_few(tmp_path):
    settings = {"dataset": "foldoc", "output": str(tmp_path)}
    directory = RunDirectory(tmp_path / "recommendations" / "mine")
    directory.create()
    directory.note(plan={"train queries": 1000})
    with pytest.raises(RunError, match=r"another search: .*train queries \(1000 there, 2000 now\)"):
        recommend(RecommendConfig(**settings, name="mine", max_queries=2000))
    with pytest.raises(ConfigError, match="100 train queries are fewer than the 256 of a"):
        recommend(RecommendConfig(**settings, max_queries=100))
