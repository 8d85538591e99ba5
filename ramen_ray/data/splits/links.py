"""A dataset for a linker: its ads are the anchors of another one, its clicks that one's edges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array, hstack

from ramen_ray.data.arrays import Booleans, to_lists
from ramen_ray.data.checks import check
from ramen_ray.data.prepared.hashing import HashIndex, keyed_hash
from ramen_ray.data.store.dataset import WHILE_READ, Dataset, DatasetError, new_dataset
from ramen_ray.data.store.matrices import edge_matrix, text_numbers
from ramen_ray.data.store.schemas import HELD_OUT_SIDES, TRAIN
from ramen_ray.naming import joined_name

HELD_OUT_SHARE = 0.1
TEST = "queries/test"
LINKS_OF = "links_of"
"""Key in ``dataset.json``: which dataset's edges, and of which anchor sets."""


@dataclass(frozen=True)
class _Split:
    """The ``chosen`` queries (rows,) of a table, whose clicks are ``edges`` (rows, anchors)."""

    table: str
    edges: csr_array
    chosen: Booleans


def make_link_dataset(
    dataset: Path, output: Path, anchor_sets: Sequence[str], seed: int = 0
) -> Dataset:
    """Write the dataset that a linker is trained on: train queries, and the anchors they have.

    A tenth of the linked train queries becomes the validation split. The test split are the test
    queries with their own edges; if the dataset has none, another tenth of the train queries.
    The anchors of the sets follow each other, as in the bank of OAK. Pairs of a query with an
    anchor of its own text are filtered, unless a train query has such an edge. Raises a
    DatasetError if the dataset is not usable, has no such set, or too few queries with edges, or
    ``output`` exists.
    """
    parent = Dataset(dataset)
    made = {"parent_fingerprint": parent.fingerprint, "anchor_sets": list(anchor_sets)}
    check(parent)
    for name in anchor_sets:
        if not parent.has(f"edges/{name}/query"):
            raise DatasetError(
                f"{parent.path} has no edges of train queries to an anchor set {name!r}; its sets "
                f"are {', '.join(parent.anchor_sets) or 'none'}"
            )
    splits = _split(parent, anchor_sets, seed)
    for split, part in splits.items():
        if not part.chosen.any():
            raise DatasetError(f"{parent.path} has too few queries with edges for a {split} split")
    named = {"name": joined_name(parent.name, "links"), LINKS_OF: {**made, "seed": seed}}
    kept = {key: parent.metadata[key] for key in ("source", "licence") if key in parent.metadata}
    of_sets = [f"anchors/{name}" for name in anchor_sets]
    texts = text_numbers(parent, [TRAIN, TEST, *of_sets])
    anchors = np.concatenate([texts[table] for table in of_sets])
    queries, linked = splits["train"].edges.nonzero()
    links_own_text = bool((texts[TRAIN][queries] == anchors[linked]).any())
    with new_dataset(output, **named, **kept) as writer, parent.unchanged(WHILE_READ):
        writer.write("ads", _ads(parent, of_sets))
        for split, part in splits.items():
            writer.write(f"queries/{split}", _queries(parent, part))
            if split != "train" and not links_own_text:
                pairs = HashIndex.from_hashes(anchors).all(texts[part.table][part.chosen])
                filters = dict(zip(("query_id", "ad_id"), pairs, strict=True))
                writer.write(f"filters/{split}", pa.table(filters))
    return Dataset(output)


def _split(parent: Dataset, anchor_sets: Sequence[str], seed: int) -> dict[str, _Split]:
    """Divide the train queries with edges; the test split has its own queries if it has edges."""
    edges = _edges(parent, anchor_sets, "query")
    chance = keyed_hash((seed,), np.arange(edges.shape[0])) / 2.0**64
    linked = np.diff(edges.indptr) > 0
    is_validation = linked & (chance < HELD_OUT_SHARE)
    side = HELD_OUT_SIDES["test"]
    has_own = all(parent.has(f"edges/{name}/{side}") for name in anchor_sets)
    is_test = linked & ~is_validation & (chance < 2 * HELD_OUT_SHARE) & (not has_own)
    test = _Split(TRAIN, edges, is_test)
    if has_own:
        of_test = _edges(parent, anchor_sets, side)
        test = _Split(TEST, of_test, np.diff(of_test.indptr) > 0)
    return {
        "train": _Split(TRAIN, edges, linked & ~is_validation & ~is_test),
        "validation": _Split(TRAIN, edges, is_validation),
        "test": test,
    }


def _edges(parent: Dataset, anchor_sets: Sequence[str], side: str) -> csr_array:
    """Read the edges of all sets, (queries, anchors)."""
    return hstack([edge_matrix(parent, name, side) for name in anchor_sets], format="csr")


def _ads(parent: Dataset, anchor_tables: Sequence[str]) -> Iterator[pa.RecordBatch]:
    first = 0
    for table in anchor_tables:
        for rows in parent.batches(table, ["anchor_id", "text"]):
            ids = pa.array(first + rows[0].to_numpy())
            yield pa.RecordBatch.from_arrays([ids, rows[1]], names=["ad_id", "text"])
        first += parent.num_rows(table)


def _queries(parent: Dataset, part: _Split) -> Iterator[pa.RecordBatch]:
    """Yield the chosen queries with their anchors, numbered in the order of ids."""
    new_ids = np.cumsum(part.chosen) - 1
    for rows in parent.batches(part.table, ["query_id", "text"]):
        kept = rows.filter(pa.array(part.chosen[rows[0].to_numpy()]))
        anchors = part.edges[kept[0].to_numpy()]
        ad_ids = to_lists(anchors.indices, np.diff(anchors.indptr))
        columns = [pa.array(new_ids[kept[0].to_numpy()]), kept[1], ad_ids]
        yield pa.RecordBatch.from_arrays(columns, names=["query_id", "text", "ad_ids"])
