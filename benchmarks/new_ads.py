"""How long it takes to add new ads to a retriever with a combiner.

A retriever of debian's ads, all of which count as seen, with a combiner of the released kind: speed
does not depend on what either has learned. New ads are made of the texts of two ads. `bag` and
`layers_6` have milliseconds per ad on two threads, all in all and for each part, and for an ad
alone; `stream` is 100,000 ads in one call with the bag. `ratio` is the time of an ad with the
combiner over the time without, for the bag.

    python -m benchmarks.new_ads [--ads 2000] [--stream 100000]
"""

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import torch

from benchmarks.common import NUM_THREADS, finish, in_fresh_process, prepared
from benchmarks.retriever import DATASET, make_retriever
from ramen_ray.config import GB_PER_SHARD, EncoderConfig
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.novel_ads.combiner import Combiner
from ramen_ray.method.novel_ads.neighbours import Lookup, SeenAds, find_neighbours
from ramen_ray.method.novel_ads.representation import CombinedAds, combiner_of, use_combiner
from ramen_ray.method.retrieval.retriever_folder import add_ads, text_embedder
from ramen_ray.presets import MINILM

ENCODERS = {
    "bag": EncoderConfig(kind="bag", pretrained=MINILM),
    "layers_6": EncoderConfig(pretrained=MINILM, num_layers=6),
}


def main() -> None:
    """Measure both encoders, then the stream."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ads", type=int, default=2000)
    parser.add_argument("--stream", type=int, default=100_000)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    for name, encoder in ENCODERS.items():
        path = prepared(DATASET, encoder).path
        stream = arguments.stream if name == "bag" else 0
        figures[name] = in_fresh_process(measure, path, encoder, arguments.ads, stream)
    bag = figures["bag"]
    finish(bag["ms_per_ad"] / bag["without_combiner_ms"], figures)


def measure(path: Path, encoder: EncoderConfig, num_ads: int, stream: int) -> dict[str, float]:
    """Return milliseconds per ad."""
    torch.set_num_threads(NUM_THREADS)
    faiss.omp_set_num_threads(NUM_THREADS)
    texts = Dataset(DATASET).read("ads").sort_by("ad_id")["text"].to_pylist()
    with tempfile.TemporaryDirectory() as aside:
        made = make_retriever(Path(aside), path, encoder)
        embed = text_embedder(made)
        known, new = embed(texts), new_texts(texts, num_ads)
        seen = SeenAds(np.arange(len(known)), known, known)
        combiner = Combiner("transformer", known.shape[1]).eval()
        CombinedAds(combiner, seen, Lookup()).save(Path(aside) / "trained")
        plain = Path(shutil.copytree(made, Path(aside) / "plain"))
        use_combiner(made, Path(aside) / "trained", known, "flat")
        combined = combiner_of(made)
        assert combined is not None
        vectors = embed(new)
        rows = find_neighbours(combined.seen, combined.lookup, vectors)
        figures = {
            "ms_per_ad": timed(lambda: add(made, new, combined), num_ads),
            "without_combiner_ms": timed(lambda: add(plain, new, None), num_ads),
            "embed_ms": timed(lambda: embed(new), num_ads),
            "neighbours_ms": timed(
                lambda: find_neighbours(combined.seen, combined.lookup, vectors), num_ads
            ),
            "combine_ms": timed(lambda: combined.combine(vectors, rows), num_ads),
            "alone_ms": timed(lambda: combined.represent(embed(new[:1])), 1),
        }
        if stream:
            more = new_texts(texts, stream)
            started = time.perf_counter()
            total = add(made, more, combined)
            figures |= {"stream_s": time.perf_counter() - started, "stream_ads": stream}
            figures["found_first"] = share_found_first(made, more[:1000], total - stream, combined)
    print(figures, flush=True)
    return figures


def add(folder: Path, texts: list[str], combined: CombinedAds | None) -> int:
    """Add ads to a retriever; returns how many it has."""
    ads = pa.table({"ad_id": [f"new {number}" for number in range(len(texts))], "text": texts})
    represent = None if combined is None else lambda _, vectors: combined.represent(vectors)
    return add_ads(folder, ads, GB_PER_SHARD, represent)


def share_found_first(folder: Path, texts: list[str], first: int, combined: CombinedAds) -> float:
    """Return the share of added ads that a search for their own vector finds in the first ten."""
    index = faiss.read_index(str(folder / "index.faiss"))
    _, found = index.search(combined.represent(text_embedder(folder)(texts)), 10)
    return float((found == first + np.arange(len(texts))[:, None]).any(axis=1).mean())


def new_texts(texts: list[str], count: int) -> list[str]:
    """Join the texts of two ads, drawn at random."""
    pairs = np.random.default_rng(0).integers(len(texts), size=(count, 2))
    return [f"{texts[first]} {texts[second]}" for first, second in pairs]


def timed(run: Callable[[], Any], num_ads: int) -> float:
    """Return the milliseconds per ad of the fastest of three calls."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return 1000 * min(seconds) / num_ads


if __name__ == "__main__":
    main()
