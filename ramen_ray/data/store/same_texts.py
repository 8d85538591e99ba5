"""When two texts count as the same, for imports, splits, graphs and checks alike."""

import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.store.dataset import Dataset

NULL_WORDS = (
    *("NULL", "Null", "null", "(null)", "#NULL!", "None", "NONE", "none", r"\N"),
    *("N/A", "n/a", "NA", "#N/A", "#NA", "<NA>", "NaN", "NAN", "nan", "NaT"),
    *("[NULL]", "<null>", "#VALUE!", "#REF!", "#NAME?", "#DIV/0!"),
)
"""What programs write for no text."""
INVISIBLE = "\xad\u200b\u2060\ufeff"
"""Soft hyphens, and what joins or parts words without a width: no one sees, or types, them."""
_ODD_SPACE = (
    r"^ | $|  |[\t-\r\x1c-\x1f\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}"
    rf"\x{{3000}}{INVISIBLE}]"
)
"""What is invisible, and white space other than single spaces between words; few texts have any."""


def normalized(texts: pa.Array) -> pa.Array:
    """Normalise texts (n,) to Unicode NFKC, with single spaces for white space, and trim them."""
    non_ascii = pc.fill_null(pc.invert(pc.string_is_ascii(texts)), False)
    # Arrow's own NFKC does not compose letters and accents: apache/arrow issue 51225
    composed = [unicodedata.normalize("NFKC", text) for text in texts.filter(non_ascii).to_pylist()]
    return _single_spaced(pc.replace_with_mask(texts, non_ascii, pa.array(composed, pa.string())))


def fold(texts: pa.Array) -> pa.Array:
    """Map texts (n,) that look alike but for case and white space to one string."""
    return pc.utf8_lower(_single_spaced(pc.utf8_normalize(texts, "NFKD")))


def alike(texts: pa.Array) -> Int64s:
    """Number texts (n,) as they come; those of the same words, whatever their order, are alike.

    Case, white space and punctuation do not count.
    """
    folded = fold(texts)
    bare = pc.replace_substring_regex(folded, r"[\pP\pS]", " ")
    words = [" ".join(sorted({*text.split()})) for text in bare.to_pylist()]
    keys = pc.if_else(pc.equal(words, ""), folded, pa.array(words, pa.string()))
    return np.asarray(keys.dictionary_encode().indices, dtype=np.int64)


def alike_queries(dataset: Dataset, split: str) -> Int64s:
    """Number the queries (queries,) of a split by :func:`alike`, in the order of their ids."""
    queries = dataset.read(f"queries/{split}").sort_by("query_id")
    return alike(queries["text"].combine_chunks())


def nearly(names: pa.Array) -> pa.Array:
    """Map names (n,) to one string that differ as in `fold`, in leading zeros or a final ``.0``."""
    whole = pc.replace_substring_regex(fold(names), r"\.0+$", "")
    return pc.replace_substring_regex(whole, "^0+", "")


def is_utf8(content: bytes) -> bool:
    """Return whether ``content`` is UTF-8."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def not_utf8(texts: pa.Array) -> Booleans:
    """Flag the texts (n,) whose bytes are not UTF-8, as parquet may have."""
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        contents = texts.cast(pa.large_binary()).to_pylist()
        return np.array([not is_utf8(content or b"") for content in contents])
    return np.zeros(len(texts), dtype=bool)


def _single_spaced(texts: pa.Array) -> pa.Array:
    odd = pc.match_substring_regex(texts, _ODD_SPACE)
    visible = pc.replace_substring_regex(texts.filter(odd), f"[{INVISIBLE}]", "")
    words = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(visible))
    return pc.replace_with_mask(texts, odd, pc.binary_join(words, " "))
