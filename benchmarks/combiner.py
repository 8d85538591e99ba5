"""What graphs and combiners bring for new ads on the built-in datasets.

Zero-shot splits of each set (a tenth of the ads novel, seeds 0, 1, ...). On each, encoders are
trained, with the split's seed: the base and RAMEN; RAMEN with the novel ads' edges kept; the base
with a revealed click of each novel ad in training; and the first two without the train queries that
have a novel ad's text. On the first two also the sum, and IRENE's combiner in both variants,
without and with the revealed clicks; on the first splits only, as these take longest. Every encoder
and row is kept, so that the same command continues where it was stopped. In this process, without
Ray Train. Writes a CSV table, per
cent: means over the splits, and differences with 95 % intervals over splits and test queries. Text
alone is compared with that of the base, and other rows with the text alone of their encoder.
`ratio` is R@10 on zero_shot of the last encoder over the first, text alone, of the last set.

    python -m benchmarks.combiner [--sets rdocs foldoc] [--splits 5] [--epochs 5]
        [--encoders base RAMEN] [--csv docs/evidence/new_ads.csv]
"""

import argparse
import csv
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import CACHE, finish, prepared
from benchmarks.graph_gain import NO_GRAPH, PLAIN
from benchmarks.in_process import train
from ramen_ray.config import RunConfig, flatten, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.splits.novel import NovelSettings, make_novel_split
from ramen_ray.method.metrics.comparison import (
    Difference,
    mean_over_seeds,
    paired_differences_over_seeds,
)
from ramen_ray.method.metrics.judgement import Propensity
from ramen_ray.method.metrics.ranking import PerQuery, ratio
from ramen_ray.method.model.embeddings import TextEmbeddings, number_distinct
from ramen_ray.method.novel_ads.combiner import Combiner
from ramen_ray.method.novel_ads.evaluation import SPLITS, Embedded, RevealedClicks
from ramen_ray.method.novel_ads.neighbours import Vectors
from ramen_ray.method.novel_ads.representation import CombinedAds
from ramen_ray.method.training.step import train_steps
from ramen_ray.orchestration.combining.build import Combining
from ramen_ray.orchestration.combining.inputs import revealed_clicks
from ramen_ray.orchestration.combining.settings import (
    VARIANTS,
    CombinerConfig,
    CombineSettings,
    VariantName,
)
from ramen_ray.presets import bag_ramen

STORE = CACHE / "combiner"
VERSION = 4
"""Change it with what a row computes, so that kept rows are not taken for new ones."""
NOVEL_FRACTION = 0.1
KINDS: dict[str, dict[str, bool]] = {
    "zero-shot": {},
    "one-shot": {"one_shot": True},
    "edges-kept": {"keep_ad_edges": True},
    "unseen": {"unseen_texts": True},
}
MEASURED = ("P@1", "P@5", "R@10", "R@100")
FIGURES = ("percent", "difference", "low", "high")
COLUMNS = ("dataset", "variant", "over", "splits", "metric", *FIGURES)
SEARCHED = {"zero_shot": "new ads", "test": "all ads"}
CPU = torch.device("cpu")
WITHOUT: Mapping[str, Any] = {**PLAIN, **NO_GRAPH}
ENCODERS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "base": ("zero-shot", WITHOUT),
    "RAMEN": ("zero-shot", PLAIN),
    "RAMEN, new ads' edges kept": ("edges-kept", PLAIN),
    "base, trained again with the revealed clicks": ("one-shot", WITHOUT),
    "base, new ads' texts unseen": ("unseen", WITHOUT),
    "RAMEN, new ads' texts unseen": ("unseen", PLAIN),
}
COMBINED = ("base", "RAMEN")
COMPARED_WITH = {"RAMEN, new ads' texts unseen": "base, new ads' texts unseen"}
"""What an encoder's text alone is compared with; by default the base's."""
TEXT = "text alone"
Row = tuple[str, str]
"""An encoder, and by what its ads are represented."""
ByQuery = dict[str, dict[str, PerQuery]]
"""Metrics by split and name, test query by test query."""


def main() -> None:
    """Train what is not there yet, and print a row of the table for each kind of ad vectors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=["rdocs", "foldoc"])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--combined-splits", type=int, default=3, help="splits with combiners")
    parser.add_argument("--epochs", type=int, default=40, help="of the combiners")
    parser.add_argument("--encoders", nargs="+", default=list(ENCODERS), choices=list(ENCODERS))
    parser.add_argument("--csv", type=Path, default=Path("/dev/stdout"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines, gain = list[dict[str, str]](), 1.0
    for name in arguments.sets:
        rows: dict[Row, list[ByQuery]] = {}
        for seed in range(arguments.splits):
            epochs = arguments.epochs if seed < arguments.combined_splits else 0
            for encoder in arguments.encoders:
                for row, values in measured(name, seed, encoder, epochs):
                    rows.setdefault((encoder, row), []).append(values)
        lines += table(name, rows)
        gain = gain_of(rows[arguments.encoders[-1], TEXT], rows[arguments.encoders[0], TEXT])
    write_csv(arguments.csv, lines)
    finish(gain, {})


def measured(name: str, seed: int, encoder: str, epochs: int) -> Iterator[tuple[str, ByQuery]]:
    """Yield the rows of an encoder on a split, computed now or earlier; no combiner in 0 epochs."""
    kind, changes = ENCODERS[encoder]
    data = split_of(name, kind, seed)
    config = run_config(name, data, {**changes, "seed": seed})
    variants = VARIANTS if epochs and encoder in COMBINED else ()
    settings = {one: settings_of(one, epochs) for one in variants}
    content = [VERSION, flatten(config), data.path.name, str(settings)]
    key = hashlib.blake2b(json.dumps(content, default=str).encode(), digest_size=8).hexdigest()
    folder = STORE / f"{name}-{seed}-{key}"
    if not (folder / "done").exists():
        started = time.monotonic()
        embedded, revealed = embedded_by(config, data, split_of(name, "one-shot", seed))
        found = rows_of(embedded, revealed, settings)
        for number, (row, vectors) in enumerate(found):
            write(folder / f"{number}.npz", row, embedded, vectors)
        (folder / "done").touch()
        print(f"{name} {seed} {encoder}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    for file in sorted(folder.glob("*.npz")):
        stored = np.load(file)
        values: ByQuery = {
            split: {metric: tuple(stored[f"{split}/{metric}"]) for metric in MEASURED}
            for split in SPLITS
        }
        yield str(stored["row"]), values


def settings_of(variant: VariantName, epochs: int) -> CombineSettings:
    """Return a variant's settings, as jobs/combine.py has them."""
    combiner = CombinerConfig(epochs=epochs)
    return CombineSettings(run="", variant=variant, combiner=combiner)


@cache
def split_of(name: str, kind: str, seed: int) -> Prepared:
    """Return a novel split of a built-in dataset, made and prepared once."""
    folder = STORE / f"splits-{VERSION}" / f"{name}-{kind}-{seed}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        settings = NovelSettings(NOVEL_FRACTION, seed=seed, **KINDS[kind])
        make_novel_split(Path("datasets") / name, folder, settings)
    return prepared(str(folder), bag_ramen(name).encoder)


def run_config(name: str, data: Prepared, changes: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of an encoder's training, for the anchor sets that are left."""
    preset = bag_ramen(name)
    weights = preset.regularization.lambda_z
    left = {key: weight for key, weight in weights.items() if key in data.anchor_sets}
    graph = {"regularization.lambda_x": {}, "regularization.lambda_z": left}
    return overlay(preset, {**graph, **changes})


def embedded_by(
    config: RunConfig, data: Prepared, sibling: Prepared
) -> tuple[Embedded, RevealedClicks]:
    """Train an encoder; return its embeddings, and the revealed clicks with theirs."""
    model = train(config, data)
    tables = [*data.queries.values(), data.ads]
    distinct, positions = number_distinct(tables)
    vectors = np.concatenate(
        [model.embed_texts(table, rows) for table, rows in zip(tables, distinct, strict=True)]
    )
    *queries, ads = (TextEmbeddings(vectors, places) for places in positions)
    embedded = Embedded(data, dict(zip(data.queries, queries, strict=True)), ads)
    novel, rows = revealed_clicks(sibling)
    return embedded, (novel, model.embed_texts(sibling.queries["train"], rows))


def rows_of(
    embedded: Embedded, revealed: RevealedClicks, variants: Mapping[VariantName, CombineSettings]
) -> Iterator[tuple[str, Vectors]]:
    """Yield the vectors of all ads by row."""
    text = embedded.all_ads()
    yield TEXT, text
    if not variants:
        return
    own = np.flatnonzero(embedded.data.train_click_counts > 0)
    places = np.full(len(text), -1)
    places[own] = np.arange(len(own))
    release = CombinerRun(embedded, variants["release"])
    release.train_classifiers()
    combined = release.combined_ads()
    mean_of_all = Combiner("mean", text.shape[1]).eval()
    yield "sum", CombinedAds(mean_of_all, combined.seen, combined.lookup).represent(text, places)
    release.train_combiner()
    yield from with_one_shot("combiner (release)", release.combined_ads(), text, places, revealed)
    draft = CombinerRun(embedded, variants["draft"])
    draft.train_combiner()
    yield from with_one_shot("combiner (draft)", draft.combined_ads(), text, places, revealed)


class CombinerRun:
    """A training as jobs/combine.py does it, in this process."""

    def __init__(self, embedded: Embedded, settings: CombineSettings) -> None:
        """Begin."""
        self._combining = Combining.of(settings, embedded)
        self._model = self._combining.new_model(CPU)
        self._state = self._combining.new_state(self._model)
        self._state.advance()

    def train_classifiers(self) -> None:
        """Train to where the combiner's steps begin."""
        self._train(self._combining.first_steps)

    def train_combiner(self) -> None:
        """Train to the end."""
        self._train(self._combining.total_steps)

    def _train(self, stop: int) -> None:
        sampler, objective = self._combining.sampler, self._combining.objective()
        list(train_steps(self._state, sampler, objective, stop))
        self._state.advance()

    def combined_ads(self) -> CombinedAds:
        """Return the representation of ads by what has been trained."""
        return self._combining.combined_ads(self._model)


def with_one_shot(
    row: str, combined: CombinedAds, text: Vectors, own: Any, revealed: RevealedClicks
) -> Iterator[tuple[str, Vectors]]:
    """Yield the vectors of a combiner without and with revealed clicks."""
    yield row, combined.represent(text, own)
    yield f"{row}, one-shot", combined.represent(text, own, revealed)


def write(file: Path, row: str, embedded: Embedded, vectors: Vectors) -> None:
    """Measure the vectors, and keep the metrics query by query."""
    arrays: dict[str, Any] = {"row": row}
    for split, values in by_test_query(embedded, vectors).items():
        arrays |= {
            f"{split}/{metric}": np.stack(of_queries) for metric, of_queries in values.items()
        }
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)


def by_test_query(embedded: Embedded, vectors: Vectors) -> ByQuery:
    """Measure ad vectors; in zero_shot, queries without a click on a novel ad count nothing."""
    data = embedded.data
    clicks, queries = data.clicks["test"], data.queries
    rows, ads = clicks.gather(np.arange(clicks.num_rows))
    asked = np.unique(rows[np.isin(ads, data.candidates("zero_shot"))])
    assert np.array_equal(queries["test"].hashes[asked], queries["zero_shot"].hashes)
    found: ByQuery = {}
    for split, places in (("zero_shot", asked), ("test", np.arange(clicks.num_rows))):
        values = embedded.measure(vectors, split, Propensity())
        spread = {metric: np.zeros((2, clicks.num_rows)) for metric in MEASURED}
        for metric, of_queries in spread.items():
            of_queries[:, places] = values[metric]
        found[split] = {metric: (gained, possible) for metric, (gained, possible) in spread.items()}
    return found


def table(name: str, rows: Mapping[Row, list[ByQuery]]) -> list[dict[str, str]]:
    """Return the lines of a dataset's rows, for :func:`write_csv`."""
    lines = []
    for row, runs in rows.items():
        over = compared_with(*row)
        base = rows.get(over) if over != row else None
        line = {"dataset": name, "variant": ": ".join(row), "splits": str(len(runs))}
        line["over"] = ": ".join(over) if base else ""
        lines += [line | figures for figures in compared(runs, base)]
    return lines


def compared_with(encoder: str, ads_by: str) -> Row:
    """Return the row that another is compared with."""
    return (encoder if ads_by != TEXT else COMPARED_WITH.get(encoder, "base")), TEXT


def compared(runs: list[ByQuery], base: list[ByQuery] | None) -> Iterator[dict[str, str]]:
    """Yield the figures of a row by metric, and the differences to another row's same splits."""
    for split, ads in SEARCHED.items():
        ours = [run[split] for run in runs]
        means = mean_over_seeds(ours)
        less: dict[str, Difference] = {}
        if base:
            same_splits = [run[split] for run in base[: len(ours)]]
            less = paired_differences_over_seeds(ours, same_splits)
        for metric in MEASURED:
            difference = less[metric] if less else ()
            figures = zip(FIGURES, (ratio(means[metric]), *difference), strict=False)
            shown = {key: f"{100 * value:.2f}" for key, value in figures}
            yield {"metric": f"{metric} of {ads}", **shown}


def write_csv(file: Path, lines: list[dict[str, str]]) -> None:
    """Write the lines of tables."""
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def gain_of(ours: list[ByQuery], base: list[ByQuery]) -> float:
    """Return R@10 on zero_shot over all splits, divided by that of a base."""
    sides = (mean_over_seeds([run["zero_shot"] for run in runs]) for runs in (ours, base))
    one, other = (ratio(of_side["R@10"]) for of_side in sides)
    return one / other


if __name__ == "__main__":
    main()
