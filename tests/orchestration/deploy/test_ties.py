"""Equally near ads come in one shuffle in evaluation, in served answers, and in predictions."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow.fs import LocalFileSystem
from stores import FLAT
from support import splitmix64

from ramen_ray.answering.retriever import Retriever
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.ground_truth import Propensity, evaluate, read_test_queries
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.retrieval.retriever_folder import keep_ads, write_retriever
from ramen_ray.orchestration.deploy.comparing import Answering
from ramen_ray.orchestration.deploy.predict import Answer, Work
from ramen_ray.orchestration.deploy.prediction_files import FILE, Answers, Asked, partitions

NUM_ADS = 40


@pytest.mark.parametrize("kinds_of_tokens", [1, 2], ids=["all equal", "many twins"])
def test_ties_are_broken_alike_everywhere_and_by_no_ads_place(
    kinds_of_tokens, prepared_bag, dataset_path, encoder_path, tmp_path
):
    encoder = build_bag(encoder_path)
    weights = encoder.token_embeddings.data
    weights[:] = torch.eye(weights.shape[1])[torch.arange(len(weights)) % kinds_of_tokens]
    model = DualEncoder(encoder)
    dataset = Dataset(dataset_path)
    folder = tmp_path / "retriever"
    write_retriever(folder, model, dataset, prepared_bag, FLAT)
    served = Retriever(folder)
    texts, ground_truth = read_test_queries(dataset, Propensity())

    answers = served.answer(texts, NUM_ADS).to_pydict()
    expected = []
    num_ties = 0
    for ids, scores in zip(answers["ad_ids"], answers["scores"], strict=True):
        near = dict(zip(map(int, ids), scores, strict=True))
        num_ties += NUM_ADS - len(set(scores))
        expected.append(sorted(range(NUM_ADS), key=lambda ad: (-near[ad], splitmix64(ad))))
        assert [int(ad) for ad in ids] == expected[-1]
    assert num_ties == len(texts) * (NUM_ADS - 1) if kinds_of_tokens == 1 else num_ties > 9
    for top_k in (1, 7):
        assert _ids(served.answer(texts, top_k)["ad_ids"]) == [row[:top_k] for row in expected]

    logged = SimpleNamespace(metadata={"dataset_fingerprint": dataset.fingerprint})
    answering = Answering(logged, served)
    found = answering.retrieve(texts, ground_truth.depth, answering.ads_of_rows(dataset))
    assert found[0].tolist() == expected
    metrics, shown = evaluate(model, prepared_bag, "test", Propensity())
    assert shown[0][:, :NUM_ADS].tolist() == ground_truth.shown(found)[0].tolist()
    assert metrics["R@10"] == pytest.approx(
        np.mean([np.isin(clicked, row[:10]).mean() for clicked, row in _wanted(dataset, shown)])
    )

    assert _predicted(folder, texts, tmp_path / "whole") == [row[:7] for row in expected]

    rows = np.setdiff1d(np.arange(NUM_ADS), expected[0][2:20:4])
    keep_ads(folder, rows)  # those after a removed one have other rows now
    left = [[ad for ad in row if ad in rows] for row in expected]
    assert _ids(Retriever(folder).answer(texts, len(rows))["ad_ids"]) == left
    assert _predicted(folder, texts, tmp_path / "fewer") == [row[:7] for row in left]


def _ids(lists):
    return [[int(ad) for ad in row] for row in lists.to_pylist()]


def _predicted(folder, texts, to):
    """Answer a table of queries with a retriever."""
    aside = to / "aside"
    aside.mkdir(parents=True)
    queries = str(to / "queries.parquet")
    pq.write_table(pa.table({"text": texts}), queries)
    answers = Answers(to, aside, partitions({queries: LocalFileSystem()}))
    Answer(Work(Asked(queries, 7), answers, folder), 1)({"partition": 0})
    return _ids(pq.read_table(to / FILE.format(0))["ad_ids"])


def _wanted(dataset, shown):
    rows = dataset.read("queries/test").sort_by("query_id")["ad_ids"].to_pylist()
    return zip(rows, shown[0], strict=True)
