"""Texts of one encoder pass, side by side in rows: hardly any padding, and few large products.

A text attends only to itself (Krell et al., 2021). Shapes: N texts, R rows of width W.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import ragged_positions
from ramen_ray.method.model.texts import TokenBatch

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
        own = widths == width
        yield _pack(batch, starts, texts[own], rows[own])


def _filled_rows(lengths: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Fill rows: each gets the longest texts that are left, then the shortest that still fit.

    Returns the texts (N,) of a batch in the order of their rows, the row of each, and its width.
    """
    ends, longest = [0, *lengths.cumsum().tolist()], lengths.tolist()
    low, high = 0, len(lengths)
    starts, counts, widths = [], [], []
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
        low, high = last, first
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
    numbers, lengths = texts[by_number], lengths[by_number]
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
