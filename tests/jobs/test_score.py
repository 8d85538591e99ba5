"""Grades of teachers, against scores of their own libraries and plain loops."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from sentence_transformers import CrossEncoder
from support import errors_in, with_ids, with_tables
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
from written_out import plain

from jobs import score
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import JUDGEMENTS

DEPTH = 3


@pytest.fixture(scope="module")
def models(store, dataset_path):
    """The URIs of two retrievers."""
    return [store.logged(noise, dataset_path) for noise in (0.0, 1.5)]


@pytest.fixture
def dataset(dataset_path, tmp_path):
    """The dataset with judgements of a person and of an earlier teacher."""
    before = Dataset(dataset_path)
    columns = [0, 0, 1], [5, 9, 9], ["human", "teacher", "teacher"], [1.0, 0.0, 0.0]
    judged = pa.table(columns, JUDGEMENTS.names)
    ads = with_ids(before.read("ads"), "")  # two have one text
    return with_tables(before, tmp_path / "d", {"ads": ads, "judged/train": judged})


@pytest.fixture(scope="module")
def cross_encoder(encoder_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cross")
    tokenizer = AutoTokenizer.from_pretrained(encoder_path)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
        initializer_range=1.0,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _texts(dataset, table):
    return (
        dataset.read(table).sort_by("ad_id" if table == "ads" else "query_id")["text"].to_pylist()
    )


def _answered(store, uri, dataset):
    """Return each query's best ads, and the scores (queries, ads), out of whole answers."""
    num_ads = dataset.num_rows("ads")
    answers = store.registry.load(uri).answer(_texts(dataset, "queries/train"), num_ads)
    scores = np.zeros((len(answers), num_ads))
    best = [[int(ad) for ad in ads] for ads in answers["ad_ids"].to_pylist()]
    for row, values in enumerate(answers["scores"].to_pylist()):
        scores[row, best[row]] = values
    return [ads[:DEPTH] for ads in best], scores


def _check(made, best, scores):
    """Compare a dataset's judgements with those of plain loops."""
    held_out = {
        plain(text) for split in made.splits[1:] for text in _texts(made, f"queries/{split}")
    }
    texts = _texts(made, "queries/train")
    rows = [row for row, text in enumerate(texts) if plain(text) not in held_out]
    assert 0 < len(rows) < len(texts)
    clicks = made.clicks("train").toarray() > 0
    wanted = {(row, ad) for row in rows for ad in np.flatnonzero(clicks[row])}
    wanted |= {(row, ad) for row in rows for ad in best[row]}
    wanted |= {(0, 5)}
    expected = dict.fromkeys(wanted, 0.0)
    for of_teacher in scores:
        clicked = sorted(of_teacher[pair] for pair in wanted if clicks[pair])
        low, high = (np.percentile(clicked, share) for share in (5, 95))
        for pair in wanted:
            grade = 0.5 + 0.5 * (of_teacher[pair] - low) / (high - low)
            expected[pair] += min(max(grade, 0), 1) / len(scores)
    judged = made.read("judged/train").to_pylist()
    grades = {
        (row["query_id"], row["ad_id"]): row["grade"]
        for row in judged
        if row["source"] == "teacher"
    }
    assert grades.keys() == expected.keys()
    assert grades == {pair: pytest.approx(grade, abs=2e-5) for pair, grade in expected.items()}
    assert [row["ad_id"] for row in judged if row["source"] == "human"] == [5]
    assert errors_in(made) == []


def test_retrievers_grade_clicks_their_best_ads_and_judged_ones(
    models, dataset, store, done, tmp_path
):
    (best, scores), (others, other_scores) = (_answered(store, uri, dataset) for uri in models)
    words = ["--dataset", dataset.path, "--output", store.output, "--depth", DEPTH]
    before = dataset.fingerprint
    done(score, *words, "--model", *models, "--into", tmp_path / "made")
    _check(Dataset(tmp_path / "made"), best, [scores, other_scores])
    assert Dataset(dataset.path).fingerprint == before
    done(score, *words, "--model", models[1])
    _check(Dataset(dataset.path), others, [other_scores])
    assert "7 queries" in done(score, *words, "--model", models[0], "--queries", 7)
    judged = Dataset(dataset.path).read("judged/train")
    taught = {row["query_id"] for row in judged.to_pylist() if row["source"] == "teacher"}
    assert len(taught) == 7


def test_a_cross_encoder_grades_what_a_retriever_finds(
    models, dataset, store, cross_encoder, done, refused, tmp_path
):
    words = ["--dataset", dataset.path, "--output", store.output, "--depth", DEPTH]
    words += ["--model", cross_encoder]
    for finder in ([], ["--finder", cross_encoder]):
        assert "--finder" in refused(score, *words, *finder)
    done(score, *words, "--finder", models[0])
    queries = _texts(dataset, "queries/train")
    ads = _texts(dataset, "ads")
    library = CrossEncoder(str(cross_encoder), device="cpu", activation_fn=torch.nn.Identity())
    pairs = [(query, ad) for query in queries for ad in ads]
    scores = library.predict(pairs, show_progress_bar=False).reshape(len(queries), len(ads))
    best, _ = _answered(store, models[0], dataset)
    _check(Dataset(dataset.path), best, [scores])
    odd = Path(shutil.copytree(cross_encoder, tmp_path / "odd"))
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps(config | {"id2label": {"0": "no", "1": "yes"}}))
    assert "2 scores" in refused(score, *words, "--model", odd, "--finder", models[0])
