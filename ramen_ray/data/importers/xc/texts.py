"""Files with the texts of queries, ads or anchors: one raw text or JSON object per line."""

import gzip
import json
import logging
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import json as arrow_json
from scipy import sparse

from ramen_ray.data.arrays import UInt64s
from ramen_ray.data.findings import Finding, Tally, error_at, raise_errors
from ramen_ray.data.importers.xc.lines import encoding_findings, line_blocks, read_texts
from ramen_ray.data.importers.xc.matrices import build_matrix
from ramen_ray.data.prepared.hashing import hash_strings
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.limits import TooLargeError, check_nesting
from ramen_ray.data.store.texts import NULL_WORDS, fold
from ramen_ray.data.store.utf8 import without_marks

log = logging.getLogger(__name__)

_CLICKS = pa.schema(
    [("target_ind", pa.list_(pa.int64())), ("target_rel", pa.list_(pa.float32()))],
)
_TYPES_OF = {
    "uid": (str, int, type(None)),
    "title": (str, type(None)),
    "content": (str, type(None)),
    "target_ind": (int,),
    "target_rel": (int, float),
}
_DAMAGE = (OSError, EOFError, zlib.error)
_ROWS_AT_ONCE = 8192
_NULL_ADVICE = "if these lines have no text, make them empty, so that they are left out"


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

    @property
    def is_json(self) -> bool:
        """Whether the file holds JSON objects."""
        return ".json" in self.path.suffixes

    def batches(self) -> Iterator[pa.Table]:
        """Read the columns ``text`` and, if the file has ids, ``source_id``.

        Raises:
            DatasetError: the file is damaged or malformed; names the line.
        """
        if self.is_json:
            yield from self._json_batches()
            return
        texts = _even_batches(read_texts(self.path))
        if self.source_ids is None:
            yield from (pa.table({"text": batch}) for batch in texts)
            return
        for text, source_id in _paired(texts, _even_batches(read_texts(self.source_ids)), self):
            yield pa.table({"text": text, "source_id": source_id})

    def clicks(self, num_ads: int) -> sparse.csr_array:
        """Read the ads (``target_ind``) and their weights (``target_rel``) from JSON objects.

        Raises:
            DatasetError: an object has no list of ads, or an ad is out of range; names the line.
        """
        lengths = [np.empty(0, dtype=np.int64)]
        indices, values = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.float32)]
        for batch in _read_json(self.path, _CLICKS, ("target_ind",)):
            counts = pc.list_value_length(batch["target_ind"]).to_numpy()
            ad_ids, weights = (pc.list_flatten(batch[name]).to_numpy() for name in _CLICKS.names)
            is_weighted = batch["target_rel"].is_valid().to_numpy()
            lengths.append(counts)
            indices.append(ad_ids)
            values.append(np.ones(len(ad_ids), dtype=np.float32))
            values[-1][np.repeat(is_weighted, counts)] = weights
        rows, entries = np.concatenate(lengths), np.concatenate(indices)
        order = np.lexsort((entries, np.repeat(np.arange(len(rows)), rows)))
        sorted_entries = rows, entries[order], np.concatenate(values)[order]
        return build_matrix(self.path, sorted_entries, (len(rows), num_ads), first_row=1)

    def _json_batches(self) -> Iterator[pa.Table]:
        fields = [("title", pa.string()), ("content", pa.string())][: 1 + self.with_content]
        type_of_uid = _type_of_uid(self.path)
        if type_of_uid is not None:
            fields.append(("uid", type_of_uid))
        required = ("title",) if type_of_uid is None else ("title", "uid")
        for batch in _read_json(self.path, pa.schema(fields), required):
            texts = batch["title"]
            if self.with_content:
                content = pc.fill_null(batch["content"], "")
                texts = pc.utf8_trim_whitespace(pc.binary_join_element_wise(texts, content, " "))
            columns = {"text": texts}
            if type_of_uid is not None:
                columns["source_id"] = batch["uid"].cast(pa.string())
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
    if not file.is_json:
        _report(file.path, encoding_findings(file.path))
    is_empty, hashes = [np.empty(0, dtype=np.bool_)], [np.empty(0, dtype=np.uint64)]
    null_words = Tally("warning", "text that may stand for none", _NULL_ADVICE, "text")
    num_lines = 0
    for batch in file.batches():
        texts = pc.utf8_trim_whitespace(batch["text"].combine_chunks())
        is_empty.append(pc.equal(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False))
        hashes.append(hash_strings(fold(texts)))
        found = np.flatnonzero(pc.is_in(texts, pa.array(NULL_WORDS)))
        null_words.add(file.path, 1 + num_lines + found, texts.take(pa.array(found)))
        num_lines += len(texts)
    _report(file.path, null_words.findings(num_lines))
    return Scan(np.concatenate(is_empty), np.concatenate(hashes))


def _report(path: Path, findings: list[Finding]) -> None:
    raise_errors(path, findings)
    for finding in findings:
        log.warning(finding)


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
    while True:
        text, source_id = next(texts, None), next(source_ids, None)
        if text is None and source_id is None:
            return
        if text is None or source_id is None or len(text) != len(source_id):
            shorter = rows + min(0 if batch is None else len(batch) for batch in (text, source_id))
            message = f"does not have as many lines as {file.path}; one of the two ends here"
            raise error_at(file.source_ids, message, row=shorter + 1)
        rows += len(text)
        yield text, source_id


def _read_json(path: Path, schema: pa.Schema, required: tuple[str, ...]) -> Iterator[pa.Table]:
    """Read some fields of JSON objects, one object per line.

    Missing fields are null; those that are ``required`` must be present.
    """
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    line = 1
    for block in _blocks(path):
        num_objects = _num_objects(block)
        if num_objects is None:
            raise _bad_object(path, block, line, required)
        if num_objects:
            reading = arrow_json.ReadOptions(block_size=len(block) + 1)
            try:
                check_nesting(block)
            except TooLargeError as error:
                message = f"the line is not a JSON object: it {error}"
                raise error_at(path, message, row=line + error.line) from error
            try:
                table = arrow_json.read_json(pa.BufferReader(block), reading, options)
                table.validate(full=True)
            except pa.ArrowInvalid as error:
                raise _bad_object(path, block, line, required) from error
            nulls = sum(table[name].null_count for name in required)
            if nulls or len(table) != num_objects or not _lists_fit(table):
                raise _bad_object(path, block, line, required)
            yield table.combine_chunks()
        line += block.count(b"\n")


def _num_objects(block: bytes) -> int | None:
    """Count the lines that start with ``{``; None if a line starts otherwise.

    Arrow crashes on lines such as ``null``.
    """
    characters = np.frombuffer(block, dtype=np.uint8)
    starts = np.flatnonzero(characters[:-1] == ord("\n")) + 1
    if block.startswith(b"{") and np.all(characters[starts] == ord("{")):
        return len(starts) + 1
    lines = [line for line in map(bytes.strip, block.split(b"\n")) if line]
    return len(lines) if all(line.startswith(b"{") for line in lines) else None


def _lists_fit(table: pa.Table) -> bool:
    """Return whether target_rel, if given, has a number for each of target_ind."""
    if "target_ind" not in table.column_names:
        return True
    ad_ids, weights = (table[name] for name in _CLICKS.names)
    if pc.list_flatten(ad_ids).null_count or pc.list_flatten(weights).null_count:
        return False
    num_weights = pc.list_value_length(weights)
    return bool(pc.all(pc.equal(num_weights, pc.list_value_length(ad_ids)), min_count=0).as_py())


def _blocks(path: Path) -> Iterator[bytes]:
    try:
        with _open(path) as stream:
            yield from (without_marks(block)[0] for block in line_blocks(stream))
    except _DAMAGE as error:
        raise error_at(path, f"the file is damaged or cut off: {error}") from error


def _type_of_uid(path: Path) -> pa.DataType | None:
    """Return the type of the first object's uid, string or number; None if it has none."""
    for block in _blocks(path):
        if first_line := block.strip().partition(b"\n")[0]:
            try:
                uid = json.loads(first_line).get("uid")
            except (ValueError, AttributeError, RecursionError):
                return None
            types = {int: pa.int64(), str: pa.string()}
            return types.get(type(uid))
    return None


def _bad_object(
    path: Path, block: bytes, first_line: int, required: tuple[str, ...]
) -> DatasetError:
    """Find the line of the first bad object of a block by trying one at a time."""
    for line, content in enumerate(block.split(b"\n"), start=first_line):
        if content.strip():
            try:
                problem = _object_problem(json.loads(content), required)
            except (ValueError, RecursionError) as error:
                problem = f"the line is not a JSON object in UTF-8: {error}"
            if problem:
                return error_at(path, problem, row=line)
    last_line = first_line + block.count(b"\n") - 1
    return error_at(path, f"lines up to {last_line} cannot be read", row=first_line)


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _object_problem(found: Any, required: tuple[str, ...]) -> str:
    if not isinstance(found, dict):
        return "the line is not a JSON object"
    missing = [key for key in required if found.get(key) is None]
    if missing:
        return f"the object has no {missing[0]}"
    for key in ("uid", "title", "content"):
        if not isinstance(found.get(key), _TYPES_OF[key]):
            return f"{key} is not a string"
    lists = {key: found[key] for key in _CLICKS.names if found.get(key) is not None}
    for key, values in lists.items():
        if not isinstance(values, list) or not all(type(v) in _TYPES_OF[key] for v in values):
            return f"{key} is not a list of {'whole ' * (key == 'target_ind')}numbers"
    if len({len(values) for values in lists.values()}) > 1:
        return "target_rel does not have as many numbers as target_ind"
    return ""
