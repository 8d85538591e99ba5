"""A dataset for a linker: its ads are the anchors of another one, its clicks that one's edges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Booleans, Int64s, UInt64s
from ramen_ray.data.checks import check
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.hashing import HashIndex, hash_strings, keyed_hash
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter, new_dataset
from ramen_ray.data.store.schemas import HELD_OUT_SIDES, schema_of
from ramen_ray.data.store.texts import fold
from ramen_ray.naming import joined_name

HELD_OUT_SHARE = 0.1
TRAIN = "queries/train"
LINKS_OF = "links_of"
"""Key in ``dataset.json``: which dataset's edges, and of which anchor sets."""


def make_link_dataset(
    dataset: Path, output: Path, anchor_sets: Sequence[str], seed: int = 0
) -> Dataset:
    """Write the dataset that a linker is trained on: train queries, and the anchors they have.

    A tenth of the linked train queries becomes the validation split. The test split are the test
    queries with their own edges; if the dataset has none, another tenth of the train queries.
    The anchors of several sets follow each other, as in the bank of OAK. Pairs of a query with an
    anchor of its own text are filtered, unless a train query has such an edge.

    Args:
        dataset: the dataset directory with the edges.
        output: the dataset directory to write; must not exist.
        anchor_sets: the sets whose anchors become ads.
        seed: seeds the choice of held-out queries.

    Raises:
        DatasetError: the dataset is not usable, has no such set, or too few queries with edges.
    """
    parent = Dataset(dataset)
    check(parent)
    for name in anchor_sets:
        if not parent.has(f"edges/{name}/query"):
            raise DatasetError(
                f"{parent.path} has no edges of train queries to an anchor set {name!r}; its sets "
                f"are {', '.join(parent.anchor_sets) or 'none'}"
            )
    edges = _edges(parent, anchor_sets, "query", TRAIN)
    splits = _split(edges, _test_edges(parent, anchor_sets), seed)
    for split, part in splits.items():
        if not part.chosen.any():
            raise DatasetError(f"{parent.path} has too few queries with edges for a {split} split")
    made = {"parent_fingerprint": parent.fingerprint, "anchor_sets": list(anchor_sets)}
    named = {"name": joined_name(parent.name, "links"), LINKS_OF: {**made, "seed": seed}}
    kept = {key: parent.metadata[key] for key in ("source", "licence") if key in parent.metadata}
    anchors = np.concatenate([_text_hashes(parent, f"anchors/{name}") for name in anchor_sets])
    rows, found = edges.gather(np.arange(edges.num_rows))
    links_own_text = bool((_text_hashes(parent, TRAIN)[rows] == anchors[found]).any())
    with new_dataset(output, **named, **kept) as writer:
        writer.write("ads", _ads(parent, anchor_sets))
        for split, part in splits.items():
            writer.write(f"queries/{split}", _queries(parent, part))
            if split != "train" and not links_own_text:
                texts = _text_hashes(parent, part.table)[part.chosen]
                _write_filters(writer, split, texts, anchors)
    return Dataset(output)


@dataclass(frozen=True)
class _Split:
    """The ``chosen`` queries (rows,) of a table of queries, whose clicks are ``edges``."""

    table: str
    edges: Csr
    chosen: Booleans


def _split(edges: Csr, of_test: Csr | None, seed: int) -> dict[str, _Split]:
    """Divide the train queries with edges; the test split has its own queries if it has edges."""
    chance = keyed_hash((seed,), np.arange(edges.num_rows)) / 2.0**64
    linked = np.diff(edges.indptr) > 0
    is_validation = linked & (chance < HELD_OUT_SHARE)
    is_test = linked & ~is_validation & (chance < 2 * HELD_OUT_SHARE) & (of_test is None)
    test = _Split(TRAIN, edges, is_test)
    if of_test is not None:
        test = _Split("queries/test", of_test, np.diff(of_test.indptr) > 0)
    return {
        "train": _Split(TRAIN, edges, linked & ~is_validation & ~is_test),
        "validation": _Split(TRAIN, edges, is_validation),
        "test": test,
    }


def _edges(parent: Dataset, anchor_sets: Sequence[str], side: str, queries: str) -> Csr:
    """Read the edges of all sets, query ids x anchors."""
    parts, first = [np.empty((2, 0), dtype=np.int64)], 0
    for name in anchor_sets:
        for rows in parent.batches(f"edges/{name}/{side}"):
            parts.append(np.stack([rows[0].to_numpy(), first + rows[1].to_numpy()]))
        first += parent.num_rows(f"anchors/{name}")
    query_ids, anchors = np.concatenate(parts, axis=1)
    return Csr.from_pairs(query_ids, anchors, parent.num_rows(queries))


def _test_edges(parent: Dataset, anchor_sets: Sequence[str]) -> Csr | None:
    side = HELD_OUT_SIDES["test"]
    if not all(parent.has(f"edges/{name}/{side}") for name in anchor_sets):
        return None
    return _edges(parent, anchor_sets, side, "queries/test")


def _text_hashes(parent: Dataset, table: str) -> UInt64s:
    """Hash the folded texts (rows,) of a table, by id."""
    hashes = np.zeros(parent.num_rows(table), dtype=np.uint64)
    for rows in parent.batches(table, [schema_of(table).names[0], "text"]):
        hashes[rows[0].to_numpy()] = hash_strings(fold(rows[1]))
    return hashes


def _ads(parent: Dataset, anchor_sets: Sequence[str]) -> Iterator[pa.RecordBatch]:
    first = 0
    for name in anchor_sets:
        table = f"anchors/{name}"
        for rows in parent.batches(table, ["anchor_id", "text"]):
            ids = pa.array(first + rows[0].to_numpy())
            yield pa.RecordBatch.from_arrays([ids, rows[1]], names=["ad_id", "text"])
        first += parent.num_rows(table)


def _queries(parent: Dataset, part: _Split) -> Iterator[pa.RecordBatch]:
    """Yield the chosen queries with their anchors, numbered in the order of ids."""
    new_ids = np.cumsum(part.chosen) - 1
    for rows in parent.batches(part.table, ["query_id", "text"]):
        kept = rows.filter(pa.array(part.chosen[rows[0].to_numpy()]))
        ids = kept[0].to_numpy()
        offsets = np.append(0, part.edges.degrees(ids).cumsum())
        anchors = part.edges.gather(ids)[1]
        ad_ids = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(anchors))
        columns = [pa.array(new_ids[ids]), kept[1], ad_ids]
        yield pa.RecordBatch.from_arrays(columns, names=["query_id", "text", "ad_ids"])


def _write_filters(writer: DatasetWriter, split: str, queries: UInt64s, anchors: UInt64s) -> None:
    pairs: tuple[Int64s, Int64s] = HashIndex.from_hashes(anchors).all(queries)
    writer.write(f"filters/{split}", pa.table(dict(zip(("query_id", "ad_id"), pairs, strict=True))))
