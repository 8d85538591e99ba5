"""What a teacher brings: bag-unidec taught by three of its own, trained on the same clicks.

The teacher is the mean grade of three seeds, of each query's clicked ads and the twenty that the
first of them ranks first. Students are the same three seeds, with the term `judged.graded` at some
weights; its weight is chosen on validation. `ratio` is R@10 of the last weight over the base, on
test.

    python -m benchmarks.teacher [--sets foldoc debian rdocs] [--seeds 3] [--weights 0.3 1]
        [--into docs/evidence]
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from benchmarks.common import CACHE, finish, options
from benchmarks.graph_gain import dataset_of
from benchmarks.in_process import begin_on, train, train_all_epochs
from benchmarks.tables import ByQuery, Found, compared, kept, mean, write
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.data.arrays import Float64s, Int64s
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.judgements import Judgements, grades_of_scores
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity, evaluate
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.retrieval.search import search
from ramen_ray.method.sampling.training_data import JudgedAds
from ramen_ray.orchestration.judge.teaching import pairs_to_score
from ramen_ray.orchestration.run.build import build_training_data
from ramen_ray.presets import bag_unidec

STORE = CACHE / "teacher"
SPLITS = ("validation", "test")
METRICS = ("P@1", "P@5", "R@10")
DEPTH = 20
TEACHERS = 3
Grades = tuple[Int64s, Int64s, Float64s]
"""Rows of train queries, ads and grades, all (pairs,)."""


class Pairs:
    """The pairs that are scored of a dataset, found by the first teacher, and their scores."""

    def __init__(self, dataset: Dataset, data: Prepared, preset: str = "bag-unidec") -> None:
        self.dataset = dataset
        self.data = data
        self.file = STORE / f"{preset} {dataset.fingerprint}.npz"

    def note(self, model: DualEncoder, seed: int) -> None:
        """Keep a model's scores; the first also finds the pairs."""
        data = self.data
        queries = model.embed_queries(data.queries["train"], np.arange(len(data.query_ids)))
        ads = model.embed_ads(data.ads, np.arange(len(data.ads)))
        if seed == 0:
            best, _ = search(queries, ads, DEPTH)
            rows, found, is_clicked = pairs_to_score(
                self.dataset, "train", np.asarray(data.query_ids), best
            )
            row_of = np.argsort(data.query_ids)
            STORE.mkdir(parents=True, exist_ok=True)
            np.savez(self.file, queries=row_of[rows], ads=found, is_clicked=is_clicked)
        with np.load(self.file) as pairs:
            scores = np.einsum("pd,pd->p", queries[pairs["queries"]], ads[pairs["ads"]])
        np.save(self.file.with_suffix(f".{seed}.npy"), scores)

    def grades(self) -> Grades:
        with np.load(self.file) as pairs:
            parts = [
                grades_of_scores(
                    np.load(self.file.with_suffix(f".{seed}.npy")).astype(float),
                    pairs["is_clicked"],
                )
                for seed in range(TEACHERS)
            ]
            return pairs["queries"], pairs["ads"], np.mean(parts, axis=0)


def train_taught(config: RunConfig, data: Prepared, grades: Grades) -> DualEncoder:
    """Train on the dataset's clicks and on other grades than the dataset's, without a graph."""
    settings = {"graded": 0.0, "num_negatives": 0, "as_positives": False}
    whole = build_training_data(overlay(config, {"judged": settings}), data)
    judged = JudgedAds.from_judgements(
        Judgements(*grades), len(whole.query_ids), config.judged.as_positives
    )
    both = replace(whole, judged=judged, clicks=judged.applied_to(whole.clicks))
    return train_all_epochs(begin_on(both, config, data))


def measured(
    config: RunConfig, data: Prepared, pairs: Pairs, *, is_taught: bool = False
) -> Mapping[str, ByQuery]:
    def make() -> Found:
        if is_taught:
            model = train_taught(config, data, pairs.grades())
        else:
            model = train(config, data)
            if config.seed < TEACHERS:
                pairs.note(model, config.seed)
        found = {}
        for split in SPLITS:
            _, (topk, _) = evaluate(model, data, split, Propensity())
            by_query = GroundTruth.from_prepared(data, split, Propensity()).by_query(topk)
            found[split] = {metric: by_query[metric] for metric in METRICS}
        return found, {}

    content = [pairs.dataset.fingerprint, config.judged.model_dump(), config.seed, is_taught]
    return kept(STORE, content, make)[0]


def rows_of(name: str, weights: list[float], seeds: int) -> tuple[list[dict[str, str]], float]:
    config = overlay(bag_unidec(name), WITHOUT_GRAPH)
    data = dataset_of(config.dataset, config.encoder)
    pairs = Pairs(Dataset(config.dataset), data)

    def runs(number: int, weight: float) -> list[Mapping[str, ByQuery]]:
        changed = [
            overlay(config, {"judged.graded": weight, "seed": seed}) for seed in range(number)
        ]
        return [measured(run, data, pairs, is_taught=weight > 0) for run in changed]

    taught_by_none = runs(TEACHERS, 0.0)
    students = {weight: runs(seeds, weight) for weight in weights}
    lines = []
    gain = 1.0
    for split in SPLITS:
        base = [run[split] for run in taught_by_none]
        of_split = [*compared(name, "clicks alone", base[:seeds])]
        for weight, taught in students.items():
            ours = [run[split] for run in taught]
            of_split += compared(name, f"taught, weight {weight:g}", ours, "clicks alone", base)
            gain = mean(ours, "R@10") / mean(base, "R@10")
        lines += [{"split": split, **line} for line in of_split]
    return lines, gain


def main() -> None:
    sets = ["foldoc", "debian", "rdocs"]
    asked = options(__doc__, sets=sets, seeds=TEACHERS, weights=[0.3], into="")
    torch.set_num_threads(1)
    lines = list[dict[str, str]]()
    gain = 1.0
    for name in asked.sets:
        of_set, gain = rows_of(name, asked.weights, asked.seeds)
        lines += of_set
    write("teacher", lines, asked.into)
    finish(gain, {})


if __name__ == "__main__":
    main()
