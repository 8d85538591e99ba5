"""The logged model against exact search with the encoder that it was made from."""

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from mlflow.exceptions import MlflowException
from sentence_transformers import SentenceTransformer
from stores import FLAT, scores_alone
from support import MAX_LENGTH

from ramen_ray.answering import code_of
from ramen_ray.answering.retriever import Retriever
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import (
    CLASSIFIER_FOLDER,
    ENCODER_FOLDER,
    DualEncoder,
    Scoring,
    load_model,
)
from ramen_ray.method.model.encoder import build_bag, build_transformer
from ramen_ray.method.model.heads import Classifiers, Head
from ramen_ray.method.model.texts import Prompts
from ramen_ray.method.retrieval.index import FEWEST_IVF_PQ_ADS, new_index
from ramen_ray.method.retrieval.retriever_folder import text_embedder, write_retriever
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import Run, open_run

KINDS = ["transformer", "bag"]


@dataclass(frozen=True)
class Logged:
    """A retriever in a store, and the model and data it was made from."""

    folder: Path
    run: Run
    model_id: str
    trained: Path
    data: Prepared
    measured: dict[str, float]

    @cached_property
    def model(self):
        """The model, as MLflow loads it."""
        mlflow.set_tracking_uri(self.run.uri)
        return mlflow.pyfunc.load_model(f"models:/{self.model_id}")

    def similarity(self, split="test"):
        """Cosines (queries, ads) of the model that was trained."""
        model = load_model(self.trained)
        queries = self.data.queries[split]
        embedded = model.embed_queries(queries, np.arange(len(queries)))
        return embedded @ model.embed_ads(self.data.ads, np.arange(len(self.data.ads))).T


def _save_with_classifiers(encoder, data, folder):
    """Save a model with a projection, and random classifiers for three quarters of the ads."""
    draw = torch.Generator().manual_seed(2)
    encoder.projection = Head.orthogonal(encoder.width, 7, has_tanh=True, seed=3)
    vectors = torch.randn(len(data.ads), 5, generator=draw)
    classifiers = Classifiers(vectors, 0, np.arange(len(data.ads)) % 4 > 0)
    head = Head.orthogonal(encoder.width, 5, has_tanh=False, seed=4)
    model = DualEncoder(encoder, head, classifiers)
    model.scoring = Scoring(weight=0.7, text_scale=0.6)
    model.save(folder, MAX_LENGTH)
    classifiers.save(folder / CLASSIFIER_FOLDER)


@pytest.fixture(scope="module")
def both(prepared, prepared_bag, dataset_path, encoder_path, output):
    """A retriever of each kind."""
    data = {"transformer": prepared, "bag": prepared_bag}
    return {
        kind: _logged(kind, data[kind], Dataset(dataset_path), encoder_path, output)
        for kind in KINDS
    }


@pytest.fixture(params=KINDS)
def logged(request, both):
    return both[request.param]


def _logged(kind, data, dataset, encoder_path, output):
    folder = output / kind
    trained = folder / "trained"
    made = folder / "retriever"
    if kind == "bag":
        DualEncoder(build_bag(encoder_path)).save(trained, MAX_LENGTH)
    else:
        _save_with_classifiers(build_transformer(encoder_path), data, trained)
    measured = write_retriever(made, load_model(trained), dataset, data, FLAT)
    run = open_run(f"sqlite:///{output}/mlflow.db", "tests", kind, output)
    texts = dataset.read("queries/test")["text"].to_pylist()[:2]
    model_id = log_retriever(run, made, texts, {"dataset": dataset.name})
    location = run.client.get_logged_model(model_id).artifact_location
    kept = Path(location.removeprefix("file://"))
    return Logged(kept, run, model_id, trained, data, measured)


@pytest.fixture(scope="module")
def queries(dataset_path):
    return Dataset(dataset_path).read("queries/test")["text"].to_pylist()


@pytest.fixture(scope="module")
def ads(dataset_path):
    return Dataset(dataset_path).read("ads").sort_by("ad_id")["text"].to_pylist()


def test_answers_are_exact_searches_with_the_trained_encoder(logged, queries, ads):
    answers = logged.model.predict(queries, params={"top_k": 7})
    similarity = logged.similarity()
    assert list(answers.columns) == ["ad_ids", "ads", "scores", "doubt", "error"]
    assert answers["error"].isna().all()
    for row, answer in answers.iterrows():
        shown = [int(ad) for ad in answer["ad_ids"]]
        expected = np.sort(similarity[row])[::-1][:7]
        np.testing.assert_allclose(answer["scores"], expected, atol=1e-5)
        np.testing.assert_allclose(similarity[row, shown], expected, atol=1e-5)
        assert answer["ads"] == [ads[ad] for ad in shown]
    assert logged.measured["recall@100"] == 1.0


def test_prompts_stand_before_served_queries_and_before_ads_that_are_added(
    prepared_bag, dataset_path, encoder_path, queries, ads, tmp_path
):
    encoder = build_bag(encoder_path)
    encoder.prompts = Prompts(f"{ads[0]}: ", f"{ads[1]}: ")
    made_from = DualEncoder(encoder), Dataset(dataset_path), prepared_bag
    write_retriever(tmp_path, *made_from, FLAT)
    served = Retriever(tmp_path)
    theirs = SentenceTransformer(str(tmp_path / ENCODER_FOLDER), device="cpu")
    expected = theirs.encode_query(queries, normalize_embeddings=True)
    np.testing.assert_allclose(served.embed(queries), expected, atol=1e-5)
    expected = theirs.encode_document(ads, normalize_embeddings=True)
    np.testing.assert_allclose(text_embedder(tmp_path)(ads), expected, atol=1e-5)


def test_answers_that_may_be_bad_are_doubted(logged, queries):
    least = np.quantile(logged.similarity("train").max(axis=1), 0.01)
    best = logged.similarity().max(axis=1)
    asked = [*queries, "数据库", "robin " * 500, "robin nest"]
    answers = logged.model.predict(asked)
    for doubt, score in zip(answers["doubt"], best, strict=False):
        assert (doubt == "low score") == (score < least) or abs(score - least) < 1e-5
    unknown, cut, _ = answers["doubt"][-3:]
    assert unknown == "unknown words"
    assert cut in ("cut", "low score")
    raised = json.loads((logged.trained.parent / "retriever/retriever.json").read_text())
    assert raised["least_score"] == pytest.approx(least, abs=1e-5)


def test_a_bad_row_is_reported_and_the_others_are_answered(logged, queries):
    model = logged.model
    (expected,) = model.predict([queries[1]])["ad_ids"]
    sent = ["", None, 7, {"a": 1}, "\ud800 robin"]
    answers = model.predict(pd.Series([*sent, queries[1]], dtype=object))
    assert [error is None for error in answers["error"]] == [*[False] * 5, True]
    assert answers["ad_ids"].tolist() == [*[[]] * 5, expected]
    named = [{"query": np.array(text)} for text in (queries[1], None)]  # objects, as a server reads
    assert model.predict(named)["ad_ids"].tolist() == [expected, []]
    nothing = model.predict(pd.DataFrame({"query": []}))
    assert (len(nothing), list(nothing.columns)) == (0, list(answers.columns))


def test_a_request_for_too_much_is_refused(logged, monkeypatch):
    model = logged.model
    asked = ["robin"] * 30
    assert len(model.predict(asked)) == 30

    def refuse(what, **params):
        with pytest.raises(MlflowException, match=what) as refused:
            model.predict(asked, params=params)
        assert refused.value.get_http_status_code() == 400

    refuse("top_k is 41", top_k=41)
    limits = model.unwrap_python_model().retriever.answer.__globals__  # of the code that is kept
    for limit, value in (("MAX_ANSWER_BYTES", 9_000), ("MAX_SECONDS", -1)):
        with monkeypatch.context() as patched:
            patched.setitem(limits, limit, value)
            refuse("send fewer")


def test_the_model_is_described_and_holds_no_pickle(logged, queries):
    model = logged.model
    names = [param.name for param in model.metadata.signature.params]
    assert names == ["top_k", "filter", "min_score", "at_most", "columns"]
    assert model.metadata.metadata["dataset"] == "handmade"
    example = model.input_example
    params = {"top_k": 1}
    assert example == queries[:2]
    assert len(model.predict(example, params)) == 2
    files = [file for file in logged.folder.rglob("*") if file.is_file()]
    assert not [file for file in files if file.suffix in {".pkl", ".pickle", ".bin"}]
    run = logged.run.client.get_run(logged.run.id)
    assert [output.model_id for output in run.outputs.model_outputs] == [logged.model_id]


def test_each_retriever_answers_by_the_code_that_it_keeps(logged, tmp_path):
    (kept,) = logged.folder.rglob("code")
    folders = [Path(shutil.copytree(kept.parent, tmp_path / name)) for name in ("one", "other")]
    file = folders[1] / "code" / "requests.py"
    file.write_text(file.read_text().replace("MAX_CHARACTERS = 10_000", "MAX_CHARACTERS = 4"))
    files = sorted(tmp_path.rglob("*"))
    loaded = [code_of(folder).Retriever(folder) for folder in folders]
    for retriever, answered in [*zip(loaded, (10, 0), strict=True)] * 2:
        assert len(retriever.answer(["robin"])["ads"][0]) == answered
    assert sorted(tmp_path.rglob("*")) == files
    shutil.rmtree(folders[1] / "code")  # as of an earlier version, which kept another file
    earlier = code_of(folders[1]).Retriever(folders[1], "cpu")
    assert earlier.answer(["robin"]) == loaded[0].answer(["robin"])


def test_the_environment_is_pinned_and_minimal(logged):
    (file,) = logged.folder.glob("requirements.txt")
    pins = dict(line.split("==") for line in file.read_text().split())
    needed = {"faiss-cpu", "mlflow", "numpy", "pandas", "pyarrow", "safetensors", "tokenizers"}
    if logged.trained.joinpath("encoder/config.json").exists():
        needed |= {"torch", "transformers"}
    assert pins.keys() == needed
    for name in needed - {"faiss-cpu"}:
        assert version(name).partition("+")[0] == pins[name]


def test_retrievers_answer_without_ray_and_the_library(both, queries, tmp_path):
    texts = queries[:3]
    store = both["bag"].run.uri
    models = [f"models:/{logged.model_id}" for logged in both.values()]
    scores = scores_alone(store, models, texts, tmp_path, "ray", "ramen_ray")
    for found, logged in zip(scores, both.values(), strict=True):
        expected = logged.model.predict(texts)["scores"].tolist()
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("dim", [1, 3, 32, 384, 768, 50])
def test_a_compressed_index_fits_any_width(dim):
    codes = new_index("ivf_pq", dim, FEWEST_IVF_PQ_ADS).pq.M
    assert dim % codes == 0
    assert codes <= max(dim / 2, 1)
