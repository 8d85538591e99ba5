"""A run on walked graphs and a zero-shot split, pruned meanwhile: what it trains on and finds."""

import json
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from random_datasets import rows_in
from short_runs import fit_here

from jobs import evaluate as evaluate_job
from ramen_ray.config import overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.graph.walk import WalkSettings
from ramen_ray.method.sampling.batches import SamplingSources
from ramen_ray.method.sampling.encoded import encode
from ramen_ray.method.sampling.training_data import Regularizer, TrainingData
from ramen_ray.method.training.step import step_inputs
from ramen_ray.orchestration.background.task import REPORT_FILE
from ramen_ray.orchestration.prepare.pipeline import prepare
from ramen_ray.orchestration.prepare.walks import walked_edges
from ramen_ray.orchestration.run.build import build_model, build_objective, build_sampler
from ramen_ray.orchestration.run.inputs import encoder_tokenizer

NUM_EPOCHS = 4
ALIKE = 0.9999  # drops all edges but those between equal texts
REGULARIZERS = [Regularizer(name, side) for name in ("links", "topics") for side in ("query", "ad")]


@pytest.fixture(scope="module")
def config(split_path, small_run):
    changes = {
        "dataset": str(split_path),
        "walk.enabled": True,
        "walk.max_anchor_degree": 20,
        "walk.top_k": 6,
        "name": "walked",
        "optimizer.lr": 1e-3,
        "pruning.mode": "asynchronous",
        "pruning.prune_threshold": ALIKE,
        "training.epochs": NUM_EPOCHS,
        "training.validate_every": NUM_EPOCHS,
    }
    return overlay(small_run, changes)


@pytest.fixture(scope="module")
def trained(cluster, config):
    """A run in this process, which waits at the ends of epochs until a graph can be taken."""
    graphs = Path(config.output) / "runs" / "walked" / "graphs"

    def wait_for_a_graph(metrics):
        if metrics["epoch"] > 1 and not any(graphs.glob("step_*")):
            while not any(graphs.glob(f".pending/step_*/*/{REPORT_FILE}")):
                time.sleep(0.05)
            time.sleep(1)  # its task ends right after

    return fit_here(config, report=wait_for_a_graph)


def test_an_asynchronous_run_takes_a_generation_while_it_trains(trained):
    taken = [*zip(*trained.run.read_history("graph/step"), strict=True)]
    losses = dict(zip(*trained.run.read_history("loss/R_x/topics"), strict=True))
    epoch = max(losses) // NUM_EPOCHS
    assert taken
    assert all(of_step < step and step % epoch == 0 for step, of_step in taken)
    first = taken[0][0]
    assert max(losses[step] for step in range(first - epoch + 1, first + 1)) > 0
    assert max(losses[step] for step in range(first + 1, first + epoch + 1)) == 0
    graphs = {path.name for path in (trained.run_directory / "graphs").iterdir()}
    assert ".pending" not in graphs


def test_it_trains_on_the_walked_graph_and_knows_its_positives(trained, config):
    output = Path(config.output)
    dataset = Dataset(config.dataset)
    data = prepare(dataset, output / "prepared", encoder_tokenizer(config.encoder))
    (edges,) = (output / "walked").iterdir()
    how = WalkSettings(400, 0.8, 20, 6)
    assert walked_edges(data, REGULARIZERS, how, config.seed, output / "walked") == edges
    objective = build_objective(config)
    first = {}
    for name, folder in (("own", None), ("walked", edges)):
        training_data = TrainingData.from_prepared(data, REGULARIZERS, folder)
        sampler = build_sampler(config, data, training_data)
        sources = SamplingSources(training_data.graphs)
        (inputs,) = step_inputs(sampler, sources, objective, range(1), torch.device("cpu"))
        losses = objective.losses(encode(build_model(config), inputs), step=0)
        first[name] = dict(zip(objective.names, losses.tolist(), strict=True))
    histories = {term: trained.run.read_history(f"loss/{term}") for term in objective.names}
    logged = {term: values[0] for term, (_, values) in histories.items()}
    assert logged == pytest.approx(first["walked"], abs=1e-5)
    assert logged != pytest.approx(first["own"], abs=1e-3)
    run = trained.run.client.get_run(trained.run.id)
    assert run.data.params["walk.enabled"] == "True"


def test_training_measures_zero_shot_too(trained):
    run = trained.run.client.get_run(trained.run.id)
    for row, prefix in (("trained", ""), ("untrained", "untrained/")):
        assert list(trained.metrics[row]) == ["validation", "test", "zero_shot"]
        logged = run.data.metrics[f"{prefix}zero_shot/R_at_10"]
        assert logged == trained.metrics[row]["zero_shot"]["R@10"]


def test_the_evaluation_job_does_the_same_and_writes_predictions(
    trained, split_path, tmp_path, monkeypatch, done
):
    monkeypatch.chdir(tmp_path)
    command = ["--checkpoint", str(trained.encoder.parent), "--split", "zero_shot"]
    written = ["--predictions", "predictions.parquet", "--json-file", "metrics.json"]
    printed = done(evaluate_job, *command, *written)
    assert "predictions: predictions.parquet; to look at: predictions.html" in printed
    measured = json.loads(Path("metrics.json").read_text())
    file = Path("predictions.parquet")
    trained_metrics = trained.metrics["trained"]["zero_shot"]
    metrics = {name: measured[name] for name in trained_metrics}
    assert metrics == pytest.approx(trained_metrics, abs=1e-12)
    dataset = Dataset(split_path)
    ads = {row["source_id"]: row["ad_id"] for row in rows_in(dataset, "ads")}
    queries = {row["source_id"]: row for row in rows_in(dataset, "queries/zero_shot")}
    rows = pq.read_table(file).to_pylist()
    first = {row["query_id"]: ads[row["ad_id"]] for row in rows if row["rank"] == 1}
    assert first.keys() == queries.keys()
    hits = [ad in queries[query]["ad_ids"] for query, ad in first.items()]
    assert metrics["P@1"] == pytest.approx(np.mean(hits))
    assert [row["hit"] for row in rows if row["rank"] == 1] == hits
    assert {row["train_clicks"] for row in rows} == {0}
    again = ["--predictions", "again.parquet", "--against", "predictions.parquet"]
    done(evaluate_job, *command, *again)
    assert f"0 less, {len(queries)} as much" in Path("again.html").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--split", "zero_shot"], "handmade has no zero_shot"),
        (["--part", "both"], "part 'both'"),
        (["--predictions", "/no/such/folder/file.parquet"], "/no/such/folder/file.parquet"),
        (
            ["--predictions", "p.parquet", "--against", "/no/such"],
            "/no/such",
        ),
    ],
)
def test_what_cannot_be_evaluated_is_one_clear_line(trained, flags, message, dataset_path, refused):
    command = ["--checkpoint", trained.encoder.parent, "--dataset", dataset_path]
    assert message in refused(evaluate_job, *command, *flags)
