"""Files with the texts of queries, ads or anchors: one raw text or JSON object per line."""

import gzip
import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ramen_ray.data.arrays import Booleans, Int64s, list_entries
from ramen_ray.data.findings import Kind, Tallies, Tally, error_at, raise_errors
from ramen_ray.data.store.same_texts import NULL_WORDS
from ramen_ray.data.tables.reading.cells import as_strings
from ramen_ray.data.tables.reading.json_lines import Types, fields_of, parse_objects
from ramen_ray.data.tables.reading.lines import STRANGE, WINDOWS_1252, Block, Rows, read_blocks
from ramen_ray.data.xc.matrices import build_matrix

log = logging.getLogger(__name__)

MAX_DAMAGED_LINES = 10
MAX_DAMAGED_SHARE = 0.01
_CLICKS: Types = {"target_ind": pa.list_(pa.int64()), "target_rel": pa.list_(pa.float32())}
_NULL_WORD = Kind(
    "text that may stand for none",
    "if these lines have no text, make them empty, so that they are left out",
    "text",
    "warning",
)


@dataclass(frozen=True)
class TextFile:
    """A file of texts; a text's id is the number of its line, from 0."""

    path: Path  # of JSON objects if it contains ``.json``; gzipped if it ends in ``.gz``
    source_ids: Path | None = None  # the users' own ids, one per line; in JSON they are ``uid``
    with_content: bool = False  # whether an object's text is its title and content

    def batches(self, faults: Tallies | None = None) -> Iterator[pa.Table]:
        """Read the columns ``text`` and, if the file has ids, ``source_id``.

        What is odd is added to ``faults``; a DatasetError names the line of what is malformed.
        """
        if ".json" in self.path.suffixes:
            yield from self._json_batches(faults)
        elif self.source_ids is None:
            yield from (pa.table({"text": texts}) for texts in _read_texts(self.path, faults))
        else:
            yield from self._batches_with_ids(self.source_ids, faults)

    def clicks(self, num_ads: int) -> csr_array:
        """Read the ads (``target_ind``) and their weights (``target_rel``) from JSON objects.

        Raises a DatasetError that names the line if one has no list of ads, or an ad out of range.
        """
        empty = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
        found = [empty, *(self._clicks(rows) for rows in self._objects(_CLICKS, ("target_ind",)))]
        lengths, ads, weights = map(np.concatenate, zip(*found, strict=True))
        order = np.lexsort((ads, np.repeat(np.arange(len(lengths)), lengths)))
        entries = lengths, ads[order], weights[order]
        return build_matrix(self.path, entries, (len(lengths), num_ads), first_row=1)

    def _batches_with_ids(self, source_ids: Path, faults: Tallies | None) -> Iterator[pa.Table]:
        ids, first = pa.chunked_array(_read_texts(source_ids), pa.string()), 0
        for texts in _read_texts(self.path, faults):
            own = ids[first : first + len(texts)]
            first += len(texts)
            if len(own) == len(texts):
                yield pa.table({"text": texts, "source_id": own})
        if first != len(ids):
            message = f"does not have as many lines as {self.path}; one of the two ends here"
            raise error_at(source_ids, message, row=min(first, len(ids)) + 1)

    def _json_batches(self, faults: Tallies | None) -> Iterator[pa.Table]:
        first = next(_blocks(self.path), None)
        has_uid = first is not None and "uid" in fields_of(first.data)
        types: dict[str, pa.DataType | None] = {"title": pa.string()}
        types |= {"content": pa.string()} if self.with_content else {}
        types |= {"uid": None} if has_uid else {}
        for rows in self._objects(types, ("title", "uid") if has_uid else ("title",), faults):
            texts = rows.cells["title"]
            if self.with_content:
                content = pc.fill_null(rows.cells["content"], "")
                texts = pc.utf8_trim_whitespace(pc.binary_join_element_wise(texts, content, " "))
            columns = {"text": texts}
            if has_uid:
                columns["source_id"] = as_strings(rows.cells["uid"])[0]
            yield pa.table(columns)

    def _objects(
        self, types: Types, required: tuple[str, ...], faults: Tallies | None = None
    ) -> Iterator[Rows]:
        """Read some fields of the JSON objects; those ``required`` are not null."""
        for block in _blocks(self.path, faults):
            rows = parse_objects(block, self.path, types)
            for name in required:
                self._refuse(rows, rows.cells[name].is_null(), f"the object has no {name}")
            yield rows

    def _clicks(self, rows: Rows) -> tuple[Int64s, Int64s, NDArray[np.float32]]:
        """Return how many ads each object has (rows,), and their ids and weights (clicks,)."""
        ads, weights = (rows.cells[name].combine_chunks() for name in _CLICKS)
        parents, ad_ids = list_entries(ads)
        counts = np.bincount(parents, minlength=len(ads))
        is_bad = np.bincount(parents[np.asarray(ad_ids.is_null())], minlength=len(ads)) > 0
        self._refuse(rows, is_bad, "target_ind is not a list of whole numbers")
        weighted = np.asarray(weights.is_valid())
        num_weights = np.asarray(pc.fill_null(pc.list_value_length(weights), 0))
        message = "target_rel does not have as many numbers as target_ind"
        self._refuse(rows, weighted & (num_weights != counts), message)
        values = np.ones(len(ad_ids), dtype=np.float32)
        values[np.repeat(weighted, counts)] = pc.fill_null(weights.flatten(), np.nan)
        return counts, np.asarray(ad_ids), values

    def _refuse(self, rows: Rows, bad: Booleans | pa.Array, message: str) -> None:
        wrong = np.flatnonzero(bad)
        if len(wrong):
            raise error_at(self.path, message, row=int(rows.numbers[wrong[0]]))


@dataclass(frozen=True)
class Scan:
    """What a first pass over a text file finds."""

    file: TextFile
    is_empty: Booleans  # (lines,) whether the text is empty or white space

    @property
    def num_lines(self) -> int:
        """Number of lines."""
        return len(self.is_empty)

    @cached_property
    def filled(self) -> Int64s:
        """(texts,) int64, the lines that have a text, from 0, ascending."""
        return np.flatnonzero(~self.is_empty)


def scan(file: TextFile) -> Scan:
    """Read a text file; warn about a few lines that are not UTF-8, and words for no text.

    Raises a DatasetError that names the line if it is malformed or in another encoding.
    """
    is_empty = [np.empty(0, dtype=np.bool_)]
    faults, null_words, num_lines = Tallies(), Tally(_NULL_WORD), 0
    for batch in file.batches(faults):
        texts = pc.utf8_trim_whitespace(batch["text"].combine_chunks())
        is_empty.append(pc.equal(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False))
        found = np.flatnonzero(pc.is_in(texts, pa.array(NULL_WORDS)))
        null_words.add(file.path, 1 + num_lines + found, texts.take(pa.array(found)).to_pylist())
        num_lines += len(texts)
    findings = [_judged(tally, num_lines).finding() for tally in faults.values()]
    if null_words.count:
        findings.append(null_words.share(num_lines))
    raise_errors(file.path, findings)
    for finding in findings:
        log.warning(finding)
    return Scan(file, np.concatenate(is_empty))


def _judged(tally: Tally, num_lines: int) -> Tally:
    """Make lines an error that are in another encoding than UTF-8, but for a few."""
    if tally.kind == STRANGE:
        return replace(tally, kind=replace(STRANGE, most=0))
    few = max(MAX_DAMAGED_LINES, MAX_DAMAGED_SHARE * num_lines)
    if tally.kind == WINDOWS_1252 and tally.count > few:
        advice = "convert the file: iconv -f WINDOWS-1252 -t UTF-8"
        message = "lines are not UTF-8, too many to be a few damaged ones"
        return replace(tally, kind=Kind(message, advice))
    return tally


def _blocks(path: Path, faults: Tallies | None = None) -> Iterator[Block]:
    """Read a file's lines; what is odd about them is added to ``faults``."""
    faults = Tallies() if faults is None else faults
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with cast(BinaryIO, opened(path, "rb")) as stream:
            for block in read_blocks(stream, path):
                for kind, lines, examples in block.faults:
                    faults.add(kind, path, lines, examples)
                yield block
    except (OSError, EOFError, zlib.error) as error:
        raise error_at(path, f"the file is damaged or cut off: {error}") from error


def _read_texts(path: Path, faults: Tallies | None = None) -> Iterator[pa.Array]:
    r"""Read one text per line; only ``\n`` and ``\r\n`` end a line."""
    for block in _blocks(path, faults):
        yield pc.split_pattern(pa.array([block.data[:-1]], pa.string()), "\n").flatten()
