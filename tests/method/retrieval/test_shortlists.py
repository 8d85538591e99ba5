"""Shortlists, and the hard negatives that are drawn from them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support import rows_of

from ramen_ray.data.arrays import map_array
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.retrieval.shortlists import write_shortlists
from ramen_ray.method.sampling.batches import draw_hard_negatives


def test_shortlists_are_the_nearest_ads_without_the_positives_and_the_own_text(
    prepared_bag, encoder_path, tmp_path
):
    encoder = DualEncoder(build_bag(encoder_path))
    data = prepared_bag
    write_shortlists(encoder, data, 12, tmp_path / "shortlists.npy")
    shortlists = map_array(tmp_path / "shortlists.npy")
    queries = encoder.embed_texts(data.queries["train"], np.arange(len(shortlists)))
    ads = encoder.embed_texts(data.ads, np.arange(len(data.ads)))
    assert shortlists.dtype == np.int32
    assert isinstance(shortlists.base, np.memmap)
    own_texts = 0
    for row, clicked in enumerate(rows_of(data.clicks["train"])):
        own = np.flatnonzero(data.ads.hashes == data.queries["train"].hashes[row]).tolist()
        own_texts += len(own)
        clicked = [*clicked, *own]
        similarity = ads @ queries[row]
        best = np.sort(similarity)[::-1][:12]
        found = shortlists[row][shortlists[row] >= 0]
        assert not set(found.tolist()) & set(clicked)
        assert similarity[found] == pytest.approx(np.sort(similarity[found])[::-1], abs=1e-5)
        assert (similarity[found] >= best[-1] - 1e-5).all()
        surely = set(np.flatnonzero(similarity > best[-1] + 1e-5).tolist()) - set(clicked)
        assert surely <= set(found.tolist())
        assert (shortlists[row][len(found) :] == -1).all()
    assert (shortlists == -1).any()
    assert own_texts


@given(
    arrays(np.int32, (6, 5), elements=st.integers(0, 30), unique=True),
    st.lists(st.integers(0, 5), min_size=6, max_size=6),
    st.integers(1, 5),
    st.integers(0, 9),
)
def test_hard_negatives_are_distinct_and_from_the_shortlist(ads, lengths, count, epoch):
    shortlists = np.where(np.arange(5) < np.array(lengths)[:, None], ads, -1)
    rows = np.array([4, 0, 2])
    ids = np.array([40, 7, 13])
    drawn = draw_hard_negatives(shortlists, rows, ids, count, (0, epoch))
    alone = draw_hard_negatives(shortlists, rows[1:2], ids[1:2], count, (0, epoch))
    assert alone.tolist() == drawn[1:2].tolist()
    for row, found in zip(rows.tolist(), drawn.tolist(), strict=True):
        present = [ad for ad in found if ad >= 0]
        assert len(present) == len(set(present)) == min(count, lengths[row])
        assert set(present) <= set(shortlists[row].tolist())


def test_hard_negatives_are_drawn_uniformly():
    shortlists = np.array([[5, 2, 9, 4]], dtype=np.int32)
    drawn = [
        draw_hard_negatives(shortlists, np.zeros(200, int), np.arange(200), 2, (0, epoch))
        for epoch in range(20)
    ]
    ads, counts = np.unique(np.concatenate(drawn), return_counts=True)
    assert ads.tolist() == [2, 4, 5, 9]
    assert counts == pytest.approx(np.full(4, 2000), rel=0.1)
