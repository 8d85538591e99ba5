"""Tokenised texts on their way to the encoder: tokenise, gather, sort and cut into buckets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

MIN_TEXTS_PER_BUCKET = 64


def tokenize(
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    max_length: int,
    add_special_tokens: bool,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Tokenise ``texts``, each cut to ``max_length`` tokens.

    Returns:
        token ids (tokens,) int32 of all texts in order, and the token counts (texts,) int64. A text
        that gives no token at all is represented by the tokenizer's unknown (or padding) token.
    """
    encoded = tokenizer(
        list(texts),
        add_special_tokens=add_special_tokens,
        truncation=True,
        max_length=max_length,
        return_attention_mask=False,
        return_token_type_ids=False,
    )["input_ids"]
    placeholder = [tokenizer.unk_token_id or tokenizer.pad_token_id or 0]
    rows = [ids or placeholder for ids in encoded]
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    flat = np.fromiter((i for row in rows for i in row), dtype=np.int32, count=lengths.sum())
    return flat, lengths


@dataclass(frozen=True)
class TokenBatch:
    """Texts of one encoder pass, sorted by length.

    Attributes:
        token_ids: (tokens,) int64, one text after the other.
        lengths: (texts,) int64, ascending.
    """

    token_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def buckets(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (token ids (texts, longest), lengths (texts,)), padded to the bucket's longest.

        A bucket ends where the length changes and it holds enough texts to keep the device busy.
        """
        ends = np.cumsum(self.lengths)
        for start, stop in bucket_bounds(self.lengths):
            lengths = self.lengths[start:stop]
            first = ends[start] - lengths[0]
            padded = np.zeros((stop - start, lengths[-1]), dtype=np.int64)
            padded[np.arange(lengths[-1]) < lengths[:, None]] = self.token_ids[
                first : ends[stop - 1]
            ]
            yield padded, lengths


def bucket_bounds(
    lengths: NDArray[Any], min_texts: int = MIN_TEXTS_PER_BUCKET
) -> list[tuple[int, int]]:
    """Cut ascending ``lengths`` (n,) where they change, joining runs shorter than ``min_texts``."""
    changes = [*(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
    bounds: list[tuple[int, int]] = []
    start = 0
    for stop in changes:
        if stop - start >= min_texts:
            bounds.append((start, stop))
            start = stop
    if start < len(lengths):
        bounds.append((start, len(lengths)))
    return bounds
