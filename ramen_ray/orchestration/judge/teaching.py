"""A teacher's grades of pairs of query and ad: clicked, ranked among the first, or judged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.config import ConfigError
from ramen_ray.data.arrays import Booleans, Int64s, uniforms
from ramen_ray.data.splits.judged import adding_judgements
from ramen_ray.data.splits.kept import lowest
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.judgements import grades_of_scores
from ramen_ray.data.store.same_texts import fold
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.long_work import logged_blocks
from ramen_ray.method.model.cross_encoder import CrossEncoder, is_cross_encoder
from ramen_ray.orchestration.deploy.comparing import Answering
from ramen_ray.orchestration.deploy.retrievers import retriever_uri
from ramen_ray.tracking.registry import Registry

SOURCE = "teacher"
PAIRS_PER_BLOCK = 1 << 14


Scores = NDArray[np.float32]
Teacher = Callable[[NDArray[Any], Int64s], Scores]
"""Returns the scores (pairs,) of query texts (pairs,) and ads (pairs,); NaN for no score."""


@dataclass(frozen=True)
class RetrieverTeacher:
    """A retriever, which finds and scores the ads of a dataset that are in its index."""

    answering: Answering
    ads: Int64s  # (rows,) which ad each row of the index is, or -1
    rows: Int64s  # (ads,) the row of each ad, or -1

    @classmethod
    def load(cls, answering: Answering, dataset: Dataset) -> "RetrieverTeacher":
        """Find the dataset's ads in the index; raises a DatasetError if it has none of them."""
        ads = answering.ads_of_rows(dataset)
        is_known = ads >= 0
        if not is_known.any():
            raise DatasetError(f"a teacher's index has no ad of {dataset.path}")
        if isinstance(answering.model.index, faiss.IndexIVF):
            answering.model.index.make_direct_map()
        rows = np.full(dataset.num_rows("ads"), -1)
        rows[ads[is_known]] = np.flatnonzero(is_known)
        return cls(answering, ads, rows)

    def best(self, queries: list[str], depth: int) -> Int64s:
        """Return each query's best ads (queries, k), -1 after the last."""
        return self.answering.retrieve(queries, depth, self.ads)[0]

    def scores(self, queries: NDArray[Any], ads: Int64s) -> Scores:
        """Return the scores (pairs,); NaN for ads that are not in the index."""
        rows = self.rows[ads]
        vectors = self.answering.model.index.reconstruct_batch(np.maximum(rows, 0))
        texts, places = np.unique(queries, return_inverse=True)
        asked = self.answering.model.embed(texts.tolist())[places]
        scores = np.einsum("pd,pd->p", asked, vectors)
        return np.where(rows >= 0, scores, np.nan).astype(np.float32)


def load_teachers(
    registry: Registry, dataset: Dataset, names: Sequence[str], finder: str | None, output: Path
) -> tuple[dict[str, Teacher], RetrieverTeacher]:
    """Load retrievers and cross-encoders by name, and the ``finder``, or the first retriever.

    Raises a ConfigError if that is none; for ``output`` see :func:`retriever_uri`.
    """
    wanted = dict.fromkeys(filter(None, (*names, finder)))
    uris = {
        name: retriever_uri(registry, name, output) for name in wanted if not is_cross_encoder(name)
    }
    finder = finder or next(iter(uris), None)
    if finder not in uris:
        raise ConfigError("a cross-encoder finds no ads: name a retriever with --finder")
    retrievers = {
        name: RetrieverTeacher.load(Answering.load(registry, uri), dataset)
        for name, uri in uris.items()
    }
    texts = dataset.read("ads").sort_by("ad_id")["text"]
    teachers = {
        name: retrievers[name].scores if name in uris else _reader(CrossEncoder(name), texts)
        for name in names
    }
    return teachers, retrievers[finder]


def _reader(model: CrossEncoder, texts: pa.ChunkedArray) -> Teacher:
    """Let a cross-encoder score ads by their ``texts`` (ads,)."""
    return lambda queries, ads: model.scores(
        queries.tolist(), texts.take(pa.array(ads)).to_pylist()
    )


def pairs_to_score(
    dataset: Dataset, split: str, asked: Int64s, best: Int64s
) -> tuple[Int64s, Int64s, Booleans]:
    """Return the queries and ads of the pairs to score, and which were clicked, all (pairs,).

    They are the clicked and judged ads of the queries ``asked`` (n,), and their ``best`` (n, k).
    """
    clicked = np.stack(dataset.clicks(split).nonzero()).astype(np.int64)
    parts = [clicked, np.stack([np.repeat(asked, best.shape[1]), best.ravel()])]
    if dataset.has(table := f"judged/{split}"):
        rows = dataset.read(table)
        by_others = np.asarray(rows["source"]) != SOURCE
        parts.append(
            np.stack([np.asarray(rows[name])[by_others] for name in ("query_id", "ad_id")])
        )
    queries, ads = np.concatenate(parts, axis=1)
    is_wanted = (ads >= 0) & np.isin(queries, asked)
    pairs = np.unique(queries[is_wanted] << 32 | ads[is_wanted])
    is_clicked = np.isin(pairs, clicked[0] << 32 | clicked[1])
    return pairs >> 32, pairs & 0xFFFFFFFF, is_clicked


@dataclass(frozen=True)
class Lesson:
    """What teachers are asked of a dataset."""

    split: str  # whose queries
    depth: int  # so many of a query's best ads
    num_queries: int | None = None  # drawn evenly; None for all


def teach(
    dataset: Dataset,
    teachers: Mapping[str, Teacher],
    finder: RetrieverTeacher,
    lesson: Lesson,
    output: Path | None = None,
) -> tuple[int, int]:
    """Add the mean of the grades of ``teachers`` by name; returns how many queries and pairs.

    They replace those of earlier teachers, in the dataset or, if it is given, in a new one at
    ``output``. The ``finder`` finds the best ads. Left out are train queries that are held out too,
    and pairs with an ad that one teacher does not know.
    """
    split = lesson.split
    texts = np.array(dataset.read(f"queries/{split}").sort_by("query_id")["text"], dtype=object)
    draws = uniforms((0,), np.arange(len(texts)))
    if split == "train":
        draws[_held_out_too(dataset, texts)] = np.inf
    asked = np.flatnonzero(lowest(draws, lesson.num_queries or len(texts)))
    settings = {**asdict(lesson), "teachers": list(teachers)}
    with adding_judgements(dataset, output, settings, SOURCE) as connection:
        best = finder.best(texts[asked].tolist(), lesson.depth)
        queries, ads, is_clicked = pairs_to_score(dataset, split, asked, best)
        scores = [_scored(teacher, texts[queries], ads) for teacher in teachers.values()]
        is_known = np.isfinite(scores).all(axis=0)
        if not (is_known & is_clicked).any():
            raise DatasetError(f"no teacher knows a clicked ad of {dataset.path}")
        grades = [
            grades_of_scores(of_teacher[is_known].astype(float), is_clicked[is_known])
            for of_teacher in scores
        ]
        rows = {
            "split": np.full(is_known.sum(), SPLITS.index(split)),
            "query_id": queries[is_known],
            "ad_id": ads[is_known],
            "source": np.full(is_known.sum(), SOURCE),
            "grade": np.mean(grades, axis=0),
        }
        connection.register("judged", pa.table(rows))
    return len(asked), int(is_known.sum())


def _held_out_too(dataset: Dataset, texts: NDArray[Any]) -> Booleans:
    """Flag the train queries (n,) that are held out as well, up to case and white space."""
    train = fold(pa.array(texts, pa.string()))
    held_out = [
        fold(dataset.read(f"queries/{split}")["text"].combine_chunks())
        for split in dataset.splits
        if split != "train"
    ]
    return np.asarray(pc.is_in(train, pa.chunked_array(held_out, train.type).combine_chunks()))


def _scored(teacher: Teacher, texts: NDArray[Any], ads: Int64s) -> Scores:
    """Return a teacher's scores (pairs,) of query texts (pairs,) and ads (pairs,), by blocks."""
    starts = range(0, len(ads), PAIRS_PER_BLOCK)
    blocks = [
        teacher(texts[start : start + PAIRS_PER_BLOCK], ads[start : start + PAIRS_PER_BLOCK])
        for start in logged_blocks("scoring", starts, lambda _: PAIRS_PER_BLOCK, len(ads))
    ]
    return np.concatenate(blocks)
