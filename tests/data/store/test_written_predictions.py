"""Predictions as people read them, against plain loops."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from random_datasets import kind_of, random_dataset

from ramen_ray.data.store.predictions import Known, write_predictions


@settings(max_examples=8)
@given(st.integers(0, 999), st.integers(1, 20))
def test_predictions_are_written_as_people_read_them(seed, k):
    draw = np.random.default_rng(seed)
    with TemporaryDirectory() as folder:
        dataset = random_dataset(Path(folder) / "dataset", seed, 12)
        ads = np.stack([draw.permutation(20) for _ in range(8)])[:, :k]
        scores = draw.random(ads.shape, dtype=np.float32)
        order = np.argsort(ads >= 12, axis=1, kind="stable")
        ads = np.take_along_axis(np.where(ads < 12, ads, -1), order, 1)
        file = Path(folder) / "predictions.parquet"
        file.write_text("of an earlier run")
        is_head = draw.random(12) < 0.5
        groups = {"head": is_head, "tail": ~is_head}
        known = Known(draw.random(8) < 0.5, draw.integers(0, 9, 12), groups)
        write_predictions(file, dataset, "test", (ads, scores), known)
        written = pq.read_table(file).to_pylist()
        rows = dataset.read("queries/test").to_pylist()
        assert sorted(path.name for path in Path(folder).iterdir()) == ["dataset", file.name]
    expected = [
        {
            "query_id": f"user's test {query}",
            "query": f"test {query}",
            "rank": place + 1,
            "ad_id": f"user's ad {ads[query, place]}",
            "ad": f"ad {ads[query, place]}",
            "score": float(scores[query, place]),
            "hit": ads[query, place] in clicked,
            "clicked_ads": [f"ad {ad}" for ad in clicked],
            "seen": bool(known.seen[query]),
            "train_clicks": known.train_clicks[ads[query, place]],
            "group": "head" if is_head[ads[query, place]] else "tail",
            "filter_kind": kind_of(ads[query, place]),
            "clicked_filter_kind": [kind_of(ad) for ad in clicked],
        }
        for query, clicked in ((row["query_id"], row["ad_ids"]) for row in rows)
        for place in range(k)
        if ads[query, place] >= 0
    ]
    assert written == expected
