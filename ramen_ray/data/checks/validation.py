"""Find everything that is wrong or doubtful in a dataset directory.

What footers show is in :mod:`~ramen_ray.data.checks.structure`. Then each table is read once into
the engine, where rules for what is in it are SQL: :mod:`~ramen_ray.data.checks.rules`. Tables have
there the names of the dataset directory, and ``rowid`` is a row's number, as the engine keeps the
order of insertion.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import gettempdir

import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.checks.rules import (
    REVERSED_CLICKS,
    UNLINKED,
    cross_rules,
    find_answers,
    keys_of,
    leak_rule,
    repeat_rules,
    row_rules,
)
from ramen_ray.data.checks.structure import inspect_structure
from ramen_ray.data.engine import Connection, count, engine, name_literal, run
from ramen_ray.data.findings import (
    MAX_EXAMPLE_LENGTH,
    MAX_EXAMPLES,
    FaultKind,
    Finding,
    Tally,
    raise_errors,
)
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.parquet_files import read_footer, rows_of
from ramen_ray.data.store.same_texts import not_utf8
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN, schema_of

ROWS_PER_BATCH = 65_536
TURNS = (TRAIN, "novel_ads", "ads", "queries", "anchors", "filters", "judged", "aliases", "edges")
READ_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, DatasetError)


def check(dataset: Dataset) -> None:
    """Raise a DatasetError that lists all errors that :func:`look_over` finds, if there are any."""
    raise_errors(dataset, look_over(dataset))


def look_over(dataset: Dataset) -> list[Finding]:
    """Return what :func:`validate` finds, or the footers of what was checked as it was written."""
    return inspect_structure(dataset)[0] if dataset.is_checked else validate(dataset)


def validate(dataset: Dataset) -> list[Finding]:
    """Check the whole dataset directory; returns all findings, errors first.

    Tables that cannot be read are left out of the later checks. Tables of texts, and one of edges,
    are in memory, or in the folder for temporary files.
    """
    findings, num_rows = inspect_structure(dataset)
    with engine(Path(gettempdir())) as connection:
        tables = _Tables(connection, dataset, num_rows)
        by_table = {table: tables.check(table) for table in sorted(num_rows, key=_turn)}
        if TRAIN in tables.loaded:
            last = [UNLINKED, *tables.leak_rules(REVERSED_CLICKS)]
            by_table[TRAIN] += tables.broken(TRAIN, last)
    findings += chain.from_iterable(by_table[table] for table in num_rows)
    return sorted(findings, key=lambda finding: finding.severity)


def _turn(table: str) -> int:
    """Return when a table is read: first what rules of others read, and last edges, often many."""
    return TURNS.index(table if table in TURNS else table.split("/")[0])


class _TableReader:
    """A table's rows as a stream; what it has noted is whole when they have been read."""

    def __init__(self, dataset: Dataset, table: str) -> None:
        self.schema = dataset.schema(table)
        self.damage: list[Finding] = []  # why a file cannot be read, which ends the rows
        self.ascends = True  # ids, or pairs of them, do, so that none repeats or is null
        self._dataset = dataset
        self._keys = keys_of(table)
        self._files = dataset.files(table)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in the order of the files."""
        last = None
        for path in self._files:
            file = str(path.relative_to(self._dataset.path))
            num_rows = 0
            try:
                for rows in rows_of(path, self.schema.names, ROWS_PER_BATCH):
                    self.damage += _not_utf8(rows, file, num_rows)
                    if self.damage:  # the engine cannot hold them
                        return
                    yield rows.cast(self.schema)
                    num_rows += len(rows)
                    key_rows = rows.select(self._keys)
                    last = pa.concat_batches([last[-1:], key_rows]) if last else key_rows
                    self.ascends = self.ascends and _ascend(*last)
                if num_rows != read_footer(path).num_rows:
                    raise DatasetError("its number of rows differs from its footer")
            except READ_ERRORS as error:  # the engine would change it
                message = f"not a readable parquet file: {' '.join(str(error).split())}"
                advice = "it is damaged or incomplete; copy or write it again"
                self.damage.append(Finding("error", file, message, advice))
                return


def _not_utf8(rows: pa.RecordBatch, file: str, first: int) -> Iterator[Finding]:
    """Yield the first text of each column whose bytes are not UTF-8."""
    for name in rows.schema.names:
        column = rows[name]
        if pa.types.is_string(column.type) and (odd := not_utf8(column)).any():
            row = int(odd.argmax())
            content = column[row].as_buffer().to_pybytes()[:MAX_EXAMPLE_LENGTH]
            message = f"bytes that are not UTF-8: {content!r}"
            yield Finding("error", file, message, "convert the source", first + row, name)


def _ascend(first: pa.Array, *others: pa.Array) -> bool:
    """Say whether keys (n,), or tuples of keys, ascend; False if one is null."""
    *before, last = first, *others
    rises = pc.greater(last[1:], last[:-1])
    for keys in reversed(before):
        same = pc.equal(keys[1:], keys[:-1])
        rises = pc.or_(pc.greater(keys[1:], keys[:-1]), pc.and_(same, rises))
    return pc.all(rises, skip_nulls=False, min_count=0).as_py() is True


@dataclass
class _Tables:
    """The tables of a ``dataset`` in the engine, as far as rules of others will read them."""

    _connection: Connection
    _dataset: Dataset
    _num_rows: Mapping[str, int]
    loaded: set[str] = field(default_factory=set)

    def check(self, table: str) -> list[Finding]:
        """Read a table, and return what is wrong in it; one that is damaged is left out."""
        reader = _TableReader(self._dataset, table)
        columns = reader.schema.names
        self._load(table, reader)
        if reader.damage:
            self._connection.execute(f"DROP TABLE {name_literal(table)}")
            return reader.damage
        rules = row_rules(table, columns, self._num_rows)
        rules += repeat_rules(table, columns, ascends=reader.ascends)
        rules += cross_rules(table, columns, self.loaded)
        if table.startswith("edges/"):
            _, anchor_set, side = table.split("/")
            if side == "query" and TRAIN in self.loaded:
                linked = f"SELECT query_id FROM {name_literal(table)}"
                self._connection.execute(f"DELETE FROM unlinked WHERE query_id IN ({linked})")
            is_used = anchor_set in self._dataset.strict_anchor_sets and side in NODE_TABLES
            if is_used and f"anchors/{anchor_set}" in self.loaded:
                rules += self.leak_rules(leak_rule(table))
        findings = self.broken(table, rules)
        if table == TRAIN:
            findings += self._unclicked()
        self._forget(table, columns)
        return findings

    def leak_rules(self, rule: FaultKind) -> list[FaultKind]:
        """Find the held-out answers, which a rule reads; no rule if their tables are not there."""
        if not self.loaded >= {*NODE_TABLES.values()}:
            return []
        find_answers(self._connection, self.loaded)
        return [rule]

    def _unclicked(self) -> list[Finding]:
        """Create ``unlinked``, train queries without a click, from which edges take theirs out."""
        unclicked = f"FROM {name_literal(TRAIN)} WHERE len(ad_ids) = 0"
        self._connection.execute(
            f"CREATE TABLE unlinked AS SELECT rowid AS row, query_id {unclicked}"
        )
        if count(self._connection, "SELECT count(*) FROM unlinked") < self._num_rows[TRAIN]:
            return []
        message = "no train query has a click"
        advice = "training needs queries with clicks"
        return [Finding("error", f"{TRAIN}.parquet", message, advice)]

    def _load(self, table: str, reader: _TableReader) -> None:
        rows = pa.RecordBatchReader.from_batches(reader.schema, reader.batches())
        self._connection.register("source", rows)
        columns = ", ".join(map(name_literal, reader.schema.names))
        folded, texts = (", folded", ", fold(text)") if "text" in reader.schema.names else ("", "")
        create = f"CREATE TABLE {name_literal(table)} ({columns}{folded}) AS"
        run(self._connection, f"reading {table}", f"{create} SELECT *{texts} FROM source")
        self._connection.unregister("source")

    def _forget(self, table: str, columns: Iterable[str]) -> None:
        """Drop what no later rule reads: most tables, or some columns."""
        of_table = name_literal(table)
        if table.startswith(("edges/", "filters/", "judged/", "aliases/")):
            self._connection.execute(f"DROP TABLE {of_table}")
            return
        for column in sorted({*columns} - {*schema_of(table).names}):
            drop = f"ALTER TABLE {of_table} DROP COLUMN {name_literal(column)}"
            self._connection.execute(drop)
        self.loaded.add(table)

    def broken(self, table: str, rules: Sequence[FaultKind]) -> list[Finding]:
        """Return a finding for each of the rules that rows of the table break."""
        if not rules:
            return []
        # one statement, as each takes milliseconds; a union, as planning a row of counts takes more
        counts = (f"SELECT {i}, count(*) FROM ({rule.sql})" for i, rule in enumerate(rules))
        checking = f"{_this(table)} {' UNION ALL '.join(counts)}"
        run(self._connection, f"checking {table}", checking)
        broken = [(rules[i], number) for i, number in sorted(self._connection.fetchall()) if number]
        return [self._finding(table, *rule) for rule in broken]

    def _finding(self, table: str, rule: FaultKind, number: int) -> Finding:
        whole = self._num_rows[table]
        if rule.whole:
            whole = count(self._connection, f"SELECT {rule.whole} FROM {name_literal(table)}")
        first = f"SELECT row, value FROM ({rule.sql}) ORDER BY ALL LIMIT {MAX_EXAMPLES}"
        looking = f"looking in {table} for a {rule.message}"
        run(self._connection, looking, f"{_this(table)} {first}")
        tally = Tally(rule)
        for row, value in self._connection.fetchall():
            file, row_of_file = self._place(table, row)
            tally.add(file, [row_of_file], [value])
        tally.count = number
        return tally.share(whole if rule.severity == "warning" else None)

    def _place(self, table: str, row: int) -> tuple[Path, int]:
        """Return the file that has a row of the table, and the row's number there."""
        for path in self._dataset.files(table):
            if row < (num_rows := read_footer(path).num_rows):
                return path.relative_to(self._dataset.path), row
            row -= num_rows
        raise AssertionError(f"{table} has no row {row} more")


def _this(table: str) -> str:
    return f"WITH this AS NOT MATERIALIZED (SELECT rowid AS row, * FROM {name_literal(table)})"
