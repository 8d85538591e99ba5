"""Files with the texts of queries, ads or anchors: one raw text or JSON object per line."""

import gzip
import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy import sparse

from ramen_ray.data.arrays import UInt64s
from ramen_ray.data.findings import Finding, Kind, Tallies, Tally, error_at, raise_errors
from ramen_ray.data.prepared.hashing import hash_strings
from ramen_ray.data.store.lists import list_entries
from ramen_ray.data.store.texts import NULL_WORDS, fold
from ramen_ray.data.tables.reading.cells import as_strings
from ramen_ray.data.tables.reading.json_lines import Types, fields_of, parse_objects
from ramen_ray.data.tables.reading.lines import (
    STRANGE,
    WINDOWS_1252,
    Block,
    Rows,
    read_blocks,
)
from ramen_ray.data.xc.matrices import build_matrix

log = logging.getLogger(__name__)

MAX_DAMAGED_LINES = 10
MAX_DAMAGED_SHARE = 0.01
_CLICKS: Types = {"target_ind": pa.list_(pa.int64()), "target_rel": pa.list_(pa.float32())}
_DAMAGE = (OSError, EOFError, zlib.error)
_ROWS_AT_ONCE = 8192
_NULL_WORD = Kind(
    "text that may stand for none",
    "if these lines have no text, make them empty, so that they are left out",
    "text",
    "warning",
)


@dataclass(frozen=True)
class TextFile:
    """A file of texts; a text's id is the number of its line, from 0.

    Attributes:
        path: JSON objects if the name contains ``.json``, gzipped if it ends in ``.gz``; else raw.
        source_ids: file with the users' own ids, one per line; in JSON they are ``uid``.
        with_content: whether the text of a JSON object is its title and content, or only its title.
    """

    path: Path
    source_ids: Path | None = None
    with_content: bool = False

    def batches(self, faults: Tallies | None = None) -> Iterator[pa.Table]:
        """Read the columns ``text`` and, if the file has ids, ``source_id``.

        What was odd about the file's bytes is added to ``faults``.

        Raises:
            DatasetError: the file is damaged or malformed; names the line.
        """
        if ".json" in self.path.suffixes:
            yield from self._json_batches(faults)
            return
        texts = _even_batches(_read_texts(self.path, faults))
        if self.source_ids is None:
            yield from (pa.table({"text": batch}) for batch in texts)
            return
        for text, source_id in _paired(texts, _even_batches(_read_texts(self.source_ids)), self):
            yield pa.table({"text": text, "source_id": source_id})

    def clicks(self, num_ads: int) -> sparse.csr_array:
        """Read the ads (``target_ind``) and their weights (``target_rel``) from JSON objects.

        Raises:
            DatasetError: an object has no list of ads, or an ad is out of range; names the line.
        """
        lengths = [np.empty(0, dtype=np.int64)]
        indices, values = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.float32)]
        for rows in _read_json(self.path, _CLICKS, ("target_ind",)):
            counts, ad_ids, weights = _click_lists(self.path, rows)
            lengths.append(counts)
            indices.append(ad_ids)
            values.append(weights)
        of_rows, entries = np.concatenate(lengths), np.concatenate(indices)
        order = np.lexsort((entries, np.repeat(np.arange(len(of_rows)), of_rows)))
        sorted_entries = of_rows, entries[order], np.concatenate(values)[order]
        return build_matrix(self.path, sorted_entries, (len(of_rows), num_ads), first_row=1)

    def _json_batches(self, faults: Tallies | None) -> Iterator[pa.Table]:
        first = next(_blocks(self.path), None)
        has_uid = first is not None and "uid" in fields_of(first.data)
        types: dict[str, pa.DataType | None] = {"title": pa.string()}
        types |= {"content": pa.string()} if self.with_content else {}
        types |= {"uid": None} if has_uid else {}
        required = ("title", "uid") if has_uid else ("title",)
        for rows in _read_json(self.path, types, required, faults):
            texts = rows.cells["title"]
            if self.with_content:
                content = pc.fill_null(rows.cells["content"], "")
                texts = pc.utf8_trim_whitespace(pc.binary_join_element_wise(texts, content, " "))
            columns = {"text": texts}
            if has_uid:
                columns["source_id"] = as_strings(rows.cells["uid"])[0]
            yield pa.table(columns)


@dataclass(frozen=True)
class Scan:
    """Results of a first pass over a text file.

    Attributes:
        is_empty: (lines,) bool, True where the text is empty or white space.
        hashes: (lines,) uint64, equal for texts that are equal after
            :func:`~ramen_ray.data.store.texts.fold`.
    """

    is_empty: NDArray[np.bool_]
    hashes: UInt64s

    @property
    def num_lines(self) -> int:
        """Number of texts."""
        return len(self.is_empty)


def scan(file: TextFile) -> Scan:
    """Read a text file; warn about a few lines that are not UTF-8, and words for no text.

    Raises:
        DatasetError: the file is damaged, malformed or in another encoding; names the line.
    """
    is_empty, hashes = [np.empty(0, dtype=np.bool_)], [np.empty(0, dtype=np.uint64)]
    faults, null_words, num_lines = Tallies(), Tally(_NULL_WORD), 0
    for batch in file.batches(faults):
        texts = pc.utf8_trim_whitespace(batch["text"].combine_chunks())
        is_empty.append(pc.equal(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False))
        hashes.append(hash_strings(fold(texts)))
        found = np.flatnonzero(pc.is_in(texts, pa.array(NULL_WORDS)))
        null_words.add(file.path, 1 + num_lines + found, texts.take(pa.array(found)).to_pylist())
        num_lines += len(texts)
    findings = [_judged(tally, num_lines).finding() for tally in faults.values()]
    if null_words.count:
        findings.append(null_words.share(num_lines))
    _report(file.path, findings)
    return Scan(np.concatenate(is_empty), np.concatenate(hashes))


def _judged(tally: Tally, num_lines: int) -> Tally:
    """Make lines an error that are in another encoding than UTF-8, but for a few."""
    few = max(MAX_DAMAGED_LINES, MAX_DAMAGED_SHARE * num_lines)
    if tally.kind == STRANGE:
        kind = replace(STRANGE, most=0)
    elif tally.kind == WINDOWS_1252 and tally.count > few:
        advice = "convert the file: iconv -f WINDOWS-1252 -t UTF-8"
        kind = Kind("lines are not UTF-8, too many to be a few damaged ones", advice)
    else:
        return tally
    return replace(tally, kind=kind)


def _report(path: Path, findings: list[Finding]) -> None:
    raise_errors(path, findings)
    for finding in findings:
        log.warning(finding)


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _blocks(path: Path, faults: Tallies | None = None) -> Iterator[Block]:
    """Read a file's lines; what is odd about them is added to ``faults``."""
    faults = Tallies() if faults is None else faults
    try:
        with _open(path) as stream:
            for block in read_blocks(stream, path):
                for kind, lines, examples in block.faults:
                    faults.add(kind, path, lines, examples)
                yield block
    except _DAMAGE as error:
        raise error_at(path, f"the file is damaged or cut off: {error}") from error


def _read_texts(path: Path, faults: Tallies | None = None) -> Iterator[pa.Array]:
    r"""Read one text per line; only ``\n`` and ``\r\n`` end a line."""
    for block in _blocks(path, faults):
        characters = np.frombuffer(block.data, dtype=np.uint8)
        ends = np.flatnonzero(characters == ord("\n"))
        offsets = np.zeros(len(ends) + 1, dtype=np.int32)
        offsets[1:] = ends - np.arange(len(ends))
        without_breaks = np.delete(characters, ends)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(without_breaks)]
        yield pa.Array.from_buffers(pa.string(), len(ends), buffers)


def _even_batches(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """Cut batches to equal sizes, so that batches of two files have the same rows."""
    held = pa.chunked_array([], pa.string())
    for batch in batches:
        held = pa.chunked_array([*held.chunks, batch])
        whole = len(held) - len(held) % _ROWS_AT_ONCE
        for start in range(0, whole, _ROWS_AT_ONCE):
            yield held[start : start + _ROWS_AT_ONCE].combine_chunks()
        held = held[whole:]
    if len(held):
        yield held.combine_chunks()


def _paired(
    texts: Iterator[pa.Array], source_ids: Iterator[pa.Array], file: TextFile
) -> Iterator[tuple[pa.Array, pa.Array]]:
    rows = 0
    for text, source_id in zip_longest(texts, source_ids, fillvalue=pa.array([], pa.string())):
        if len(text) != len(source_id):
            shorter = rows + min(len(text), len(source_id))
            message = f"does not have as many lines as {file.path}; one of the two ends here"
            raise error_at(file.source_ids, message, row=shorter + 1)
        rows += len(text)
        yield text, source_id


def _read_json(
    path: Path, types: Types, required: tuple[str, ...], faults: Tallies | None = None
) -> Iterator[Rows]:
    """Read some fields of JSON objects, one object per line; those ``required`` are not null."""
    for block in _blocks(path, faults):
        rows = parse_objects(block, path, types)
        for name in required:
            missing = np.flatnonzero(rows.cells[name].is_null())
            if len(missing):
                raise error_at(path, f"the object has no {name}", row=int(rows.numbers[missing[0]]))
        yield rows


def _click_lists(
    path: Path, rows: Rows
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return how many ads each object has (rows,), and their ids and weights (clicks,)."""
    ad_lists, weight_lists = (rows.cells[name].combine_chunks() for name in _CLICKS)
    parents, ad_ids = list_entries(ad_lists)
    _, weights = list_entries(weight_lists)
    counts = np.asarray(pc.list_value_length(ad_lists), dtype=np.int64)
    is_weighted = np.asarray(weight_lists.is_valid())
    num_weights = np.asarray(pc.fill_null(pc.list_value_length(weight_lists), 0))
    for wrong, message in (
        (parents[np.asarray(ad_ids.is_null())], "target_ind is not a list of whole numbers"),
        (
            np.flatnonzero(is_weighted & (num_weights != counts)),
            "target_rel does not have as many numbers as target_ind",
        ),
    ):
        if len(wrong):
            raise error_at(path, message, row=int(rows.numbers[wrong[0]]))
    values = np.ones(len(ad_ids), dtype=np.float32)
    values[np.repeat(is_weighted, counts)] = pc.fill_null(weights, np.nan)
    return counts, np.asarray(ad_ids), values
