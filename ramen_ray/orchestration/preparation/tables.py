"""Import a user's own tables with Ray Data: stage, number, plan, write.

Every stage reads and writes files of a staging folder inside the unfinished dataset directory, so
rows never pass through the driver. Only the clicks, as numbers, go through Ray's shuffle.
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
from numpy.typing import NDArray

from ramen_ray.data.findings import FirstFindings, raise_errors
from ramen_ray.data.graphs.edge_lists import made_by
from ramen_ray.data.importers.tables.edges import write_edges
from ramen_ray.data.importers.tables.given import stage_filters, stage_splits
from ramen_ray.data.importers.tables.numbering import number_clicks, number_nodes, sum_clicks
from ramen_ray.data.importers.tables.planning import make_plan
from ramen_ray.data.importers.tables.settings import UserTables
from ramen_ray.data.importers.tables.staging import read_findings, stage_clicks, stage_nodes
from ramen_ray.data.importers.tables.writing import write_ads, write_filters, write_queries
from ramen_ray.data.sources import Piece, find_pieces, located
from ramen_ray.data.store.dataset import (
    Dataset,
    DatasetError,
    DatasetWriter,
    dataset_name,
    new_dataset,
)
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.errors import redacted
from ramen_ray.orchestration.cluster.attempts import limited_attempts
from ramen_ray.orchestration.cluster.resources import start_ray, user_errors
from ramen_ray.orchestration.cluster.tasks import in_tasks

STAGING = ".staging"
ATTEMPTS = "attempts"
MAX_PARTITIONS = 1024

logger = logging.getLogger(__name__)

RowCounts = dict[str, int]
ImportTask = Callable[[], RowCounts | None]


def import_tables(tables: UserTables, output: Path, name: str | None = None) -> Dataset:
    """Import a user's own tables into a dataset directory at ``output``.

    The same tables and settings give the same dataset directory, on any cluster.

    Args:
        tables: where the tables are, what their columns are called, how they are split.
        output: must not exist; with several machines, a folder that all of them can reach.
        name: name of the dataset; by default that of the folder.

    Raises:
        DatasetError: a table cannot be read, or rows are bad; no dataset directory is left.
    """
    pieces = {kind: find_pieces(*source) for kind, source in tables.sources.items()}
    for edge_list in tables.edge_lists.values():
        for source, names in edge_list.tables.values():
            find_pieces(source, names)  # to report errors before the work begins
    metadata = {
        "name": dataset_name(name, output),
        "source": redacted(tables.clicks),
        "licence": "",
        "imported": _without_passwords(asdict(tables)),
        "anchor_sets": {key: made_by(edges) for key, edges in tables.edge_lists.items()},
    }
    start_ray()
    with new_dataset(output, **metadata) as writer, user_errors():
        folder = writer.folder / STAGING
        folder.mkdir()
        _stage(pieces, tables, folder)
        _number(pieces, tables, folder)
        _write(pieces, tables, folder, writer)
        if tables.filters or tables.drop_own_text:
            _write_filters(pieces.get("filters", []), tables, folder, writer)
        for key in tables.edge_lists:
            counts = write_edges(folder, key, tables, writer, in_tasks)
            found = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
            logger.info("anchor set %s: %s", key, found)
        shutil.rmtree(folder)
    dataset = Dataset(output)
    queries = ", ".join(f"{dataset.num_rows(f'queries/{split}'):,} {split}" for split in SPLITS)
    logger.info("wrote %s queries and %s ads", queries, f"{dataset.num_rows('ads'):,}")
    return dataset


def _without_passwords(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_passwords(one) for key, one in value.items()}
    return redacted(value) if isinstance(value, str) else value


def _stage(pieces: dict[str, list[Piece]], tables: UserTables, folder: Path) -> None:
    staged = {kind: pieces[kind] for kind in ("queries", "ads", "clicks") if kind in pieces}
    tasks: list[ImportTask] = []
    for kind, of_kind in staged.items():
        for part, piece in enumerate(of_kind):
            if kind == "clicks":
                tasks.append(partial(stage_clicks, piece, part, tables, folder))
            else:
                tasks.append(partial(stage_nodes, piece, kind, part, tables, folder))
    logger.info("reading %d pieces of %s", len(tasks), ", ".join(staged))
    done = iter(_run(tasks, folder))
    _refuse_or_log(tables, read_findings(folder), pieces)
    for kind, of_kind in staged.items():
        counts = [next(done) for _ in of_kind]
        kept, left_out = (sum(count[name] for count in counts) for name in ("kept", "left_out"))
        _log_counts(kind, {"rows read": kept + left_out, "rows left out as bad": left_out})
        if not kept:
            raise DatasetError(f"{getattr(tables, kind)} has no rows that can be used")


def _number(pieces: dict[str, list[Piece]], tables: UserTables, folder: Path) -> None:
    num_parts = {kind: len(pieces.get(kind, pieces["clicks"])) for kind in ("queries", "ads")}
    number = ray.remote(number_nodes)
    counts = ray.get([number.remote(folder, kind, parts) for kind, parts in num_parts.items()])
    for kind, found in zip(num_parts, counts, strict=True):
        _log_counts(kind, {_MEANT[name]: count for name, count in found.items()})
    parts = [{"part": part} for part in range(len(pieces["clicks"]))]
    ray.data.DataContext.get_current().default_hash_shuffle_parallelism = min(
        num_parts["queries"], MAX_PARTITIONS
    )
    summed = (
        ray.data.from_items(parts, override_num_blocks=len(parts))
        .map_batches(
            _number_part,
            fn_args=(pieces["clicks"], tables, folder),
            batch_size=1,
        )
        .groupby("part")
        .map_groups(
            sum_clicks,
            fn_args=(folder, tables),
            batch_format="pyarrow",
        )
        .take_all()
    )
    _refuse_or_log(tables, read_findings(folder, "unknown-*"), pieces)
    if not summed:
        raise DatasetError(
            f"no click of {tables.clicks} names a known query and a known ad; are "
            f"{' and '.join(list(tables.click_columns.values())[:2])} the right columns?"
        )
    counted = ("clicks", "pairs", "light_pairs", "own_pairs")
    totals = {name: sum(row[name] for row in summed) for name in counted}
    _log_counts("clicks", {_MEANT[name]: count for name, count in totals.items()})
    _stage_given("splits", stage_splits, pieces.get("splits", []), tables, folder)
    plan = ray.remote(make_plan).remote(folder, tables)
    _log_counts("minimum counts", {_MEANT[name]: n for name, n in ray.get(plan).items()})


_MEANT = {
    "ids": "different ids",
    "repeated_rows": "rows repeat an id",
    "other_texts": "of them with a different text, which is not used",
    "merged": "have the text of an earlier one and are merged with it",
    "clicks": "rows of known queries and ads",
    "pairs": "different pairs of query and ad among them",
    "light_pairs": "pairs left out for their low weight",
    "own_pairs": "pairs left out as an ad of the query's own text",
    "ads_left_out": "ads left out",
    "queries_left_out": "queries left out",
    "unclicked_queries": "train queries kept without a click",
}
"""What the stages' counts mean; each text is shown after its count."""


def _log_counts(what: str, counts: Mapping[str, int]) -> None:
    """Log the counts that are not 0."""
    logger.info(
        "%s: %s", what, ", ".join(f"{n:,} {name}" for name, n in counts.items() if n) or "none"
    )


def _number_part(
    item: dict[str, NDArray[Any]], pieces: list[Piece], tables: UserTables, folder: Path
) -> pa.Table:
    part = int(item["part"][0])
    with limited_attempts(folder / ATTEMPTS, f"clicks of {pieces[part].path}, part {part}"):
        return number_clicks(folder, part, pieces[part], tables)


def _write(
    pieces: dict[str, list[Piece]], tables: UserTables, folder: Path, writer: DatasetWriter
) -> None:
    ads, queries = (range(len(pieces.get(kind, pieces["clicks"]))) for kind in ("ads", "queries"))
    tasks: list[ImportTask] = [partial(write_ads, folder, part, writer) for part in ads]
    tasks += [partial(write_queries, folder, part, writer, tables) for part in queries]
    _run(tasks, folder)


def _write_filters(
    pieces: list[Piece], tables: UserTables, folder: Path, writer: DatasetWriter
) -> None:
    _stage_given("filters", stage_filters, pieces, tables, folder)
    counts = ray.get(ray.remote(write_filters).remote(folder, writer, tables))
    meant = {"unused": "pairs of train queries, or of queries and ads that the import left out"}
    named = {meant.get(name, f"pairs of {name} queries"): n for name, n in counts.items()}
    _log_counts("filters", named)


def _stage_given(
    kind: str,
    stage: Callable[[Piece, int, UserTables, Path], None],
    pieces: list[Piece],
    tables: UserTables,
    folder: Path,
) -> None:
    """Stage a table that names queries and ads, after these have been numbered."""
    if pieces:
        _run(
            [partial(stage, piece, part, tables, folder) for part, piece in enumerate(pieces)],
            folder,
        )
    _refuse_or_log(tables, read_findings(folder, f"{kind}-*"), {kind: pieces})


def _run(tasks: Sequence[ImportTask], folder: Path) -> list[RowCounts]:
    """Run tasks that write to files in ``folder``; returns their counts, in their order."""
    done = ray.data.range(len(tasks), override_num_blocks=len(tasks)).map_batches(
        _run_one, fn_args=(tasks, folder / ATTEMPTS), batch_size=1
    )
    return sorted(done.take_all(), key=lambda counts: counts["id"])


def _run_one(
    row: dict[str, NDArray[np.int64]], tasks: Sequence[ImportTask], attempts: Path
) -> dict[str, NDArray[np.int64]]:
    number = row["id"][0]
    with limited_attempts(attempts, f"part {number} of the import"):
        counts = tasks[number]() or {}
    return {**row, **{name: np.array([count]) for name, count in counts.items()}}


def _refuse_or_log(
    tables: UserTables, found: FirstFindings, pieces: dict[str, list[Piece]]
) -> None:
    shown = located(found.shown, chain.from_iterable(pieces.values()))
    if not tables.skip_bad_rows:
        raise_errors("the input", shown, found.num_errors)
    for finding in shown:
        is_left_out = finding.severity == "error"
        logger.warning("%s", replace(finding, advice="left out") if is_left_out else finding)
    if found.num_findings > len(shown):
        logger.warning("and %d more", found.num_findings - len(shown))
