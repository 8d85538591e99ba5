"""Tables as people have them: what would do damage is read right, or refused with its place."""

import gzip
from dataclasses import replace
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import import_in_process, write_frame, write_rows
from written_out import clicked_pairs, column_of

from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.tables.clicks.settings import Columns, Splits, UserTables
from ramen_ray.data.tables.reading import records
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.loading import UserTable

CLICKS = [(f"query {n}", f"ad {n % 7}") for n in range(300)]
FRAME = pd.DataFrame(CLICKS, columns=["query", "ad"])
LINES = "".join(f"{query},{ad}\n" for query, ad in CLICKS)
BY_ID = pd.DataFrame({"query": FRAME["query"], "ad_id": [n % 7 for n in range(300)]})


def _import(folder, name, content, **changes):
    """Import a table of clicks; returns also the findings, a line each."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pd.DataFrame):
        write_frame(content, file)
    elif isinstance(content, pa.Table):
        pq.write_table(content, file)
    else:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    dataset, findings = import_in_process(UserTables(str(file), **changes), folder / "out")
    return dataset, "\n".join(map(str, findings))


def test_quotes_of_tsv_are_letters(tmp_path):
    odd = [('"Cold Play', "band"), ('"nike shoes"', "shoe"), ('5" nails', '6" nails')]
    start = "query\tad\n" + LINES.replace(",", "\t")
    rows = "".join(f"{query}\t{ad}\n" for query, ad in odd)
    dataset, found = _import(tmp_path, "a.tsv", start + rows)
    assert (clicked_pairs(dataset), found) == ({*CLICKS, *odd}, "")
    with pytest.raises(DatasetError, match=r"b\.tsv, row 302"):
        _import(tmp_path / "3", "b.tsv", start + '"a\tb"\tc\n')
    with pytest.raises(DatasetError, match="'query', 'ad'"):
        _import(tmp_path / "4", "b.tsv", '"query"\t"ad"\n' + start)


@pytest.mark.parametrize("block_size", [64, 1 << 20])
def test_a_line_with_a_wrong_quote_costs_itself_alone(block_size, tmp_path, monkeypatch):
    """Lines are those of an editor."""
    monkeypatch.setattr(records, "BYTES_PER_BLOCK", block_size)
    bad = '"say \\"hi\\" now",x\n', '"a"b,x\n', '"""",x\n', '5" ner,"two\nlines"\n'
    rows = "".join(line + bad[n % 4] for n, line in enumerate(LINES.splitlines(keepends=True)))
    content = f"query,ad\n{bad[3]}{rows}"
    with pytest.raises(DatasetError, match=r"a\.csv, row 5: 150 "):
        _import(tmp_path, "a.csv", content)
    dataset, found = _import(tmp_path, "b.csv", content, skip_bad_rows=True)
    assert clicked_pairs(dataset) == {*CLICKS, ('"', "x"), ('5" ner', "two\nlines")}
    assert found.count("row") == 1


OPEN_QUOTES = {
    "no pair": ('"open,x,ad 1', 'closed",x,ad 1'),
    "no pair, in a column that is not read": ('q,"open,ad 1', 'q,closed",ad 1'),
    "closed by another that opens": ('"open,x,ad 1', '"r",x,ad 1'),
}


@pytest.mark.parametrize("block_size", [64, 1 << 20])
@pytest.mark.parametrize("case", OPEN_QUOTES)
def test_a_quote_that_takes_in_lines_refuses_the_table(case, block_size, tmp_path, monkeypatch):
    """Also where bad rows are skipped; long texts are read."""
    opens, closes = OPEN_QUOTES[case]
    monkeypatch.setattr(records, "BYTES_PER_BLOCK", block_size)
    colours = "\n(1,2,3)" * 9
    poem = "roses, red\nviolets, blue\nfor 1,000\nor more, with you"
    rows = "".join(f"{query},x,{ad}\n" for query, ad in CLICKS)
    start = f'query,other,ad\n{rows}"{poem}",x,ad 1\n"a{colours}",x,ad 1\n'
    text = "\n".join([start + opens, *["r,x,ad 1"] * 40, closes, ""])
    for skip in (False, True):
        with pytest.raises(DatasetError, match=r"a\.csv, row 316: "):
            _import(tmp_path, "a.csv", text, skip_bad_rows=skip)
    if case == "no pair":
        dataset, _ = _import(tmp_path / "2", "a.csv", start)
        assert clicked_pairs(dataset) == {*CLICKS, (poem, "ad 1"), (f"a{colours}", "ad 1")}


def test_repeated_ids_with_other_texts_are_an_error_if_many(tmp_path):
    rows = ((n // 10, f"text {n}") for n in range(70))
    ads = write_rows(tmp_path / "ads.csv", "ad_id text", rows)
    with pytest.raises(DatasetError, match=r"63 of 70 .*'0'"):
        _import(tmp_path, "a.csv", BY_ID, ads=ads)
    dataset, _ = _import(tmp_path, "a.csv", BY_ID, ads=ads, skip_bad_rows=True)
    assert column_of(dataset, "ads") == [f"text {10 * n}" for n in range(7)]


UNITS = {
    "ms": lambda day: 1000 * (1_775_000_000 + 86_400 * day),
    "ns": lambda day: 10**9 * (1_775_000_000 + 86_400 * day),
    "yyyymmdd": lambda day: 20260401 + day,
}


@pytest.mark.parametrize("unit", UNITS)
def test_times_in_other_units_are_refused_with_the_unit(unit, tmp_path):
    frame = FRAME.assign(t=[UNITS[unit](n // 10) for n in range(300)])
    splits = Splits(validation_from="2026-04-20", test_from="2026-04-25")
    columns = Columns(clicks_time="t")
    for skip in (False, True):
        changes = {"columns": columns, "splits": splits, "skip_bad_rows": skip}
        place = rf"row 2, column 't': 300 cells.* set --columns.clicks-time-unit {unit}"
        with pytest.raises(DatasetError, match=place):
            _import(tmp_path, "a.csv", frame, **changes)
        mixed = frame.assign(t=[1_775_000_000 + n if n < 250 else t for n, t in enumerate(frame.t)])
        with pytest.raises(DatasetError, match=rf"row 250, column 't': 50 cells.* {unit}"):
            _import(tmp_path / "mixed", "a.parquet", mixed, **changes)
    columns = replace(columns, clicks_time_unit=unit)
    dataset, found = _import(tmp_path, "a.csv", frame, columns=columns, splits=splits)
    assert found == ""
    assert 40 <= dataset.num_rows("queries/validation") <= 60


def _write_parts(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        FRAME.to_parquet(folder / name)


LOGS = {
    "Delta": "t/_delta_log/00000000000000000000.json",
    "Iceberg": "t/metadata/00001-ab.metadata.json",
}


@pytest.mark.parametrize("source", ["", "t", "t/*.parquet", "t/*/*.parquet"])
@pytest.mark.parametrize("log", LOGS)
def test_tables_with_a_log_are_refused(log, source, tmp_path):
    _write_parts(tmp_path, "t/part-0.parquet", "t/data/part-1.parquet")
    (tmp_path / LOGS[log]).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / LOGS[log]).write_text("{}")
    with pytest.raises(DatasetError, match=f"t is a {log} table"):
        import_in_process(UserTables(str(tmp_path / source)), tmp_path / "out")


def test_folders_as_programs_write_them_are_read(tmp_path, caplog):
    """Partitions are columns; empty parts and what is no part are passed over."""
    folder = tmp_path / "clicks"
    for day in range(1, 31):
        part = folder / f"day=2026-04-{day:02d}" / "part-0.csv.GZ"
        part.parent.mkdir(parents=True)
        rows = "".join(f"q{day} {n},ad {n % 7}\n" for n in range(10))
        part.write_bytes(gzip.compress(f"query,ad\n{rows}".encode()))
    (part.parent / "part-1.csv").touch()
    (part.parent / "part-2.csv.gz").write_bytes(gzip.compress(b""))
    (folder / "_temporary").mkdir()
    for name in ("_SUCCESS", ".part.crc", "notes.txt", "_temporary/part.csv"):
        (folder / name).write_text("x")
    splits = Splits(validation_from="2026-04-20", test_from="2026-04-25")
    tables = UserTables(str(folder), columns=Columns(clicks_time="day"), splits=splits)
    dataset, findings = import_in_process(tables, tmp_path / "out")
    assert findings == []
    assert "notes.txt" in caplog.text
    for split, days in {"train": range(1, 20), "validation": range(20, 25)}.items():
        texts = column_of(dataset, f"queries/{split}")
        assert sorted(texts) == sorted(f"q{day} {n}" for day in days for n in range(10))


def test_words_for_nothing_are_refused_if_many(tmp_path):
    few = f"query,ad\n{LINES}NULL,a\n"
    dataset, found = _import(tmp_path, "a.csv", few)
    assert ("NULL", "a") in clicked_pairs(dataset)
    assert "row 302, column 'query': 1 cells" in found
    words = ["NULL", "null", r"\N", "[NULL]", "#NAME?"]
    many = f"query,ad\n{LINES}" + "".join(f"{word},a\n" for word in words)
    with pytest.raises(DatasetError, match="row 302, column 'query': 5 cells"):
        _import(tmp_path / "b", "a.csv", many)
    for option, expected in (("leave-out", set()), ("keep", {(word, "a") for word in words})):
        dataset, _ = _import(tmp_path / option, "a.csv", many, null_words=option)
        assert clicked_pairs(dataset) == {*CLICKS, *expected}


def test_impressions_and_clicks_of_other_months_are_left_out_and_counted(tmp_path, caplog):
    caplog.set_level("INFO", "ramen_ray.data.tables.clicks.import_tables")
    frame = FRAME.assign(clicks=1, day="2026-04-02")
    frame.loc[:99, "clicks"] = 0
    frame.loc[100, "day"] = "2026-03-31"
    frame.loc[101, "day"] = "2026-05-01"
    dataset, findings = _import(
        tmp_path,
        "clicks.csv",
        frame,
        columns=Columns(clicks_weight="clicks", clicks_time="day"),
        clicks_from="2026-04-01",
        clicks_until="2026-05-01",
    )
    assert findings == ""
    assert clicked_pairs(dataset) == set(CLICKS[102:])
    assert "100 left out: " in caplog.text
    assert caplog.text.count(" 1 left out: ") == 2


def test_names_of_what_was_merged_or_left_out_stay_known(tmp_path):
    queries = [(f"q{n}", f"query {n}") for n in range(300)]
    queries += [("again", "query 5"), ("never", "nobody")]
    ads = [(f"a{n}", f"ad {n}") for n in range(8)]
    given = {
        "queries": write_rows(tmp_path / "queries.csv", "query_id text", queries),
        "ads": write_rows(tmp_path / "ads.csv", "ad_id text", ads),
        "min_queries_per_ad": 1,
    }
    rows = "".join(f"q{n},a{n % 7}\n" for n in range(300))
    dataset, _ = _import(tmp_path, "a.csv", "query_id,ad_id\n" + rows, **given)
    assert column_of(dataset, "aliases/query", "name") == ["again", "never"]
    assert column_of(dataset, "aliases/query", "of") == ["q5", None]
    assert column_of(dataset, "aliases/ad", "name") == ["a7"]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_nuls_are_doubted_and_texts_of_no_width_are_empty(name, tmp_path):
    nul = [("a\0b", f"ad {n}") for n in range(4)]
    odd = [("\u200b\ufeff", "ad 1"), ("\u2060", "ad 2")]
    air = [("air\u200bbed\u2060", "ad 1"), ("airbed", "ad 2")]
    written = [
        pd.DataFrame(CLICKS + rows, columns=["query", "ad"])
        for rows in (nul[:3] + air, air, nul + odd)
    ]
    dataset, found = _import(tmp_path, name, written[0])
    assert clicked_pairs(dataset) == {*CLICKS, *nul[:3], *air}
    assert "column 'query': 3 cells have NUL characters" in found
    whole, _ = _import(tmp_path / "1", name, written[1], normalize_texts=True)
    assert clicked_pairs(whole) == {*CLICKS, ("airbed", "ad 1"), ("airbed", "ad 2")}
    with pytest.raises(DatasetError, match=r"(?s)'query': 2 .*'query': 4 "):
        _import(tmp_path / "2", name, written[2])
    dataset, _ = _import(tmp_path / "3", name, written[2], skip_bad_rows=True)
    assert clicked_pairs(dataset) == set(CLICKS)


def test_marks_and_headers_of_joined_files_are_taken_out(tmp_path):
    mark = "\ufeff"
    start = f'{mark}"query","ad"\r\n' + LINES.replace("\n", "\r\n")
    more = f"{mark}query,ad\n{mark}a,b\nQuery, AD \na{mark}b,c\n"
    dataset, found = _import(tmp_path, "a.csv", start + more)
    assert clicked_pairs(dataset) == {*CLICKS, ("a", "b"), ("ab", "c")}
    assert "row 302: 2 rows repeat the header, and are left out" in found
    assert "row 302: 3 lines have byte order marks" in found


def test_ids_that_lost_digits_are_refused(tmp_path):
    ads, lost = (
        write_rows(tmp_path / name, "ad_id text", ((form.format(n), f"ad {n}") for n in range(7)))
        for name, form in (("ads.csv", "{}"), ("lost.csv", "1.{}E+18"))
    )
    for listed, form, cells in ((ads, "1.{}E+18", 300), (ads, "1,{}E+18", 300), (lost, "{}", 7)):
        frame = BY_ID.assign(ad_id=BY_ID["ad_id"].map(form.format))
        with pytest.raises(DatasetError, match=f"column 'ad_id': {cells} cells"):
            _import(tmp_path / "2", "a.csv", frame, ads=listed)
    decimals = BY_ID.assign(ad_id=BY_ID["ad_id"].map(Decimal))
    schema = pa.schema([("query", pa.string()), ("ad_id", pa.decimal128(38, 10))])
    dataset, _ = _import(tmp_path, "a.parquet", pa.Table.from_pandas(decimals, schema), ads=ads)
    assert clicked_pairs(dataset) == set(CLICKS)
    texts = FRAME.assign(ad=[f"1.{n % 7}E+18" for n in range(300)])
    assert _import(tmp_path / "3", "b.csv", texts)[0].num_rows("ads") == 7


def test_a_table_that_ends_where_a_spreadsheet_does_is_doubted(tmp_path, caplog):
    file = tmp_path / "a.csv"
    for num_rows in (65_534, 65_535):
        file.write_text("query\n" + "a\n" * num_rows)
        table = UserTable(str(file), {"query": Column("query")})
        assert len(table.read()) == num_rows
        table.check()
        assert len(caplog.messages) == (num_rows == 65_535)
    assert "a.csv, row 65536: 1 files" in caplog.text


def test_a_file_that_changes_after_it_was_found_is_refused(tmp_path):
    for name, content in (
        ("a.csv", f"query,ad\n{LINES}"),
        ("a.jsonl", '{"query": "a", "ad": "b"}\n'),
    ):
        (tmp_path / name).write_text(content)
        table = UserTable(str(tmp_path / name), {"query": Column("query")}, skip_bad_rows=False)
        (tmp_path / name).write_text(content + content.splitlines(keepends=True)[-1])
        with pytest.raises(DatasetError, match=name):
            table.read()


@pytest.mark.parametrize("place", [0, 300])
@pytest.mark.parametrize("skips", [True, False])
def test_a_row_of_totals_is_doubted_and_left_out_with_other_bad_rows(skips, place, tmp_path):
    weights = [1.0 + n % 3 for n in range(300)]
    rows = FRAME.assign(n=weights).values.tolist()
    rows.insert(place, ["Total", "Total", sum(weights)])
    frame = pd.DataFrame(rows, columns=["query", "ad", "n"])
    columns = Columns(clicks_weight="n")
    dataset, found = _import(tmp_path, "a.csv", frame, columns=columns, skip_bad_rows=skips)
    assert f"a.csv, row {place + 2}, column 'n': 1 rows" in found
    assert ("Total", "Total") not in clicked_pairs(dataset) or not skips
    assert ("Total" in column_of(dataset, "ads")) == (not skips)
    rows[place][2] -= 1
    frame = pd.DataFrame(rows, columns=["query", "ad", "n"])
    assert _import(tmp_path / "2", "a.csv", frame, columns=columns)[1] == ""
