"""Hashes of equal and of other texts."""

from itertools import chain

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ramen_ray.data.arrays import HashIndex, hash_strings, hash_texts

WORD = 1 << 64
texts_strategy = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=1)


@given(texts_strategy, texts_strategy)
def test_texts_hash_equally_exactly_when_they_are_equal(texts, others):
    tokens = np.array([*chain(*texts, *others)], dtype=np.uint16)
    offsets = np.cumsum([0, *map(len, texts + others)])
    middle = offsets[len(texts)]
    here = hash_texts(tokens[:middle], offsets[: len(texts) + 1]).tolist()
    there = hash_texts(tokens[middle:].astype(np.int32), offsets[len(texts) :]).tolist()
    for text, hashed in zip(texts, here, strict=True):
        for other, other_hashed in zip(others, there, strict=True):
            assert (text == other) == (hashed == other_hashed)


@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), max_size=20))
def test_string_hashes_are_equal_exactly_for_equal_strings(strings):
    hashes = hash_strings(pa.array(strings, pa.string())).tolist()
    texts = [text or "" for text in strings]
    assert len(set(hashes)) == len(set(texts)) == len(set(zip(hashes, texts, strict=True)))
    assert hash_strings(pa.array(["x", *strings], pa.string())[1:]).tolist() == hashes


hashes_strategy = st.lists(st.integers(0, 9) | st.integers(WORD - 9, WORD - 1), max_size=20)


@given(hashes_strategy, hashes_strategy)
def test_rows_are_found_by_hash_as_by_a_loop(known, asked):
    known_hashes, asked_hashes = (np.array(one, dtype=np.uint64) for one in (known, asked))
    index = HashIndex.from_hashes(known_hashes)
    pairs = [(n, row) for n, one in enumerate(asked) for row, own in enumerate(known) if own == one]
    assert [*zip(*map(np.ndarray.tolist, index.all(asked_hashes)), strict=True)] == pairs
