"""Prepare texts for the encoder: tokenise, gather, sort and cut into buckets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

MIN_TEXTS_PER_BUCKET = 64
TEXTS_PER_COUNT = 1024
PADDING = 0  # a token that masks hide, so any will do


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer and its settings as plain values, from which tasks rebuild it.

    Attributes:
        definition: the tokenizer as JSON of the library ``tokenizers``.
        max_length: longer texts are cut to this many tokens, special ones included.
        add_special_tokens: whether texts get the special tokens that a transformer expects.
        placeholder: token id that stands for a text without tokens.
        vocab_size: number of token ids.
    """

    definition: str
    max_length: int
    add_special_tokens: bool
    placeholder: int
    vocab_size: int

    def __call__(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return all token ids (tokens,) int32 in order, and token counts (texts,) int64."""
        backend = _build_tokenizer(self.definition, self.max_length)
        encoded = backend.encode_batch_fast(list(texts), add_special_tokens=self.add_special_tokens)
        rows = [encoding.ids or [self.placeholder] for encoding in encoded]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        flat = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=lengths.sum())
        return flat, lengths


@lru_cache(maxsize=2)
def _build_tokenizer(definition: str, max_length: int) -> Tokenizer:
    tokenizer = Tokenizer.from_str(definition)
    tokenizer.enable_truncation(max_length)
    tokenizer.no_padding()
    return tokenizer


def count_tokens(tokenizer: TextTokenizer, texts: Sequence[str]) -> NDArray[np.int64]:
    """Return the token counts (texts,) int64; memory holds the tokens of few texts at a time."""
    starts = range(0, len(texts), TEXTS_PER_COUNT)
    return np.concatenate(
        [tokenizer(texts[start : start + TEXTS_PER_COUNT])[1] for start in starts]
    )


@dataclass(frozen=True)
class TokenBatch:
    """Texts of one encoder pass, sorted by length.

    Attributes:
        token_ids: (tokens,) int64, one text after another.
        lengths: (texts,) int64, ascending.
    """

    token_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def buckets(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (token ids (texts, longest), lengths (texts,)), padded to the bucket's longest.

        A bucket ends where the length changes and it has enough texts to keep the device busy.
        """
        ends = np.cumsum(self.lengths)
        for start, stop in bucket_bounds(self.lengths):
            lengths = self.lengths[start:stop]
            first = ends[start] - lengths[0]
            padded = np.full((stop - start, lengths[-1]), PADDING, dtype=np.int64)
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
