"""Prepare texts for the encoder: tokenise, gather and sort."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ramen_ray.data.prepared.csr import ragged_positions

TEXTS_PER_COUNT = 1024
BERT_KINDS = ["BertNormalizer", "BertPreTokenizer", "WordPiece"]


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

    def __call__(
        self, texts: pa.StringArray | Sequence[str]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return all token ids (tokens,) int32 in order, and token counts (texts,) int64."""
        built = _build(self.definition)
        parts, counts = built.split(pa.array(texts, pa.string()))
        encoded = parts.dictionary_encode()
        token_ids, starts = built.encode(encoded.dictionary.to_pylist())
        of_part = encoded.indices.to_numpy()
        lengths = np.diff(starts)[of_part]
        uncut = token_ids[ragged_positions(starts[of_part], lengths)]
        text_ends = np.append(0, lengths.cumsum())[np.append(0, counts.cumsum())]
        before, after = built.special if self.add_special_tokens else ([], [])
        kept = np.minimum(np.diff(text_ends), self.max_length - len(before) - len(after))
        lengths = np.maximum(len(before) + kept + len(after), 1)
        ends = lengths.cumsum()
        tokens = np.full(lengths.sum(), self.placeholder, dtype=np.int32)
        first = ends - lengths + len(before)
        tokens[ragged_positions(first, kept)] = uncut[ragged_positions(text_ends[:-1], kept)]
        for place, token in enumerate(before, -len(before)):
            tokens[first + place] = token
        for place, token in enumerate(after):
            tokens[first + kept + place] = token
        return tokens, lengths


@dataclass(frozen=True)
class _Built:
    """A tokenizer without its settings.

    Attributes:
        tokenizer: cuts and pads nothing.
        by_words: whether words between spaces get the same tokens alone as within a text.
        special: the special tokens before and after a text's own.
    """

    tokenizer: Tokenizer
    by_words: bool
    special: tuple[list[int], list[int]]

    def split(self, texts: pa.StringArray) -> tuple[pa.StringArray, NDArray[np.int64]]:
        """Cut texts into parts to encode; returns these and how many each text (texts,) has."""
        if not self.by_words:
            return texts, np.ones(len(texts), dtype=np.int64)
        words = pc.split_pattern(texts, " ")
        return words.flatten(), pc.list_value_length(words).to_numpy().astype(np.int64)

    def encode(self, parts: list[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return all token ids (tokens,) in order, and where each part starts (parts + 1,)."""
        encoded = self.tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        rows = [encoding.ids for encoding in encoded]
        starts = np.append(0, np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)).cumsum())
        return np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=starts[-1]), starts


@lru_cache(maxsize=2)
def _build(definition: str) -> _Built:
    tokenizer = Tokenizer.from_str(definition)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encoded = tokenizer.encode("a")
    own = np.flatnonzero(np.equal(encoded.special_tokens_mask, 0))
    special = encoded.ids[: own[0]], encoded.ids[own[-1] + 1 :]
    return _Built(tokenizer, _is_by_words(json.loads(definition)), special)


def _is_by_words(definition: dict[str, Any]) -> bool:
    """Say whether a tokenizer is BERT's, which looks at no two words at once."""
    kinds = [(definition[part] or {}).get("type") for part in ("normalizer", "pre_tokenizer", "model")]
    added = [token["content"] for token in definition["added_tokens"]]
    return kinds == BERT_KINDS and not any(" " in content for content in added)


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
