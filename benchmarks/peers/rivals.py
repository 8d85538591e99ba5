"""What every rival gets, how one is prepared and fitted, and how its settings are chosen.

Validation chooses, then the rival is measured; everything is kept.
"""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import faiss
import numpy as np
import psutil
import torch

from benchmarks.common import CACHE, in_fresh_process, latencies, sampled
from benchmarks.tables import ByQuery, Found, kept, kept_file
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity
from ramen_ray.method.metrics.ranking import ratio
from ramen_ray.method.retrieval.search import drop_filtered, most_filters

SPLITS = ("train", "validation", "test")
STORE = CACHE / "peers" / "runs"
VERSION = 3  # of what is kept; a change of a rival makes its runs anew
METRICS = ("P@1", "P@3", "P@5", "N@5", "PSP@1", "PSP@5", "R@10", "R@100", "tail/R@10")
CHOSEN_BY = ("P@1", "R@10")
VALIDATION, BOTH = ("validation",), ("validation", "test")
DEPTH = 100
SINGLE_QUERIES = 200

# a try takes a tenth of a second, and to import torch anew takes several
in_own_process = partial(in_fresh_process, method="fork")

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

    def ground_truth(self, split: str) -> GroundTruth:
        """Return what answers to the queries of a split are measured against."""
        train, clicks = self.clicks["train"], self.clicks[split]
        counts = np.bincount(train.indices, minlength=len(self.ads))
        return GroundTruth.from_clicks(clicks, counts, len(train.filled_rows), Propensity())

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
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)


def size_on_disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@dataclass(frozen=True)
class Run:
    """What a run of a rival gave."""

    metrics: Mapping[str, ByQuery]  # ``METRICS`` by split
    figures: Mapping[str, float]  # seconds, bytes and rates

    def value(self, metric: str, split: str = "test") -> float:
        return ratio(self.metrics[split][metric])

    @property
    def validation_score(self) -> float:
        """The sum of the metrics that choices go by."""
        return sum(self.value(metric, "validation") for metric in CHOSEN_BY)


@dataclass(frozen=True)
class Contest:
    """A rival on a dataset.

    Its ``budget`` is seconds of processor time for choosing settings. The last try may run over it,
    and 0 takes what is kept.
    """

    name: str
    rival: Rival
    dataset: Path
    budget: float
    threads: int

    @cached_property
    def prepared(self) -> Any:
        """What the rival wants to have before its clock starts."""
        prepare = self.rival.prepare
        return None if prepare is None else prepare(Corpus.read(self.dataset))

    def settings(self) -> Settings:
        """Return the settings that validation chose; tries that are kept count in any case."""
        candidates = self.rival.settings
        if len(candidates) == 1:
            return candidates[0]
        spent, scores = 0.0, {0: -np.inf}
        for number, settings in enumerate(candidates):
            file = kept_file(self._folder, self._content(settings, 0, VALIDATION))
            if spent < self.budget or file.exists():
                run = self._kept(settings, 0, VALIDATION)
                spent += run.figures["processor_s"]
                scores[number] = run.validation_score
        return candidates[max(scores, key=lambda number: scores[number])]

    def run(self, seed: int) -> Run:
        """Return a run on validation and test with the settings that validation chose."""
        return self._kept(self.settings(), seed if self.rival.is_random else 0, BOTH)

    @property
    def _folder(self) -> Path:
        return STORE / self.dataset.name

    def _content(self, settings: Settings, seed: int, splits: tuple[str, ...]) -> list[Any]:
        threads = [self.threads] if "test" in splits else []  # tries are the same with any number
        return [VERSION, self.name, dict(settings), seed, splits, *threads]

    def _kept(self, settings: Settings, seed: int, splits: tuple[str, ...]) -> Run:
        def measured() -> Found:
            how = (settings, seed, self.threads, splits)
            process = in_own_process(measure, self.rival, self.dataset, self.prepared, *how)
            run = Run(*process)
            found = {name: f"{100 * run.value(name, 'validation'):.2f}" for name in CHOSEN_BY}
            what = f"{self.dataset.name}, {self.name}, seed {seed}, {dict(settings)}"
            seconds = f"{run.figures['processor_s']:.1f} s"
            print(f"{what}: validation {found}, {seconds}", file=sys.stderr, flush=True)
            return run.metrics, run.figures

        return Run(*kept(self._folder, self._content(settings, seed, splits), measured))


def measure(
    rival: Rival, dataset: Path, prepared: Any, settings: Settings, seed: int, *how: Any
) -> Found:
    """Fit a rival, ask it, and return what it gave; ``how`` is threads and splits.

    Memory is what the processes grew by from before the fit.
    """
    threads, splits = how
    corpus = Corpus.read(dataset)
    before = psutil.Process().memory_info().rss
    with sampled() as found:
        fitted = rival.fit(corpus, prepared, settings, seed, threads)
    figures = {
        "processor_s": found["processor_s"],
        "memory_bytes": max(found["driver"] - before, 0) + found["below"],
        "model_bytes": fitted.model_bytes,
        "index_bytes": fitted.index_bytes,
    }
    metrics = {}
    for split in splits:
        started = time.monotonic()
        metrics[split] = judged(fitted, corpus, split)
        figures["queries_per_s"] = len(corpus.queries[split]) / (time.monotonic() - started)
    if "test" in splits:
        asked = corpus.queries["test"][:SINGLE_QUERIES]
        figures |= latencies(lambda query: fitted.answer([query], DEPTH), asked)
    return metrics, figures


def judged(fitted: Fitted, corpus: Corpus, split: str) -> ByQuery:
    """Ask all queries of a split, drop the filter pairs, and measure what is left."""
    filters = corpus.filters.get(split, np.empty((0, 2), dtype=np.int64))
    ads = fitted.answer(corpus.queries[split], DEPTH + most_filters(filters))
    kept, _ = drop_filtered((ads, np.zeros(ads.shape, dtype=np.float32)), filters, DEPTH)
    found = corpus.ground_truth(split).by_query(kept)
    return {name: found[name] for name in METRICS}
