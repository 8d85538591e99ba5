"""The data pipeline: with Ray Data, turn a dataset directory into memory-mapped arrays, once.

Two streaming executions (texts, edges) read the parquet files, tokenise their rows, sort them by
table and key, and write parts, which a task joins. Keys of train queries are a global shuffle.
"""

import hashlib
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pyarrow as pa
import ray.data

from ramen_ray.data.checks.structure import inspect_structure, read_tables
from ramen_ray.data.checks.validation import look_over
from ramen_ray.data.findings import Finding, raise_errors
from ramen_ray.data.prepared.folder import Prepared, TextFigures, dataset_statistics, measure_texts
from ramen_ray.data.prepared.stages import (
    WHOLE_TABLES,
    TablePart,
    edge_rows,
    join_parts,
    text_rows,
    write_parts,
    write_whole_tables,
)
from ramen_ray.data.store.dataset import WHILE_READ, Dataset
from ramen_ray.data.store.made_folder import made_once, write_json
from ramen_ray.data.store.parquet_files import open_parquet, read_footer
from ramen_ray.errors import shown_path
from ramen_ray.long_work import logged_progress, warn_once
from ramen_ray.method.model.texts import TextTokenizer
from ramen_ray.orchestration.cluster.resources import (
    in_tasks,
    limited_attempts,
    num_cpus,
    user_errors,
)

PREPARED_VERSION = 12
GROUPS_PER_TASK = 4
ROWS_PER_BATCH = 131_072  # so that a word is tokenised once for many texts
MAX_WARNINGS_SHOWN = 3
PARTS = "parts"
ATTEMPTS = "attempts"
MANY_TEXTS = 0.01  # share of its tokens or texts from which on those that an encoder loses are
_LOST_TEXTS = {
    "share_unknown": (
        "of the tokens are unknown to the encoder's vocabulary",
        "take an encoder for these texts",
    ),
    "share_repeated": (
        "of the texts have the tokens of an earlier one, so the encoder cannot tell them apart",
        "raise encoder.max_length if their ends differ, or drop repeated texts",
    ),
}


def prepare(dataset: Dataset, cache: Path, tokenizer: TextTokenizer) -> Prepared:
    """Return ``dataset`` prepared with ``tokenizer``, from ``cache`` if it is there and intact.

    The cache is keyed by the content of the tables, the tokenizer and its settings; a process waits
    for another that makes the same. Warnings about the dataset are logged once by a process. Raises
    a DatasetError if a table is missing, a row is wrong, or the tables change meanwhile.
    """
    target = prepared_folder(dataset, cache, tokenizer)  # takes the fingerprint before all reading
    of_structure, num_rows = inspect_structure(dataset)
    raise_errors(dataset, of_structure)
    with made_once(target) as aside:
        if aside is not None:
            is_told = logged_progress(f"preparing {shown_path(dataset.path)}")
            with dataset.unchanged(WHILE_READ), user_errors(), is_told:
                _prepare_into(aside, dataset, tokenizer, of_structure, num_rows)
    prepared = Prepared(target)
    of_content = [Finding(**finding) for finding in prepared.metadata["findings"]]
    findings = of_structure + of_content
    warnings = [finding for finding in findings if finding.severity == "warning"]
    place = shown_path(dataset.path)
    for warning in warnings[:MAX_WARNINGS_SHOWN]:
        warn_once(f"warning: {place}/{warning}")
    if (rest := len(warnings) - MAX_WARNINGS_SHOWN) > 0:
        warn_once(f"and {rest} more: {shlex.join(['python', 'jobs/validate.py', place])}")
    for warning in text_findings(prepared.text_figures):
        warn_once(f"warning: {place}/{warning}")
    return prepared


def prepared_folder(dataset: Dataset, cache: Path, tokenizer: TextTokenizer) -> Path:
    """Return where :func:`prepare` puts the dataset; it is not there before."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{PREPARED_VERSION}{dataset.fingerprint}{tokenizer}".encode())
    return cache / f"{dataset.name}-{digest.hexdigest()}"


def _prepare_into(
    folder: Path,
    dataset: Dataset,
    tokenizer: TextTokenizer,
    of_structure: list[Finding],
    num_rows: dict[str, int],
) -> None:
    findings = [finding for finding in look_over(dataset) if finding not in of_structure]
    raise_errors(dataset, findings)
    tables = [table for table in read_tables(dataset) if table not in WHOLE_TABLES]
    edges = [table for table in tables if table.startswith("edges/")]
    texts = [table for table in tables if table not in edges]
    to_text_rows = partial(_text_rows, tokenizer)
    parts = _run(dataset, texts, to_text_rows, ["table", "key"], folder)
    if edges:
        parts += _run(dataset, edges, edge_rows, ["table", "key", "anchor_id"], folder)
    in_tasks([partial(join_parts, parts, folder, num_rows, tokenizer.vocab_size)])
    for aside in (PARTS, ATTEMPTS):
        shutil.rmtree(folder / aside)
    measure = partial(measure_texts, folder, texts, tokenizer.unknown, tokenizer.num_special)
    statistics, figures = in_tasks([partial(dataset_statistics, dataset), measure])
    write_whole_tables(folder, dataset)
    description = {
        "name": dataset.name,
        "anchor_sets": dataset.anchor_sets,
        "statistics": statistics,
        "texts": {table: asdict(of_table) for table, of_table in figures.items()},
        "findings": [asdict(finding) for finding in findings],
    }
    write_json(folder / "prepared.json", description)


def _text_rows(tokenizer: TextTokenizer, table: str, rows: pa.Table) -> pa.Table:
    return text_rows(table, rows, partial(tokenizer, prompt=tokenizer.prompts.of(table)))


def _run(
    dataset: Dataset,
    tables: list[str],
    to_rows: Callable[[str, pa.Table], pa.Table],
    sort_keys: list[str],
    folder: Path,
) -> list[TablePart]:
    """Stream ``tables`` through read, ``to_rows``, sort and write; returns the parts."""
    # One execution serves row groups of all tables, as starting one takes seconds.
    groups = [
        {"table": table, "file": str(file), "row_group": row_group}
        for table in tables
        for file in dataset.files(table)
        for row_group in range(read_footer(file).num_row_groups)
    ]
    num_blocks = min(len(groups), max(len(groups) // GROUPS_PER_TASK, num_cpus()))
    ray.data.DataContext.get_current().default_hash_shuffle_parallelism = num_blocks
    rows = ray.data.from_items(groups, override_num_blocks=num_blocks).map_batches(
        _read,
        fn_args=(str(dataset.path), to_rows, folder / ATTEMPTS),
        batch_format="pyarrow",
        batch_size=1,
    )
    written = rows.sort(sort_keys).map_batches(
        write_parts,
        fn_args=(folder / PARTS,),
        batch_format="pyarrow",
        batch_size=None,
        zero_copy_batch=True,
    )
    return list(written.take_all())


def _read(
    group: pa.Table, dataset: str, to_rows: Callable[[str, pa.Table], pa.Table], attempts: Path
) -> Iterator[pa.Table]:
    (item,) = group.to_pylist()
    table = item["table"]
    file = item["file"]
    row_group = item["row_group"]
    columns = Dataset(dataset).schema(table).names
    with (
        limited_attempts(attempts, f"{file}, row group {row_group}"),
        open_parquet(file) as parquet,
    ):
        for rows in parquet.iter_batches(ROWS_PER_BATCH, row_groups=[row_group], columns=columns):
            yield to_rows(table, pa.Table.from_batches([rows.select(columns)]))


def text_findings(figures: Mapping[str, TextFigures]) -> list[Finding]:
    """Warn of many unknown tokens, and of many texts of the same tokens; the worst table first."""
    findings = []
    for name, (message, advice) in _LOST_TEXTS.items():
        shares = {table: getattr(figure, name) for table, figure in figures.items()}
        many = {table: share for table, share in shares.items() if share >= MANY_TEXTS}
        tables = sorted(many, key=lambda table: -many[table])
        if tables:
            most = f"{'up to ' * (len(tables) > 1)}{many[tables[0]]:.1%}"
            findings.append(Finding("warning", ", ".join(tables), f"{most} {message}", advice))
    return findings
