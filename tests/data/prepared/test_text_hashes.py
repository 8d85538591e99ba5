"""Hashes of texts that somebody has made to be equal."""

from pathlib import Path

import numpy as np

from ramen_ray.data.prepared.hashing import hash_texts
from ramen_ray.data.prepared.tokens import TokenTable, write_hashes

ORIGINAL = [2100, 2200, 2300]
FORGED = [2221, 2294, 4039, 3351, 3312, 3542, 2025, 2782]
"""Found in seconds: sums of two words each, four of which add up to the original's sum."""


def _table(folder: Path, texts: list[list[int]]) -> Path:
    folder.mkdir()
    np.save(folder / "token_ids.npy", np.concatenate(texts).astype(np.uint16))
    np.save(folder / "offsets.npy", np.cumsum([0, *map(len, texts)]))
    return folder


def _hashes(folders: list[Path]) -> list[list[int]]:
    write_hashes(folders)
    return [TokenTable.open(folder).hashes.tolist() for folder in folders]


def test_a_text_that_was_made_to_have_the_hash_of_another_gets_one_of_its_own(tmp_path: Path):
    together = hash_texts(np.array(ORIGINAL + FORGED), np.array([0, 3, 11]))
    assert together[0] == together[1]
    ads = _table(tmp_path / "ads", [[7, 8], ORIGINAL, [9]])
    queries = _table(tmp_path / "queries", [ORIGINAL, FORGED, [9]])
    of_ads, of_queries = _hashes([ads, queries])
    assert len({*of_ads, *of_queries}) == 4
    assert of_queries[0] == of_ads[1]
    assert of_queries[2] == of_ads[2]


def test_texts_of_many_shares_are_told_apart_too(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("ramen_ray.data.prepared.tokens.TEXTS_PER_SHARE", 10)
    monkeypatch.setattr("ramen_ray.data.prepared.tokens.TEXTS_AT_ONCE", 7)
    others = [[number, number % 5] for number in range(100)]
    whole = _table(tmp_path / "whole", [*others, ORIGINAL, FORGED, *others])
    (hashes,) = _hashes([whole])
    assert len(set(hashes)) == 102
    assert hashes[:100] == hashes[102:]
