"""A dataset's tables, read once: their rows are checked as they pass into the engine."""

from collections import deque
from pathlib import Path

import duckdb
import pyarrow as pa

from ramen_ray.data.checks.reading import RowBatch, read_batches
from ramen_ray.data.checks.rows import RowChecks, Severities
from ramen_ray.data.checks.tables import TableRule
from ramen_ray.data.engine import count, name_literal, run
from ramen_ray.data.findings import MAX_EXAMPLES, Finding, Tally
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.parquet_files import read_footer
from ramen_ray.data.store.schemas import schema_of
from ramen_ray.data.store.texts import fold


class Tables:
    """The tables of a dataset directory that are in the engine, under their names.

    They have ids and, if warnings are looked for, texts, also folded, and users' own ids.

    Attributes:
        connection: the engine.
        columns: the columns in the engine of each table that is there.
        ascending: the tables whose ids, or pairs of ids, ascend, so that none repeats.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        dataset: Dataset,
        num_rows: dict[str, int],
        severities: Severities,
    ) -> None:
        """Begin with no table.

        ``num_rows`` has the row counts of tables with the right columns; findings of other
        ``severities`` are not looked for.
        """
        self.connection = connection
        self.columns: dict[str, list[str]] = {}
        self.ascending: set[str] = set()
        self._dataset = dataset
        self._num_rows = num_rows
        self._severities = severities

    def load(self, table: str) -> list[Finding]:
        """Read a table into the engine unless it is damaged; return what is wrong with its rows."""
        columns = self._dataset.schema(table).names
        checks = RowChecks(table, columns, self._num_rows, self._severities)
        damage: list[Finding] = []
        fields = self._fields(table, columns)
        batches = checks.apply(read_batches(self._dataset, table, damage))
        if not fields.names:
            deque(batches, maxlen=0)
            return damage or checks.findings()
        rows = (_columns(batch, fields) for batch in batches)
        source = pa.RecordBatchReader.from_batches(fields, rows)
        self.connection.register("source", source)
        loading = f"CREATE TABLE {name_literal(table)} AS SELECT * FROM source"
        run(self.connection, f"reading {table}", loading)
        self.connection.unregister("source")
        if damage:
            self.drop(table)
            return damage
        self.columns[table] = fields.names
        if checks.ascends:
            self.ascending.add(table)
        return checks.findings()

    def drop(self, table: str) -> None:
        """Forget a table."""
        self.connection.execute(f"DROP TABLE {name_literal(table)}")
        self.columns.pop(table, None)

    def broken(self, rule: TableRule, least: float = 0.0) -> list[Finding]:
        """Return what breaks a rule: one finding, or none if fewer than the share ``least`` do."""
        kind = rule.kind
        if kind.severity not in self._severities:
            return []
        looking = f"""
            WITH found AS MATERIALIZED ({rule.sql})
            SELECT row, value, (SELECT count(*) FROM found) FROM found
            ORDER BY ALL LIMIT {MAX_EXAMPLES}
            """
        run(self.connection, f"looking in {rule.table} for a {kind.message}", looking)
        found = self.connection.fetchall()
        whole = name_literal(rule.out_of or rule.table)
        num_rows = count(self.connection, f"SELECT count(*) FROM {whole}") if found else 0
        if not found or found[0][2] < least * num_rows:
            return []
        tally = Tally(kind)
        for row, value, _ in found:
            file, row_of_file = self._place(rule.table, row)
            tally.add(file, [row_of_file], [value])
        tally.count = found[0][2]
        return [tally.share(num_rows if kind.severity == "warning" else None)]

    def _place(self, table: str, row: int) -> tuple[Path, int]:
        """Return the file that has a row of the table, and the row's number there."""
        for path in self._dataset.files(table):
            num_rows = read_footer(path).num_rows
            if row < num_rows:
                return path.relative_to(self._dataset.path), row
            row -= num_rows
        raise AssertionError(f"{table} has no row {row} more")

    def _fields(self, table: str, columns: list[str]) -> pa.Schema:
        """Choose what of a table the rules need in the engine, if anything."""
        of_format = schema_of(table)
        if table.startswith("aliases/"):
            return pa.schema([])
        if table.startswith(("edges/", "filters/")):
            return pa.schema(list(of_format)[:2])
        fields = [of_format.field(name) for name in of_format.names if name != "text"]
        if "warning" in self._severities:
            texts = ["text", "folded"] if "text" in columns else []
            texts += [name for name in columns if name == "source_id"]
            fields += [pa.field(name, pa.string()) for name in texts]
        return pa.schema(fields)


def _columns(batch: RowBatch, fields: pa.Schema) -> pa.RecordBatch:
    columns = []
    for field in fields:
        if field.name == "folded":
            columns.append(fold(batch.texts("text")))
        elif pa.types.is_string(field.type):
            columns.append(batch.texts(field.name))
        else:
            columns.append(batch.rows[field.name].cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=fields)
