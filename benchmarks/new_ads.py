"""How long it takes to add new ads to a retriever with a combiner.

A retriever of debian's ads, all of which count as seen, with a combiner of the released kind: speed
does not depend on what either has learned. New ads are made of the texts of two ads. `bag` and
`layers_6` have milliseconds per ad on two threads; the stream is 100,000 ads in one call with the
bag. `ratio` is the time of an ad with the combiner over the time without, for the bag.

    python -m benchmarks.new_ads [--ads 2000] [--stream 100000]
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import torch

from benchmarks.common import (
    NUM_THREADS,
    finish,
    in_fresh_process,
    options,
    prepared,
    seconds_of,
)
from benchmarks.retriever import DATASET, make_retriever
from ramen_ray.config import GB_PER_SHARD, EncoderConfig
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.novel_ads.combiner import Combiner
from ramen_ray.method.novel_ads.neighbours import Lookup, SeenAds
from ramen_ray.method.novel_ads.representation import CombinedAds, combiner_of, use_combiner
from ramen_ray.method.retrieval.retriever_folder import add_ads, text_embedder
from ramen_ray.presets import MINILM

ENCODERS = {
    "bag": EncoderConfig(kind="bag", pretrained=MINILM),
    "layers_6": EncoderConfig(pretrained=MINILM, num_layers=6),
}


def main() -> None:
    """Measure both encoders, then the stream."""
    asked = options(__doc__, ads=2000, stream=100_000)
    figures: dict[str, Any] = {}
    for name, encoder in ENCODERS.items():
        path = prepared(DATASET, encoder).path
        stream = asked.stream if name == "bag" else 0
        figures[name] = in_fresh_process(measure, path, encoder, asked.ads, stream)
    bag = figures["bag"]
    finish(bag["ms_per_ad"] / bag["without_combiner_ms"], figures)


def measure(path: Path, encoder: EncoderConfig, num_ads: int, stream: int) -> dict[str, float]:
    """Return milliseconds per ad, and of the stream its seconds and what is found of it."""
    torch.set_num_threads(NUM_THREADS)
    faiss.omp_set_num_threads(NUM_THREADS)
    texts = Dataset(DATASET).read("ads").sort_by("ad_id")["text"].to_pylist()
    with tempfile.TemporaryDirectory() as aside:
        made = make_retriever(Path(aside), path, encoder)
        known = text_embedder(made)(texts)
        seen = SeenAds(np.arange(len(known)), known, known)
        combiner = Combiner("transformer", known.shape[1]).eval()
        CombinedAds(combiner, seen, Lookup()).save(Path(aside) / "trained")
        plain = Path(shutil.copytree(made, Path(aside) / "plain"))
        use_combiner(made, Path(aside) / "trained", known, "flat")
        combined = combiner_of(made)
        assert combined is not None
        new, more = new_texts(texts, num_ads), new_texts(texts, stream)
        figures = {
            "ms_per_ad": milliseconds(lambda: add(made, new, combined), num_ads),
            "without_combiner_ms": milliseconds(lambda: add(plain, new, None), num_ads),
        }
        if stream:
            before = faiss.read_index(str(made / "index.faiss")).ntotal
            figures["stream_s"] = seconds_of(lambda: add(made, more, combined))
            figures["found_first"] = share_found_first(made, more[:1000], before, combined)
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


def milliseconds(run: Callable[[], Any], num_ads: int) -> float:
    """Return the milliseconds per ad of the fastest of three calls."""
    return 1000 * min(seconds_of(run) for _ in range(3)) / num_ads


if __name__ == "__main__":
    main()
