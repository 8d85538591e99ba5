"""Walked graphs: Ray tasks walk ranges of nodes, once for each graph, side, settings and seed."""

import hashlib
import logging
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from filelock import FileLock

from ramen_ray.data.arrays import publish
from ramen_ray.data.prepared.csr import Csr, write_csr
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.checksums import DamagedError, find_damage, is_intact, write_checksums
from ramen_ray.data.store.schemas import HELD_OUT_SIDES
from ramen_ray.data.store.whole_files import scratch_folder
from ramen_ray.method.graph.walk import WalkGraph, WalkSettings, most_visited
from ramen_ray.method.sampling.training_data import Regularizer
from ramen_ray.orchestration.cluster.tasks import in_tasks

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
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        again = "the graph is walked again"
        missing = [one.path for one in regularizers if not is_intact(folder / one.path, again)]
        if missing:
            _walk(data, missing, settings, seed, folder)
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
    return all(find_damage(folder / one.path) is None for one in regularizers)


def _cache_key(edges: Path, settings: WalkSettings, seed: int) -> str:
    digest = hashlib.blake2b(f"{WALK_VERSION}{settings}{seed}".encode(), digest_size=8)
    for file in sorted(edges.glob("*/*/ind*.npy")):  # indptr and indices: weights do not matter
        if file.parent.name in HELD_OUT_SIDES.values():
            continue
        digest.update(str(file.relative_to(edges)).encode())
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "blake2b").digest())
    return digest.hexdigest()


def _walk(
    data: Prepared, sides: list[str], settings: WalkSettings, seed: int, folder: Path
) -> None:
    started = time.monotonic()
    edges = {side: data.path / "edges" / side for side in sides}
    most = settings.max_anchor_degree
    with scratch_folder(folder / ".aside") as aside:
        graphs = {side: aside / "graphs" / side for side in sides}
        in_tasks([partial(_write_graph, edges[side], graphs[side], most) for side in sides])
        ranges = {}
        for side in sides:
            num_nodes = Csr.open(edges[side]).num_rows
            starts = range(0, num_nodes, NODES_PER_TASK)
            ranges[side] = [(start, min(start + NODES_PER_TASK, num_nodes)) for start in starts]
        walks = [(graphs[side], nodes) for side in sides for nodes in ranges[side]]
        in_tasks([partial(_walk_range, *walk, settings, seed) for walk in walks], "walk")
        in_tasks([partial(_join, graphs[side], ranges[side], aside / side) for side in sides])
        if _cache_key(data.path / "edges", settings, seed) != folder.name:
            raise DamagedError(f"{data.path / 'edges'} has changed while it was walked")
        for side in sides:
            (folder / side).parent.mkdir(exist_ok=True)
            (aside / side).rename(folder / side)
    logger.info("walked %s in %.1f s", ", ".join(sides), time.monotonic() - started)


def _write_graph(edges: Path, graph: Path, max_anchor_degree: int) -> None:
    WalkGraph.from_edges(Csr.open(edges), max_anchor_degree, graph)
    publish(graph)


def _walk_range(graph: Path, nodes: tuple[int, int], settings: WalkSettings, seed: int) -> None:
    edges = most_visited(WalkGraph.open(graph), *nodes, settings, seed)
    edges.save(_folder_of(graph, nodes))


def _join(graph: Path, ranges: list[tuple[int, int]], folder: Path) -> None:
    write_csr(folder, (Csr.open(_folder_of(graph, nodes)) for nodes in ranges))
    write_checksums(folder)


def _folder_of(graph: Path, nodes: tuple[int, int]) -> Path:
    return graph / f"from-{nodes[0]}"
