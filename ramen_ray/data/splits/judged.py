"""Add a user's judgements to a dataset that was imported before: the result is another dataset."""

from dataclasses import dataclass
from pathlib import Path

from ramen_ray.data.engine import Connection, count, engine, name_literal, run, stream
from ramen_ray.data.findings import FaultKind
from ramen_ray.data.splits.kept import new_dataset_from, write_kept
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import JUDGED, SIDES, SPLITS, Side
from ramen_ray.data.tables.graphs.nodes import node_names
from ramen_ray.data.tables.reading.columns import grade_column, text_column
from ramen_ray.data.tables.reading.loading import UserTable


@dataclass(frozen=True)
class JudgedTable:
    """A table of judgements: pairs of query and ad with a grade of how well the ad answers."""

    judged: str
    """Table of judgements; queries and ads by your ids, or by texts where the import had none."""
    judged_highest: float = 1.0
    """The best grade, such as 3 for levels from 0 to 3."""
    query: str = "query"
    """Column of the query."""
    ad: str = "ad"
    """Column of the ad."""
    grade: str = "grade"
    """Column of the grade, from 0 to judged_highest."""
    source: str = "source"
    """Column of who judged."""
    skip_bad_rows: bool = False
    """Leave out rows with bad grades or unknown queries and ads, instead of refusing them."""


def add_judgements(parent: Dataset, given: JudgedTable, output: Path) -> Dataset:
    """Write the dataset with these judgements in place of its own.

    A query that is in several splits, or whose other spellings are, is judged in the last only.
    Raises a DatasetError if rows are wrong.
    """
    columns = {
        "query": node_names(parent.metadata, "query", given.query, "keep"),
        "ad": node_names(parent.metadata, "ad", given.ad, "keep"),
        "grade": grade_column(given.grade, given.judged_highest),
        "source": text_column(given.source),
    }
    table = UserTable(given.judged, columns, given.skip_bad_rows)
    with (
        new_dataset_from(parent, output, "judged", "judged", vars(given)) as writer,
        engine(writer.folder, dataset=parent) as connection,
    ):
        table.load(connection, "judged_rows", "SELECT * FROM source")
        for side in SIDES:
            _find(connection, parent, side, table)
        table.check()
        table.refuse_no_rows()
        judged = """CREATE TABLE judged AS
            SELECT query_split AS split, query_id, ad_id, source,
                avg(grade ORDER BY place) AS grade
            FROM judged_rows JOIN query_ids ON query_ids.name = query
            JOIN ad_ids ON ad_ids.name = ad WHERE query_split = query_last GROUP BY ALL"""
        run(connection, "averaging judgements", judged)
        for name in parent.tables:
            if name not in JUDGED:
                write_kept(parent, name, {}, writer)
        for number, name in enumerate(JUDGED):
            rows = f"""SELECT query_id, ad_id, source, grade FROM judged WHERE split = {number}
                ORDER BY query_id, ad_id, source"""
            if count(connection, f"SELECT count(*) FROM judged WHERE split = {number}"):
                writer.write(name, stream(connection, rows))
    return Dataset(output)


def _find(connection: Connection, parent: Dataset, side: Side, table: UserTable) -> None:
    """Make ``query_ids`` (name, split, query_id) or ``ad_ids``; note the rows of other names."""
    tables = [f"queries/{split}" for split in SPLITS] if side == "query" else ["ads"]
    names = " UNION ALL ".join(
        f"""SELECT {_name_in(parent, name)} AS name, {number} AS split, folded, {side}_id
        FROM {name_literal(name)}"""
        for number, name in enumerate(tables)
    )
    ids = f"""CREATE TABLE {side}_ids AS
        SELECT name, max(split) AS {side}_split, max(last) AS {side}_last,
            arg_max({side}_id, (split, -{side}_id)) AS {side}_id
        FROM (SELECT *, max(split) OVER (PARTITION BY folded) AS last FROM ({names}))
        GROUP BY name"""
    run(connection, f"reading the names of {side} nodes", ids)
    table.report(
        connection,
        side,
        FaultKind(
            f"rows name {'an ad' if side == 'ad' else 'a query'} that {parent.name} does not have",
            "correct these names, or leave the rows out with --skip-bad-rows",
        ),
        f"SELECT place, {side} FROM judged_rows ANTI JOIN {side}_ids ON name = {side}",
    )


def _name_in(parent: Dataset, table: str) -> str:
    return "source_id" if "source_id" in parent.schema(table).names else "trimmed(text)"
