"""Add judgements to a dataset: to the directory itself, or to a new one made from it."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramen_ray.data.checks.validation import check
from ramen_ray.data.engine import (
    Connection,
    count,
    engine,
    name_literal,
    run,
    text_literal,
)
from ramen_ray.data.findings import FaultKind
from ramen_ray.data.splits.kept import new_dataset_from, write_kept
from ramen_ray.data.store.dataset import (
    WHILE_READ,
    Dataset,
    DatasetError,
    DatasetWriter,
    replace_tables,
    to_change,
)
from ramen_ray.data.store.made_folder import not_in_use, owned_folder
from ramen_ray.data.store.schemas import JUDGED, JUDGED_FOLDER, SIDES, SPLITS, Side
from ramen_ray.data.tables.clicks.splits import write_splits
from ramen_ray.data.tables.graphs.nodes import node_names
from ramen_ray.data.tables.reading.columns import grade_column, text_column
from ramen_ray.data.tables.reading.files import pinned
from ramen_ray.data.tables.reading.loading import UserTable
from ramen_ray.errors import without_secrets

logger = logging.getLogger(__name__)


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


def add_judgements(parent: Dataset, given: JudgedTable, output: Path | None = None) -> Dataset:
    """Add judgements to a dataset, in place or as the new dataset ``output``.

    They replace those of the same query, ad and source. A query that is in several splits, or whose
    other spellings are, is judged in the last only. Raises a DatasetError if rows are wrong.
    """
    columns = {
        "query": node_names(parent.metadata, "query", given.query, "keep"),
        "ad": node_names(parent.metadata, "ad", given.ad, "keep"),
        "grade": grade_column(given.grade, given.judged_highest),
        "source": text_column(given.source),
    }
    given = pinned(given, "judged")
    table = UserTable(given.judged, columns, given.skip_bad_rows)
    with adding_judgements(parent, output, vars(given)) as connection:
        table.load(connection, "judged_rows", "SELECT * FROM source")
        for side in SIDES:
            _find(connection, parent, side, table)
        table.check()
        table.refuse_no_rows()
        judged = """CREATE TABLE judged AS
            SELECT query_split AS split, query_id, ad_id, source,
                avg(grade ORDER BY place) AS grade, min(grade) < max(grade) AS differ
            FROM judged_rows JOIN query_ids ON query_ids.name = query
            JOIN ad_ids ON ad_ids.name = ad WHERE query_split = query_last GROUP BY ALL"""
        run(connection, "averaging judgements", judged)
        logger.info(
            "judgements: %s, %s of which are means of rows that contradict each other",
            count(connection, "SELECT count(*) FROM judged"),
            count(connection, "SELECT count(*) FROM judged WHERE differ"),
        )
    return Dataset(output or parent.path)


@contextmanager
def adding_judgements(
    parent: Dataset, output: Path | None, settings: Mapping[str, Any], replaced: str | None = None
) -> Iterator[Connection]:
    """Let the block make ``judged`` (split, query_id, ad_id, source, grade), and write its rows.

    ``split`` is a number of SPLITS. The parent's own judgements stay, but for those of a pair and
    source in ``judged`` and those by the source ``replaced``. Without ``output`` they are written
    into the parent, whole or not at all; ``settings`` go into ``dataset.json``.
    """
    made = without_secrets(dict(settings))
    if output is not None:
        with new_dataset_from(parent, output, JUDGED_FOLDER, JUDGED_FOLDER, made) as writer:
            for name in parent.tables:
                if name not in JUDGED:
                    write_kept(parent, name, {}, writer)
            with engine(writer.folder, dataset=parent) as connection:
                yield connection
                _write(connection, parent, writer, replaced)
        return
    before = parent.fingerprint
    with not_in_use(parent.path):
        check(parent)
    with owned_folder(parent.path) as aside:
        with engine(aside, dataset=parent) as connection:
            yield connection
            _write(connection, parent, DatasetWriter(aside), replaced)
        with to_change(parent.path) as now:
            if now.fingerprint != before:
                raise DatasetError(f"{now.path} has changed {WHILE_READ}")
            about = {JUDGED_FOLDER: made}
            replace_tables(now, [JUDGED_FOLDER], f"{JUDGED_FOLDER}/", about, aside)


def _write(
    connection: Connection, parent: Dataset, writer: DatasetWriter, replaced: str | None
) -> None:
    """Write ``judged`` and what stays of the parent's."""
    rows = "SELECT split, query_id, ad_id, source, grade FROM judged"
    for number, name in enumerate(JUDGED):
        if parent.has(name):
            rows += f""" UNION ALL
                SELECT {number}, query_id, ad_id, source, grade FROM {name_literal(name)}
                ANTI JOIN (FROM judged WHERE split = {number}) USING (query_id, ad_id, source)"""
            rows += f" WHERE source <> {text_literal(replaced)}" if replaced else ""
    write_splits(connection, writer, JUDGED_FOLDER, rows)


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
