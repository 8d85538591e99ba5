"""Ours: OAK, whose queries are enriched by the anchors that a linker finds for them.

The linker is trained for it, as in the paper, on the anchor sets that RAMEN uses; its training, its
index and its search count as OAK's.
"""

from collections.abc import Sequence

import faiss
import numpy as np
import torch

from benchmarks.graph_gain import dataset_of
from benchmarks.in_process import train
from benchmarks.oak_gain import link_dataset, oak_base, train_oak
from benchmarks.peers.corpus import Corpus
from benchmarks.peers.ours import config_of, saved_bytes
from benchmarks.peers.rivals import Rival, Settings
from experiments.oak.augmentation import Augmentation
from experiments.oak.links import bank_texts, links_own_text
from experiments.oak.queries import AugmentedQueries
from experiments.oak.settings import OakSettings
from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.hashing import HashIndex, hash_texts
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import (
    build_index,
    drop_filtered,
    most_filters,
    search_index,
)
from ramen_ray.orchestration.runs.components import encoder_tokenizer
from ramen_ray.orchestration.tune.variants import used_sets

Datasets = tuple[Prepared, Prepared]
"""The dataset, and the one that its linker is trained on."""


class Oak:
    """A linker and its index of the anchors, the model with its bank, and its index of the ads."""

    def __init__(
        self,
        config: RunConfig,
        oak: OakSettings,
        linker: DualEncoder,
        trained: tuple[DualEncoder, Augmentation],
        data: Prepared,
    ) -> None:
        """Embed and index the anchors and the ads."""
        self.tokenize = encoder_tokenizer(config.encoder)
        self.model, self.augmentation = trained
        self.linker, self.num_links = linker, oak.links_at_test
        anchors = bank_texts(data, oak.anchor_sets)
        of_anchors = linker.embed_ads(anchors, np.arange(len(anchors)))
        of_ads = self.model.embed_ads(data.ads, np.arange(len(data.ads)))
        self.anchors, self.ads = build_index(of_anchors), build_index(of_ads)
        keeps_own = links_own_text(data, oak.anchor_sets)
        self.own = None if keeps_own else HashIndex.from_hashes(anchors.hashes)
        own_bytes = sum(one.nbytes for one in self.augmentation.parameters())
        bank_bytes = self.augmentation.bank.vectors.nbytes
        self.model_bytes = saved_bytes(config, linker) + saved_bytes(config, self.model)
        self.model_bytes += own_bytes + bank_bytes
        self.index_bytes = of_anchors.nbytes + of_ads.nbytes

    def answer(self, queries: Sequence[str], k: int) -> Int64s:
        """Return the nearest ads of the enriched queries; see :class:`Fitted`."""
        token_ids, lengths = self.tokenize(queries)
        offsets, rows = np.append(0, lengths.cumsum()), np.arange(len(queries))
        table = TokenTable(token_ids, offsets, hash_texts(token_ids, offsets))
        answering = AugmentedQueries(self.model, self.augmentation, self._links(table))
        return search_index(self.ads, answering.embed_queries(table, rows), k)[0]

    def _links(self, table: TokenTable) -> np.ndarray:
        own = np.empty((0, 2), dtype=np.int64)
        if self.own is not None:
            own = np.stack(self.own.all(table.hashes), axis=1)
        vectors = self.linker.embed_queries(table, np.arange(len(table)))
        found = search_index(self.anchors, vectors, self.num_links + most_filters(own))
        return drop_filtered(found, own, self.num_links)[0].astype(np.int32)


def prepare(corpus: Corpus) -> Datasets:
    """Prepare the tokens of both datasets."""
    config = config_of(corpus.name, "ance", True)
    folders = (config.dataset, str(link_dataset(config)))
    data, links = (dataset_of(folder, config.encoder) for folder in folders)
    return data, links


def fit(corpus: Corpus, data: Datasets, settings: Settings, seed: int, threads: int) -> Oak:
    """Train the linker, then the model, each to its last epoch."""
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    of_dataset, of_links = data
    config = overlay(config_of(corpus.name, "ance", True), {"seed": seed})
    without = overlay(config_of(corpus.name, "ance", False), {"seed": seed})
    linker = train(overlay(without, {"dataset": str(link_dataset(config))}), of_links)
    base, oak = oak_base(config), OakSettings(anchor_sets=tuple(used_sets(config)))
    return Oak(base, oak, linker, train_oak(base, oak, of_dataset), of_dataset)


RIVALS = {"OAK": Rival("ours with the graph", fit, ({},), prepare, is_random=True)}
