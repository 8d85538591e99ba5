"""Write a dataset directory as files of the XC repository, in the layout of OAK."""

import re
from collections.abc import Iterator
from pathlib import Path

from scipy.sparse import csr_array

from ramen_ray.data.checks.validation import check
from ramen_ray.data.findings import error_at
from ramen_ray.data.store.dataset import WHILE_READ, Dataset
from ramen_ray.data.store.made_folder import new_folder
from ramen_ray.data.store.schemas import NODE_TABLES, SPLITS
from xc_files import write_lines, write_matrix
from xc_folder import RESERVED, SHORT, SHORT_SIDES


def export_xc(dataset: Dataset, folder: Path) -> None:
    """Write queries, ads, clicks, filters and graphs in the layout of OAK, or no folder at all.

    Validation queries, which XC does not have, go into files of their own. Raises a DatasetError if
    the dataset has errors or changes meanwhile, or a text has a line break.
    """
    if taken := sorted(RESERVED.intersection(dataset.anchor_sets)):
        message = f"the anchor set {taken[0]!r} needs another name; the layout has it for texts"
        raise error_at(dataset.path, message)
    with new_folder(folder) as aside, dataset.unchanged(WHILE_READ):
        check(dataset)
        texts = aside / "raw_data"
        write_lines(texts / "label.raw.txt", _texts(dataset, "ads"))
        for split in SPLITS:
            write_lines(texts / f"{split}.raw.txt", _texts(dataset, f"queries/{split}"))
            write_matrix(aside / f"{SHORT[split]}_X_Y.txt", dataset.clicks(split))
            if dataset.has(filters := f"filters/{split}"):
                pairs = dataset.read(filters).to_pylist()
                lines = [f"{pair['query_id']} {pair['ad_id']}" for pair in pairs]
                write_lines(aside / f"filter_labels_{split}.txt", [lines])
        for name in dataset.anchor_sets:
            write_lines(texts / f"{name}.raw.txt", _texts(dataset, f"anchors/{name}"))
            for side, nodes in NODE_TABLES.items():
                if dataset.has(table := f"edges/{name}/{side}"):
                    node_ids, anchor_ids, weights = (
                        column.to_numpy() for column in dataset.read(table).columns
                    )
                    shape = dataset.num_rows(nodes), dataset.num_rows(f"anchors/{name}")
                    edges = csr_array((weights, (node_ids, anchor_ids)), shape)
                    write_matrix(aside / f"{name}_{SHORT_SIDES[side]}_X_Y.txt", edges)


def _texts(dataset: Dataset, table: str) -> Iterator[list[str]]:
    """Yield a table's texts in the order of their ids."""
    for batch in dataset.in_order(table):
        texts = batch["text"].to_pylist()
        for number, text in zip(batch[0].to_pylist(), texts, strict=True):
            if re.search(r"[\r\n]", text):
                message = f"the text of {number} has a line break, but XC files have one per line"
                file = dataset.path / f"{table}.parquet"
                raise error_at(file, message, advice="replace it by a space", column="text")
        yield texts
