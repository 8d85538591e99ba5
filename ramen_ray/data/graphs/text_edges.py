"""Edges whose anchors are the texts of nodes: numbers the texts, and gives nodes their edges.

Texts and edges go through files of staging folders, as those of an edge list do
(:mod:`~ramen_ray.data.graphs.edge_staging`). Memory holds a few batches, and eight bytes a text.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans, Int64s, UInt64s
from ramen_ray.data.graphs.edge_joining import (
    NUMBERED,
    collect_anchors,
    first_of_each,
    num_anchor_parts,
    numbered_hashes,
    write_staged,
)
from ramen_ray.data.graphs.edge_staging import EDGES, NAMES, staged_batches, staged_file
from ramen_ray.data.prepared.hashing import hash_strings, insertion_points
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.file_arrays import into_files, map_array
from ramen_ray.data.store.mapped_files import map_new_array
from ramen_ray.data.store.schemas import schema_of
from ramen_ray.data.store.texts import fold
from ramen_ray.data.tasks import RunTasks
from ramen_ray.data.validation.leaks import LEAKING_EDGES, NODE_TABLES, Leaks, Protocol

TEXTS_PER_BATCH = 65_536


@dataclass(frozen=True)
class DistinctTexts:
    """The distinct texts of train queries and ads, in files, numbered by their hashes.

    Attributes:
        folder: where the files are.
        hashes: (texts,) uint64, ascending, mapped.
    """

    folder: Path
    hashes: UInt64s

    @classmethod
    def of_nodes(cls, dataset: Dataset, folder: Path, run: RunTasks) -> "DistinctTexts":
        """Write the texts of a dataset's nodes into ``folder``; ``run`` runs the tasks."""
        run([partial(_stage_texts, dataset, side, folder) for side in NODE_TABLES])
        num_parts = num_anchor_parts(sum(map(dataset.num_rows, NODE_TABLES.values())))
        run([partial(collect_anchors, folder, n, num_parts, False) for n in range(num_parts)])
        return into_files(cls(folder, numbered_hashes(folder)), folder / "texts")

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.hashes)

    def batches(self) -> Iterator[pa.StringArray]:
        """Stream the texts in the order of their numbers."""
        for part in staged_batches(self.folder, NUMBERED):
            for start in range(0, len(part), TEXTS_PER_BATCH):
                yield part["text"].slice(start, TEXTS_PER_BATCH)


def _stage_texts(dataset: Dataset, side: str, folder: Path) -> None:
    with pa.ipc.new_file(str(staged_file(folder, f"names-{side}", 0)), NAMES) as part:
        for (texts,) in dataset.batches(NODE_TABLES[side], ["text"]):
            part.write_table(first_of_each(pa.table([hash_strings(texts), texts], schema=NAMES)))


@dataclass(frozen=True)
class Neighbours:
    """The anchors of each text, best first, in files.

    Attributes:
        texts: (texts, most) int64, mapped, numbers of texts.
        weights: (texts, most) float32, mapped, above 0; 0 after the last anchor.
    """

    texts: np.memmap[Any, np.dtype[np.int64]]
    weights: np.memmap[Any, np.dtype[np.float32]]

    @classmethod
    def none_yet(cls, num_texts: int, most: int, folder: Path) -> "Neighbours":
        """Make the files in ``folder``, for texts with at most ``most`` anchors."""
        shape = (num_texts, most)
        texts = map_new_array(folder / "neighbours.npy", np.int64, shape)
        return cls(texts, map_new_array(folder / "weights.npy", np.float32, shape))

    @classmethod
    def written_in(cls, folder: Path) -> "Neighbours":
        """Map the files in ``folder`` for reading."""
        return cls(map_array(folder / "neighbours.npy"), map_array(folder / "weights.npy"))

    def put_all(self, found: Iterable[tuple[Int64s, Int64s, NDArray[np.float32]]]) -> None:
        """Write texts (n,), their anchors (n,) and the weights (n,); all of a text are together.

        The anchors of a text follow one another, best first.
        """
        for rows, texts, weights in found:
            starts = np.flatnonzero(np.diff(rows, prepend=-1))
            place = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
            for array, values in ((self.texts, texts), (self.weights, weights)):
                # mapped anew each time, so that this process does not keep the pages
                np.load(str(array.filename), mmap_mode="r+")[rows, place] = values
        for array in (self.texts, self.weights):
            array.flush()  # other machines may read them


def stage_node_edges(
    dataset: Dataset, texts: DistinctTexts, protocol: Protocol, folder: Path
) -> dict[str, int]:
    """Stage the edges of all nodes, and the anchors that these lead to, in ``folder``.

    Args:
        dataset: the dataset directory.
        texts: the texts of its nodes; their :class:`Neighbours` are in the same folder. Nodes of
            equal text have equal edges.
        protocol: whether edges that join a held-out query to its answer are left out.
        folder: is empty, and not that of ``texts``.

    Returns:
        how many edges were left out, by reason.
    """
    leaks = Leaks.from_dataset(dataset) if protocol == "strict" else None
    neighbours = Neighbours.written_in(texts.folder)
    linked, left_out = np.zeros(len(texts), dtype=bool), Counter[str]()
    folded = _folded_hashes(texts) if leaks else np.empty(0, dtype=np.uint64)
    for side in NODE_TABLES:
        with pa.ipc.new_file(str(staged_file(folder, side, 0)), EDGES) as part:
            for nodes, anchors, weights in _edges(dataset, side, texts, neighbours):
                if leaks:
                    kept = ~leaks.among(side, nodes, folded[anchors])
                    left_out[f"{side} {LEAKING_EDGES}"] += int((~kept).sum())
                    nodes, anchors, weights = nodes[kept], anchors[kept], weights[kept]
                linked[anchors] = True
                part.write_table(pa.table([nodes, texts.hashes[anchors], weights], schema=EDGES))
    _stage_linked(texts, linked, folder)
    return left_out


def _folded_hashes(texts: DistinctTexts) -> UInt64s:
    """Hash all texts so that those that differ only in case and white space are equal."""
    return np.concatenate([hash_strings(fold(batch)) for batch in texts.batches()])


def _edges(
    dataset: Dataset, side: str, texts: DistinctTexts, neighbours: Neighbours
) -> Iterator[tuple[Int64s, Int64s, NDArray[np.float32]]]:
    """Yield nodes, anchors and weights of a side's edges in batches, by ascending node in each."""
    table = NODE_TABLES[side]
    for ids, of_nodes in dataset.batches(table, schema_of(table).names[:2]):
        nodes = ids.to_numpy()
        order = np.argsort(nodes)
        numbers = insertion_points(hash_strings(of_nodes), texts.hashes)[order]
        anchors, weights = neighbours.texts[numbers], neighbours.weights[numbers]
        row, place = np.nonzero(weights)
        yield nodes[order][row], anchors[row, place], weights[row, place]


def _stage_linked(texts: DistinctTexts, linked: Booleans, folder: Path) -> None:
    """Stage those texts that ``linked`` (texts,) marks."""
    first = 0
    for number, part in enumerate(staged_batches(texts.folder, NUMBERED)):
        kept = pa.array(linked[first : first + len(part)])
        write_staged(staged_file(folder, NUMBERED, number), pa.table(part).filter(kept))
        first += len(part)
