"""Export a dataset directory to the extreme classification repository's layout ``oak``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy import sparse

from ramen_ray.data.findings import error_at
from ramen_ray.data.importers.xc.layouts import EXTRA_SPLITS, NOVEL_ADS, RESERVED
from ramen_ray.data.importers.xc.lines import LineBreakError, write_lines, write_texts
from ramen_ray.data.importers.xc.matrices import build_matrix, write_matrix
from ramen_ray.data.store.dataset import Dataset, DatasetError, new_folder
from ramen_ray.data.store.schemas import SPLITS, ZERO_SHOT

_SHORT = {"train": "trn", "test": "tst", **EXTRA_SPLITS}
_SIDES = {"trn": ("query", "queries/train"), "lbl": ("ad", "ads")}


def export_xc(dataset: Dataset, folder: Path) -> None:
    """Write queries, ads, clicks, filters and graphs; on failure there is no folder.

    XC has no validation split, zero-shot split or users' own ids; these go into files that
    :func:`~ramen_ray.data.importers.xc.importing.import_xc` reads back: ``val_X_Y.txt``,
    ``zero_X_Y.txt``, ``novel_labels.txt`` and ``raw_data/*.source_id.txt``.

    Raises:
        DatasetError: a table is missing, a text has a line break, an anchor set's name is taken
            by the layout, or ``folder`` exists.
    """
    taken = sorted(RESERVED.intersection(dataset.anchor_sets))
    if taken:
        raise DatasetError(
            f"{dataset.path}: the anchor set {taken[0]!r} needs another name; the layout uses"
            f" raw_data/{taken[0]}.raw.txt for other texts"
        )
    with new_folder(folder) as aside:
        (aside / "raw_data").mkdir()
        _write_texts(dataset, "ads", aside / "raw_data" / "label")
        for split in (*SPLITS, ZERO_SHOT):
            if dataset.has(f"queries/{split}") or split in SPLITS:
                _write_split(dataset, split, aside)
        for anchor_set in dataset.anchor_sets:
            _write_graph(dataset, anchor_set, aside)
        if dataset.has("novel_ads"):
            _write_ids(dataset, "novel_ads", aside / NOVEL_ADS)


def _write_split(dataset: Dataset, split: str, folder: Path) -> None:
    table = f"queries/{split}"
    _write_texts(dataset, table, folder / "raw_data" / split)
    clicks = _clicks(dataset, table)
    write_matrix(folder / f"{_SHORT[split]}_X_Y.txt", clicks)
    if dataset.has(f"filters/{split}"):
        _write_ids(dataset, f"filters/{split}", folder / f"filter_labels_{split}.txt")


def _write_graph(dataset: Dataset, name: str, folder: Path) -> None:
    _write_texts(dataset, f"anchors/{name}", folder / "raw_data" / name)
    num_anchors = dataset.num_rows(f"anchors/{name}")
    for short, (side, node_table) in _SIDES.items():
        table = f"edges/{name}/{side}"
        if dataset.has(table):
            nodes, anchors, weights = (column.to_numpy() for column in dataset.read(table).columns)
            shape = dataset.num_rows(node_table), num_anchors
            matrix = _matrix(dataset, table, (nodes, anchors, weights), shape)
            write_matrix(folder / f"{name}_{short}_X_Y.txt", matrix)


def _clicks(dataset: Dataset, table: str) -> sparse.csr_array:
    query_ids, ad_ids, weights = [], [], []
    for batch in _by_id(dataset, table, ["ad_ids", "weights"]):
        lengths = pc.list_value_length(batch["ad_ids"]).to_numpy()
        query_ids.append(np.repeat(batch["query_id"].to_numpy(), lengths))
        ad_ids.append(pc.list_flatten(batch["ad_ids"]).to_numpy())
        if "weights" in batch.column_names:
            weights.append(pc.list_flatten(batch["weights"]).to_numpy())
        else:
            weights.append(np.ones(len(ad_ids[-1]), dtype=np.float32))
    entries = np.concatenate(query_ids), np.concatenate(ad_ids), np.concatenate(weights)
    shape = dataset.num_rows(table), dataset.num_rows("ads")
    return _matrix(dataset, table, entries, shape)


def _matrix(
    dataset: Dataset,
    table: str,
    entries: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    shape: tuple[int, int],
) -> sparse.csr_array:
    """Build a matrix from (entries,) rows, columns and values, in any order."""
    rows, columns, values = entries
    file = dataset.path / f"{table}.parquet"
    outside = (rows < 0) | (rows >= shape[0])
    if outside.any():
        message = f"id {rows[outside][0]} is outside 0..{shape[0] - 1}"
        raise error_at(file, message, column=dataset.schema(table).names[0])
    order = np.lexsort((columns, rows))
    lengths = np.bincount(rows, minlength=shape[0])
    return build_matrix(file, (lengths, columns[order], values[order]), shape, first_row=0)


def _write_texts(dataset: Dataset, table: str, stem: Path) -> None:
    """Write a table's texts to ``stem``.raw.txt, and the users' ids, if any, beside it."""
    for column, suffix in (("text", "raw"), ("source_id", "source_id")):
        if column in dataset.schema(table).names:
            texts = (batch[column] for batch in _by_id(dataset, table, [column]))
            try:
                write_texts(Path(f"{stem}.{suffix}.txt"), texts)
            except LineBreakError as error:
                raise error_at(
                    dataset.path / f"{table}.parquet",
                    "the text contains a line break, but XC files hold one text per line",
                    advice="replace line breaks by spaces before the export",
                    row=error.line,
                    column=column,
                ) from None


def _write_ids(dataset: Dataset, table: str, file: Path) -> None:
    """Write a table of ids, one row per line."""
    with file.open("wb") as stream:
        for batch in dataset.batches(table):
            columns = [column.cast(pa.string()) for column in batch.columns]
            write_lines(stream, pc.binary_join_element_wise(*columns, " "))


def _by_id(dataset: Dataset, table: str, columns: list[str]) -> Iterator[pa.Table]:
    """Read columns of a table in the order of ids, sorting only if they are stored otherwise.

    Raises:
        DatasetError: the ids are not dense.
    """
    schema = dataset.schema(table)
    id_column = schema.names[0]
    names = [id_column, *(name for name in columns if name in schema.names)]
    parts = [batch[0].to_numpy() for batch in dataset.batches(table, [id_column])]
    ids = np.concatenate([np.empty(0, np.int64), *parts])
    dense = np.arange(len(ids))
    if np.array_equal(ids, dense):
        for batch in dataset.batches(table, names):
            yield pa.Table.from_batches([batch])
    elif np.array_equal(np.sort(ids), dense):
        yield dataset.read(table).select(names).sort_by(id_column)
    else:
        raise error_at(dataset.path / f"{table}.parquet", "ids are not dense", column=id_column)
