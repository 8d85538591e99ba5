"""Rivals that compare words: TF-IDF of words and of characters, and BM25.

TF-IDF is scikit-learn's with sublinear term frequencies, as in its example of text classification;
BM25 is bm25s with English stop words and Snowball's stemmer, as in its README. An ad's
document may also hold the train queries that led to it, as a search engine's field of clicks does.
"""

import pickle
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import bm25s
import numpy as np
import Stemmer
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.peers.rivals import Corpus, Fitted, Rival, Settings, size_on_disk
from ramen_ray.data.arrays import Int64s

QUERIES_AT_ONCE = 256


class Tfidf:
    """Cosines of sparse vectors of the ads' words or characters."""

    def __init__(
        self, corpus: Corpus, _: None, settings: Settings, seed: int, threads: int
    ) -> None:
        how = {name: settings[name] for name in ("analyzer", "ngram_range")}
        self.vectorizer = TfidfVectorizer(**how, sublinear_tf=True, dtype=np.float32)
        documents = corpus.documents(settings["with_clicks"])
        self.documents = self.vectorizer.fit_transform(documents).T.tocsr()
        self.model_bytes = len(pickle.dumps(self.vectorizer))
        parts = self.documents.data, self.documents.indices, self.documents.indptr
        self.index_bytes = sum(part.nbytes for part in parts)

    def answer(self, queries: Sequence[str], k: int) -> Int64s:
        found = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            rows = self.vectorizer.transform(queries[start : start + QUERIES_AT_ONCE])
            cosines = torch.from_numpy((rows @ self.documents).toarray())
            best, ads = cosines.topk(min(k, cosines.shape[1]))
            found.append(np.where(best > 0, ads, -1))
        return np.concatenate(found)


class Bm25:
    """BM25 scores of the ads' words, computed while indexing."""

    def __init__(
        self, corpus: Corpus, _: None, settings: Settings, seed: int, threads: int
    ) -> None:
        self.stemmer, self.threads = Stemmer.Stemmer("english"), threads
        self.index = bm25s.BM25(k1=settings["k1"], b=settings["b"])
        documents = corpus.documents(settings["with_clicks"])
        self.index.index(self._tokens(documents), show_progress=False)
        self.model_bytes = 0
        with TemporaryDirectory() as folder:
            self.index.save(folder, show_progress=False)
            self.index_bytes = size_on_disk(Path(folder))

    def answer(self, queries: Sequence[str], k: int) -> Int64s:
        found, scores = self.index.retrieve(
            self._tokens(list(queries)), k=k, show_progress=False, n_threads=self.threads
        )
        return np.where(scores > 0, found, -1).astype(np.int64)

    def _tokens(self, texts: list[str]) -> bm25s.tokenization.Tokenized:
        return bm25s.tokenize(texts, stopwords="en", stemmer=self.stemmer, show_progress=False)


def _rival(fit: Callable[..., Fitted], tried: Sequence[Settings]) -> Rival:
    with_clicks = [{"with_clicks": given} for given in (False, True)]
    return Rival(fit, tuple({**one, **given} for given, one in product(with_clicks, tried)))


def _tfidf(analyzer: str, *ranges: tuple[int, int]) -> Rival:
    return _rival(Tfidf, [{"analyzer": analyzer, "ngram_range": one} for one in ranges])


BM25 = ((1.5, 0.75), (0.9, 0.4), (1.2, 0.75), (0.6, 0.9))
RIVALS = {
    "TF-IDF, words": _tfidf("word", (1, 1), (1, 2)),
    "TF-IDF, characters": _tfidf("char_wb", (3, 3), (2, 4), (3, 5)),
    "BM25": _rival(Bm25, [{"k1": k1, "b": b} for k1, b in BM25]),
}
