"""Prepare texts for the encoder: tokenise, gather and sort."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

TEXTS_PER_COUNT = 1024


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
