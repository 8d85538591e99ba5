"""Tokenising, and the buckets that an encoder pass is cut into."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizer

from ramen_ray.method.pretrained import text_tokenizer
from ramen_ray.method.texts import MIN_TEXTS_PER_BUCKET, TokenBatch, bucket_bounds

lengths_strategy = st.lists(st.integers(1, 5), min_size=1, max_size=400).map(sorted)


@given(lengths_strategy)
def test_buckets_hold_every_text_once_in_order_padded_to_their_longest(lengths):
    token_ids = np.arange(1, sum(lengths) + 1)
    ends = np.cumsum(lengths).tolist()
    expected = [token_ids[end - n : end].tolist() for n, end in zip(lengths, ends, strict=True)]
    found = []
    for padded, bucket_lengths in TokenBatch(token_ids, np.array(lengths)).buckets():
        assert padded.shape == (len(bucket_lengths), bucket_lengths.max())
        for row, length in zip(padded.tolist(), bucket_lengths.tolist(), strict=True):
            found.append(row[:length])
            assert not any(row[length:])
    assert found == expected


@given(lengths_strategy, st.integers(1, 100))
def test_buckets_end_where_the_length_changes_and_are_not_small(lengths, min_texts):
    bounds = bucket_bounds(np.array(lengths), min_texts)
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == len(lengths)
    for start, stop in bounds[:-1]:
        assert stop - start >= min_texts
        assert lengths[stop - 1] < lengths[stop]
        changes = [i + 1 for i, (a, b) in enumerate(pairwise(lengths)) if a < b]
        assert not [c for c in changes if start + min_texts <= c < stop]


def test_a_long_run_of_one_length_is_one_bucket_without_padding():
    lengths = np.repeat([2, 7], MIN_TEXTS_PER_BUCKET)
    batch = TokenBatch(np.ones(lengths.sum(), dtype=np.int64), lengths)
    assert [padded.shape[1] for padded, _ in batch.buckets()] == [2, 7]


@pytest.mark.parametrize("special", [True, False])
def test_tokenize_equals_one_text_at_a_time(encoder_path: Path, special: bool):
    tokenizer = AutoTokenizer.from_pretrained(encoder_path)
    texts = ["old robin", "ships - northern sloops and ketch", "heron " * 20, "漢字 robin"]
    limit = 6
    expected = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    expected = [row[: limit - 2 if special else limit] for row in expected]
    if special:
        expected = [[tokenizer.cls_token_id, *row, tokenizer.sep_token_id] for row in expected]
    token_ids, lengths = text_tokenizer(tokenizer, limit, special)(texts)
    assert token_ids.dtype == np.int32
    assert lengths.tolist() == [len(row) for row in expected]
    assert token_ids.tolist() == [token for row in expected for token in row]


@pytest.mark.parametrize("max_length", [4, 5, 16])
@pytest.mark.parametrize("special", [True, False])
def test_no_text_is_longer_than_max_length(encoder_path: Path, max_length: int, special: bool):
    tokenizer = AutoTokenizer.from_pretrained(encoder_path)
    _, lengths = text_tokenizer(tokenizer, max_length, special)(["heron " * 40, "old"])
    assert lengths.max() <= max_length


@pytest.mark.parametrize("unknown", [0, 1])
def test_a_text_without_tokens_becomes_the_unknown_token(unknown: int):
    special = ["[UNK]", "[PAD]"] if unknown == 0 else ["[PAD]", "[UNK]"]
    words = [*special, "[CLS]", "[SEP]", "[MASK]", "robin"]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    token_ids, lengths = text_tokenizer(tokenizer, 4, False)(["\u200b", "robin", "\u00ad"])
    assert lengths.tolist() == [1, 1, 1]
    assert token_ids.tolist() == [unknown, 5, unknown]
