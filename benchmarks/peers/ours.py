"""Ours: the five bases, each without a graph and with RAMEN on it, by the presets' settings; AugGT.

They train in this process as ``benchmarks.graph_gain`` does it: the bag of token embeddings, in
strict graphs, without walk and pruning, from tokens that were prepared before the clock starts.
Presets were tuned for ``in_batch``; validation may give ``unidec`` other batches and more epochs.
A method of another kind is one more entry of ``RIVALS``.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import faiss
import numpy as np
import torch

from benchmarks.common import ROOT
from benchmarks.graph_gain import dataset_of, propagated
from benchmarks.in_process import train
from benchmarks.peers.corpus import Corpus
from benchmarks.peers.rivals import Rival, Settings, size_on_disk
from ramen_ray.bases import BaseName
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import build_index, search_index
from ramen_ray.orchestration.runs.components import encoder_tokenizer
from ramen_ray.presets import bag_ramen, base_changes

PLAIN = {"walk.enabled": False, "pruning.mode": "never"}
TRIED: dict[str, tuple[Settings, ...]] = {
    "unidec": (
        {},
        {"training.global_batch_size": 256, "classifier.lr": 0.1},
        {"training.epochs": 40},
    )
}
"""Changes of the preset that validation chooses from, by base; no others are tried."""


class Ours:
    """A trained model, and exact search among its vectors of the ads."""

    def __init__(self, config: RunConfig, model: DualEncoder, data: Prepared) -> None:
        """Embed and index the ads."""
        self.tokenize = encoder_tokenizer(config.encoder)
        self.model = model
        vectors = model.embed_ads(data.ads, np.arange(len(data.ads)))
        self.index = build_index(vectors)
        self.model_bytes = saved_bytes(config, model)
        self.index_bytes = vectors.nbytes

    def answer(self, queries: Sequence[str], k: int) -> Int64s:
        """Return the nearest ads; see :class:`Fitted`."""
        token_ids, lengths = self.tokenize(queries)
        offsets = np.append(0, lengths.cumsum())
        table = TokenTable(token_ids, offsets, np.zeros(len(queries), dtype=np.uint64))
        vectors = self.model.embed_queries(table, np.arange(len(queries)))
        return search_index(self.index, vectors, k)[0]


def saved_bytes(config: RunConfig, model: DualEncoder) -> int:
    """Return the size of the model as it is saved."""
    with TemporaryDirectory() as folder:
        model.save(Path(folder), config.encoder.max_length)
        return size_on_disk(Path(folder))


def config_of(name: str, base: BaseName, with_graph: bool, **changes: Any) -> RunConfig:
    """Return a dataset's preset with another base, with or without the graph, and changed."""
    preset = bag_ramen(name)
    graph = PLAIN if with_graph else WITHOUT_GRAPH
    dataset = {"dataset": str(ROOT / "datasets" / name)}
    own = base_changes(preset, {"base.kind": base})
    return overlay(preset, {**dataset, **own, **graph, **changes})


def prepare(corpus: Corpus) -> Prepared:
    """Prepare the dataset's tokens."""
    config = config_of(corpus.name, "in_batch", False)
    return dataset_of(config.dataset, config.encoder)


def prepare_propagated(corpus: Corpus) -> Prepared:
    """Prepare the tokens of the dataset whose clicks are propagated over the graph (AugGT)."""
    config = config_of(corpus.name, "in_batch", True)
    return dataset_of(str(propagated(config)), config.encoder)


def fit(corpus: Corpus, data: Prepared, settings: Settings, seed: int, threads: int) -> Ours:
    """Train to the last epoch."""
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    config = overlay(config_of(corpus.name, **settings), {"seed": seed})
    return Ours(config, train(config, data), data)


def _settings(base: BaseName, with_graph: bool) -> tuple[Settings, ...]:
    changes = TRIED.get(base, ({},))
    return tuple({"base": base, "with_graph": with_graph, **one} for one in changes)


AUGGT = Rival(
    "ours with the graph",
    fit,
    ({"base": "in_batch", "with_graph": False},),
    prepare_propagated,
    is_random=True,
)
RIVALS = {
    f"{base} + RAMEN" if with_graph else base: Rival(
        "ours with the graph" if with_graph else "ours",
        fit,
        _settings(base, with_graph),
        prepare,
        is_random=True,
    )
    for base in get_args(BaseName)
    for with_graph in (False, True)
} | {"AugGT": AUGGT}
