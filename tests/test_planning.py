"""The plan against what it plans: prepared files, walked graphs, indexes and encoders."""

import faiss
import numpy as np
import pytest
import torch
from conftest import TOPICS
from support import node_edges, prepare_in_process, query_table, text_table
from transformers import DistilBertConfig, DistilBertModel

from jobs import plan
from ramen_ray.config import EncoderConfig
from ramen_ray.data.store.dataset import write_dataset
from ramen_ray.method.retrieval.index import filled_index
from ramen_ray.orchestration.run.build import build_encoder
from ramen_ray.planning import ENCODERS, Sizes, index_bytes, prepared_bytes
from ramen_ray.presets import MINILM

QUERIES = 1_000
ADS = 500
ANCHORS = 700
EDGES = 3


def test_prepared_bytes_are_those_of_the_files(encoder_path, tmp_path):
    draw = np.random.default_rng(0)
    words = [word for topic in TOPICS.values() for word in topic]

    def texts(word, count):
        places = len(words) ** np.arange(3)
        rows = np.arange(count)[:, None] // places % len(words)
        return [f"{word} {' '.join(words[digit] for digit in row)}" for row in rows]

    def lists(count, limit, most):
        return [draw.choice(limit, most, replace=False).tolist() for _ in range(count)]

    tables = {
        "ads": text_table("ad_id", texts("old", ADS)),
        "anchors/links": text_table("anchor_id", texts("small", ANCHORS)),
        "queries/train": query_table(texts("new", QUERIES), lists(QUERIES, ADS, 2)),
        "queries/validation": query_table(["raven"], [[0]]),
        "queries/test": query_table(["stork"], [[0]]),
    }
    for side, count in (("query", QUERIES), ("ad", ADS)):
        linked = lists(count, ANCHORS, EDGES)
        weights = [draw.random(EDGES) + 0.5 for _ in linked]
        tables[f"edges/links/{side}"] = node_edges(f"{side}_id", linked, weights)
    dataset = write_dataset(tmp_path / "made", tables, name="made")
    data = prepare_in_process(dataset, tmp_path / "prepared", encoder_path, 16, False)
    token_tables = data.queries["train"], data.ads, data.anchors("links")
    num_tokens = sum(len(table.token_ids) for table in token_tables)
    sizes = Sizes(QUERIES, ADS, 2 * QUERIES, 1, (ANCHORS,), EDGES)
    sizes = sizes._replace(tokens=num_tokens / sizes.texts)
    left_out = {"validation", "test", "filters", "novel_ads.npy", "occurring_tokens.npy"}
    files = [
        file
        for file in data.path.rglob("*.npy")
        if not left_out & {*file.relative_to(data.path).parts}
    ]
    on_disk = sum(file.stat().st_size - 128 for file in files)
    assert prepared_bytes(sizes) == pytest.approx(on_disk, rel=0.01)


@pytest.mark.parametrize(("kind", "ads"), [("flat", 2_000), ("hnsw", 2_000), ("ivf_pq", 10_000)])
def test_an_index_is_as_large_as_planned(kind, ads):
    vectors = np.random.default_rng(0).standard_normal((ads, 16), dtype=np.float32)
    written = faiss.serialize_index(filled_index(kind, vectors)).nbytes
    assert index_bytes(ads, 16, kind) == pytest.approx(written, rel=0.05)


def test_encoders_have_as_many_weights_as_planned():
    with torch.device("meta"):
        distilbert = DistilBertModel(DistilBertConfig())
    bag = build_encoder(EncoderConfig(kind="bag", pretrained=MINILM))
    minilm = build_encoder(EncoderConfig(pretrained=MINILM))
    for name, model in {"bag": bag, "minilm": minilm, "distilbert": distilbert}.items():
        weights = sum(parameter.numel() for parameter in model.parameters())
        assert ENCODERS[name][1] == pytest.approx(weights, rel=0.02)
    assert ENCODERS["minilm"][0] == minilm.dim


def test_the_job_adds_up_each_stage(done):
    flags = "--queries 540M --ads 360M --anchors 900M --edges-per-node 40"
    training, walks, pruning, *_ = done(plan, *flags.split()).splitlines()
    assert training.startswith("training: 960.1 GB (prepared arrays 512.6, walked graph 115.2")
    assert walks.startswith("walks: 309.6 GB")
    assert pruning.startswith("pruning: 2,764.8 GB")
