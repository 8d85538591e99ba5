"""Similar texts against brute force."""

import unicodedata
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import errors_in, query_table, text_table
from written_out import column_of, edges_of

from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset
from ramen_ray.data.tables.graphs import anchor_sets
from ramen_ray.method.graph.similar import SimilarSettings
from ramen_ray.method.model.encoder import build_transformer
from ramen_ray.method.model.pretrained import text_tokenizer
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.orchestration.prepare import similar_set as preparation
from ramen_ray.orchestration.prepare.similar_set import add_similar

WORDS = ["robin", "heron", "sloop", "maple", "flint", "tango", "old", "new", "Small", "rare"]
TWINS = ["heron sloop", "Heron, sloop!", "heron  sloop", "heron sloop heron sloop"]


def _embedding_similarities(texts, folder, max_length):
    encoder = build_transformer(str(folder))
    tokenize = text_tokenizer(encoder.tokenizer, max_length, True)
    with torch.inference_mode():
        rows = [encoder(TokenBatch(*map(np.int64, tokenize([text])))) for text in texts]
    embeddings = torch.cat(rows).numpy()
    return embeddings @ embeddings.T


def _brute_force(texts, similarities, limits):
    """The similarities of each text's anchors, best first."""
    plain = [
        "".join(c for c in text.lower() if unicodedata.category(c)[0] in "LMNS") for text in texts
    ]
    found = []
    for row, text in zip(similarities, plain, strict=True):
        near = [
            float(value)
            for value, other in zip(row, plain, strict=True)
            if other != text and limits.min_similarity <= value <= limits.max_similarity
        ]
        found.append(sorted(near, reverse=True)[: limits.top_k])
    return found


def _shop(texts, folder):
    """A dataset directory whose ads are ``texts``, as are its queries."""
    tables = {"ads": text_table("ad_id", texts)}
    for split in ("train", "validation", "test"):
        tables[f"queries/{split}"] = query_table(texts[:1], [[1]])
    return write_dataset(folder / "shop", tables, name="shop").path


def _linked(texts, limits, folder):
    """The similar texts of each of ``texts``, which are the ads of a dataset directory."""
    path = _shop(texts, folder)
    add_similar(path, "near", replace(limits, protocol="as-published"))
    anchors = column_of(Dataset(path), "anchors/near")
    linked = [{} for _ in texts]
    for edge in Dataset(path).read("edges/near/ad").to_pylist():
        linked[edge["ad_id"]][anchors[edge["anchor_id"]]] = edge["weight"]
    return linked


def test_texts_of_other_words_are_no_duplicates(tmp_path):
    pairs = [
        ("पानी का गिलास", "पीना का गिलास", False),  # water, to drink; vowels are marks
        ("ดีมาก", "ดึมาก", False),
        ("learn C quickly", "learn C++ quickly", False),
        ("learn C quickly", "Learn C: quickly!", True),
        ("learn C quickly", "learn C# quickly", True),
    ]
    texts = [*dict.fromkeys(text for pair in pairs for text in pair[:2]), "quickly learn"]
    limits = SimilarSettings(min_similarity=0.1, max_similarity=1.0, top_k=len(texts))
    linked = dict(zip(texts, _linked(texts, limits, tmp_path), strict=True))
    for text, other, is_duplicate in pairs:
        assert (other in linked[text]) == (text in linked[other]) != is_duplicate


@pytest.mark.parametrize("texts_per_batch", [65_536, 7])
def test_an_encoder_finds_what_brute_force_finds(
    encoder_path, texts_per_batch, tmp_path, monkeypatch
):
    monkeypatch.setattr(anchor_sets, "TEXTS_PER_BLOCK", texts_per_batch)
    draw = np.random.default_rng(2)
    made = [" ".join(draw.choice(WORDS, draw.integers(1, 4))) for _ in range(80)]
    texts = list(dict.fromkeys(made + TWINS))
    limits = SimilarSettings(
        encoder_path, top_k=3, min_similarity=0.71234, max_similarity=0.95123, max_length=12
    )
    similarities = _embedding_similarities(texts, encoder_path, 12)
    linked = _linked(texts, limits, tmp_path)
    expected = _brute_force(texts, similarities, limits)
    assert sum(map(len, expected)) > 100
    for row, (anchors, near) in enumerate(zip(linked, expected, strict=True)):
        assert sorted(anchors.values(), reverse=True) == pytest.approx(near, abs=1e-5)
        for text, weight in anchors.items():
            assert weight == pytest.approx(similarities[row, texts.index(text)], abs=1e-5)


def test_texts_whose_nearest_are_duplicates_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "SPARE_NEIGHBOURS", 2)
    texts = [*(f"heron sloop{mark}" for mark in ("", "!", "?", ".")), "heron old", "new robin"]
    limits = SimilarSettings(min_similarity=0.05, max_similarity=1.0, top_k=1)
    counts = add_similar(_shop(texts, tmp_path), "near", limits)
    (count,) = (count for what, count in counts.items() if "duplicates" in what)
    assert count == 4


def test_nodes_of_a_dataset_are_tied_to_its_train_queries_and_ads(copied):
    counts = add_similar(copied, "near", SimilarSettings(top_k=4))
    dataset = Dataset(copied)
    assert errors_in(dataset) == []
    queries, ads, anchors = (
        column_of(dataset, table) for table in ("queries/train", "ads", "anchors/near")
    )
    assert counts["anchors/near"] == len(anchors) == len(set(anchors))
    assert set(anchors) <= {*queries, *ads}
    edges = dataset.read("edges/near/ad").to_pylist()
    linked = {
        node: [(e["anchor_id"], e["weight"]) for e in edges if e["ad_id"] == node]
        for node in range(40)
    }
    assert linked[33] == linked[38] == linked[39] != []
    for side, texts in (("query", queries), ("ad", ads)):
        for edge in dataset.read(f"edges/near/{side}").to_pylist():
            assert texts[edge[f"{side}_id"]] != anchors[edge["anchor_id"]]
    assert dataset.metadata["anchor_sets"]["near"]["settings"]["top_k"] == 4


def test_an_approximate_search_tells_its_recall(copied, encoder_path, monkeypatch):
    limits = SimilarSettings(encoder_path, top_k=4)
    assert not [what for what in add_similar(copied, "exact", limits) if "%" in what]
    monkeypatch.setattr(preparation, "MOST_EXACT_PRODUCTS", 1)
    monkeypatch.setattr("ramen_ray.method.retrieval.index.MOST_FLAT_ADS", 1)
    counts = add_similar(copied, "near", limits)
    exact, near = (edges_of(Dataset(copied), name, "ad") for name in ("exact", "near"))
    assert len(near & exact) > 0.9 * len(exact) > 100
    share = 100 * len(near & exact) / len(exact)
    # of all texts, not only ads, and before duplicates are left out
    assert counts["% of nearest texts found"] == pytest.approx(share, abs=8)


@pytest.mark.parametrize("wrong", [{"top_k": 0}, {"top_k": 1024}, {"min_similarity": 0.97}])
def test_settings_that_leave_nothing_are_refused(wrong):
    with pytest.raises(DatasetError, match=next(iter(wrong))):
        SimilarSettings(**wrong)
