"""Tables written by accident or with bad intent: one error, no crash."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ramen_ray.data.findings import Finding
from ramen_ray.data.importers.xc.importing import import_xc
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.limits import MAX_CELL_BYTES, MAX_LINE_BYTES, MAX_NESTING
from ramen_ray.data.tables.reading.batches import Rows, read_file
from ramen_ray.data.tables.reading.cells import as_strings
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.faults import Faults
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.loading import UserTable

GOOD = b'{"query": "a"}\n' * 40
DEEP = 50_000


def _nested(opening: str, closing: str, depth: int) -> bytes:
    return f'{{"query": "a", "x": {opening * depth}1{closing * depth}}}\n'.encode()


def _batches(file: Path) -> list[Rows]:
    return [rows for found in find_files(str(file), ["query"]) for rows in read_file(found)]


def _findings(file: Path) -> list[Finding]:
    faults = Faults()
    for rows in _batches(file):
        for kind, numbers, cells in rows.faults:
            faults.add(kind, str(file), numbers, cells)
    return faults.findings()


REFUSED: dict[str, tuple[str, bytes, str]] = {
    "lists": ("a.jsonl", GOOD + _nested("[", "]", DEEP), "row 41: is nested more than 100 deep"),
    "objects": ("a.jsonl", _nested('{"a":', "}", DEEP) + GOOD, "row 1: is nested more than"),
    "open lists": ("a.jsonl", GOOD + b'{"query":' + b"[" * DEEP, "row 41: is nested more than"),
    "compressed": (
        "a.jsonl.gz",
        gzip.compress(GOOD + _nested("[", "]", DEEP)),
        "row 41: is nested more than",
    ),
    "a bomb": (
        "a.csv.gz",
        gzip.compress(b"query\na\n" + b"x" * (MAX_LINE_BYTES + (32 << 20)), 1),
        r"a\.csv\.gz, row 3: has more than 64 MiB without a line break",
    ),
    "many columns": (
        "a.csv",
        b"query" + b",x" * (1 << 20) + b"\n",
        "an open quote, or over 1048576 bytes",
    ),
    "a key twice": ("a.jsonl", GOOD + b'\n{"query": "a", "query": "b"}\n', "row 42: .*twice"),
    "half a character": ("a.jsonl", GOOD + b'{"query": "\\ud800"}\n', "row 41: .*surrogate"),
    "pretty-printed": (
        "a.json",
        json.dumps([{"query": "a"}], indent=1).encode(),
        "row 1: .*per line",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_kill_a_reader_is_an_error_with_file_and_row(case: str, tmp_path: Path) -> None:
    name, content, message = REFUSED[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=message) as error:
        _batches(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)
    assert len(str(error.value)) < 1000


def test_brackets_in_texts_or_side_by_side_do_not_count_as_nesting(tmp_path: Path) -> None:
    texts = ["[{" * DEEP, '\\"' + "[" * DEEP, "a"]
    lines = [json.dumps({"query": text, "x": [[]] * 1000}) for text in texts]
    lines.append(json.dumps({"query": "b"})[:-1] + ', "x": ' + "[" * 99 + "]" * 99 + "}")
    assert MAX_NESTING == 100
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    rows = _batches(tmp_path / "a.jsonl")
    assert [text for r in rows for text in r.cells["query"].to_pylist()] == [*texts, "b"]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "dictionary.parquet"])
def test_a_huge_cell_is_left_out_and_named(name: str, tmp_path: Path) -> None:
    cells = ["a", "b" * (MAX_CELL_BYTES + 1), "c" * MAX_CELL_BYTES, "d"]
    file, texts = tmp_path / name, pa.array(cells)
    if name.endswith(".csv"):
        file.write_text("\n".join(["query", *cells]))
    elif name.endswith(".jsonl"):
        file.write_text("\n".join(json.dumps({"query": cell}) for cell in cells))
    else:
        texts = texts.dictionary_encode() if "dictionary" in name else texts
        pq.write_table(pa.table({"query": texts}), file)
    rows = pa.concat_tables(batch.cells for batch in _batches(file))
    assert rows["query"].to_pylist() == [cells[0], *cells[2:]]
    (finding,) = _findings(file)
    row = {".csv": 3, ".jsonl": 2, ".parquet": 1}[file.suffix]
    assert (finding.severity, finding.row, finding.column) == ("error", row, "query")


def test_numbers_of_every_width_are_ids() -> None:
    for kind in (np.float16, np.float32, np.float64):
        strings, empty = as_strings(pa.chunked_array([pa.array(np.array([1, 7], dtype=kind))]))
        assert strings.to_pylist() == ["1", "7"]
        assert not empty.any()


NESTED: dict[str, pa.Array] = {
    "lists": pa.array([["a"]]),
    "structs": pa.array([{"a": 1}]),
    "maps": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
}


@pytest.mark.parametrize("kind", NESTED)
def test_columns_of_nested_types_are_named(kind: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"query": NESTED[kind]}), tmp_path / "a.parquet")
    table = UserTable(str(tmp_path / "a.parquet"), {"query": Column("query")}, skip_bad_rows=False)
    with pytest.raises(DatasetError, match=r"a\.parquet, column 'query': .* cannot be read"):
        table.read()


def _pipe(folder: Path) -> str:
    os.mkfifo(folder / "a.csv")
    return str(folder / "a.csv")


def _linked_device(folder: Path) -> str:
    (folder / "a.csv").symlink_to("/dev/zero")
    return str(folder / "a.csv")


def _undecodable_in(folder: Path) -> str:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.csv")).write_text("query\na\n")
    return str(folder)


NO_FILES: dict[str, tuple[Callable[[Path], str], str]] = {
    "a pipe": (_pipe, "is a pipe or a device; save its content to a file"),
    "a device": (lambda _: "/dev/null", "is a pipe or a device"),
    "a link to a device": (_linked_device, "is a pipe or a device"),
    "a name of 300 letters": (lambda folder: f"{folder}/{'x' * 300}.csv", "File name too long"),
    "a name with a zero": (lambda folder: f"{folder}/\0.csv", "NUL"),
    "a name that is not UTF-8": (lambda folder: f"{folder}/\udcff.csv", "name is not UTF-8"),
    "a file whose name is not UTF-8": (_undecodable_in, "name is not UTF-8"),
}


@pytest.mark.parametrize("case", NO_FILES)
def test_what_is_not_a_plain_file_is_refused(case: str, tmp_path: Path) -> None:
    source, message = NO_FILES[case]
    with pytest.raises(DatasetError, match=message):
        find_files(source(tmp_path), ["query"])


def test_objects_of_the_xc_repository_have_the_same_limits(tmp_path: Path) -> None:
    item = {"uid": "1", "title": "x", "target_ind": [0]}
    for name in ("trn.json", "tst.json", "lbl.json"):
        (tmp_path / name).write_text(json.dumps(item) + "\n")
    deep = json.dumps(item)[:-1] + ', "x": ' + "[" * DEEP + "]" * DEEP + "}\n"
    (tmp_path / "trn.json").write_text(json.dumps(item) + "\n" + deep)
    with pytest.raises(DatasetError, match=r"trn\.json, row 2: .* it is nested more than"):
        import_xc(tmp_path, tmp_path / "out")
