"""What impressions and judgements bring where clicks say what attracts, and not what answers.

The shop of datasets/build/shop_shown.py, whose recipe knows the grade of every pair. The preset bag
without a graph is trained on its clicks alone, on clicks weighed by their number or by COEC, with
ads that were shown in vain, with grades of 500, 2,000 and 8,000 of the first model's own answers to
train queries, and with those of a teacher, three seeds of itself. `bad@5` is the share of the first
five with a grade below 0.5, `truth R@10` that of the ads of grade 1 that are found; `P@1` is of
clicks. What else was tried has one seed, and validation only.

On `debian`, every other name of datasets/debian/names.csv judges the first model's answers to
train queries: those that name another language or desktop have grade 0. `bad@5` is the share of the
first five that do, of queries with a name; `by the others` leaves out what the judging names see.
`ratio` is bad@5 with 8,000 judgements, or with half of the names, over bad@5 of clicks alone.

    python -m benchmarks.judgements [--sets shop_shown debian] [--seeds 3] [--into docs/evidence]
"""

import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import CACHE, ROOT, finish, options
from benchmarks.graph_gain import dataset_of
from benchmarks.in_process import train
from benchmarks.tables import ByQuery, compared, kept, write
from benchmarks.teacher import TEACHERS, Grades, Pairs, train_taught
from experiments.names import bad_matches, read_names
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.data.arrays import Booleans, Float64s, Int64s
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.judgements import LOW
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import Columns, UserTables
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity, evaluate
from ramen_ray.method.metrics.ranking import PerQuery
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.presets import bag

sys.path.append(str(ROOT / "datasets" / "build"))
from shop_shown import ShownShop, grade_of

STORE = CACHE / "judgements"
SPLITS = ("test", "validation")
COUNTS = (500, 2_000, 8_000)
K = 5
OFF = {"judged.num_negatives": 0}
BY_COUNT = {"training.sampling": "clicks", **OFF}
BASE = "clicks alone"
MOST = f"{COUNTS[-1]:,} judgements"
HALF = "half of the names judged"
LEARNT = {"judged.as_positives": True, "judged.graded": 0.3}
Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Variant:
    """A training: on which dataset, what changes, and perhaps grades that the dataset lacks."""

    dataset: str
    changes: Changes
    grades: Callable[[], Grades] | None = None
    is_tried: bool = False  # one seed, and validation only


BySplit = Mapping[str, ByQuery]


def run(study: "Shop | Confusions", name: str, seed: int) -> BySplit:
    """Train and measure a variant, unless that was done; keeps scores of the model of clicks."""
    variant = study.variants()[name]
    dataset = study.datasets[variant.dataset]
    config = config_of(dataset, {**variant.changes, "seed": seed})
    data = dataset_of(config.dataset, config.encoder)

    def make() -> Any:
        if variant.grades is None:
            model = train(config, data)
        else:
            model = train_taught(config, data, variant.grades())
        if name == BASE and seed < TEACHERS:
            study.pairs.note(model, seed)
        return {split: answered(model, split) for split in SPLITS}, {}

    def answered(model: DualEncoder, split: str) -> ByQuery:
        _, (topk, _) = evaluate(model, data, split, Propensity())
        of_clicks = GroundTruth.from_prepared(data, split, Propensity()).by_query(topk)
        return {**study.measure(split, topk), "P@1": of_clicks["P@1"]}

    given = None if variant.grades is None else variant.grades.__qualname__
    content = [dataset.fingerprint, variant.changes, given, seed]
    return kept(STORE / "runs", content, make)[0]


def config_of(dataset: Dataset, changes: Changes) -> RunConfig:
    return overlay(bag(str(dataset.path)), {**WITHOUT_GRAPH, **changes})


def lines_of(name: str, study: "Shop | Confusions", seeds: int) -> Iterator[dict[str, str]]:
    """Yield the table's lines of a dataset."""
    variants = study.variants()
    runs = {
        variant: [run(study, variant, seed) for seed in range(1 if settings.is_tried else seeds)]
        for variant, settings in variants.items()
    }
    for split in SPLITS:
        base = [of_run[split] for of_run in runs[BASE]]
        for variant, settings in variants.items():
            if settings.is_tried and split == "test":
                continue
            of_split = [of_run[split] for of_run in runs[variant]]
            for line in compared(name, variant, of_split, BASE * (variant != BASE), base):
                yield {"split": split, **line}


class Shop:
    """The made shop: its datasets, and the grades of all pairs."""

    def __init__(self) -> None:
        self.shop = ShownShop()
        self.datasets = {
            "clicks": self.imported("clicks"),
            "coec": self.imported("coec", weights="coec"),
        }
        clicks = self.datasets["clicks"]
        product = {product.ad_id: product for product in self.shop.catalogue}
        ids = clicks.read("ads").sort_by("ad_id")["source_id"].to_pylist()
        self.products = [product[ad_id] for ad_id in ids]
        self.grades = {split: self.truth(split) for split in ("train", *SPLITS)}
        config = config_of(clicks, OFF)
        self.pairs = Pairs(clicks, dataset_of(config.dataset, config.encoder), "bag")
        judged = STORE / "judged.csv"
        if not judged.exists():
            self.judge_answers(config, judged)
        self.datasets["judged"] = self.imported("judged", judged=str(judged), min_expected=3.0)

    def imported(self, name: str, **settings: Any) -> Dataset:
        """Import the shop's log, unless that was done."""
        folder = STORE / name
        if not folder.is_dir():
            files = STORE / "files"
            self.shop.write(files)
            columns = Columns(
                clicks_weight="clicks",
                ad_text=("title",),
                judged_source="source",
                clicks_views="views" if settings else None,
                clicks_position="position" if settings else None,
            )
            log, ads = (str(files / f"{name}.csv") for name in ("log", "catalogue"))
            import_tables(UserTables(log, ads=ads, columns=columns, **settings), folder)
        return Dataset(folder)

    def texts(self, split: str) -> list[str]:
        table = self.datasets["clicks"].read(f"queries/{split}")
        return table.sort_by("query_id")["text"].to_pylist()

    def truth(self, split: str) -> Float64s:
        """Return the grades (queries, ads) of a split."""
        needs = [self.shop.needs[text] for text in self.texts(split)]
        return np.array([[grade_of(need, ad) for ad in self.products] for need in needs])

    def judge_answers(self, config: RunConfig, file: Path) -> None:
        """Write grades of answers of the model of clicks alone to train queries, drawn evenly."""
        data = self.pairs.data
        model = train(config, data)
        queries = model.embed_queries(data.queries["train"], np.arange(len(data.query_ids)))
        ads = model.embed_ads(data.ads, np.arange(len(data.ads)))
        nearest = np.argsort(-(queries @ ads.T), axis=1, kind="stable")[:, :10]
        np.save(file.with_suffix(".npy"), nearest)
        texts = self.texts("train")
        drawn = np.random.default_rng(0).permutation(nearest.size)
        with file.open("w", encoding="utf-8", newline="") as opened:
            rows = csv.writer(opened, lineterminator="\n")
            rows.writerow(["query", "ad_id", "grade", "source"])
            for count in COUNTS:
                for row, place in zip(*np.divmod(drawn[:count], 10), strict=True):
                    query = int(data.query_ids[row])
                    ad = int(nearest[row, place])
                    level = round(3 * self.grades["train"][query, ad]) / 3
                    judged = f"judged {count}"
                    rows.writerow([texts[query], self.products[ad].ad_id, level, judged])

    def taught(self) -> Grades:
        """Return the grades of three seeds of the model of clicks alone."""
        for seed in range(TEACHERS):
            run(self, BASE, seed)
        return self.pairs.grades()

    def clicked(self) -> Grades:
        """Return grades of clicked ads, as many as the most of answers, drawn evenly."""
        clicks = self.pairs.data.clicks["train"]
        rows, ads = clicks.gather(np.arange(clicks.num_rows))
        drawn = np.random.default_rng(0).permutation(len(rows))[: COUNTS[-1]]
        return rows[drawn], ads[drawn], self.of_train(rows[drawn], ads[drawn])

    def all_answers(self) -> Grades:
        """Return the grades of all ten first answers to each train query."""
        nearest = np.load(STORE / "judged.npy")
        rows = np.repeat(np.arange(len(nearest)), nearest.shape[1])
        ads = nearest.ravel()
        return rows, ads, self.of_train(rows, ads)

    def all_that_answers(self) -> Grades:
        """Return these, and the grades of all ads that answer a train query."""
        rows, ads, grades = self.all_answers()
        truth = self.grades["train"][self.pairs.data.query_ids]
        truth[rows, ads] = 0.0
        more = np.nonzero(truth >= LOW)
        found = np.concatenate([ads, more[1]])
        return np.concatenate([rows, more[0]]), found, np.concatenate([grades, truth[more]])

    def of_train(self, rows: Int64s, ads: Int64s) -> Float64s:
        return self.grades["train"][np.asarray(self.pairs.data.query_ids)[rows], ads]

    def variants(self) -> dict[str, Variant]:
        variants = {
            BASE: Variant("clicks", OFF),
            "clicks by their number": Variant("clicks", BY_COUNT),
            "clicks by COEC": Variant("coec", BY_COUNT),
            "shown in vain": Variant("judged", {"judged.sources": ("shown",)}),
        }
        for count in COUNTS:
            name = f"{count:,} judgements"
            variants[name] = Variant("judged", {"judged.sources": (f"judged {count}",)})
        most = variants[MOST].changes
        of_most: dict[str, tuple[Changes, bool]] = {
            "as positives": ({"judged.as_positives": True}, False),
            "graded": ({"judged.graded": 0.3}, False),
            "six a query": ({"judged.num_negatives": 6}, True),
            "graded, weight 3": ({"judged.graded": 3.0}, True),
            "as positives, graded": (LEARNT, True),
        }
        for name, (changes, is_tried) in of_most.items():
            given = {**most, **changes}
            variants[f"{MOST}, {name}"] = Variant("judged", given, is_tried=is_tried)
        variants["a teacher"] = Variant("clicks", {"judged.graded": 0.3}, self.taught)
        others: dict[str, Callable[[], Grades]] = {
            f"{COUNTS[-1]:,} clicked ads judged": self.clicked,
            "all first ten judged": self.all_answers,
            "all that answers judged": self.all_that_answers,
        }
        for name, grades in others.items():
            variants[name] = Variant("clicks", LEARNT, grades, is_tried=True)
        return variants

    def measure(self, split: str, topk: Int64s) -> dict[str, PerQuery]:
        truth = self.grades[split]
        of_answers = np.take_along_axis(truth, topk, axis=1)
        num_answering = (truth == 1).sum(axis=1)
        has_answers = (num_answering > 0).astype(float)
        num_found = (of_answers[:, :10] == 1).sum(axis=1)
        return {
            f"bad@{K}": ((of_answers[:, :K] < LOW).mean(axis=1), np.ones(len(topk))),
            "truth R@10": (num_found / num_answering.clip(1, 10), has_answers),
        }


class Confusions:
    """Debian's packages, and which languages and desktops they name; half of these judge."""

    def __init__(self) -> None:
        config = bag("debian")
        dataset = Dataset(config.dataset)
        self.datasets = {"debian": dataset}
        self.pairs = Pairs(dataset, dataset_of(config.dataset, config.encoder), "bag")
        names = read_names(str(ROOT / "datasets" / "debian" / "names.csv"))
        self.kind_of = names.kind_of
        self.ads = names.named_by(dataset.read("ads").sort_by("ad_id")["text"])
        self.queries = {
            split: names.named_by(dataset.read(f"queries/{split}").sort_by("query_id")["text"])
            for split in ("train", *SPLITS)
        }
        judges = np.arange(len(self.kind_of)) % 2 == 0
        self.names = {"all": np.ones(len(judges), dtype=bool), "own": judges}

    def confused(
        self, split: str, which: str, queries: Int64s, ads: Int64s
    ) -> tuple[Booleans, Booleans]:
        """Return which pairs (n,) are confused by all names or its own, and whose query has one."""
        kept = self.names[which]
        named = self.queries[split][queries][:, kept], self.ads[ads][:, kept]
        of_kinds = [flags for _, *flags in bad_matches(self.kind_of[kept], *named)]
        has_name, is_bad = np.any(of_kinds, axis=0)
        return is_bad, has_name

    def judged_names(self) -> Grades:
        """Return grades of clicked and confused answers to train queries with confused ones."""
        run(self, BASE, 0)  # which finds them
        with np.load(self.pairs.file) as pairs:
            rows, ads, is_clicked = (pairs[name] for name in ("queries", "ads", "is_clicked"))
        queries = np.asarray(self.pairs.data.query_ids)[rows]
        is_bad, _ = self.confused("train", "own", queries, ads)
        is_judged = is_bad & ~is_clicked
        is_judged |= is_clicked & ~is_bad & np.isin(rows, rows[is_judged])
        return rows[is_judged], ads[is_judged], is_clicked[is_judged].astype(float)

    def variants(self) -> dict[str, Variant]:
        return {
            BASE: Variant("debian", OFF),
            HALF: Variant("debian", {"judged.graded": 1.0}, self.judged_names),
            f"{HALF}, as negatives": Variant("debian", {}, self.judged_names, is_tried=True),
            f"{HALF}, as six negatives": Variant(
                "debian", {"judged.num_negatives": 6}, self.judged_names, is_tried=True
            ),
        }

    def measure(self, split: str, topk: Int64s) -> dict[str, PerQuery]:
        queries = np.repeat(np.arange(len(topk)), K)
        (is_bad, has_name), (is_bad_by_own, has_own) = (
            [
                flags.reshape(-1, K).sum(axis=1).astype(float)
                for flags in self.confused(split, which, queries, topk[:, :K].ravel())
            ]
            for which in self.names
        )
        return {
            f"bad@{K}": (is_bad, has_name),
            f"bad@{K}, by its own": (is_bad_by_own, has_own),
            f"bad@{K}, by the others": (is_bad - is_bad_by_own, has_name),
        }


def main() -> None:
    asked = options(__doc__, sets=["shop_shown", "debian"], seeds=3, into="")
    torch.set_num_threads(1)
    lines: list[dict[str, str]] = []
    for name in asked.sets:
        study: Shop | Confusions = Shop() if name == "shop_shown" else Confusions()
        lines += lines_of(name, study, asked.seeds)
    write("judgements", lines, asked.into)
    bad = {
        line["variant"]: float(line["percent"])
        for line in lines
        if (line["split"], line["metric"]) == ("test", f"bad@{K}")
    }
    finish(bad.get(MOST, bad.get(HALF, 0.0)) / bad[BASE], {})


if __name__ == "__main__":
    main()
