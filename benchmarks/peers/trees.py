"""Rivals that classify queries into ads by trees of linear models over TF-IDF features.

PECOS XR-Linear, napkinXC's PLT, and omikuji's Parabel and Bonsai. By themselves they know an ad by
its number only, so they can answer with ads that have train clicks. "+ texts" trains them on each
ad's own text too, as a query that led to it: then they know all ads.
"""

import hashlib
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import FeatureUnion

from benchmarks.common import CACHE, ROOT, run_python
from benchmarks.peers.rivals import Corpus, Rival, Settings, size_on_disk
from benchmarks.peers.workers import pack
from ramen_ray.data.arrays import Int64s

ENVIRONMENTS = CACHE / "peers" / "environments"


@dataclass(frozen=True)
class Environment:
    """Packages by name and version; nothing else is installed, so all that is needed is named."""

    name: str
    packages: str

    def python(self, _: Corpus) -> Path:
        """Return its Python, made now by uv (pip install uv) or earlier."""
        key = hashlib.blake2b(self.packages.encode(), digest_size=4).hexdigest()
        folder = ENVIRONMENTS / f"{self.name}-{key}"
        if not folder.exists():
            ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(dir=ENVIRONMENTS))
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            run_python("-m", "uv", "venv", "--relocatable", "--python", version, aside / "made")
            to = ("--no-deps", "--python", aside / "made" / "bin" / "python")
            run_python("-m", "uv", "pip", "install", *to, *self.packages.split())
            (aside / "made").rename(folder)
            aside.rmdir()
        return folder / "bin" / "python"


NUMERIC = "numpy==2.4.6 scipy==1.17.1"
PECOS = Environment(
    "pecos",  # its other dependencies serve its transformers only
    "libpecos==1.2.8 numpy==1.26.4 scipy==1.13.1 scikit-learn==1.5.2 joblib==1.4.2 "
    "threadpoolctl==3.5.0",
)
NAPKINXC = Environment("napkinxc", f"napkinxc==0.7.2 {NUMERIC}")
OMIKUJI = Environment(
    "omikuji", f"omikuji==0.5.2 milksnake==0.1.6 cffi==2.1.1 pycparser==3.12 {NUMERIC}"
)


class Trees:
    """A tree rival that runs in another process, and the features that it is asked with."""

    def __init__(
        self, command: list[str], vectorizer: Any, ads: Int64s, lessons: tuple[Any, ...]
    ) -> None:
        self.aside = tempfile.TemporaryDirectory()
        self.folder = Path(self.aside.name)
        self.vectorizer, self.ads = vectorizer, ads
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "log").open("wb"),
        )
        self._ask((*lessons, self.folder / "model"))
        self.model_bytes = size_on_disk(self.folder / "model") + len(pickle.dumps(vectorizer))
        self.index_bytes = 0

    def answer(self, queries: Sequence[str], k: int) -> Int64s:
        rows = self._ask((pack(self.vectorizer.transform(queries)), k))
        answers = np.full((len(queries), k), -1)
        for answer, row in zip(answers, rows, strict=True):
            answer[: len(row)] = self.ads[row]
        return answers

    def _ask(self, message: Any) -> Any:
        to, back = self.process.stdin, self.process.stdout
        assert to is not None and back is not None
        try:
            pickle.dump(message, to)
            to.flush()
            return pickle.load(back)
        except (BrokenPipeError, EOFError) as error:
            log = (self.folder / "log").read_text(errors="replace")
            raise RuntimeError(f"the rival's program ended:\n{log[-2000:]}") from error


def fit(
    corpus: Corpus, python: Path, settings: Settings, seed: int, threads: int, *, program: str
) -> Trees:
    """Train on the clicked train queries and, if asked for, on the ads' own texts."""
    of = dict(settings)
    vectorizer, with_texts = clone(FEATURES[of.pop("features")]), of.pop("with_texts")
    rows, ads = corpus.train_pairs()
    texts = corpus.queries["train"]
    if with_texts:
        rows = np.append(rows, len(texts) + np.arange(len(corpus.ads)))
        ads = np.append(ads, np.arange(len(corpus.ads)))
        texts = texts + corpus.ads
    features = csr_matrix(vectorizer.fit_transform(texts))
    taught = np.intersect1d(rows, np.flatnonzero(features.getnnz(axis=1)))  # "-" has no words
    kept = np.isin(rows, taught)
    known, of_ad = np.unique(ads[kept], return_inverse=True)
    of_row = np.searchsorted(taught, rows[kept])
    labels = csr_matrix((np.ones(len(of_ad)), (of_row, of_ad)), shape=(len(taught), len(known)))
    command = [str(python), "-m", "benchmarks.peers.workers", program]
    lessons = pack(features[taught]), pack(labels), of, seed, threads
    return Trees(command, vectorizer, known, lessons)


tfidf = partial(TfidfVectorizer, sublinear_tf=True, dtype=np.float32)
pairs_of_words = tfidf(ngram_range=(1, 2))
characters = tfidf(analyzer="char_wb", ngram_range=(3, 4))
FEATURES = {
    "words": tfidf(),  # as in the files of the extreme classification repository
    "words and characters": FeatureUnion([("words", pairs_of_words), ("characters", characters)]),
}
XR_LINEAR = {"max_leaf_size": 100, "cp": 1.0, "threshold": 0.1, "negatives": "tfn", "beam": 10}
PARABEL = {"beam": 10}
BONSAI = {**PARABEL, "cluster_balanced": False, "cluster_k": 100, "max_depth": 3}
TRIED: dict[str, tuple[str, Environment, Settings, list[Settings]]] = {
    "PECOS XR-Linear": (
        "xr_linear",
        PECOS,
        XR_LINEAR,
        [{"negatives": "tfn+man"}, {"cp": 4.0}, {"max_leaf_size": 1_000_000}],  # one against all
    ),
    "napkinXC PLT": (
        "plt",
        NAPKINXC,
        {},
        [{"liblinear_c": 1}, {"loss": "l2", "liblinear_c": 1}, {"ensemble": 3}],
    ),
    "omikuji Parabel": ("forest", OMIKUJI, PARABEL, [{"beam": 50}, {"linear_c": 4.0}]),
    "omikuji Bonsai": ("forest", OMIKUJI, BONSAI, [{"beam": 50}, {"linear_c": 4.0}]),
}
"""Programs and environments, what they are documented with, and changes that are tried."""
RIVALS = {
    f"{name} + texts" if with_texts else name: Rival(
        partial(fit, program=program),
        tuple(
            {"features": features, "with_texts": with_texts, **first, **changes}
            for changes in ({}, *others)
            for features in FEATURES
        ),
        prepare=environment.python,
        is_random=True,
    )
    for name, (program, environment, first, others) in TRIED.items()
    for with_texts in (False, True)
}
