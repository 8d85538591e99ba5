"""Ours: the five bases, each without a graph and with RAMEN on it; AugGT, and OAK.

They train in this process as ``benchmarks.graph_gain`` does it: the bag of token embeddings, in
strict graphs, without walk and pruning, from tokens that were prepared before the clock starts.
Presets were tuned for ``in_batch``; validation may give ``unidec`` other batches and more epochs.
OAK's linker is trained for it, as in the paper, on the anchor sets that RAMEN uses; its training,
its index and its search count as OAK's.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import numpy as np

from benchmarks.common import ROOT
from benchmarks.graph_gain import UNWALKED, dataset_of, propagated, recipe
from benchmarks.in_process import train
from benchmarks.oak_gain import link_dataset, oak_base, train_oak
from benchmarks.peers.rivals import Corpus, Rival, Settings, size_on_disk, use_threads
from experiments.oak.augmentation import Augmentation
from experiments.oak.links import bank_texts, links_own_text
from experiments.oak.method import AugmentedQueries, OakSettings
from ramen_ray.bases import BaseName
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.data.arrays import HashIndex, Int64s, hash_texts
from ramen_ray.data.prepared.folder import Prepared, TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import build_index, drop_filtered, most_filters, search_index
from ramen_ray.orchestration.run.inputs import encoder_tokenizer
from ramen_ray.presets import base_changes, used_sets

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
        self._tokenize = encoder_tokenizer(config.encoder)
        self.model = model
        vectors = model.embed_ads(data.ads, np.arange(len(data.ads)))
        self.index = build_index(vectors)
        self.model_bytes = saved_bytes(config, model)
        self.index_bytes = vectors.nbytes

    def answer(self, queries: Sequence[str], k: int) -> Int64s:
        token_ids, lengths = self._tokenize(queries)
        offsets = np.append(0, lengths.cumsum())
        table = TokenTable(token_ids, offsets, hash_texts(token_ids, offsets))
        return search_index(self.index, self.embed(table), k)[0]

    def embed(self, table: TokenTable) -> Any:
        return self.model.embed_queries(table, np.arange(len(table)))


class Oak(Ours):
    """A model with its bank, a linker and its index of the anchors."""

    def __init__(
        self,
        config: RunConfig,
        oak: OakSettings,
        linker: DualEncoder,
        trained: tuple[DualEncoder, Augmentation],
        data: Prepared,
    ) -> None:
        model, self.augmentation = trained
        super().__init__(config, model, data)
        self.linker, self.num_links = linker, oak.links_at_test
        anchors = bank_texts(data, oak.anchor_sets)
        of_anchors = linker.embed_ads(anchors, np.arange(len(anchors)))
        self.anchors = build_index(of_anchors)
        keeps_own = links_own_text(data, oak.anchor_sets)
        self.own = None if keeps_own else HashIndex.from_hashes(anchors.hashes)
        self.model_bytes += saved_bytes(config, linker) + self.augmentation.bank.vectors.nbytes
        self.model_bytes += sum(one.nbytes for one in self.augmentation.parameters())
        self.index_bytes += of_anchors.nbytes

    def embed(self, table: TokenTable) -> Any:
        rows, own = np.arange(len(table)), np.empty((0, 2), dtype=np.int64)
        if self.own is not None:
            own = np.stack(self.own.all(table.hashes), axis=1)
        vectors = self.linker.embed_queries(table, rows)
        found = search_index(self.anchors, vectors, self.num_links + most_filters(own))
        links = drop_filtered(found, own, self.num_links)[0].astype(np.int32)
        return AugmentedQueries(self.model, self.augmentation, links).embed_queries(table, rows)


def saved_bytes(config: RunConfig, model: DualEncoder) -> int:
    with TemporaryDirectory() as folder:
        model.save(Path(folder), config.encoder.max_length)
        return size_on_disk(Path(folder))


def config_of(name: str, base: BaseName, with_graph: bool, **changes: Any) -> RunConfig:
    """Return a dataset's preset with another base, with or without the graph, and changed."""
    preset = recipe(name)
    graph = UNWALKED if with_graph else WITHOUT_GRAPH
    dataset = {"dataset": str(ROOT / "datasets" / name)}
    own = base_changes(preset, {"base.kind": base})
    return overlay(preset, {**dataset, **own, **graph, **changes})


def prepare(corpus: Corpus, propagate: bool = False) -> Prepared:
    """Prepare the dataset's tokens; with clicks propagated over the graph if asked for (AugGT)."""
    config = config_of(corpus.name, "in_batch", propagate)
    dataset = str(propagated(config)) if propagate else config.dataset
    return dataset_of(dataset, config.encoder)


def prepare_links(corpus: Corpus) -> tuple[Prepared, Prepared]:
    """Prepare the tokens of the dataset, and of the one that OAK's linker is trained on."""
    config = config_of(corpus.name, "ance", True)
    return prepare(corpus), dataset_of(str(link_dataset(config)), config.encoder)


def fit(corpus: Corpus, data: Prepared, settings: Settings, seed: int, threads: int) -> Ours:
    use_threads(threads)
    config = overlay(config_of(corpus.name, **settings), {"seed": seed})
    return Ours(config, train(config, data), data)


def fit_oak(
    corpus: Corpus, data: tuple[Prepared, Prepared], settings: Settings, seed: int, threads: int
) -> Oak:
    """Train the linker, then the model, each to its last epoch."""
    use_threads(threads)
    of_dataset, of_links = data
    config = config_of(corpus.name, "ance", True, seed=seed)
    without = config_of(corpus.name, "ance", False, seed=seed)
    linker = train(overlay(without, {"dataset": str(link_dataset(config))}), of_links)
    base, oak = oak_base(config), OakSettings(anchor_sets=tuple(used_sets(config)))
    return Oak(base, oak, linker, train_oak(base, oak, of_dataset), of_dataset)


RIVALS = {
    f"{base} + RAMEN" if with_graph else base: Rival(
        fit,
        tuple({"base": base, "with_graph": with_graph, **one} for one in TRIED.get(base, ({},))),
        prepare,
        is_random=True,
    )
    for base in get_args(BaseName)
    for with_graph in (False, True)
}
RIVALS["AugGT"] = replace(RIVALS["in_batch"], prepare=partial(prepare, propagate=True))
RIVALS["OAK"] = Rival(fit_oak, ({},), prepare_links, is_random=True)
