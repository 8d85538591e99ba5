"""What impressions and judgements bring where clicks say what attracts, and not what answers.

The shop of datasets/build/shop_shown.py, whose recipe knows the grade of every pair. bag-unidec
without a graph is trained on its clicks alone, on clicks weighed by their number or by COEC, with
ads that were shown in vain, with grades of 500, 2,000 and 8,000 of the first model's own answers to
train queries, and with those of a teacher, three seeds of itself. `bad@5` is the share of the first
five with a grade below 0.5, `truth R@10` that of the ads of grade 1 that are found; `P@1` is of
clicks. `ratio` is bad@5 with 8,000 judgements over bad@5 of clicks alone.

    python -m benchmarks.judgements [--seeds 3] [--into docs/evidence]
"""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import CACHE, ROOT, finish, options
from benchmarks.graph_gain import dataset_of
from benchmarks.in_process import train
from benchmarks.tables import ByQuery, compared, kept, mean, write
from benchmarks.teacher import TEACHERS, Pairs, train_taught
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.data.arrays import Float64s
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import Columns, UserTables
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity, evaluate
from ramen_ray.presets import bag_unidec

sys.path.append(str(ROOT / "datasets" / "build"))
from shop_shown import ShownShop, grade_of

STORE = CACHE / "judgements"
COUNTS = (500, 2_000, 8_000)
OFF = {"judged.num_negatives": 0}
BY_COUNT = {"training.sampling": "clicks", **OFF}
BASE = "clicks alone"


TEACHER = "a teacher"


def variants() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Return each variant's dataset and changes."""
    found: dict[str, tuple[str, Mapping[str, Any]]] = {
        BASE: ("clicks", OFF),
        "clicks by their number": ("clicks", BY_COUNT),
        "clicks by COEC": ("coec", BY_COUNT),
        "shown in vain": ("judged", {"judged.sources": ("shown",)}),
    }
    for count in COUNTS:
        found[f"{count:,} judgements"] = "judged", {"judged.sources": (f"judged {count}",)}
    name = f"{COUNTS[-1]:,} judgements"
    _, most = found[name]
    found[f"{name}, as positives"] = "judged", {**most, "judged.as_positives": True}
    found[f"{name}, graded"] = "judged", {**most, "judged.graded": 0.3}
    found[TEACHER] = "clicks", {"judged.graded": 0.3}
    return found


class Truth:
    """The grades of all pairs of a dataset's queries and ads."""

    def __init__(self, shop: ShownShop, dataset: Dataset) -> None:
        number = {product.ad_id: product for product in shop.catalogue}
        ids = dataset.read("ads").sort_by("ad_id")["source_id"].to_pylist()
        self.products = [number[one] for one in ids]
        self.shop = shop
        self.dataset = dataset

    def grades(self, split: str) -> tuple[list[str], Float64s]:
        """Return a split's queries, and their grades (queries, ads)."""
        texts = self.dataset.read(f"queries/{split}").sort_by("query_id")["text"].to_pylist()
        needs = [self.shop.needs[text] for text in texts]
        return texts, np.array([[grade_of(need, ad) for ad in self.products] for need in needs])


def metrics_of(topk: np.ndarray, grades: Float64s) -> ByQuery:
    """Return the metrics of answers (queries, k) by the truth (queries, ads)."""
    of_answers = np.take_along_axis(grades, topk, axis=1)
    every = np.ones(len(topk))
    return {
        "bad@5": ((of_answers[:, :5] < 0.5).mean(axis=1), every),
        "truth R@10": (
            (of_answers[:, :10] == 1).sum(axis=1) / np.clip((grades == 1).sum(axis=1), 1, 10),
            ((grades == 1).any(axis=1)).astype(float),
        ),
    }


def imported(shop: ShownShop, name: str, **settings: Any) -> Dataset:
    """Import the shop's log, unless that was done."""
    folder = STORE / name
    if not folder.is_dir():
        files = STORE / "files"
        shop.write(files)
        columns = Columns(
            clicks_weight="clicks",
            ad_text=("title",),
            judged_source="source",
            clicks_views="views" if settings else None,
            clicks_position="position" if settings else None,
        )
        log = str(files / "log.csv")
        import_tables(
            UserTables(log, ads=str(files / "catalogue.csv"), columns=columns, **settings), folder
        )
    return Dataset(folder)


def drawn_answers(truth: Truth, config: RunConfig, data: Prepared) -> Path:
    """Write grades of answers of the model of clicks alone to train queries, drawn evenly."""
    model = train(config, data)
    queries = data.queries["train"]
    vectors = model.embed_queries(queries, np.arange(len(queries)))
    scores = vectors @ model.embed_ads(data.ads, np.arange(len(data.ads))).T
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    texts, grades = truth.grades("train")
    draw = np.random.default_rng(0)
    pairs = draw.permutation(nearest.size)
    file = STORE / "judged.csv"
    with file.open("w", encoding="utf-8", newline="") as opened:
        rows = csv.writer(opened, lineterminator="\n")
        rows.writerow(["query", "ad_id", "grade", "source"])
        for count in COUNTS:
            for row, place in zip(*np.divmod(pairs[:count], 10), strict=True):
                query, ad = int(data.query_ids[row]), int(nearest[row, place])
                level = round(3 * grades[query, ad]) / 3
                rows.writerow([texts[query], truth.products[ad].ad_id, level, f"judged {count}"])
    return file


BySplit = Mapping[str, ByQuery]


class Study:
    """The datasets of all variants, and what is known of their pairs."""

    def __init__(self) -> None:
        shop = ShownShop()
        self.datasets = {
            "clicks": imported(shop, "clicks"),
            "coec": imported(shop, "coec", weights="coec"),
        }
        truth = Truth(shop, self.datasets["clicks"])
        judged = STORE / "judged.csv"
        if not judged.exists():
            config = self.config_of("clicks", OFF)
            drawn_answers(truth, config, dataset_of(config.dataset, config.encoder))
        given = {"judged": str(judged), "min_expected": 3.0}
        self.datasets["judged"] = imported(shop, "judged", **given)
        self.grades = {split: truth.grades(split)[1] for split in ("test", "validation")}

    def config_of(self, name: str, changes: Mapping[str, Any]) -> RunConfig:
        config = bag_unidec(str(self.datasets[name].path))
        return overlay(config, {**WITHOUT_GRAPH, **changes})

    def measured(self, variant: str, seed: int) -> BySplit:
        name, changes = variants()[variant]
        config = self.config_of(name, {**changes, "seed": seed})
        data = dataset_of(config.dataset, config.encoder)
        pairs = Pairs(self.datasets[name], data)

        def make() -> Any:
            if variant == TEACHER:
                model = train_taught(config, data, pairs.grades())
            else:
                model = train(config, data)
            if variant == BASE and seed < TEACHERS:
                pairs.note(model, seed)
            of_splits = {}
            for split, grades in self.grades.items():
                _, (topk, _) = evaluate(model, data, split, Propensity())
                of_clicks = GroundTruth.from_prepared(data, split, Propensity()).by_query(topk)
                of_splits[split] = {**metrics_of(topk, grades), "P@1": of_clicks["P@1"]}
            return of_splits, {}

        content = [self.datasets[name].fingerprint, changes, seed]  # a teacher's too
        return kept(STORE / "runs", content, make)[0]


def main() -> None:
    asked = options(__doc__, seeds=3, into="")
    torch.set_num_threads(1)
    study = Study()
    runs: dict[str, list[BySplit]] = {variant: [] for variant in variants()}
    for variant, of_variant in runs.items():
        of_variant += [study.measured(variant, seed) for seed in range(asked.seeds)]
    lines = []
    for split in study.grades:
        of_split = {variant: [run[split] for run in found] for variant, found in runs.items()}
        for variant, found in of_split.items():
            over = BASE * (variant != BASE)
            for line in compared("shop_shown", variant, found, over, of_split[BASE]):
                lines.append({"split": split, **line})
    write("judgements", lines, asked.into)
    names = f"{COUNTS[-1]:,} judgements", BASE
    most, base = (mean([run["test"] for run in runs[name]], "bad@5") for name in names)
    finish(most / base, {})


if __name__ == "__main__":
    main()
