"""Random texts through an import, a step of training and predictions: an answer or one line."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from short_runs import ConfiguredRun
from support import MAX_LENGTH, import_in_process, prepare_in_process

from ramen_ray.config import overlay
from ramen_ray.data.tables.clicks.settings import UserTables
from ramen_ray.errors import UserError
from ramen_ray.orchestration.run.inputs import check_config
from ramen_ray.presets import tiny
from ramen_ray.tracking.addresses import tracking_uri
from ramen_ray.tracking.registry import Registry

ODD = ["\u200b", "\u202e", "\ufeff", "a\0b", "é", "e\u0301", "robin", "ROBIN", "  heron ", "[SEP]"]
TEXT = st.sampled_from(ODD) | st.text(st.characters(codec="utf-8"), max_size=12)
CLICKS = st.lists(st.fixed_dictionaries({"query": TEXT, "ad": TEXT}), min_size=8, max_size=30)


def _train_a_step(clicks, encoder, folder):
    """Import clicks, prepare and train a step as the commands do, but for Ray."""
    file = folder / "clicks.jsonl"
    dataset = folder / "dataset"
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
        run = ConfiguredRun(config, data)
    except UserError as error:
        assert "Traceback" not in str(error)
        return
    assert np.isfinite(run.train(1, max_gradient_norm=1.0)).all()


@pytest.mark.parametrize("count", [12, pytest.param(250, marks=pytest.mark.slow)])
def test_random_texts(count, encoder_path, tmp_path_factory):
    @settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow])
    @given(CLICKS)
    def check(clicks):
        _train_a_step(clicks, encoder_path, tmp_path_factory.mktemp("step"))

    check()


def test_random_queries_are_answered_or_told_why(logged_retriever, output):
    retriever = Registry(tracking_uri(output)).load(logged_retriever)

    @settings(max_examples=100)
    @given(st.lists(TEXT | st.none(), min_size=1))
    def check(texts):
        rows = retriever.answer(texts, 3).to_pylist()
        answered = [(row["error"] is None, len(row["ads"])) for row in rows]
        assert len(answered) == len(texts)
        assert {*answered} <= {(True, 3), (False, 0)}

    check()
    assert retriever.answer(ODD, 3)["error"].null_count > 0
