"""OAK from its data to its figures: linker, run, evaluation by both kinds of links, refusals."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from mlflow.tracking import MlflowClient
from support import node_edges

from jobs import evaluate as evaluate_job
from ramen_ray.config import WITHOUT_GRAPH, ConfigError, RunConfig, overlay
from ramen_ray.data.splits.links import make_link_dataset
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset
from ramen_ray.data.tables.new_ads import NewAds
from ramen_ray.method.training.checkpoints import CheckpointError
from ramen_ray.orchestration.deployment.new_ads import extend_retriever
from ramen_ray.orchestration.deployment.predict import QueryTable, predict
from ramen_ray.orchestration.deployment.promotion import promote
from ramen_ray.orchestration.evaluation.checkpoint import AnsweredBy, evaluate_checkpoint
from ramen_ray.orchestration.training.checks import check_config
from ramen_ray.orchestration.training.results import TrainResult
from ramen_ray.orchestration.training.run import fit
from ramen_ray.tracking.registry import Registry, RegistryError

pytestmark = pytest.mark.usefixtures("cluster")

OFF = {**WITHOUT_GRAPH, "base.kind": "in_batch", "training.epochs": 2}


@pytest.fixture(scope="module")
def with_oracle(dataset_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The handmade dataset with edges of its held-out queries."""
    handmade = Dataset(dataset_path)
    tables = {table: handmade.read(table) for table in handmade.tables}
    for split in ("validation", "test"):
        links = [[] if query % 4 == 1 else [query, query + 6] for query in range(12)]
        tables[f"edges/links/{split}_query"] = node_edges("query_id", links)
    return write_dataset(tmp_path_factory.mktemp("oak") / "handmade", tables, name="handmade").path


@pytest.fixture(scope="module")
def links_path(with_oracle: Path) -> Path:
    """The dataset of a linker to the anchors of ``links``."""
    return make_link_dataset(with_oracle, with_oracle.parent / "links", ["links"]).path


@pytest.fixture(scope="module")
def linker(small_run: RunConfig, links_path: Path) -> TrainResult:
    """A run that links queries to anchors."""
    return fit(overlay(small_run, {**OFF, "dataset": str(links_path), "name": "linker"}))


@pytest.fixture(scope="module")
def oak(small_run: RunConfig, with_oracle: Path, linker: TrainResult) -> RunConfig:
    """OAK with that linker."""
    changes = {
        "dataset": str(with_oracle),
        "oak.anchor_sets": ["links"],
        "oak.linker": str(linker.run_directory),
        "oak.bank_lr": 0.05,
        "name": "oak",
    }
    return overlay(small_run, {**OFF, **changes})


@pytest.fixture(scope="module")
def trained(oak: RunConfig) -> TrainResult:
    """A finished run of OAK."""
    return fit(oak)


def test_a_link_dataset_has_the_edges_as_clicks(with_oracle: Path, links_path: Path):
    parent, links = Dataset(with_oracle), Dataset(links_path)
    assert links.read("ads")["text"].equals(parent.read("anchors/links")["text"])
    texts = {split: parent.read(f"queries/{split}")["text"].to_pylist() for split in parent.splits}
    expected: dict[str, dict[str, list[int]]] = {"query": {}, "test_query": {}}
    for side, split in (("query", "train"), ("test_query", "test")):
        for row in parent.read(f"edges/links/{side}").to_pylist():
            own = expected[side].setdefault((row["query_id"], texts[split][row["query_id"]]), [])
            own.append(row["anchor_id"])
    found = {
        split: [(row["text"], row["ad_ids"]) for row in links.read(f"queries/{split}").to_pylist()]
        for split in ("train", "validation", "test")
    }
    assert found["test"] == [(text, ads) for (_, text), ads in expected["test_query"].items()]
    ours = [(text, sorted(ads)) for (_, text), ads in sorted(expected["query"].items())]
    assert sorted(found["train"] + found["validation"]) == sorted(ours)
    assert 0 < len(found["validation"]) < len(found["train"]) / 3
    assert links.metadata["links_of"]["anchor_sets"] == ["links"]


def test_without_edges_of_test_queries_train_queries_are_held_out(
    dataset_path: Path, tmp_path: Path
):
    links = make_link_dataset(dataset_path, tmp_path / "links", ["links", "topics"])
    parent = Dataset(dataset_path)
    texts = [links.read(f"queries/{split}")["text"].to_pylist() for split in links.splits]
    linked = {
        row["query_id"]
        for name in ("links", "topics")
        for row in parent.read(f"edges/{name}/query").to_pylist()
    }
    assert sum(map(len, texts)) == len(linked)
    assert links.num_rows("ads") == 36
    assert max(links.read("queries/train")["ad_ids"].combine_chunks().flatten().to_pylist()) >= 30
    with pytest.raises(DatasetError, match="no edges of train queries to an anchor set 'none'"):
        make_link_dataset(dataset_path, tmp_path / "other", ["none"])


@pytest.mark.slow
def test_a_run_answers_by_its_linker_and_an_oracle_can_be_asked(
    trained: TrainResult, with_oracle: Path, tmp_path: Path, run_here
):
    folder = trained.run_directory
    links = np.load(folder / "links" / "test.npy")
    assert links.shape == (12, 3)
    found = evaluate_checkpoint(folder, "test")
    for name, value in trained.metrics["trained"]["test"].items():
        assert found[name] == pytest.approx(value, abs=1e-6), name
    assert 0 <= found["linker/P@3"] <= found["linker/known"] <= 1
    assert found["linker/R@10"] > 0.3  # chance: 10 of 30 anchors
    logged = MlflowClient(trained.run.uri).get_metric_history(trained.run.id, "attention/evenness")
    assert len(logged) == 2 and all(0.9 < point.value <= 1 + 1e-6 for point in logged)
    file = tmp_path / "oracle.json"
    arguments = ("--checkpoint", folder, "--links", "oracle", "--json-file", file)
    code, said = run_here(evaluate_job, *arguments)
    assert code == 0
    assert "linker: P@3" in said
    oracle = json.loads(file.read_text())
    assert oracle["linker/R@10"] == found["linker/R@10"]
    assert oracle["R@10"] != found["R@10"]


@pytest.mark.slow
def test_only_the_oracle_reads_edges_of_held_out_queries(
    oak: RunConfig, trained: TrainResult, with_oracle: Path, tmp_path: Path
):
    """Without them the run has the same numbers, if the linker is any run's encoder."""
    bare = shutil.copytree(with_oracle, tmp_path / "bare")
    for file in (bare / "edges" / "links").glob("*_query.parquet"):
        file.unlink()
    content = json.loads((bare / "dataset.json").read_text())
    del content["num_rows"]
    (bare / "dataset.json").write_text(json.dumps(content))
    any_run = {"oak.linker": str(trained.run_directory)}
    both = [
        fit(overlay(oak, {**any_run, "dataset": str(path), "name": name}))
        for path, name in ((with_oracle, "with"), (bare, "without"))
    ]
    assert both[0].metrics == both[1].metrics
    assert "linker/P@3" not in evaluate_checkpoint(both[1].run_directory, "test")
    with pytest.raises(DatasetError, match="edges/links/test_query, which an oracle needs"):
        evaluate_checkpoint(both[1].run_directory, "test", answered_by=AnsweredBy(links="oracle"))


@pytest.mark.slow
def test_it_is_not_served(oak: RunConfig, trained: TrainResult, tmp_path: Path):
    registry, folder = Registry(trained.run.uri), str(trained.run_directory)
    table = QueryTable("queries.parquet")
    for refused in (
        lambda: promote(registry, folder, "mine"),
        lambda: promote(registry, trained.run.id, "mine"),
        lambda: predict(registry, folder, table, tmp_path, 3),
        lambda: extend_retriever(registry, folder, NewAds("ads.csv"), tmp_path),
    ):
        with pytest.raises(RegistryError, match="the run oak is OAK, a method to compare with"):
            refused()


BAD: dict[str, tuple[dict[str, object], str]] = {
    "graph": (
        {"regularization.lambda_z.links": 0.1, "walk.enabled": True},
        r"excludes regularization\.lambda_z\.links, walk\.enabled: OAK",
    ),
    "pruning": ({"pruning.mode": "synchronous"}, r"excludes pruning\.mode"),
    "classifiers": ({"base.heads": "classifier"}, r"excludes base\.heads"),
    "set": ({"oak.anchor_sets": ["other"]}, "no edges of queries to an anchor set 'other'"),
    "no linker": ({"oak.linker": None}, r"oak\.linker: OAK needs a run"),
    "no run": ({"oak.linker": "nowhere"}, "nowhere is not the folder of a finished run; make its"),
    "anchors": ({"oak.anchor_sets": ["topics"]}, "other anchors than the sets topics of"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_by_its_key(case: str, oak: RunConfig, with_oracle: Path):
    changes, message = BAD[case]
    epochs = {"training.epochs": 20}
    with pytest.raises(ConfigError, match=message):
        check_config(overlay(oak, {**changes, **epochs}), Dataset(with_oracle))


@pytest.mark.slow
def test_a_run_without_a_bank_has_no_links(linker: TrainResult):
    with pytest.raises(CheckpointError, match="is not of OAK"):
        evaluate_checkpoint(linker.run_directory, "test", answered_by=AnsweredBy(links="oracle"))
