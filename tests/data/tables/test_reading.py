"""Users' tables: every format gives the same cells; bad cells and lines are reported."""

import gzip
import json
import os
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import write_frame

from ramen_ray.data.findings import Tallies
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.tables.reading import records
from ramen_ray.data.tables.reading.cells import as_strings
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.loading import UserTable
from ramen_ray.data.tables.reading.records import MAX_LINE_BYTES
from ramen_ray.data.tables.reading.table_file import read_file

NO_LETTERS = ("Cc", "Cs", "Zl", "Zp")
# byte order marks are taken out, and said
LETTERS = st.characters(codec="utf-8", exclude_categories=NO_LETTERS, exclude_characters="\ufeff")
CELLS = st.text(LETTERS, max_size=12)
ROWS = st.lists(st.tuples(CELLS, CELLS, st.integers(-9, 9)), min_size=1, max_size=40)


def _rows(source, *columns):
    return [rows for file in find_files(str(source), columns) for rows in read_file(file)]


def _read(source, *columns):
    """Read all rows; returns their cells, their numbers, and what is wrong with them."""
    batches = _rows(source, *columns)
    faults = Tallies()
    for batch in batches:
        for kind, numbers, cells in batch.faults:
            faults.add(kind, str(source), numbers, cells)
    rows = pa.concat_tables(batch.cells for batch in batches)
    row_numbers = [number for batch in batches for number in batch.numbers.tolist()]
    return rows, row_numbers, [tally.finding() for tally in faults.values()]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet", "a.csv.gz"])
@pytest.mark.parametrize("block_size", [7, 1 << 20])
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_every_format_gives_the_cells_that_were_written(name, block_size, tmp_path, rows):
    """Rows of parquet are counted from 0, lines of text as an editor does."""
    frame = pd.DataFrame(rows, columns=["query", "ad", "clicks"])
    frame["query"] = "q" + frame["query"]
    write_frame(frame, tmp_path / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "BYTES_PER_BLOCK", block_size)
        found, numbers, findings = _read(tmp_path / name, "clicks", "query", "ad")
    first = {".csv": 2, ".tsv": 2, ".jsonl": 1, ".parquet": 0}[Path(name).suffixes[0]]
    assert (numbers, findings) == (list(range(first, first + len(rows))), [])
    expected = frame[["clicks", "query", "ad"]]
    pd.testing.assert_frame_equal(found.to_pandas().astype(expected.dtypes), expected)


def test_folders_and_globs_are_read_in_the_order_of_their_names(tmp_path):
    for name in ("b/part-2.csv", "b/part-1.csv", "a.csv", ".hidden.csv", "_SUCCESS", "b/notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"query\n{name}\n")
    for source, names in (
        (tmp_path, ["a.csv", "b/part-1.csv", "b/part-2.csv"]),
        (tmp_path / "*.csv", ["a.csv"]),
        (f"file://{tmp_path}/*/*.csv", ["b/part-1.csv", "b/part-2.csv"]),
        (tmp_path / "*" / "part-[1].csv", ["b/part-1.csv"]),
        ((tmp_path / "a.csv").as_uri(), ["a.csv"]),
    ):
        rows, _, findings = _read(source, "query")
        assert (rows["query"].to_pylist(), findings) == (names, [])


@pytest.mark.parametrize("block_size", [64, 1 << 20])
def test_lines_with_too_few_or_too_many_cells_are_named(block_size, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "BYTES_PER_BLOCK", block_size)
    file = tmp_path / "clicks.csv"
    content = [f"query {n},{n}" for n in range(200)]
    content[50] = "only one"
    content[120] = "a,b,c"
    content[160] = ""
    content += ["broken"] * 30
    file.write_text("\n".join(["query,ad", *content]) + "\n")
    rows, numbers, (few, many) = _read(file, "query", "ad")
    assert (few.row, many.row) == (52, 122)
    assert "31 " in str(few) and "'only one', 'broken'" in str(few)
    assert "1 " in str(many) and "'a,b,c'" in str(many)
    good = [n for n in range(200) if n not in (50, 120, 160)]
    assert rows["ad"].to_pylist() == [str(n) for n in good]
    assert numbers == [n + 2 for n in good]


READ = {
    "two carriage returns": (
        "a.csv",
        b"query,ad\r\r\na,1\r\r\nb,2\r\r\n",
        {"query": ["a", "b"], "ad": ["1", "2"]},
        [2, 3],
    ),
    "a byte order mark": ("a.csv", b"\xef\xbb\xbfquery\na\n", {"query": ["a"]}, [2]),
    "what Python writes for nothing in JSON": (
        "a.jsonl",
        b'{"query": NaN}\n{"query": "a"}\n',
        {"query": [None, "a"]},
        [1, 2],
    ),
    "line breaks within quotes": (
        "a.csv",
        b'query,n\n"one\ntwo",0\nthree,1\n"a ""quoted""\n\nword, ",2\nfour,3\n',
        {"query": ["one\ntwo", "three", 'a "quoted"\n\nword, ', "four"], "n": [*"0123"]},
        [2, 4, 5, 8],
    ),
    "a header with a line break": (
        "a.csv",
        b'"my\nquery",ad\na,1\n',
        {"my query": ["a"], "ad": ["1"]},
        [3],
    ),
    "blank lines": (
        "a.csv",
        b"query,ad\n\na,1\n \t \n,2\n\n",
        {"query": ["a", ""], "ad": ["1", "2"]},
        [3, 5],
    ),
}


@pytest.mark.parametrize("block_size", [10, 1 << 20])
@pytest.mark.parametrize("case", READ)
def test_bytes_are_read_and_lines_counted_as_editors_do(case, block_size, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "BYTES_PER_BLOCK", block_size)
    name, content, cells, numbers = READ[case]
    (tmp_path / name).write_bytes(content)
    rows, row_numbers, findings = _read(tmp_path / name, *cells)
    assert (rows.to_pydict(), row_numbers) == (cells, numbers)
    assert not findings


@pytest.mark.parametrize(
    ("encoding", "name"), [("windows-1252", "a.csv"), ("utf-16", "a.csv.gz"), ("gbk", "a.jsonl")]
)
def test_other_encodings_are_refused_with_the_line_unless_they_are_named(
    encoding, name, tmp_path, monkeypatch
):
    monkeypatch.setattr(records, "BYTES_PER_BLOCK", 10)
    rows = ["a", *["pér £"] * 9] if encoding != "gbk" else ["a", *["红色的鞋子"] * 9]
    written = [json.dumps({"query": row}, ensure_ascii=False) for row in rows]
    content = "\r\n".join(written if encoding == "gbk" else ["query", *rows]).encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    columns = {"query": Column("query")}
    table = UserTable(str(tmp_path / name), columns, encoding=encoding)
    assert table.read()["query"].to_pylist() == rows
    place = {"windows-1252": ", row 3", "utf-16": ": its first line", "gbk": ", row 2"}[encoding]
    with pytest.raises(DatasetError, match=rf"{name}{place}.*--encoding"):
        UserTable(str(tmp_path / name), columns).read()
    with pytest.raises(DatasetError, match="klingon"):
        UserTable(str(tmp_path / name), columns, encoding="klingon")


GOOD = b'{"query": "a"}\n' * 40
UNREADABLE = {
    "no such column": ("a.csv", b"q,ad\n1,2\n", "'query'.* q, ad"),
    "empty file": ("a.csv", b"", ""),
    "unknown suffix": ("a.xlsx", b"PK", ".csv, .tsv"),
    "not parquet": ("a.parquet", b"query\n1\n", ""),
    "no object": ("a.jsonl", b'{"query": 1}\n\n null\n', ", row 3: "),
    "mixed types": ("a.jsonl", b'{"query": 1}\n\n{"query": "a"}\n', "row 3, column 'query'"),
    "an object as a cell": ("a.jsonl", b'{"query": {"a": 1}}\n', "row 1, column 'query'"),
    "semicolons": ("a.csv", b"query;ad\n1;2\n", "by commas"),
    "a column twice": ("a.csv", b"query,query\n1,2\n", "several columns 'query'"),
    "JSON without the field": ("a.jsonl", b'{"q": 1}\n', "'query'"),
    "half a gzip": ("a.csv.gz", gzip.compress(bytes(range(48, 90)) * 900)[:80], ""),
    "gzip": ("a.csv", gzip.compress(b"query,ad\n"), "add .gz"),
    "Excel": ("a.csv", b"PK\x03\x04rest", "Excel"),
    "a pointer of Git LFS": ("a.csv", b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
    "a web page": ("a.csv", b"<!DOCTYPE html>\n<html>404</html>\n", "web page"),
    "old Mac": ("a.csv", b"query,ad\ra,b\rc,d\r", "carriage returns"),
    "open header": ("a.csv", b'"query,ad\na,b\n', "open quote"),
    # what would kill a reader
    "nested": ("a.jsonl", GOOD + b'{"query":' + b"[" * 50_000, "row 41: .*nested too deep"),
    "a bomb": (
        "a.csv.gz",
        gzip.compress(b"query\na\n" + b"x" * (MAX_LINE_BYTES + (32 << 20)), 1),
        "row 3: .*64 MiB",
    ),
    "wide": ("a.csv", b"query" + b",x" * (1 << 20) + b"\n", "over 1048576 bytes"),
    "half a character": ("a.jsonl", GOOD + b'{"query": "\\ud800"}\n', "row 41, .*surrogate"),
    "pretty": ("a.json", json.dumps([{"query": "a"}], indent=1).encode(), "row 1: .*per line"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_an_error_with_file_and_row(case, tmp_path):
    name, content, said = UNREADABLE[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=f"{tmp_path}/{name}.*{said}") as error:
        _read(tmp_path / name, "query")
    assert len(str(error.value)) < 1000


def _undecodable(folder):
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.csv")).write_text("query\na\n")


def _partition(folder):
    (folder / "market=%E9").mkdir()
    (folder / "market=%E9" / "a.csv").write_text("query\na\n")


NO_FILES = {
    "no name": (Path.exists, " ", "name of a table is empty"),
    "no file": (Path.exists, "{}/none.csv", "none.csv"),
    "an empty folder": (Path.exists, "{}/.", "no files"),
    "a glob of any depth": (Path.exists, "{}/**/*.csv", "give the folder"),
    "an unknown store": (Path.exists, "gopher://host/a.csv", "gopher"),
    "a pipe": (lambda folder: os.mkfifo(folder / "a.csv"), "{}/a.csv", "a pipe"),
    "a pipe in a folder": (lambda folder: os.mkfifo(folder / "a.csv"), "{}", "a.csv is .*a pipe"),
    "a broken link": (lambda folder: (folder / "a.csv").symlink_to("/no"), "{}/*.csv", "a broken"),
    "a file whose name is not UTF-8": (_undecodable, "{}", "name is not UTF-8"),
    "a partition whose name is not UTF-8": (_partition, "{}", r"market=%E9/a\.csv.*not UTF-8"),
}


@pytest.mark.parametrize("case", NO_FILES)
def test_what_is_not_a_plain_file_is_refused(case, tmp_path):
    make, source, said = NO_FILES[case]
    make(tmp_path)
    with pytest.raises(DatasetError, match=said):
        find_files(source.format(tmp_path), ["query"])


ODD_COLUMNS = {
    "lists": (pa.array([["a"]]), "list"),
    "not UTF-8": (pa.array([b"\xff"]), "UTF8"),
    "ids that lost digits": (pa.array([2.0**53]), "from 2\\*\\*53 on have lost digits"),
    "ids as float32": (pa.array([np.float32(16_777_217)]), "from 2\\*\\*24 on have lost digits"),
    "structs": (pa.array([{"a": 1}]), "cannot be read"),
}


@pytest.mark.parametrize("case", ODD_COLUMNS)
def test_columns_that_hold_no_texts_are_named(case, tmp_path):
    column, message = ODD_COLUMNS[case]
    pq.write_table(pa.table({"query": column}), tmp_path / "a.parquet")
    table = UserTable(str(tmp_path / "a.parquet"), {"query": Column("query")}, skip_bad_rows=False)
    with pytest.raises(DatasetError, match=f"a.parquet, column 'query': .*{message}"):
        table.read()


ID_COLUMNS = {
    "whole numbers": (pa.array([1, 23]), ["1", "23"]),
    "texts": (pa.array(["a", None, " \u3000", ""]), ["a", "", "", ""]),
    "whole floats": (pa.array([1.5e15, 2.0**53 - 1]), ["1500000000000000", "9007199254740991"]),
    "a float32": (pa.array([7.0], pa.float32()), ["7"]),
    "a float16": (pa.array(np.array([7], np.float16)), ["7"]),
    "views": (pa.array(["a"], pa.string_view()), ["a"]),
    "a dictionary": (pa.array(["a"]).dictionary_encode(), ["a"]),
    "a UUID": (pa.array([bytes(range(16))], pa.uuid()), ["00010203-0405-0607-0809-0a0b0c0d0e0f"]),
    "a decimal": (pa.array([Decimal("12.00")], pa.decimal128(9, 2)), ["12"]),
    "bytes": (pa.array([b"a"]), ["a"]),
}


@pytest.mark.parametrize("case", ID_COLUMNS)
def test_ids_of_many_types_are_texts(case, tmp_path):
    column, expected = ID_COLUMNS[case]
    pq.write_table(pa.table({"query": column}), tmp_path / "a.parquet")
    (rows,) = _rows(tmp_path / "a.parquet", "query")
    strings, empty = as_strings(rows.cells["query"])
    assert [text.strip() for text in strings.to_pylist()] == expected
    assert empty.tolist() == [not text for text in expected]


def test_whole_numbers_of_json_keep_all_digits(tmp_path):
    numbers = [2**63 - 1, 2**64 - 1, 10**30, None, -5]
    lines = "".join(f"{json.dumps({'query': number})}\n" for number in numbers)
    (tmp_path / "a.jsonl").write_text(lines)
    (rows,) = _rows(tmp_path / "a.jsonl", "query")
    strings, empty = as_strings(rows.cells["query"])
    assert strings.to_pylist() == [str(n) if n is not None else "" for n in numbers]
    assert empty.tolist() == [n is None for n in numbers]
    (tmp_path / "a.jsonl").write_text(lines + '{"query": "a"}\n')
    with pytest.raises(DatasetError, match="row 6, column 'query': 'a'"):
        _rows(tmp_path / "a.jsonl", "query")
