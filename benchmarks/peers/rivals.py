"""What every rival gets, how it is prepared and fitted, and what a fitted one answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
import torch

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.judgement import Judgement, Propensity

SPLITS = ("train", "validation", "test")
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Corpus:
    """Texts in the order of their ids, clicks and filter pairs of a dataset directory."""

    name: str
    queries: Mapping[str, list[str]]
    ads: list[str]
    clicks: Mapping[str, Csr]  # query rows x ads
    filters: Mapping[str, Int64s]  # (pairs, 2) of (query row, ad) to drop from answers

    @classmethod
    def read(cls, folder: Path) -> "Corpus":
        """Read a dataset directory; nothing of its graphs."""
        dataset = Dataset(folder)
        queries, clicks, filters = {}, {}, {}
        for split in SPLITS:
            table = dataset.read(f"queries/{split}").sort_by("query_id")
            lists = table["ad_ids"].to_pylist()
            rows = np.repeat(np.arange(len(lists)), [len(ads) for ads in lists])
            columns = np.array([ad for ads in lists for ad in ads], dtype=np.int64)
            queries[split] = table["text"].to_pylist()
            clicks[split] = Csr.from_pairs(rows, columns, len(lists))
            if dataset.has(f"filters/{split}"):
                pairs = dataset.read(f"filters/{split}")
                of_rows = np.searchsorted(table["query_id"].to_numpy(), pairs["query_id"])
                filters[split] = np.stack([of_rows, pairs["ad_id"].to_numpy()], axis=1)
        ads = dataset.read("ads").sort_by("ad_id")["text"].to_pylist()
        return cls(folder.name, queries, ads, clicks, filters)

    def judgement(self, split: str) -> Judgement:
        """Return what answers to the queries of a split are measured against."""
        train, clicks = self.clicks["train"], self.clicks[split]
        counts = np.bincount(train.indices, minlength=len(self.ads))
        return Judgement.from_clicks(clicks, counts, len(train.filled_rows), Propensity())

    def train_pairs(self) -> tuple[Int64s, Int64s]:
        """Return the rows of train queries (clicks,) and their ads (clicks,)."""
        train = self.clicks["train"]
        return train.gather(np.arange(train.num_rows))

    def documents(self, with_clicks: bool) -> list[str]:
        """Return the ads' texts, each with the train queries that led to the ad if asked for."""
        if not with_clicks:
            return self.ads
        parts = [[text] for text in self.ads]
        for row, ad in zip(*self.train_pairs(), strict=True):
            parts[ad].append(self.queries["train"][row])
        return [" ".join(texts) for texts in parts]


class Fitted(Protocol):
    """A rival that can answer."""

    model_bytes: int  # of what turns a query into an answer, without the index
    index_bytes: int  # of what is kept of the ads

    def answer(self, queries: Sequence[str], k: int) -> Int64s:
        """Return the ads (queries, k) of each query, best first, -1 after the last."""
        ...


@dataclass(frozen=True)
class Rival:
    """One row of the table."""

    # trains and indexes; gets the corpus, what was prepared, settings, seed and threads
    fit: Callable[[Corpus, Any, Settings, int, int], Fitted]
    settings: tuple[Settings, ...]  # that validation chooses from, documented practice first
    prepare: Callable[[Corpus], Any] | None = None  # once and not timed: environments, tokens
    is_random: bool = False


def use_threads(threads: int) -> None:
    """Train and search with so many threads."""
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)


def size_on_disk(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
