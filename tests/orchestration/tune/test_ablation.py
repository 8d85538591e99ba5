"""Ablations on a real Ray and a real MLflow store: trained, compared, reported and resumed."""

import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock
from mlflow.tracking import MlflowClient
from support import ROOT

import jobs.ablate
from ramen_ray.command_line import parse_with_run_config
from ramen_ray.config import ConfigError, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.run import inputs
from ramen_ray.orchestration.run.directory import RunError
from ramen_ray.orchestration.run.identity import Inputs, open_run_directory
from ramen_ray.orchestration.run.inputs import check_config
from ramen_ray.orchestration.tune import choice
from ramen_ray.orchestration.tune.ablation import (
    AblationConfig,
    ablate,
    variants_of,
)
from ramen_ray.orchestration.tune.choice import train_all
from ramen_ray.presets import PRESETS, bag, ramen_ance
from ramen_ray.reports.ablation_report import VariantFigures, verdict
from ramen_ray.tracking.runs import DESCRIPTION_TAG

VARIANTS = ["in_batch", "in_batch-ramen", "in_batch-ramen-adaptive-lambda"]


def test_the_paper_s_settings_give_the_paper_s_tables():
    variants = variants_of(ramen_ance(), ("ance", "ngame"))
    parts = ["no-pruning", "no-walk", "no-query-graph", "no-ad-graph", "adaptive-lambda"]
    parts += ["only-category", "only-hyper_link"]
    assert set(variants) == {
        *("ance", "ance-ramen", "ngame", "ngame-ramen"),
        *(f"ance-ramen-{part}" for part in parts),
    }
    config = {name: variant.config for name, variant in variants.items()}
    weights = {name: one.regularization for name, one in config.items()}
    assert variants["ngame-ramen"].base == "ngame"
    others = {variant.base for name, variant in variants.items() if name != "ngame-ramen"}
    assert others == {"ance"}, "bases are compared with the first"
    assert config["ngame-ramen"] == overlay(ramen_ance(), {"base.kind": "ngame"})
    assert config["ance"].pruning.mode == config["ance-ramen-no-pruning"].pruning.mode == "never"
    assert not weights["ance"].lambda_x and not weights["ance"].lambda_z
    assert not weights["ance-ramen-no-query-graph"].lambda_x
    assert weights["ance-ramen-no-query-graph"].lambda_z == weights["ance-ramen"].lambda_z
    assert weights["ance-ramen-only-category"].lambda_x == {"category": 1.0}
    assert weights["ance-ramen-adaptive-lambda"].adaptive


def test_parts_that_a_configuration_does_not_use_have_no_variant():
    found = variants_of(bag())
    assert not {"in_batch-ramen-no-pruning", "in_batch-ramen-no-query-graph"} & set(found)
    assert {"in_batch", "unidec", "unidec-ramen"} < set(found), "bases if none is named"
    with pytest.raises(ConfigError, match="no graph is used"):
        variants_of(overlay(bag(), {"regularization.lambda_z": {}}))


def test_a_verdict_says_which_base_is_best_and_where_the_graph_helps():
    up = (0.02, 0.01, 0.03)
    level = (0.001, -0.01, 0.01)
    down = (-0.02, -0.03, -0.01)

    def figures(base, **gains):
        named = {"P@1": gains["p"], "R@10": gains["r"]} if gains else {}
        return VariantFigures(base, {}, named, 1.0)

    said = verdict(
        {
            "ance": figures("ance"),
            "ance-ramen": figures("ance", p=level, r=up),
            "ngame": figures("ance", p=down, r=up),
            "ngame-ramen": figures("ngame", p=down, r=level),
        }
    )
    assert [sentence.partition(":")[0] for sentence in said] == [
        "the graph, ance-ramen is better than ance",
        "the base, ngame gains one metric and loses the other against ance",
        "the graph, ngame-ramen is worse than ngame",
    ]


def test_every_preset_and_every_example_can_be_ablated(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(inputs, "encoder_tokenizer", cache(inputs.encoder_tokenizer))
    doc = jobs.ablate.__doc__.replace("\\\n", " ")
    examples = re.findall(r"^    .*python jobs/ablate\.py(.*)$", doc, re.MULTILINE)
    built_in = [f"{name} --dataset foldoc" for name in PRESETS if "320k" not in name]
    here = [command for command in built_in if not command.startswith("ramen-")]
    assert len(examples) >= 4
    for command in [*examples, *here]:
        words = shlex.split(command.replace("path/to/mine", "foldoc"))
        settings, config = parse_with_run_config(AblationConfig(), "", words)
        for variant in variants_of(config, settings.bases).values():
            check_config(variant.config, Dataset(config.dataset))


CHANGES = {
    "regularization.lambda_x": {"links": 0.1},
    "regularization.lambda_z": {},
    "training.epochs": 1,
    "name": "parts",
}


ABLATION = AblationConfig(seeds=1, bases=("in_batch",))


@pytest.mark.slow
def test_a_dataset_that_changes_between_runs_stops_an_ablation_in_one_line(
    cluster, config, tmp_path, monkeypatch
):
    dataset = shutil.copytree(config.dataset, tmp_path / "handmade")
    own = overlay(config, {"dataset": str(dataset), "name": "changing"})
    folder = Path(config.output) / "ablations" / "changing"
    folder.mkdir(parents=True)
    with (
        FileLock(folder / ".lock"),
        pytest.raises(RunError, match="ablations/changing"),
    ):
        ablate(own, ABLATION)

    def change_first(*arguments):
        shutil.copy(dataset / "queries" / "validation.parquet", dataset / "queries/test.parquet")
        return train_all(*arguments)

    monkeypatch.setattr(choice, "train_all", change_first)
    with pytest.raises(RunError, match=": dataset ") as failure:
        ablate(own, ABLATION)
    assert "\n" not in str(failure.value)
    assert not list(Path(config.output).glob("runs/changing-*/checkpoint_*"))


@pytest.fixture(scope="module")
def first_attempt(cluster, config):
    """When each other run of an ablation with a failed run was finished."""
    taken = overlay(config, {"name": f"parts-{VARIANTS[0]}-seed0", "optimizer.lr": 0.1})
    with open_run_directory(Inputs.of(taken)) as directory:
        with pytest.raises(RunError, match="1 of 3 runs failed") as failure:
            ablate(config, ABLATION)
        (directory.path / "run.json").unlink()
    assert f"{directory.name}: " in str(failure.value)
    return _finished(config)


@pytest.fixture(scope="module")
def result(first_attempt, config):
    return ablate(config, ABLATION)


def _finished(config):
    runs = (Path(config.output) / "runs").glob("parts-*/run.json")
    return {run.parent.name: run.stat().st_mtime_ns for run in runs if "finish" in run.read_text()}


@pytest.mark.slow
def test_the_same_call_trains_only_what_is_missing_and_compares_all(first_attempt, result, config):
    assert set(first_attempt) == {f"parts-{variant}-seed0" for variant in VARIANTS[1:]}
    assert first_attempt.items() < _finished(config).items()
    assert list(result.variants) == VARIANTS
    base, whole = (result.variants[name] for name in VARIANTS[:2])
    assert not base.gains and base.seconds_ratio == 1
    for name, (value, low, high) in whole.gains.items():
        assert value == pytest.approx(whole.means[name] - base.means[name])
        assert low <= value <= high
    changed = overlay(config, {"regularization.lambda_x": {"links": 0.2}})
    with pytest.raises(RunError, match=r"lambda_x.links \(0.1 there, 0.2 now\)"):
        ablate(changed, ABLATION)


@pytest.mark.slow
def test_figures_and_tables_are_those_of_the_runs(result):
    client = MlflowClient(tracking_uri=result.run.uri)
    parent = client.get_run(result.run.id)
    children = client.search_runs(
        [parent.info.experiment_id],
        f"tags.`mlflow.parentRunId` = '{result.run.id}' and status = 'FINISHED'",
    )
    assert (len(children), parent.info.status) == (len(VARIANTS), "FINISHED")
    for run in children:
        variant = run.info.run_name.rpartition(" parts-")[2].removesuffix("-seed0")
        means = result.variants[variant].means
        for metric in ("P@1", "N@5", "R@10"):
            logged = run.data.metrics[f"test/{metric.replace('@', '_at_')}"]
            assert means[metric] == pytest.approx(logged)
            assert parent.data.metrics[f"{variant}/{metric.replace('@', '_at_')}"] == means[metric]
    written = (result.report / "ablation.md").read_text()
    assert written.startswith(parent.data.tags[DESCRIPTION_TAG])  # MLflow keeps 8,000 characters
    mean = 100 * result.variants["in_batch"].means["P@1"]
    assert re.search(rf"^\| in_batch +\| +{mean:.2f} ", written, re.MULTILINE)
