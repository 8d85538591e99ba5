"""Texts as tokens: what a tokenizer makes of many, and the batch that an encoder takes, in rows.

Texts of one pass lie side by side in rows, each attending only to itself (Krell et al., 2021):
hardly any padding, and few large products. Shapes: N texts, R rows of width W.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ramen_ray.data.arrays import Int64s, hash_texts, ragged_positions
from ramen_ray.data.prepared.folder import TextFigures

TEXTS_PER_COUNT = 1024
BERTS = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer", "model": "WordPiece"}

Tokens = tuple[NDArray[np.int32], NDArray[np.int64]]
"""All token ids (tokens,) in order, and token counts (texts,)."""


class Prompts(NamedTuple):
    """What stands before the texts of queries, and before those of ads and anchors."""

    query: str = ""
    ad: str = ""

    def of(self, table: str) -> str:
        """Return what stands before the texts of a table of a dataset."""
        return self.query if table.startswith("queries/") else self.ad


NO_PROMPTS = Prompts()


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer and its settings as plain values, from which tasks rebuild it."""

    definition: str  # the tokenizer as JSON of the library ``tokenizers``
    max_length: int  # longer texts are cut to this many tokens, special ones and prompts included
    add_special_tokens: bool
    placeholder: int  # token id that stands for a text without tokens
    vocab_size: int
    # token id for what the vocabulary does not have; None if it has everything
    unknown: int | None = None
    prompts: Prompts = NO_PROMPTS

    @property
    def num_special(self) -> int:
        """How many special tokens each text has."""
        return sum(map(len, self.special_tokens))

    @property
    def special_tokens(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after those of any text."""
        return _special_tokens(self.definition) if self.add_special_tokens else ([], [])

    def __call__(self, texts: pa.StringArray | Sequence[str], prompt: str = "") -> Tokens:
        """Return all token ids (tokens,) int32 in order, and token counts (texts,) int64."""
        texts = pa.array(texts, pa.string())
        if prompt:
            texts = pc.binary_join_element_wise(prompt, texts, "")
        # Words repeat far more than texts: a tokenizer that goes by words sees each word once.
        if not _is_by_words(self.definition):
            backend = _build_tokenizer(self.definition, self.max_length)
            return _encode(backend, texts, [self.placeholder], self.add_special_tokens)
        backend = _build_tokenizer(self.definition, None)
        words = pc.split_pattern(texts, " ")
        tokens = _encode(backend, words.flatten(), [], add_special_tokens=False)
        return self._join(tokens, np.append(0, pc.list_value_length(words).to_numpy().cumsum()))

    def _join(self, words: Tokens, bounds: NDArray[np.int64]) -> Tokens:
        """Join the tokens of words into texts, which begin at the words ``bounds`` (texts + 1,)."""
        token_ids, lengths = words
        starts = np.append(0, lengths.cumsum())[bounds]
        before, after = self.special_tokens
        kept = np.minimum(np.diff(starts), self.max_length - len(before) - len(after))
        lengths = np.maximum(len(before) + kept + len(after), 1)
        joined = np.full(lengths.sum(), self.placeholder, dtype=np.int32)
        first = lengths.cumsum() - lengths + len(before)
        joined[ragged_positions(first, kept)] = token_ids[ragged_positions(starts[:-1], kept)]
        for place, token in enumerate(before, -len(before)):
            joined[first + place] = token
        for place, token in enumerate(after):
            joined[first + kept + place] = token
        return joined, lengths


def _encode(
    tokenizer: Tokenizer, texts: pa.StringArray, if_none: list[int], add_special_tokens: bool
) -> Tokens:
    """Tokenise texts, each distinct one once; ``if_none`` stands for no tokens."""
    coded = texts.dictionary_encode()
    distinct = coded.dictionary.to_pylist()
    numbers = coded.indices.to_numpy()
    encoded = tokenizer.encode_batch_fast(distinct, add_special_tokens=add_special_tokens)
    rows = [encoding.ids or if_none for encoding in encoded]
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    token_ids = np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=lengths.sum())
    starts = lengths.cumsum() - lengths
    return token_ids[ragged_positions(starts[numbers], lengths[numbers])], lengths[numbers]


@lru_cache(maxsize=2)
def _build_tokenizer(definition: str, max_length: int | None) -> Tokenizer:
    tokenizer = Tokenizer.from_str(definition)
    tokenizer.no_padding()
    if max_length is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(max_length)
    return tokenizer


@lru_cache(maxsize=2)
def _is_by_words(definition: str) -> bool:
    """Say whether a tokenizer is BERT's: a word between spaces has the same tokens in any text."""
    parts = json.loads(definition)
    kinds = [(parts[name] or {}).get("type") for name in BERTS]
    return kinds == [*BERTS.values()] and not any(
        " " in added["content"] for added in parts["added_tokens"]
    )


@lru_cache(maxsize=2)
def _special_tokens(definition: str) -> tuple[list[int], list[int]]:
    """Return the tokens that come before and after those of any text."""
    encoded = _build_tokenizer(definition, None).encode("a")
    text_places = np.flatnonzero(np.equal(encoded.special_tokens_mask, 0))
    first = text_places[0] if len(text_places) else len(encoded.ids)
    return encoded.ids[:first], encoded.ids[first + len(text_places) :]


def measure_tokens(
    tokenizer: TextTokenizer, texts: Sequence[str], max_length: int
) -> tuple[NDArray[np.int64], TextFigures]:
    """Count the tokens of texts; memory holds those of few texts at a time.

    ``tokenizer`` does not cut texts, but they are cut to ``max_length`` before they are compared.
    Returns the token counts (texts,) int64 before that, and figures of the texts.
    """
    num_after = len(tokenizer.special_tokens[1])
    lengths = [np.empty(0, np.int64)]
    hashes = [np.empty(0, np.uint64)]
    unknown = 0
    for start in range(0, len(texts), TEXTS_PER_COUNT):
        tokens, counts = tokenizer(texts[start : start + TEXTS_PER_COUNT])
        unknown += int(np.count_nonzero(tokens == tokenizer.unknown))
        kept = np.minimum(counts, max_length) - num_after
        positions = ragged_positions(counts.cumsum() - counts, kept)
        hashes.append(hash_texts(tokens[positions], np.append(0, kept.cumsum())))
        lengths.append(counts)
    counts = np.concatenate(lengths)
    num_tokens = int(counts.sum()) - tokenizer.num_special * len(counts)
    return counts, TextFigures.of(np.concatenate(hashes), num_tokens, unknown)


@dataclass(frozen=True)
class TokenBatch:
    """Texts of one encoder pass, sorted by length."""

    token_ids: NDArray[np.int64]  # (tokens,) int64, one text after another
    lengths: NDArray[np.int64]  # (texts,) int64, ascending

    def take(self, places: Int64s) -> "TokenBatch":
        """Return the texts at ascending ``places`` (n,)."""
        lengths = self.lengths[places]
        starts = self.lengths.cumsum() - self.lengths
        return TokenBatch(self.token_ids[ragged_positions(starts[places], lengths)], lengths)


LEAST_WIDTH = 64  # wide enough to be filled well, and narrow enough for attention to cost little
PADDING = 0  # no token of a text attends to it, so any will do


@dataclass(frozen=True)
class PackedTexts:
    """Texts in rows of one width, and where their tokens are; all int64."""

    numbers: Int64s  # (N,) which texts of the batch these are, ascending
    lengths: Int64s  # (N,) the tokens of each
    token_ids: Int64s  # (R, W) PADDING where there is no text
    texts: Int64s  # (R, W) which of the N texts a token belongs to; -1 for padding
    positions: Int64s  # (R, W) the position of a token in its text; 0 for padding
    places: Int64s  # (tokens,) row times W plus column of each token, one text after another


def packed(batch: TokenBatch, side_by_side: bool = True) -> Iterator[PackedTexts]:
    """Yield the texts of a batch, in one row each or side by side, rows of one width together."""
    texts = rows = np.arange(len(batch.lengths))
    widths = np.full(len(rows), batch.lengths.max(initial=0))
    if side_by_side:
        texts, rows, widths = _filled_rows(batch.lengths)
    starts = batch.lengths.cumsum() - batch.lengths
    for width in np.unique(widths):
        has_width = widths == width
        yield _pack(batch, starts, texts[has_width], rows[has_width])


def _filled_rows(lengths: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Fill rows: each gets the longest texts that are left, then the shortest that still fit.

    Returns the texts (N,) of a batch in the order of their rows, the row of each, and its width.
    """
    ends = [0, *lengths.cumsum().tolist()]
    longest = lengths.tolist()
    low = 0
    high = len(lengths)
    starts = []
    counts = []
    widths = []
    while low < high:
        width = LEAST_WIDTH
        # at least half as wide again as the longest text, so that others fit beside it
        while 2 * width < 3 * longest[high - 1]:
            width *= 2
        first = bisect_left(ends, ends[high] - width, low, high)
        free = width - (ends[high] - ends[first])
        last = bisect_right(ends, ends[low] + free, low, first + 1) - 1
        starts += [first, low]
        counts += [high - first, last - low]
        widths += [width, width]
        low = last
        high = first
    texts = ragged_positions(np.array(starts), np.array(counts))
    return texts, np.repeat(np.arange(len(counts)) // 2, counts), np.repeat(widths, counts)


def _pack(batch: TokenBatch, starts: Int64s, texts: Int64s, rows: Int64s) -> PackedTexts:
    """Lay out ``texts`` (N,) in the given ``rows`` (N,), which become as wide as the fullest."""
    lengths = batch.lengths[texts]
    ends = lengths.cumsum()
    is_first = np.diff(rows, prepend=-1) > 0
    row = is_first.cumsum() - 1
    columns = ends - lengths - (ends - lengths)[is_first][row]
    shape = (int(row[-1]) + 1, int((columns + lengths).max()))
    by_number = np.argsort(texts)
    numbers = texts[by_number]
    lengths = lengths[by_number]
    places = ragged_positions((row * shape[1] + columns)[by_number], lengths)

    def filled(values: Int64s, padding: int) -> Int64s:
        whole = np.full(shape, padding, dtype=np.int64)
        whole.reshape(-1)[places] = values
        return whole

    return PackedTexts(
        numbers,
        lengths,
        filled(batch.token_ids[ragged_positions(starts[numbers], lengths)], PADDING),
        filled(np.repeat(np.arange(len(lengths)), lengths), -1),
        filled(ragged_positions(np.zeros_like(lengths), lengths), 0),
        places,
    )
