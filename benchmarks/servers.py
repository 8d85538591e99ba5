"""How long single queries take, of this checkout's server and of another checkout's, in turns.

Both answer by the same retrievers of debian's ads, searched exactly: a bag, the same with vectors
in half precision, and MiniLM of six layers with torch, in ONNX and in 8-bit integers. `--clients`,
each with one request at a time, send `--requests` in all; so in turns, `--rounds` times. The
figures are medians over rounds, in milliseconds: of the requests' times, and of the processors'
time that the server takes for one, which other work on the machine changes less. `ratio` is the
largest of this server's over the other's. Clients and servers share the machine's cores.

    python -m benchmarks.servers --against CHECKOUT [--kinds bag half torch onnx int8]
        [--clients 1 8 64] [--requests 300] [--rounds 3]
"""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from psutil import Process

from benchmarks.common import alternate, finish, in_fresh_process, medians, options, prepared
from benchmarks.retriever import DATASET, compiled, logged, make_retriever
from benchmarks.server import ask_in_turn, measure, serving
from ramen_ray.config import EncoderConfig
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.presets import MINILM

KINDS = ["bag", "half", "torch", "onnx", "int8"]
BAGS = {"bag": "flat", "half": "half"}  # and the kinds of their indexes
TIMES = ("p50_ms", "p99_ms", "cpu_ms")


def main() -> None:
    """Serve by both, ask in turns, and compare."""
    asked = options(__doc__, against="", kinds=KINDS, clients=[1, 8, 64], requests=300, rounds=3)
    other = Path(asked.against).resolve()
    if not (other / "jobs" / "serve.py").is_file():
        sys.exit(f"--against {asked.against}: there is no jobs/serve.py")
    queries = Dataset(DATASET).read("queries/test")["text"].to_pylist()
    figures = dict[str, dict[str, float]]()
    with tempfile.TemporaryDirectory() as aside:
        for kind in asked.kinds:
            folder = Path(aside) / (kind if kind in BAGS else "minilm")
            uri = make(folder, kind)
            with serving(folder, uri, []) as new, serving(folder, uri, [], other) as old:
                for clients in asked.clients:
                    measured = partial(times, queries, clients, asked.requests // clients)
                    sides = {"this": partial(measured, *new), "other": partial(measured, *old)}
                    taken = alternate(asked.rounds, sides)
                    here, there = (medians(taken[side]) for side in sides)
                    of_case = {
                        **{f"this_{name}": here[name] for name in TIMES},
                        **{f"other_{name}": there[name] for name in TIMES},
                        **{f"ratio_{name}": here[name] / there[name] for name in TIMES},
                    }
                    figures[f"{kind}, {clients} clients"] = of_case
                    print(f"{kind}, {clients} clients: {of_case}", flush=True)
    ratio = max(case[f"ratio_{name}"] for case in figures.values() for name in TIMES)
    finish(ratio, {**vars(asked), **figures})


def make(folder: Path, kind: str) -> str:
    """Make and log a retriever, in a folder for all of one encoder; returns its address."""
    is_bag = kind in BAGS
    encoder = EncoderConfig(kind="bag" if is_bag else "transformer", pretrained=MINILM)
    if not folder.exists():
        folder.mkdir()
        data = prepared(DATASET, encoder).path
        in_fresh_process(make_retriever, folder, data, encoder, BAGS.get(kind, "flat"))
    return in_fresh_process(_log, folder, "torch" if is_bag else kind)


def _log(folder: Path, name: str) -> str:
    return logged(folder, compiled(folder, name))


def times(
    queries: Sequence[str], clients: int, requests: int, port: int, server: Process
) -> dict[str, float]:
    """Return the times of so many requests of each client, none of which may fail."""
    taken = measure(server, clients, partial(ask_in_turn, port, [*queries], requests, 0))
    assert not taken["failed"], taken
    return {name: taken[name] for name in TIMES}


if __name__ == "__main__":
    main()
