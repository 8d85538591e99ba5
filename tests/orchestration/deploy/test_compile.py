"""Compiled retrievers: they answer as the original does, faster, and without torch.

The tests' encoder is too small for one way to be reliably faster than the other, so most tests set
the measured times themselves.
"""

import re

import numpy as np
import onnxruntime
import pytest
import torch
from stores import Store, choose, scores_alone

from jobs import compile as compile_job
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.encoder import build_transformer
from ramen_ray.orchestration.deploy import compile as compilation
from ramen_ray.tracking.aliases import holder_of, restore


@pytest.fixture(scope="module")
def store(prepared, encoder_path, output):
    return Store(output, prepared, encoder_path, build_transformer)


@pytest.fixture(scope="module")
def registry(store, dataset_path):
    """With one retriever, the champion under three names."""
    registry = store.registry
    first = store.champion("eager", 0.0, dataset_path)
    for name in ("rounded", "slow"):
        choose(registry, name, first.run_id, first.model_id)
    return registry


@pytest.fixture
def milliseconds(monkeypatch):
    """The logged milliseconds per query, compiled and original."""
    figures = [1.0, 2.0]
    monkeypatch.setattr(compilation, "time_alone", lambda models, texts: figures)
    return figures


@pytest.fixture
def compiled(store, registry, milliseconds, done):
    """Compiles a retriever; returns the lines that are printed."""
    return lambda *words: done(compile_job, *words, "--output", store.output).splitlines()


@pytest.fixture(scope="module")
def queries(dataset_path):
    return Dataset(dataset_path).read("queries/test")["text"].to_pylist()


def test_a_compiled_retriever_replaces_the_original_and_answers_alike_without_torch(
    registry, compiled, queries, tmp_path, monkeypatch
):
    assert compiled("--model", "models:/eager@champion")[-2] == "retriever: models:/eager/2"
    assert holder_of(registry, "eager", "champion").version == "2"
    uses_gpu = [registry.look_up(f"models:/eager/{version}").uses_gpu for version in (1, 2)]
    assert uses_gpu == [True, False]
    original = registry.load("models:/eager/1").answer(queries)
    without = ("torch", "transformers", "ray", "ramen_ray")
    champion = "models:/eager@champion"
    (scores,) = scores_alone(registry.uri, [champion], queries, tmp_path, *without)
    np.testing.assert_allclose(scores, original["scores"].to_pylist(), atol=1e-5)
    folder = registry.download("models:/eager/2", tmp_path).parent.parent
    needed = (folder / "requirements.txt").read_text()
    assert "onnxruntime==" in needed
    assert "torch" not in needed
    num_threads = []
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda file, options, **_: num_threads.append(options.intra_op_num_threads),
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    registry.load("models:/eager/2")
    assert num_threads == [3]
    assert restore(registry, "eager", "champion")[1].version == "1"


def test_a_retriever_answers_on_the_cpu_on_request_if_there_is_a_gpu(
    registry, queries, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    answers = registry.load("models:/eager/1", "cpu").answer(queries)
    assert answers["error"].null_count == len(queries)


def test_eight_bit_integers_answer_nearly_alike_and_say_what_they_cost(registry, compiled, queries):
    printed = compiled("--model", "models:/rounded@champion", "--int8")
    assert printed[-2] == "retriever: models:/rounded/2"
    (shown,) = re.findall(r"│ P@1 +│ +([\d.]+) +│ +([\d.]+) +│ +([-+][\d.]+)", "\n".join(printed))
    after, before, difference = map(float, shown)
    assert after - before == pytest.approx(difference, abs=0.011)
    scores = [
        np.array(registry.load(f"models:/rounded/{version}").answer(queries)["scores"].to_pylist())
        for version in (1, 2)
    ]
    assert 0 < np.abs(scores[0] - scores[1]).max() < 0.05


def test_what_is_not_faster_replaces_nothing(registry, refused, milliseconds, output, monkeypatch):
    milliseconds.reverse()
    monkeypatch.setattr(compilation, "compile_retriever", lambda folder, int8: None)  # takes long
    error = refused(compile_job, "--model", "models:/slow@champion", "--output", output)
    assert "models:/slow@champion" in error
    assert holder_of(registry, "slow", "champion").version == "1"
