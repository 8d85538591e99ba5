"""Texts that people cannot tell apart, or cannot see at all."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.findings import Finding, Tally
from ramen_ray.data.prepared.hashing import find, hash_strings
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.texts import fold
from ramen_ray.data.validation.batches import positions, readable, table_batches

_INVISIBLE = r"^[\s\pZ\p{Cf}]*\p{Cf}[\s\pZ\p{Cf}]*$"
"""Only zero-width and other formatting characters, with or without white space."""


def invisible_texts(dataset: Dataset, table: str) -> list[Finding]:
    """Find texts of formatting characters alone."""
    advice = "give it a text, or leave it out"
    tally = Tally("warning", "text without a visible character", advice, "text")
    for batch in table_batches(dataset, table, ["text"]):
        texts = readable(batch.rows.column(0))
        found = positions(pc.match_substring_regex(texts, _INVISIBLE))
        tally.add(batch.file, batch.first_row + found, texts.take(pa.array(found)))
    return tally.findings(out_of=dataset.num_rows(table))


def ads_in_several_spellings(dataset: Dataset, num_ads: int) -> list[Finding]:
    """Find ads whose texts are those of earlier ones but for case, white space or Unicode form.

    Ads of equal text are left to another check.
    """
    spellings = np.empty((num_ads, 2), dtype=np.uint64)  # of the folded text, of the text
    filled = 0
    for batch in table_batches(dataset, "ads", ["text"]):
        texts = readable(batch.rows.column(0))
        rows = slice(filled, filled + len(texts))
        spellings[rows, 0], spellings[rows, 1] = hash_strings(fold(texts)), hash_strings(texts)
        filled += len(texts)
    spellings = np.unique(spellings[:filled], axis=0)
    folded, counts = np.unique(spellings[:, 0], return_counts=True)
    several = folded[counts > 1]
    advice = "users cannot tell these ads apart; merge them, or make their texts differ"
    message = "text that an earlier ad has, up to case and white space"
    tally = Tally("warning", message, advice, "text")
    seen: dict[int, set[int]] = {}
    for batch in table_batches(dataset, "ads", ["text"]) if len(several) else ():
        texts = readable(batch.rows.column(0))
        place, exact = find(hash_strings(fold(texts)), several), hash_strings(texts)
        again = []
        for row in np.flatnonzero((place >= 0) & np.asarray(texts.is_valid())).tolist():
            known = seen.setdefault(int(place[row]), set())
            if known and int(exact[row]) not in known:
                again.append(row)
            known.add(int(exact[row]))
        found = np.array(again, dtype=np.int64)
        tally.add(batch.file, batch.first_row + found, texts.take(pa.array(found)))
    return tally.findings(out_of=num_ads)
