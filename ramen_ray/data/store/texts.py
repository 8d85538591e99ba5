"""When two texts count as the same: one answer for imports, splits, graphs and checks."""

import unicodedata

import pyarrow as pa
import pyarrow.compute as pc


def normalized(texts: pa.Array) -> pa.Array:
    """Bring texts (n,) into Unicode's form NFKC, trimmed, each run of white space one space."""
    spelt = pc.fill_null(pc.invert(pc.string_is_ascii(texts)), False)
    # Arrow's own NFKC leaves letters and their accents apart: apache/arrow issue 51225
    composed = [unicodedata.normalize("NFKC", text) for text in texts.filter(spelt).to_pylist()]
    return _single_spaced(pc.replace_with_mask(texts, spelt, pa.array(composed, pa.string())))


def fold(texts: pa.Array) -> pa.Array:
    """Make texts (n,) equal that differ in case, white space or Unicode's form only.

    A query must not stand in two splits under two such spellings, nor a held-out one in a graph.
    """
    return pc.utf8_lower(_single_spaced(pc.utf8_normalize(texts, "NFKD")))


def _single_spaced(texts: pa.Array) -> pa.Array:
    return pc.binary_join(pc.utf8_split_whitespace(pc.utf8_trim_whitespace(texts)), " ")
