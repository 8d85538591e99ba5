"""What graphs and combiners bring for new ads on the built-in datasets.

Zero-shot splits of each set, which may be a made one (benchmarks.made_sets). On each, the encoders
ENCODERS are trained, with the split's seed; on the first splits also seen ads' own classifiers,
sums and the maximum of text and neighbours, and IRENE's combiner in both variants, the draft's also
at ten times the rate in four times the epochs (trained longer) and of neighbours' texts in place of
their classifiers; as controls, the release's without scores, and the draft's in random order. Every
run is kept, so that the same command goes on. Text alone is compared with that of the base, others
with the text alone of their encoder. With `--rows true` the base only, with what true neighbours in
place of the nearest by text would bring; with `--rows settings` too, by settings, on validation,
where each ad is represented as if it were new. `ratio` is R@10 (of new ads) of the last row over
the first, of the last set.

    python -m benchmarks.combiner [--sets rdocs foldoc] [--splits 5] [--epochs 40]
        [--encoders base RAMEN] [--into docs/evidence]
    python -m benchmarks.combiner --rows true --splits 3 --epochs 5
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from benchmarks.common import CACHE, finish, options, prepared
from benchmarks.graph_gain import IN_BATCH, UNWALKED, recipe
from benchmarks.in_process import embedded_texts, train
from benchmarks.made_sets import made
from benchmarks.tables import ByQuery, Found, compared, kept, mean, write
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, flatten, overlay
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.splits.novel import NovelSettings, make_novel_split
from ramen_ray.method.metrics.ground_truth import GroundTruth, Propensity
from ramen_ray.method.metrics.ranking import PerQuery, query_metrics
from ramen_ray.method.new_ads.evaluation import Embedded
from ramen_ray.method.new_ads.neighbours import (
    Lookup,
    SeenAds,
    Vectors,
    clicked_together,
    find_neighbours,
)
from ramen_ray.method.new_ads.representation import CombinedAds, Combiner
from ramen_ray.method.retrieval.search import search
from ramen_ray.method.training.step import train_steps
from ramen_ray.orchestration.new_ads.combiner_worker import combiner_setup
from ramen_ray.orchestration.new_ads.settings import CombinerConfig, CombineSettings, VariantName
from ramen_ray.orchestration.run.processes import WorkerContext
from ramen_ray.presets import bag_ramen

STORE = CACHE / "combiner"
VERSION = 9  # of what is kept; a change of what a row computes makes the rows anew
NOVEL_FRACTION = 0.1
KINDS: dict[str, dict[str, bool]] = {
    "zero-shot": {},
    "one-shot": {"one_shot": True},
    "edges-kept": {"keep_ad_edges": True},
    "unseen": {"unseen_texts": True},
}
MEASURED = ("P@1", "P@5", "P@30", "P@50", "R@10", "R@100")
KS = (1, 5, 10, 30, 50, 100)
NEIGHBOURS = 3
LOOKUPS = [
    Lookup(count, threshold=threshold)
    for threshold in (None, 0.2, 0.4)
    for count in (NEIGHBOURS, 1, 5, 10)
]
CLICKED_TOGETHER = 100  # of which those without train clicks are left out
SHARE = 0.6  # of the classifiers' mean, added to the text
CPU = torch.device("cpu")
ROWS = ("combiners", "true", "settings")
PLAIN: Mapping[str, Any] = {**IN_BATCH, **UNWALKED}
WITHOUT: Mapping[str, Any] = {**IN_BATCH, **WITHOUT_GRAPH}
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


def main() -> None:
    asked = options(
        __doc__,
        sets=["rdocs", "foldoc"],
        splits=5,
        combined_splits=3,
        epochs=40,
        encoders=list(ENCODERS),
        rows="combiners",
        into="",
    )
    if asked.rows not in ROWS:
        sys.exit(f"--rows {asked.rows}: give one of {', '.join(ROWS)}")
    torch.set_num_threads(1)
    whole = asked.rows == "combiners"
    lines, gain = list[dict[str, str]](), 1.0
    for name in asked.sets:
        rows, over = dict[str, list[ByQuery]](), dict[str, str]()
        for seed in range(asked.splits):
            for encoder in asked.encoders if whole else ["base"]:
                is_combined = encoder in COMBINED and seed < asked.combined_splits
                epochs = asked.epochs if is_combined or not whole else 0
                found = measured(name, seed, encoder, epochs, asked.rows)
                for row, values in found.items():
                    rows.setdefault(f"{encoder}: {row}", []).append(values)
                    base = encoder if row != TEXT else COMPARED_WITH.get(encoder, "base")
                    over[f"{encoder}: {row}"] = f"{base}: {TEXT}"
        for row, runs in rows.items():
            other = over[row] if over[row] in rows and over[row] != row else ""
            lines += compared(name, row, runs, other, rows.get(other, ()))
        first, *_, last = rows.values()
        metric = "R@10" if asked.rows == "settings" else "R@10 of new ads"
        gain = mean(last, metric) / mean(first, metric)
    write("new_ads" if whole else asked.rows, lines, asked.into)
    finish(gain, {})


def measured(
    name: str, seed: int, encoder: str, epochs: int, kind_of_rows: str
) -> Mapping[str, ByQuery]:
    """Return the rows of an encoder on a split; no combiner in 0 epochs."""
    kind, changes = ENCODERS[encoder]
    data = split_of(name, kind, seed)
    config = run_config(name, data, {**changes, "seed": seed})

    def measure() -> Found:
        embedded = embedded_by(config, data)
        if kind_of_rows == "settings":
            found = rows_of_settings(embedded, epochs)
            return {row: by_query(embedded, vectors, "validation") for row, vectors in found}, {}
        rows = rows_of(embedded, epochs)
        found = rows_with_true(embedded, epochs) if kind_of_rows == "true" else rows
        return {row: by_test_query(embedded, vectors) for row, vectors in found}, {}

    combiner = CombinerConfig(epochs=epochs) if epochs else None
    content = [VERSION, flatten(config), data.path.name, combiner, kind_of_rows]
    return kept(STORE, content, measure)[0]


@cache
def split_of(name: str, kind: str, seed: int) -> Prepared:
    """Return a novel split of a built-in dataset, made and prepared once."""
    folder = STORE / f"splits-{VERSION}" / f"{name}-{kind}-{seed}"
    whole = bag_ramen(made(name))
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        settings = NovelSettings(NOVEL_FRACTION, seed=seed, **KINDS[kind])
        make_novel_split(Path(whole.dataset), folder, settings)
    return prepared(str(folder), whole.encoder)


def run_config(name: str, data: Prepared, changes: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of an encoder's training, for the anchor sets that are left."""
    preset = recipe(made(name))
    weights = preset.regularization.lambda_z
    left = {key: weight for key, weight in weights.items() if key in data.anchor_sets}
    graph = {"regularization.lambda_x": {}, "regularization.lambda_z": left}
    return overlay(preset, {**graph, **changes})


def embedded_by(config: RunConfig, data: Prepared) -> Embedded:
    model = train(config, data)
    *queries, ads = embedded_texts(model, [*data.queries.values(), data.ads])
    return Embedded(data, dict(zip(data.queries, queries, strict=True)), ads)


def rows_of(embedded: Embedded, epochs: int) -> Iterator[tuple[str, Vectors]]:
    text = embedded.all_ads()
    yield TEXT, text
    if not epochs:
        return
    release = CombinerRun(embedded, "release", epochs)
    release.train(with_combiner=False)
    combined = release.combined_ads()
    seen = combined.seen
    places = seen.rows_of(np.arange(len(text)))
    yield "own classifiers", np.where(places[:, None] >= 0, seen.classifiers[places], text)
    mean_of_all = Combiner("mean", text.shape[1]).eval()
    yield "sum", CombinedAds(mean_of_all, seen, combined.lookup).represent(text, places)
    neighbours = seen.nearest(text, NEIGHBOURS, places).rows
    yield "weighted sum", added(text, seen.classifiers, neighbours)
    yield "maximum", np.maximum(text, seen.classifiers[neighbours].max(axis=1))
    unscored = CombinerRun(embedded, "release", epochs)
    unscored.leave_scores_out()
    draft = partial(CombinerRun, embedded, "draft")
    longer = {"combiner.lr": 10 * CombinerConfig().lr}
    # classifiers begin as the ads' texts, and at this rate stay so
    of_texts = {"classifiers.lr": 1e-12}
    for run, row in (
        (release, "combiner (release)"),
        (unscored, "combiner (release), without scores"),
        (draft(epochs), "combiner (draft)"),
        (draft(epochs, has_clusters=False), "combiner (draft), in random order"),
        (draft(4 * epochs, longer), "combiner (draft), trained longer"),
        (draft(epochs, of_texts), "combiner (draft) of texts"),
    ):
        run.train(with_combiner=True)
        yield row, run.combined_ads().represent(text, places)


def rows_with_true(embedded: Embedded, epochs: int) -> Iterator[tuple[str, Vectors]]:
    """Yield the vectors of all ads by row: up to 0, 1, ... of each ad's neighbours are true."""
    text = embedded.all_ads()
    yield TEXT, text
    release = CombinerRun(embedded, "release", epochs)
    release.train(with_combiner=False)
    classifiers = release.combined_ads().seen.classifiers
    draft = CombinerRun(embedded, "draft", epochs)
    draft.train(with_combiner=True)
    combined = draft.combined_ads()
    true = true_neighbours(embedded, combined.seen)
    own = combined.seen.rows_of(np.arange(len(text)))
    nearest = combined.seen.nearest(text, NEIGHBOURS, own).rows
    for count in range(NEIGHBOURS + 1):
        neighbours = _first_distinct(np.hstack([true[:, :count], nearest]))
        yield f"combiner (draft), up to {count} true", combined.combine(text, neighbours)
        yield f"text and classifiers, up to {count} true", added(text, classifiers, neighbours)


def rows_of_settings(embedded: Embedded, epochs: int) -> Iterator[tuple[str, Vectors]]:
    """Yield the vectors of all ads by row: weighted sums, and the draft's combiner."""
    text = embedded.all_ads()
    yield TEXT, text
    trainings: dict[str, dict[str, Any]] = {
        "": {},
        ", classifiers of 3 x the epochs": {"classifiers.epochs": 60},
        ", the same with dropout 0.8": {"classifiers.epochs": 60, "classifiers.dropout": 0.8},
    }
    for row, changes in trainings.items():
        release = CombinerRun(embedded, "release", epochs, changes)
        release.train(with_combiner=False)
        seen = release.combined_ads().seen
        own = seen.rows_of(np.arange(len(text)))
        for lookup in LOOKUPS if not row else LOOKUPS[:1]:
            chosen = "nearest" if lookup.threshold is None else f"above {lookup.threshold}"
            neighbours = find_neighbours(seen, lookup, text, own)
            title = f"weighted sum, {lookup.neighbours} {chosen}{row}"
            yield title, added(text, seen.classifiers, neighbours)
    for count in (NEIGHBOURS, 10):
        run = CombinerRun(embedded, "draft", epochs, {"combiner.neighbours": count})
        run.train(with_combiner=True)
        yield f"combiner (draft), {count} above 0.2", run.combined_ads().represent(text, own)


def true_neighbours(embedded: Embedded, seen: SeenAds) -> Int64s:
    """Return, by ad, rows (ads, NEIGHBOURS) of seen ads that a test query clicks too, then -1.

    Nobody has them (the papers' ablation). If they help and the nearest do not, it is the
    neighbours that fail, not the combiner.
    """
    clicks = embedded.data.clicks["test"]
    together = clicked_together(clicks, embedded.all_ads(), CLICKED_TOGETHER).rows
    return _first_distinct(np.where(together >= 0, seen.rows_of(np.maximum(together, 0)), -1))


def _first_distinct(rows: Int64s) -> Int64s:
    """Return the first different rows (n, NEIGHBOURS) of ``rows`` (n, m), -1 after the last."""
    repeated = (rows[:, :, None] == rows[:, None, :]) & np.tri(rows.shape[1], k=-1, dtype=bool)
    missing = (rows < 0) | repeated.any(axis=2)
    order = np.argsort(missing, axis=1, kind="stable")[:, :NEIGHBOURS]
    return np.take_along_axis(np.where(missing, -1, rows), order, axis=1)


def added(text: Vectors, classifiers: Vectors, neighbours: Int64s) -> Vectors:
    """Return text + SHARE x mean of the neighbours' classifiers, (ads, D)."""
    is_there = (neighbours >= 0)[..., None]
    total = np.where(is_there, classifiers[neighbours], 0).sum(axis=1)
    return text + np.float32(SHARE) * total / np.maximum(is_there.sum(axis=1), 1)


class CombinerRun:
    """A training as jobs/combine.py does it, in this process."""

    def __init__(
        self,
        embedded: Embedded,
        variant: VariantName,
        epochs: int,
        changes: Mapping[str, Any] = MappingProxyType({}),
        **of_variant: Any,
    ):
        settings = CombineSettings(run="", variant=variant)
        settings = overlay(settings, {"combiner.epochs": epochs, **changes})
        setup = combiner_setup(settings, embedded, None, Path(), WorkerContext(CPU))
        self._setup = replace(setup, variant=replace(setup.variant, **of_variant))
        self._model = self._setup.new_model()
        self._state = self._setup.new_state(self._model)
        self._state.prepare_next_steps()

    def leave_scores_out(self) -> None:
        """Keep the vectors that tell scores apart at zero, as they begin."""
        assert self._model.combiner.score_types is not None, "the release has them"
        self._model.combiner.score_types.requires_grad_(False)

    def train(self, with_combiner: bool) -> None:
        """Train the classifiers, to where the combiner's steps begin, or all."""
        setup = self._setup
        stops = [setup.first_steps, setup.plan.total_steps]
        for stop in stops if with_combiner else stops[:1]:
            list(train_steps(self._state, setup.sampler, setup.objective, stop))
            self._state.prepare_next_steps()

    def combined_ads(self) -> CombinedAds:
        return self._setup.combined_ads(self._model)


def by_query(embedded: Embedded, vectors: Vectors, split: str) -> ByQuery:
    """Measure ad vectors on a split, with more ranks than the library's metrics have."""
    ground_truth = GroundTruth.from_prepared(embedded.data, split, Propensity())
    found = ground_truth.shown(embedded.search(vectors, split, ground_truth.depth))[0]
    values = query_metrics(found, ground_truth.truth, ground_truth.inverse, KS)
    return {metric: values[metric] for metric in MEASURED}


def by_test_query(embedded: Embedded, vectors: Vectors) -> ByQuery:
    """Measure ad vectors; for new ads, queries without a click on one count nothing."""
    data = embedded.data
    clicks, queries = data.clicks["test"], data.queries
    rows, ads = clicks.gather(np.arange(clicks.num_rows))
    asked = np.unique(rows[np.isin(ads, data.candidates("zero_shot"))])
    assert np.array_equal(queries["test"].hashes[asked], queries["zero_shot"].hashes)
    found: dict[str, PerQuery] = {}
    every = np.arange(clicks.num_rows)
    for split, title, places in (("zero_shot", "new ads", asked), ("test", "all ads", every)):
        values = by_query(embedded, vectors, split)
        for metric in MEASURED:
            gained, possible = np.zeros((2, clicks.num_rows))
            gained[places], possible[places] = values[metric]
            found[f"{metric} of {title}"] = gained, possible
    clicks, counts = data.clicks["train"], data.train_click_counts
    ground_truth = GroundTruth.from_clicks(clicks, counts, clicks.num_rows, Propensity())
    asking = embedded.queries["train"].take(np.arange(clicks.num_rows))
    trained = ground_truth.measure(search(asking, vectors, ground_truth.depth))["R@10"]
    # of as many queries as are tested: the first, as train queries lie in shuffled order
    return {**found, "R@10 of train clicks": (trained[0][every], trained[1][every])}


if __name__ == "__main__":
    main()
