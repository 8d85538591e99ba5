"""Walked graphs: Ray tasks walk ranges of nodes, once for each graph, side, settings and seed."""

import hashlib
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from ramen_ray.data.arrays import publish
from ramen_ray.data.prepared.csr import Csr, write_csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.made_folder import DamagedError, find_damage, made_once
from ramen_ray.method.graph.walk import WalkGraph, WalkSettings, most_visited
from ramen_ray.method.sampling.training_data import Regularizer
from ramen_ray.orchestration.cluster.resources import in_tasks

logger = logging.getLogger(__name__)

WALK_VERSION = 3
NODES_PER_TASK = 50_000


def walked_edges(
    data: Prepared,
    regularizers: Iterable[Regularizer],
    settings: WalkSettings,
    seed: int,
    cache: Path,
) -> Path:
    """Return the folder of the walked graphs of ``regularizers``, from ``cache`` if they are there.

    The cache is keyed by the content of the dataset's graphs, the settings and the seed; a process
    waits for another that makes the same. Raises a DamagedError if the graphs change meanwhile.
    """
    folder = cache / _cache_key(data.path / "edges", settings, seed)
    with ExitStack() as stack:
        # in an order that others wait in, too
        sides = sorted({graph.path for graph in regularizers})
        asides = {side: stack.enter_context(made_once(folder / side)) for side in sides}
        missing = {side: aside for side, aside in asides.items() if aside is not None}
        if missing:
            _walk(data, missing, settings, seed)
            if _cache_key(data.path / "edges", settings, seed) != folder.name:
                raise DamagedError(f"{data.path / 'edges'} has changed while it was walked")
    return folder


def is_walked(
    data: Prepared,
    regularizers: Iterable[Regularizer],
    settings: WalkSettings,
    seed: int,
    cache: Path,
) -> bool:
    """Return whether :func:`walked_edges` would find the walked graphs in the cache."""
    folder = cache / _cache_key(data.path / "edges", settings, seed)
    return all(find_damage(folder / regularizer.path) is None for regularizer in regularizers)


def _cache_key(edges: Path, settings: WalkSettings, seed: int) -> str:
    digest = hashlib.blake2b(f"{WALK_VERSION}{settings}{seed}".encode(), digest_size=8)
    for file in sorted(edges.glob("*/*/ind*.npy")):  # indptr and indices: weights do not matter
        digest.update(str(file.relative_to(edges)).encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "blake2b").digest())
    return digest.hexdigest()


def _walk(data: Prepared, sides: Mapping[str, Path], settings: WalkSettings, seed: int) -> None:
    """Walk the graphs of some sides, each into a folder; what is needed meanwhile is beside it."""
    started = time.monotonic()
    most = settings.max_anchor_degree
    edges = {side: data.path / "edges" / side for side in sides}
    graphs = {side: folder.with_name("graph") for side, folder in sides.items()}
    in_tasks([partial(_write_graph, edges[side], graphs[side], most) for side in sides])
    ranges = {}
    for side in sides:
        num_nodes = Csr.open(edges[side]).num_rows
        starts = range(0, num_nodes, NODES_PER_TASK)
        ranges[side] = [(start, min(start + NODES_PER_TASK, num_nodes)) for start in starts]
    walks = [(graphs[side], nodes) for side in sides for nodes in ranges[side]]
    in_tasks([partial(_walk_range, *walk, settings, seed) for walk in walks], "walk")
    in_tasks([partial(_join, graphs[side], ranges[side], sides[side]) for side in sides])
    logger.info("walked %s in %.1f s", ", ".join(sides), time.monotonic() - started)


def _write_graph(edges: Path, graph: Path, max_anchor_degree: int) -> None:
    WalkGraph.from_edges(Csr.open(edges), max_anchor_degree, graph)
    publish(graph)


def _walk_range(graph: Path, nodes: tuple[int, int], settings: WalkSettings, seed: int) -> None:
    edges = most_visited(WalkGraph.open(graph), *nodes, settings, seed)
    edges.save(_folder_of(graph, nodes))


def _join(graph: Path, ranges: list[tuple[int, int]], folder: Path) -> None:
    write_csr(folder, (Csr.open(_folder_of(graph, nodes)) for nodes in ranges))


def _folder_of(graph: Path, nodes: tuple[int, int]) -> Path:
    return graph / f"from-{nodes[0]}"
