"""Export a dataset directory to the extreme classification repository's layout ``oak``."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from ramen_ray.data.checks import check
from ramen_ray.data.findings import error_at
from ramen_ray.data.store.dataset import Dataset, DatasetError, new_folder
from ramen_ray.data.store.lists import list_entries
from ramen_ray.data.store.schemas import SPLITS, ZERO_SHOT
from ramen_ray.data.xc.layouts import EXTRA_SPLITS, NOVEL_ADS, RESERVED
from ramen_ray.data.xc.lines import LineBreakError, write_lines, write_texts
from ramen_ray.data.xc.matrices import write_matrix

_SHORT = {"train": "trn", "test": "tst", **EXTRA_SPLITS}
_SIDES = {"trn": ("query", "queries/train"), "lbl": ("ad", "ads")}


def export_xc(dataset: Dataset, folder: Path) -> None:
    """Write queries, ads, clicks, filters and graphs; on failure there is no folder.

    XC has no validation split, zero-shot split or users' own ids; these go into files that
    :func:`~ramen_ray.data.xc.importing.import_xc` reads back: ``val_X_Y.txt``,
    ``zero_X_Y.txt``, ``novel_labels.txt`` and ``raw_data/*.source_id.txt``.

    Raises:
        DatasetError: the dataset has errors, a text has a line break, an anchor set's name is taken
            by the layout, or ``folder`` exists.
    """
    taken = sorted(RESERVED.intersection(dataset.anchor_sets))
    if taken:
        raise DatasetError(
            f"{dataset.path}: the anchor set {taken[0]!r} needs another name; the layout uses"
            f" raw_data/{taken[0]}.raw.txt for other texts"
        )
    check(dataset)
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
            matrix = sparse.csr_array((weights, (nodes, anchors)), shape)
            write_matrix(folder / f"{name}_{short}_X_Y.txt", matrix)


def _clicks(dataset: Dataset, table: str) -> sparse.csr_array:
    query_ids, ad_ids, weights = [], [], []
    for batch in dataset.batches(table):
        rows, ads = list_entries(batch["ad_ids"])
        query_ids.append(batch["query_id"].to_numpy()[rows])
        ad_ids.append(ads.to_numpy())
        if "weights" in batch.schema.names:
            weights.append(list_entries(batch["weights"])[1].to_numpy())
        else:
            weights.append(np.ones(len(ads), dtype=np.float32))
    entries = np.concatenate(weights), (np.concatenate(query_ids), np.concatenate(ad_ids))
    return sparse.csr_array(entries, (dataset.num_rows(table), dataset.num_rows("ads")))


def _write_texts(dataset: Dataset, table: str, stem: Path) -> None:
    """Write a table's texts to ``stem``.raw.txt, and the users' ids, if any, beside it."""
    for column, suffix in (("text", "raw"), ("source_id", "source_id")):
        if column in dataset.schema(table).names:
            texts = (batch[column] for batch in dataset.in_order(table))
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
