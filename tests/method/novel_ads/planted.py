"""Data with a planted answer: ads come in groups, and clicks follow the groups.

Texts of a group share a direction, hidden in noise; what its queries ask for is another direction,
which only the classifiers of the group's seen ads can know.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.model.dual_encoder import TextEmbeddings
from ramen_ray.method.novel_ads.combiner_training import training_data
from ramen_ray.method.novel_ads.neighbours import SeenAds
from ramen_ray.method.novel_ads.representation import CombinedAds
from ramen_ray.method.sampling.batches import Sampler
from ramen_ray.method.training.state import restore_checkpoint, save_checkpoint
from ramen_ray.method.training.step import train_steps
from ramen_ray.orchestration.combining.combiner_worker import Combining
from ramen_ray.orchestration.combining.inputs import CombineSettings

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
    train: np.ndarray
    clicks: Csr

    def training(self, settings: CombineSettings) -> "Training":
        """Start a training on the clicks."""
        count, ids = len(self.train), np.arange(len(self.seen))
        rows = np.concatenate([self.train, self.seen])
        queries = TextEmbeddings(rows, np.arange(count))
        ads = TextEmbeddings(rows, count + ids)
        seen = SeenAds(ids, self.seen.copy(), self.seen.copy())
        variant = settings.chosen_variant()
        drawn = training_data(np.arange(count), self.clicks, queries, ads)
        sampler = Sampler(drawn, settings.combiner.batch_size, settings.seed, num_hard_negatives=4)
        return Training(Combining(settings, variant, queries, ads, seen, sampler))

    def recall(self, vectors: np.ndarray) -> float:
        """R@k of the novel ads' ``vectors``, for as many k as a group has."""
        found = np.argsort(-(self.queries @ vectors.T), axis=1)[:, :NOVEL]
        return float((self.novel_groups[found] == self.query_groups[:, None]).mean())


def planted(dim: int = DIM) -> Planted:
    draw = np.random.default_rng(1)
    of_texts, of_queries = unit(draw.normal(size=(2, GROUPS, dim)))
    seen_groups, novel_groups = (np.repeat(np.arange(GROUPS), n) for n in (SEEN, NOVEL))
    query_groups = np.repeat(np.arange(GROUPS), QUERIES)

    def near(centres: np.ndarray, noise: float) -> np.ndarray:
        return unit(centres + noise * draw.normal(size=centres.shape) / dim**0.5)

    train, test = (near(of_queries[query_groups], 0.5) for _ in range(2))
    rows = np.repeat(np.arange(len(train)), 2)
    ads = query_groups[rows] * SEEN + draw.integers(SEEN, size=len(rows))
    pairs = np.unique(np.stack([rows, ads]), axis=1)
    clicks = Csr.from_pairs(*pairs, len(train))
    return Planted(
        near(of_texts[seen_groups], 0.7),
        near(of_texts[novel_groups], 0.7),
        novel_groups,
        test,
        query_groups,
        train,
        clicks,
    )


class Training:
    """A training in progress, in this process."""

    def __init__(self, combining: Combining) -> None:
        self.combining, self.objective = combining, combining.objective()
        self.model = combining.new_model(CPU)
        self.state = combining.new_state(self.model)
        self.state.advance()

    def run(self, stop: int | None = None) -> np.ndarray:
        """Return the losses (steps, terms) up to a step, by default the last."""
        last = self.combining.total_steps if stop is None else stop
        losses = []
        for end in (min(self.combining.first_steps, last), last):
            losses += train_steps(self.state, self.combining.sampler, self.objective, end)
            self.state.advance()
        return np.array([loss.numpy() for loss in losses])

    def save(self, folder: Path) -> None:
        self.model.save(folder)
        save_checkpoint(folder, self.state, {})

    def restore(self, folder: Path) -> None:
        self.model.load(folder)
        restore_checkpoint(folder, self.state)

    def combined_ads(self) -> CombinedAds:
        return self.combining.combined_ads(self.model)
