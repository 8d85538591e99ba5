"""Export a dataset directory to the extreme classification repository's layout ``oak``."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array

from ramen_ray.data.checks.validation import check
from ramen_ray.data.findings import error_at
from ramen_ray.data.store.dataset import WHILE_READ, Dataset, DatasetError
from ramen_ray.data.store.schemas import NODE_TABLES
from ramen_ray.data.store.whole_files import new_folder
from ramen_ray.data.xc.layouts import EXTRA_SPLITS, NOVEL_LABELS, RESERVED
from ramen_ray.data.xc.matrices import write_lines, write_matrix

_SHORT = {"train": "trn", "test": "tst", "query": "trn", "ad": "lbl", **EXTRA_SPLITS}


def export_xc(dataset: Dataset, folder: Path) -> None:
    """Write queries, ads, clicks, filters and graphs; on failure there is no folder.

    What XC does not have goes into files that :func:`~ramen_ray.data.xc.importing.import_xc` reads
    back: ``val_X_Y.txt``, ``zero_X_Y.txt``, ``novel_labels.txt``, ``raw_data/*.source_id.txt``.
    Raises a DatasetError if the dataset has errors or changes meanwhile, a text has a line break,
    the layout has taken an anchor set's name, or ``folder`` exists.
    """
    taken = sorted(RESERVED.intersection(dataset.anchor_sets))
    if taken:
        raise DatasetError(
            f"{dataset.path}: the anchor set {taken[0]!r} needs another name; the layout uses"
            f" raw_data/{taken[0]}.raw.txt for other texts"
        )
    with new_folder(folder) as aside, dataset.unchanged(WHILE_READ):
        check(dataset)
        (aside / "raw_data").mkdir()
        _write_texts(dataset, "ads", aside / "raw_data" / "label")
        for split in dataset.splits:
            _write_texts(dataset, f"queries/{split}", aside / "raw_data" / split)
            write_matrix(aside / f"{_SHORT[split]}_X_Y.txt", dataset.clicks(split))
            _write_ids(dataset, f"filters/{split}", aside / f"filter_labels_{split}.txt")
        for name in dataset.anchor_sets:
            _write_texts(dataset, f"anchors/{name}", aside / "raw_data" / name)
            for side, nodes in NODE_TABLES.items():
                if dataset.has(table := f"edges/{name}/{side}"):
                    columns = (column.to_numpy() for column in dataset.read(table).columns)
                    node_ids, anchor_ids, weights = columns
                    shape = dataset.num_rows(nodes), dataset.num_rows(f"anchors/{name}")
                    edges = csr_array((weights, (node_ids, anchor_ids)), shape)
                    write_matrix(aside / f"{name}_{_SHORT[side]}_X_Y.txt", edges)
        _write_ids(dataset, "novel_ads", aside / NOVEL_LABELS)


def _write_texts(dataset: Dataset, table: str, stem: Path) -> None:
    """Write a table's texts to ``stem``.raw.txt, and the users' ids, if any, beside it."""
    for column, suffix in (("text", "raw"), ("source_id", "source_id")):
        if column not in dataset.schema(table).names:
            continue
        row = 0
        with Path(f"{stem}.{suffix}.txt").open("wb") as stream:
            for batch in dataset.in_order(table):
                texts = pc.fill_null(batch[column], "")
                broken = pc.index(pc.match_substring_regex(texts, "[\r\n]"), True).as_py()
                if broken >= 0:
                    raise error_at(
                        dataset.path / f"{table}.parquet",
                        "the text contains a line break, but XC files hold one text per line",
                        advice="replace line breaks by spaces before the export",
                        row=row + broken,
                        column=column,
                    )
                write_lines(stream, texts)
                row += len(batch)


def _write_ids(dataset: Dataset, table: str, file: Path) -> None:
    """Write a table of ids, if the dataset has it, one row per line."""
    if dataset.has(table):
        with file.open("wb") as stream:
            for batch in dataset.batches(table):
                columns = [column.cast(pa.string()) for column in batch.columns]
                write_lines(stream, pc.binary_join_element_wise(*columns, " "))
