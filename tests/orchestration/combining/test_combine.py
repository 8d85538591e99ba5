"""A combiner trained on a finished run: what it logs, how it resumes, what it does to new ads."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import faiss
import mlflow
import numpy as np
import pytest
from conftest import RunHere
from mlflow.tracking import MlflowClient
from safetensors.numpy import load_file
from support import the_error

from jobs import combine as combine_job
from jobs import index as index_job
from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.splits.novel import NovelSettings, make_novel_split
from ramen_ray.data.store.checksums import write_checksums
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.judgement import Propensity, evaluate
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.novel_ads.representation import open_combined_ads
from ramen_ray.method.retrieval.retriever_folder import text_embedder
from ramen_ray.orchestration.prepare.pipeline import prepare
from ramen_ray.orchestration.run.build import encoder_tokenizer
from ramen_ray.orchestration.run.directory import RunDirectory
from ramen_ray.orchestration.run.fit import fit
from ramen_ray.tracking.registry import Registry

QUICK = ["--combiner.batch-size", 8, "--combiner.epochs", 2, "--classifiers.epochs", 2]
QUICK += ["--workers.cpus-per-worker", 1]


@dataclass(frozen=True)
class Made:
    """What the job made."""

    output: Path
    folder: Path
    model_uri: str
    printed: str

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=f"sqlite:///{self.output}/mlflow.db")

    def retriever(self, uri: str, aside: Path) -> Path:
        """Copy a retriever's folder."""
        try:
            return Registry(f"sqlite:///{self.output}/mlflow.db").download(uri, aside)
        finally:
            mlflow.set_tracking_uri(None)


@pytest.fixture(scope="module")
def config(small_run: RunConfig, split_path: Path) -> RunConfig:
    changes = {"dataset": str(split_path), "name": "encoder", "training.epochs": 2}
    return overlay(small_run, changes)


@pytest.fixture(scope="module")
def run_path(cluster: None, config: RunConfig) -> Path:
    return fit(config).run_directory


def _revealed(split_path: Path, folder: Path, seed: int = 0) -> Path:
    parent = split_path.parent / "parent"
    return make_novel_split(parent, folder, NovelSettings(0.3, one_shot=True, seed=seed)).path


def _combine(run_here: RunHere, run: Path, *more: object) -> tuple[int, str]:
    output = run.parent.parent
    return run_here(combine_job, "--run", run, "--output", output, *QUICK, *more)


@pytest.fixture
def made(run_path: Path, run_here: RunHere, split_path: Path, tmp_path: Path) -> Made:
    code, printed = _combine(
        run_here, run_path, "--revealed", _revealed(split_path, tmp_path / "os")
    )
    assert code == 0, printed
    folder = Path(re.findall(r"combiner: +(.*)", printed)[0])
    uri = re.findall(r"retriever: (\S+)", printed)[0]
    return Made(run_path.parent.parent, folder, uri, printed)


def test_a_combiner_is_trained_evaluated_resumed_and_used_for_new_ads(
    made: Made, config: RunConfig, run_path: Path, run_here: RunHere, tmp_path: Path
) -> None:
    for row in ("text", "sum", "combiner", "combiner one-shot"):
        assert len(re.findall(rf"│ {row} +│", made.printed)) == 2, made.printed
    _check_text_row(made, config, run_path)
    parent = json.loads((run_path / "run.json").read_text())["mlflow_run_id"]
    own = json.loads((made.folder / "run.json").read_text())["mlflow_run_id"]
    logged = made.client.get_run(own)
    assert logged.data.tags["mlflow.parentRunId"] == parent
    assert logged.data.metrics["combiner/zero_shot/R_at_10"] >= 0
    _check_resumed(made, run_here, run_path, tmp_path)
    _check_new_ads(made, run_here, tmp_path)


def _check_text_row(made: Made, config: RunConfig, run_path: Path) -> None:
    """The row of texts is what evaluation measures."""
    tokenizer = encoder_tokenizer(config.encoder)
    data = prepare(Dataset(config.dataset), made.output / "prepared", tokenizer)
    notes = json.loads((run_path / "run.json").read_text())
    model = load_model(run_path / notes["best_checkpoint"])
    for split in ("zero_shot", "test"):
        expected = evaluate(model, data, split, Propensity())[0]["R@10"]
        (cells,) = re.findall(rf"│ {split} +│ text +│(.*)", made.printed)
        assert float(cells.split("│")[3]) == pytest.approx(100 * expected, abs=0.01)


def _check_resumed(made: Made, run_here: RunHere, run_path: Path, tmp_path: Path) -> None:
    """A run whose end is deleted continues from its last checkpoint, to the same result."""
    code, printed = _combine(run_here, run_path, "--revealed", tmp_path / "os")
    assert (code, printed.count("\n")) == (2, 1)
    assert f"the combiner {made.folder} is finished" in printed
    directory = RunDirectory(made.folder)
    made_from = directory.notes["made_from"]
    directory.note(finished=False, made_from={**made_from, "torch": "1.0"})
    code, printed = _combine(run_here, run_path, "--revealed", tmp_path / "os")
    assert (code, printed.count("\n")) == (2, 1)
    assert "torch ('1.0' there, " in printed and "--allow-changed" in printed
    directory.note(made_from=made_from)
    *_, last = sorted(made.folder.glob("checkpoint_0*"))
    kept = (last / "combiner.safetensors").rename(tmp_path / "kept")  # as if of another version
    write_checksums(last)
    code, printed = _combine(run_here, run_path, "--revealed", tmp_path / "os", "--allow-changed")
    assert code == 2, printed
    assert f"cannot go on from {last}: " in the_error(printed)
    assert f"delete {made.folder} to train from the start" in the_error(printed)
    kept.rename(last / "combiner.safetensors")
    write_checksums(last)
    before = load_file(made.folder / "combiner" / "combiner.safetensors")
    code, printed = _combine(run_here, run_path, "--revealed", tmp_path / "os")
    assert code == 0, printed
    after = load_file(made.folder / "combiner" / "combiner.safetensors")
    for name, values in before.items():
        np.testing.assert_array_equal(values, after[name])
    history = made.client.get_metric_history(directory.notes["mlflow_run_id"], "loss/combiner")
    assert len({point.step for point in history}) == len(history)


def _check_new_ads(made: Made, run_here: RunHere, tmp_path: Path) -> None:
    """New ads get combined vectors; without the combiner's folder, those of their texts."""
    ads, clicks = tmp_path / "ads.csv", tmp_path / "clicks.csv"
    ads.write_text("ad_id,text\nn1,old robin heron\nn2,new sloop ketch\n")
    clicks.write_text("ad_id,query\nn2,great maple\n")
    job = ["--model", made.model_uri, "--output", made.output]
    code, printed = run_here(index_job, *job, "--ads", ads, "--clicks", clicks)
    assert code == 0, printed
    folder = made.retriever(re.findall(r"models:/\S+", printed)[0], tmp_path)
    index = faiss.read_index(str(folder / "index.faiss"))
    combined, embed = open_combined_ads(folder / "combiner"), text_embedder(folder)
    texts = embed(["old robin heron", "new sloop ketch"])
    expected = combined.represent(texts, revealed=(np.array([1]), embed(["great maple"])))
    found = index.reconstruct_n(index.ntotal - 2, 2)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.linalg.norm(index.reconstruct_n(0, index.ntotal - 2), axis=1).max() <= 1.0001
    for text, message in (
        ("ad_id,query\nn2, \n", "1 cells are empty"),
        ("ad_id,query\nn7,robin\n", "1 clicks are on ads that are not new: 'n7'"),
        ("ad_id,query\nn2,robin\nn2,heron\n", "1 clicks are not the first on their ad: 'n2'"),
    ):
        clicks.write_text(text)
        code, printed = run_here(index_job, *job, "--ads", ads, "--clicks", clicks)
        assert code == 2
        assert message in printed


CASES: list[tuple[dict[str, object], str]] = [
    ({"--run": "nowhere"}, "nowhere is not the folder of a run"),
    ({"--combiner.neighbours": 40}, "combiner.neighbours 40 needs more"),
    ({"--combiner.batch-size": 512}, "fewer than combiner.batch_size 512"),
    ({"--combiner.heads": 5}, "combiner.heads 5 must divide the vectors' width 32"),
    ({"--revealed": "{split}"}, "is not a one-shot split"),
    ({"--revealed": "{other_seed}"}, "seed 1 there, 0 in"),
]


@pytest.mark.parametrize(("changes", "message"), CASES)
def test_bad_input_is_one_clear_line(
    changes: dict[str, object],
    message: str,
    run_path: Path,
    run_here: RunHere,
    split_path: Path,
    tmp_path: Path,
) -> None:
    other = _revealed(split_path, tmp_path / "other", seed=1)
    given = {
        key: str(value).format(split=split_path, other_seed=other) for key, value in changes.items()
    }
    run = Path(given.pop("--run", str(run_path)))
    words = [word for item in given.items() for word in item]
    output = run_path.parent.parent
    code, printed = run_here(combine_job, "--run", run, "--output", output, *QUICK, *words)
    assert code == 2, printed
    assert message in printed
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1


def test_a_run_without_novel_ads_or_on_changed_data_is_refused(
    run_path: Path, run_here: RunHere, dataset_path: Path, tmp_path: Path
) -> None:
    settings = json.loads((run_path / "config.json").read_text())
    notes = json.loads((run_path / "run.json").read_text())
    other = tmp_path / "runs" / "other"
    other.mkdir(parents=True)
    (other / "run.json").write_text(json.dumps(notes))
    changed = make_novel_split(dataset_path, tmp_path / "changed", NovelSettings(0.3, seed=4)).path
    for dataset, message in (
        (dataset_path, "has no novel ads to evaluate on"),
        (changed, "has changed since the run"),
    ):
        (other / "config.json").write_text(json.dumps({**settings, "dataset": str(dataset)}))
        output = run_path.parent.parent
        code, printed = run_here(combine_job, "--run", other, "--output", output, *QUICK)
        assert code == 2, printed
        assert message in printed
    RunDirectory(other).note(finished=False)
    code, printed = run_here(combine_job, "--run", other, "--output", run_path.parent.parent)
    assert "is not finished" in printed
