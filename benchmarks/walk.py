"""Speed of the random walks, on a graph of the shape of LF-WikiSeeAlsoTitles-320K.

Generated: 693,082 queries and 312,330 ads, each side against 2,458,399 anchors at 38.9 edges a
node (hyper_link) and 656,086 anchors at 4.7 (category). A node's degree is Poisson; its anchors are
drawn without regard to each other, the anchor of rank r with a probability that falls as 1 / r^0.9
(links between Wikipedia's pages follow a law close to this): neighbours share no cache lines.

`seconds` is the time of a run for the walked graphs of both sides of both sets, with Ray's tasks on
two CPUs: drop heads, transpose, load the compiled walk, walk, join, write. `processor_s` is the
processor time of all of Ray's processes. `hop_ns` is the walk alone, in one thread of processor
time, on the largest of the four graphs. A hop reads four random places in memory (start and content
of an anchor's row and of a node's): `read_bound` compares it with four random reads of 128 MB by
numpy's take.
`ratio` is edges passed per second over those of igraph's random_walk on a tenth of the same graph,
both in one thread. igraph takes one long walk, since it prepares each call; it neither restarts nor
counts.

    python -m benchmarks.walk [--scale 0.1]
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal

import igraph
import numpy as np

from benchmarks.common import alternate, finish, in_fresh_process, sampled_processor_time
from ramen_ray.config import WalkConfig
from ramen_ray.data.prepared.csr import Csr, cumulative_sum
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.graph.walk import WalkGraph, WalkSettings, most_visited
from ramen_ray.method.sampling.regularizers import Regularizer

NODES: dict[Literal["query", "ad"], int] = {"query": 693_082, "ad": 312_330}
ANCHORS = {"hyper_link": (2_458_399, 38.9), "category": (656_086, 4.7)}
EXPONENT = 0.9
REPEATS = 1.02  # duplicates are dropped
WALKED_ALONE = 20_000
PEER_SCALE, PEER_NODES = 0.1, 2_000
EDGES_PER_HOP = 3
ROUNDS = 3
SETTINGS = WalkSettings(**WalkConfig().model_dump(exclude={"enabled"}))


def main() -> None:
    """Generate, walk, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of all sizes")
    scale = parser.parse_args().scale
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        in_fresh_process(generate, folder, scale)
        print("generated", flush=True)
        whole = in_fresh_process(walk_all, folder)
        print(f"walked: {whole}", flush=True)
        alone = in_fresh_process(walk_alone, folder / "edges" / "hyper_link" / "query")
    peers = in_fresh_process(compare, scale * PEER_SCALE)
    hop_ns = alone["hop_ns"]
    figures = {
        "scale": scale,
        **whole,
        **alone,
        "hops_per_s_and_core": 1e9 / hop_ns,
        "read_bound": 4 * alone["random_read_ns"] / hop_ns,
        **peers,
    }
    finish(peers["edges_per_s"] / peers["igraph_edges_per_s"], figures)


def generate(folder: Path, scale: float) -> None:
    """Write both sides of both sets as a prepared dataset's edges are written."""
    pairs = product(ANCHORS.items(), NODES.items())
    for seed, ((name, (num_anchors, degree)), (side, num_nodes)) in enumerate(pairs):
        sizes = round(num_nodes * scale), round(num_anchors * scale)
        draw_edges(*sizes, degree, seed).save(folder / "edges" / name / side)


def draw_edges(num_nodes: int, num_anchors: int, degree: float, seed: int) -> Csr:
    """Draw edges with about ``degree`` a node, without duplicates."""
    draw = np.random.default_rng(seed)
    nodes = np.repeat(np.arange(num_nodes), draw.poisson(REPEATS * degree, num_nodes))
    span = num_anchors ** (1 - EXPONENT) - 1
    rank = (1 + span * draw.random(len(nodes))) ** (1 / (1 - EXPONENT)) - 1
    anchors = draw.permutation(num_anchors)[np.minimum(rank.astype(np.int64), num_anchors - 1)]
    nodes, anchors = np.divmod(np.unique(nodes * num_anchors + anchors), num_anchors)
    indptr = cumulative_sum(np.bincount(nodes, minlength=num_nodes)).astype(np.int64)
    return Csr(indptr, anchors)


def walk_all(folder: Path) -> dict[str, float]:
    """Make the walked graph as a run does; Ray is running already."""
    import ray

    from ramen_ray.orchestration.prepare.walks import walked_edges

    ray.init(num_cpus=2, log_to_driver=False)
    data = Prepared(folder)
    sides = [Regularizer(name, side) for name, side in product(ANCHORS, NODES)]
    started = time.monotonic()
    with sampled_processor_time() as used:
        walked = walked_edges(data, sides, SETTINGS, 0, folder / "walked")
    seconds = time.monotonic() - started
    again = time.monotonic()
    walked_edges(data, sides, SETTINGS, 0, folder / "walked")
    num_walks = sum(
        np.count_nonzero(np.diff(Csr.open(walked / side.path).indptr)) for side in sides
    )
    return {
        "seconds": seconds,
        "processor_s": used[0],
        "again_s": time.monotonic() - again,
        "edges": sum(len(data.edges(*side).indices) for side in sides),
        "walked_edges": sum(len(Csr.open(walked / side.path).indices) for side in sides),
        "hops": int(num_walks) * SETTINGS.num_hops,
    }


def walk_alone(folder: Path) -> dict[str, float]:
    """Time the walk itself, and random reads of memory."""
    edges = Csr.open(folder)
    graph = WalkGraph.of(edges, SETTINGS.max_anchor_degree)
    num_nodes = min(WALKED_ALONE, graph.forward.num_rows)
    most_visited(graph, 0, 1, SETTINGS, 0)  # compiles, or loads what was compiled
    hops = num_nodes * SETTINGS.num_hops
    memory = np.arange(1 << 25, dtype=np.int32)
    places = np.random.default_rng(0).integers(0, len(memory), 1 << 22)
    sides: dict[str, tuple[int, Callable[[], object]]] = {
        "hop_ns": (hops, partial(most_visited, graph, 0, num_nodes, SETTINGS, 0)),
        "random_read_ns": (len(places), partial(memory.take, places)),
    }
    runs = {name: partial(_processor_ns, run, count) for name, (count, run) in sides.items()}
    arrays = [array for c in (graph.forward, graph.backward) for array in (c.indptr, c.indices)]
    return {
        **{name: float(np.median(values)) for name, values in alternate(ROUNDS, runs).items()},
        "share_of_edges_kept": len(graph.forward.indices) / len(edges.indices),
        "graph_mb": sum(array.nbytes for array in arrays) / 1e6,
    }


def _processor_ns(run: Callable[[], object], count: int) -> float:
    started = time.thread_time()
    run()
    return 1e9 * (time.thread_time() - started) / count


def compare(scale: float) -> dict[str, float]:
    """Time walks as long as ours, in edges, by igraph and by this project."""
    num_anchors, degree = ANCHORS["hyper_link"]
    num_nodes = round(NODES["query"] * scale)
    edges = draw_edges(num_nodes, round(num_anchors * scale), degree, seed=9)
    graph = WalkGraph.of(edges, SETTINGS.max_anchor_degree)
    kept = graph.forward
    nodes = np.repeat(np.arange(num_nodes), kept.degrees(np.arange(num_nodes)))
    pairs = np.stack([nodes, kept.indices + num_nodes], axis=1)
    peer = igraph.Graph(n=num_nodes + round(num_anchors * scale), edges=pairs)
    walkers = range(min(PEER_NODES, num_nodes))
    steps = EDGES_PER_HOP * SETTINGS.num_hops

    def walk_peer() -> None:
        peer.random_walk(int(nodes[0]), len(walkers) * steps, stuck="return")

    def walk() -> None:
        most_visited(graph, 0, len(walkers), SETTINGS, 0)

    walk()
    count = len(walkers) * steps
    runs = {
        name: partial(_processor_ns, run, count)
        for name, run in (("", walk), ("igraph_", walk_peer))
    }
    found = alternate(ROUNDS, runs)
    return {f"{name}edges_per_s": 1e9 / float(np.median(ns)) for name, ns in found.items()}


if __name__ == "__main__":
    main()
