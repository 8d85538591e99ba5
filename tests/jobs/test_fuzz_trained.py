"""Random texts through an import, a step of training and predictions: an answer or one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RunHere
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import MAX_LENGTH, import_in_process, prepare_in_process

from jobs import predict
from ramen_ray.config import overlay
from ramen_ray.data.tables.clicks.settings import UserTables
from ramen_ray.errors import UserError
from ramen_ray.method.retrieval.retriever_folder import INDEX
from ramen_ray.method.retrieval.shards import index_shards
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.step import train_steps
from ramen_ray.orchestration.runs.components import (
    build_model,
    build_objective,
    build_sampler,
    build_state,
)
from ramen_ray.orchestration.serve import predict as answering
from ramen_ray.orchestration.training.checks import check_clicks, check_config
from ramen_ray.presets import tiny

QUICK, THOROUGH = 25, 250
SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
ODD = ["\u200b", "\u202e", "\ufeff", "a\0b", "é", "e\u0301", "robin", "ROBIN", "  heron ", "[SEP]"]
TEXT = st.sampled_from(ODD) | st.text(st.characters(codec="utf-8"), max_size=12)
CLICKS = st.lists(st.fixed_dictionaries({"query": TEXT, "ad": TEXT}), min_size=8, max_size=30)
CELL = TEXT | st.none()
COLUMN = st.one_of(
    st.lists(CELL, max_size=12),
    st.lists(st.integers(0, 9), max_size=5),
    st.lists(st.lists(CELL, max_size=2), max_size=5),
    st.lists(st.binary(max_size=5), max_size=5),
    st.lists(st.booleans() | st.none(), max_size=5),
)
Predict = Callable[[Path, Path], tuple[int, str]]


def _train_a_step(clicks: list[dict[str, str]], encoder: str, folder: Path) -> None:
    """Import clicks, prepare and train a step as the commands do, but for Ray."""
    file, dataset = folder / "clicks.jsonl", folder / "dataset"
    file.write_text("\n".join(map(json.dumps, clicks)))
    changes = {
        "dataset": str(dataset),
        "encoder.pretrained": encoder,
        "regularization.lambda_x": {},
        "regularization.lambda_z": {},
        "training.global_batch_size": 2,
    }
    config = overlay(tiny(), changes)
    try:
        opened, _ = import_in_process(UserTables(str(file)), dataset)
        check_config(config, opened)
        data = prepare_in_process(opened, folder / "prepared", encoder, MAX_LENGTH, False)
        check_clicks(config, data)
    except UserError as error:
        assert "Traceback" not in str(error)
        return
    model, objective = build_model(config), build_objective(config)
    drawn_from = TrainingData.from_prepared(data, objective.regularizers, data.path / "edges")
    sampler = build_sampler(config, data, drawn_from)
    state = build_state(config, model, model, sampler)
    (losses,) = train_steps(state, sampler, objective, 1, max_gradient_norm=1.0)
    assert np.isfinite(losses.numpy()).all()


@pytest.fixture
def answer(
    logged_retriever: str,
    output: Path,
    run_here: RunHere,
    monkeypatch: pytest.MonkeyPatch,
) -> Predict:
    """Answers a table as the command does, but for Ray."""

    def answer_here(work: answering.Work, missing: list[int], *_: object) -> None:
        (shard,) = index_shards(work.retriever / INDEX, 1.0)
        steps = answering.AllSteps(work, shard, 1)
        for number in missing:
            steps({"partition": number})

    monkeypatch.setattr(answering, "start_ray", lambda: None)
    monkeypatch.setattr(answering, "_num_gpus", lambda *_: 0)
    monkeypatch.setattr(answering, "_answer", answer_here)

    def call(queries: Path, answers: Path) -> tuple[int, str]:
        flags = [
            "--model",
            logged_retriever,
            "--queries",
            queries,
            "--answers",
            answers,
            "--top-k",
            3,
        ]
        return run_here(predict, *flags, "--output", output)

    return call


def _predict(column: list[Any], answer: Predict, folder: Path) -> None:
    table = pa.table({"text": pa.array(column)})
    pq.write_table(table, folder / "queries.parquet")
    code, said = answer(folder / "queries.parquet", folder / "answers")
    assert "Traceback" not in said
    if code:
        assert code == 2
        assert [line for line in said.splitlines() if line.startswith("error: ")]
        return
    answers = pq.read_table(folder / "answers")
    assert len(answers) == len(column)
    for row in answers.to_pylist():
        assert (row["error"] is None) == (len(row["ads"] or []) == 3), row


def _check(
    drawn: tuple[Any, Any], encoder: Path, answer: Predict, factory: pytest.TempPathFactory
) -> None:
    clicks, column = drawn
    _train_a_step(clicks, str(encoder), factory.mktemp("step"))
    _predict(column, answer, factory.mktemp("predict"))


@settings(max_examples=QUICK, suppress_health_check=SHARED)
@given(drawn=st.tuples(CLICKS, COLUMN))
def test_a_few_random_texts(drawn, encoder_path, answer, tmp_path_factory) -> None:
    _check(drawn, encoder_path, answer, tmp_path_factory)


@pytest.mark.slow
@settings(max_examples=THOROUGH, suppress_health_check=SHARED)
@given(drawn=st.tuples(CLICKS, COLUMN))
def test_many_random_texts(drawn, encoder_path, answer, tmp_path_factory) -> None:
    _check(drawn, encoder_path, answer, tmp_path_factory)
