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
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks.peers.corpus import Corpus
from benchmarks.peers.rivals import Fitted, Rival, Settings, best, size_on_disk
from ramen_ray.data.arrays import Int64s

QUERIES_AT_ONCE = 256


class Tfidf:
    """Cosines of sparse vectors."""

    def __init__(self, vectorizer: TfidfVectorizer, documents: list[str]) -> None:
        """Index the documents of the ads."""
        self.vectorizer = vectorizer
        self.documents = vectorizer.fit_transform(documents).T.tocsr()
        self.model_bytes = len(pickle.dumps(vectorizer))
        parts = self.documents.data, self.documents.indices, self.documents.indptr
        self.index_bytes = sum(part.nbytes for part in parts)

    def answer(self, queries: Sequence[str], k: int) -> Int64s:
        """Return the ads with the highest cosines; see :class:`Fitted`."""
        starts = range(0, len(queries), QUERIES_AT_ONCE)
        blocks = [queries[start : start + QUERIES_AT_ONCE] for start in starts]
        return np.concatenate([best(self._scores(block), k) for block in blocks])

    def _scores(self, queries: Sequence[str]) -> np.ndarray:
        return (self.vectorizer.transform(queries) @ self.documents).toarray()


def fit_tfidf(corpus: Corpus, _: None, settings: Settings, seed: int, threads: int) -> Tfidf:
    """Index the ads' words or characters."""
    how = {name: settings[name] for name in ("analyzer", "ngram_range")}
    vectorizer = TfidfVectorizer(**how, sublinear_tf=True, dtype=np.float32)
    return Tfidf(vectorizer, corpus.documents(settings["with_clicks"]))


class Bm25:
    """BM25 scores, computed while indexing."""

    def __init__(self, documents: list[str], settings: Settings, threads: int) -> None:
        """Index the documents of the ads."""
        self.stemmer = Stemmer.Stemmer("english")
        self.threads = threads
        self.index = bm25s.BM25(k1=settings["k1"], b=settings["b"])
        self.index.index(self._tokens(documents), show_progress=False)
        self.model_bytes = 0
        with TemporaryDirectory() as folder:
            self.index.save(folder, show_progress=False)
            self.index_bytes = size_on_disk(Path(folder))

    def answer(self, queries: Sequence[str], k: int) -> Int64s:
        """Return the ads with the highest scores; see :class:`Fitted`."""
        found, scores = self.index.retrieve(
            self._tokens(list(queries)), k=k, show_progress=False, n_threads=self.threads
        )
        return np.where(scores > 0, found, -1).astype(np.int64)

    def _tokens(self, texts: list[str]) -> bm25s.tokenization.Tokenized:
        return bm25s.tokenize(texts, stopwords="en", stemmer=self.stemmer, show_progress=False)


def fit_bm25(corpus: Corpus, _: None, settings: Settings, seed: int, threads: int) -> Bm25:
    """Index the ads' words."""
    return Bm25(corpus.documents(settings["with_clicks"]), settings, threads)


def _rival(fit: Callable[..., Fitted], tried: Sequence[Settings]) -> Rival:
    with_clicks = [{"with_clicks": given} for given in (False, True)]
    return Rival(fit, tuple({**one, **given} for given, one in product(with_clicks, tried)))


def _tfidf(analyzer: str, *ranges: tuple[int, int]) -> Rival:
    return _rival(fit_tfidf, [{"analyzer": analyzer, "ngram_range": one} for one in ranges])


BM25 = ((1.5, 0.75), (0.9, 0.4), (1.2, 0.75), (0.6, 0.9))
RIVALS = {
    "TF-IDF, words": _tfidf("word", (1, 1), (1, 2)),
    "TF-IDF, characters": _tfidf("char_wb", (3, 3), (2, 4), (3, 5)),
    "BM25": _rival(fit_bm25, [{"k1": k1, "b": b} for k1, b in BM25]),
}
