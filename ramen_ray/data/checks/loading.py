"""A dataset's tables, each read once into the engine, and what there breaks a rule.

There, tables have the names of the dataset directory, and ``rowid`` is a row's number, as the
engine keeps the order of insertion. Texts whose bytes are not UTF-8 are null, and their bytes are
in a column beside them; see :func:`in_bytes`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from duckdb import DuckDBPyConnection

from ramen_ray.data.engine import count, name_literal, run
from ramen_ray.data.findings import MAX_EXAMPLES, Finding, Kind, Severity, Tally
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.parquet_files import read_footer
from ramen_ray.data.store.schemas import schema_of
from ramen_ray.data.store.texts import not_utf8

ROWS_PER_BATCH = 65_536
READ_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError, DatasetError)
Severities = tuple[Severity, ...]


@dataclass(frozen=True)
class Rule:
    """What is wrong with some rows of a table, and the SQL that finds them.

    It selects ``row`` and ``value``, a row's number and what is wrong there, from ``this``, the
    table with ``row``.
    """

    kind: Kind
    sql: str
    whole: str = "count(*)"  # SQL over the table for how many could break it
    least: float = 0.0  # the share of them from which on it is worth a finding


def error(column: str, message: str, advice: str, sql: str) -> Rule:
    """Return a rule that training needs to hold for a ``column``."""
    return Rule(Kind(message, advice, column), sql)


def warning(column: str, message: str, advice: str, sql: str) -> Rule:
    """Return a rule that training can do without."""
    return Rule(Kind(message, advice, column, "warning"), sql)


class Tables:
    """The tables of a ``dataset`` that are in the engine; ``columns`` has those of each.

    If warnings are looked for, texts are there also as ``folded``.
    """

    def __init__(
        self, connection: DuckDBPyConnection, dataset: Dataset, severities: Severities
    ) -> None:
        """Begin with no table; findings of other ``severities`` are not looked for."""
        self.connection = connection
        self.columns: dict[str, list[str]] = {}
        self.dataset = dataset
        self._severities = severities
        self._warns = "warning" in severities

    def load(self, table: str) -> list[Finding]:
        """Read a table into the engine, unless it is damaged; return what is damaged."""
        schema = self.dataset.schema(table)
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        of_bytes = (pa.field(in_bytes(name), pa.binary()) for name in texts)
        fields = pa.schema([*schema, *of_bytes])
        damage: list[Finding] = []
        batches = self._batches(table, schema.names, fields, damage)
        self.connection.register("source", pa.RecordBatchReader.from_batches(fields, batches))
        columns = ", ".join(name_literal(field.name) for field in fields)
        folded = "text" in texts and self._warns
        run(
            self.connection,
            f"reading {table}",
            f"CREATE TABLE {name_literal(table)} ({columns}{', folded' if folded else ''}) AS"
            f" SELECT *{', fold(text)' if folded else ''} FROM source",
        )
        self.connection.unregister("source")
        self.columns[table] = schema.names
        if damage:
            self.drop(table)
        return damage

    def _batches(
        self, table: str, columns: list[str], fields: pa.Schema, damage: list[Finding]
    ) -> Iterator[pa.RecordBatch]:
        """Stream a table; a file that is damaged ends it, and is added to ``damage``."""
        for path in self.dataset.files(table):
            num_rows = 0
            try:
                for rows in self.dataset.rows_of(path, columns, ROWS_PER_BATCH):
                    yield _with_bytes(rows, fields)
                    num_rows += len(rows)
                if num_rows != read_footer(path).num_rows:
                    raise DatasetError("its number of rows differs from its footer")
            except READ_ERRORS as error:  # the engine would change it
                damage.append(unreadable(path.relative_to(self.dataset.path), error))
                return

    def forget(self, table: str) -> None:
        """Drop the columns of a table that only rules for rows read."""
        of_format = [name for name in schema_of(table).names if name != "weight"]
        kept = {*of_format, "source_id", "folded"} if self._warns else {*of_format} - {"text"}
        for column in [*self.columns[table], *map(in_bytes, self.columns[table])]:
            if column not in kept:
                name = name_literal(column)
                of_table = f"ALTER TABLE {name_literal(table)}"
                self.connection.execute(f"{of_table} DROP COLUMN IF EXISTS {name}")
        self.columns[table] = [name for name in self.columns[table] if name in kept]

    def drop(self, table: str) -> None:
        """Forget a table."""
        self.connection.execute(f"DROP TABLE {name_literal(table)}")
        self.columns.pop(table)

    def broken(self, table: str, rules: Iterable[Rule]) -> list[Finding]:
        """Return a finding for each of the rules that rows of the table break."""
        rules = [rule for rule in rules if rule.kind.severity in self._severities]
        if not rules:
            return []
        # one statement, as each takes milliseconds; a union, as planning a row of counts takes more
        counts = (f"SELECT {i}, count(*) FROM ({rule.sql})" for i, rule in enumerate(rules))
        run(self.connection, f"checking {table}", f"{_this(table)} {' UNION ALL '.join(counts)}")
        broken = [(rules[i], number) for i, number in sorted(self.connection.fetchall()) if number]
        return [one for rule, number in broken for one in self._finding(table, rule, number)]

    def _finding(self, table: str, rule: Rule, number: int) -> Iterator[Finding]:
        whole = count(self.connection, f"SELECT {rule.whole} FROM {name_literal(table)}")
        if number < rule.least * whole:
            return
        first = (
            f"{_this(table)} SELECT row, value FROM ({rule.sql}) ORDER BY ALL LIMIT {MAX_EXAMPLES}"
        )
        run(self.connection, f"looking in {table} for a {rule.kind.message}", first)
        tally = Tally(rule.kind)
        for row, value in self.connection.fetchall():
            file, row_of_file = self._place(table, row)
            tally.add(file, [row_of_file], [value])
        tally.count = number
        yield tally.share(whole if rule.kind.severity == "warning" else None)

    def _place(self, table: str, row: int) -> tuple[Path, int]:
        """Return the file that has a row of the table, and the row's number there."""
        for path in self.dataset.files(table):
            num_rows = read_footer(path).num_rows
            if row < num_rows:
                return path.relative_to(self.dataset.path), row
            row -= num_rows
        raise AssertionError(f"{table} has no row {row} more")


def _this(table: str) -> str:
    return f"WITH this AS NOT MATERIALIZED (SELECT rowid AS row, * FROM {name_literal(table)})"


def in_bytes(column: str) -> str:
    """Name the column of the bytes of texts that are not UTF-8, which the engine cannot hold."""
    return f"bytes of {column}"  # no table's own column begins so


def _with_bytes(rows: pa.RecordBatch, fields: pa.Schema) -> pa.RecordBatch:
    columns = {field.name: rows[field.name] for field in fields if field.name in rows.schema.names}
    for name in [name for name in columns if in_bytes(name) in fields.names]:
        broken = pa.array(not_utf8(columns[name]))
        contents = columns[name].cast(pa.binary())
        columns[in_bytes(name)] = pc.if_else(broken, contents, None)
        columns[name] = pc.if_else(broken, None, columns[name])
    cells = [columns[field.name].cast(field.type) for field in fields]
    return pa.RecordBatch.from_arrays(cells, schema=fields)


def unreadable(file: str | Path, why: object) -> Finding:
    """Return the finding that ``file`` cannot be read."""
    return Finding(
        "error",
        str(file),
        f"not a readable parquet file: {' '.join(str(why).split())}",
        "it is damaged or incomplete; copy or write it again",
    )
