"""Data with a planted answer: ads come in groups, and clicks follow the groups.

Texts of a group share a direction, hidden in noise; what its queries ask for is another direction,
which only the classifiers of the group's seen ads can know.
"""

from dataclasses import dataclass

import numpy as np
import torch

from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.model.embeddings import TextEmbeddings
from ramen_ray.method.novel_ads.clicks import SeenClicks
from ramen_ray.method.novel_ads.neighbours import SeenAds
from ramen_ray.method.novel_ads.stages import Stages, StageSettings

DIM, GROUPS, SEEN, NOVEL, QUERIES = 16, 12, 10, 2, 30
CPU = torch.device("cpu")


def unit(points: np.ndarray) -> np.ndarray:
    return (points / np.linalg.norm(points, axis=-1, keepdims=True)).astype(np.float32)


@dataclass(frozen=True)
class Planted:
    """Seen ads (S, D), novel ads and test queries with their groups, and train clicks."""

    seen: np.ndarray
    novel: np.ndarray
    novel_groups: np.ndarray
    queries: np.ndarray
    query_groups: np.ndarray
    clicks: SeenClicks

    def stages(self, settings: StageSettings) -> Stages:
        """Start a training on the clicks."""
        seen = SeenAds(np.arange(len(self.seen)), self.seen.copy(), self.seen.copy())
        return Stages(settings, self.clicks, seen, CPU)

    def recall(self, vectors: np.ndarray) -> float:
        """R@k of the novel ads' ``vectors``, for as many k as a group has."""
        found = np.argsort(-(self.queries @ vectors.T), axis=1)[:, :NOVEL]
        return float((self.novel_groups[found] == self.query_groups[:, None]).mean())


def planted() -> Planted:
    draw = np.random.default_rng(1)
    of_texts, of_queries = unit(draw.normal(size=(2, GROUPS, DIM)))
    seen_groups, novel_groups = (np.repeat(np.arange(GROUPS), n) for n in (SEEN, NOVEL))
    query_groups = np.repeat(np.arange(GROUPS), QUERIES)

    def near(centres: np.ndarray, noise: float) -> np.ndarray:
        return unit(centres + noise * draw.normal(size=centres.shape) / DIM**0.5)

    train, test = (near(of_queries[query_groups], 0.5) for _ in range(2))
    rows = np.repeat(np.arange(len(train)), 2)
    ads = query_groups[rows] * SEEN + draw.integers(SEEN, size=len(rows))
    pairs = np.unique(np.stack([rows, ads]), axis=1)
    clicks = Csr.from_pairs(*pairs, len(train))
    ids = np.arange(len(train))
    return Planted(
        near(of_texts[seen_groups], 0.7),
        near(of_texts[novel_groups], 0.7),
        novel_groups,
        test,
        query_groups,
        SeenClicks(TextEmbeddings(train, ids), ids, clicks),
    )
