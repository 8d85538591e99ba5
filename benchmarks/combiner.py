"""What combiners bring for new ads on the built-in datasets, beside graphs and one-shot training.

Zero-shot splits of each set (a tenth of the ads novel, seeds 0, 1, ...). On each, encoders are
trained: the base, RAMEN, RAMEN with the novel ads' edges kept, and the base with a revealed click
of each novel ad in training. On the first three: text alone, the sum, attention over neighbours'
texts, and IRENE's combiner in both variants, without and with the revealed clicks. Every encoder
and row is kept, so that the same command continues where it was stopped. In this process, without
Ray Train. Prints a Markdown table per set, pooled over the splits. `ratio` is R@10 on zero_shot of
the base with the combiner (release) over the base alone, of the last set.

    python -m benchmarks.combiner [--sets rdocs foldoc] [--splits 5] [--epochs 40] [--encoders base]
"""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import CACHE, finish, prepared
from benchmarks.graph_gain import NO_GRAPH, PLAIN, shown
from benchmarks.in_process import train
from ramen_ray.config import RunConfig, flatten, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.data.splits.novel import make_novel_split
from ramen_ray.method.metrics.comparison import paired_differences
from ramen_ray.method.metrics.judgement import Propensity
from ramen_ray.method.metrics.ranking import PerQuery, ratio
from ramen_ray.method.model.embeddings import TextEmbeddings
from ramen_ray.method.novel_ads.clicks import SeenClicks
from ramen_ray.method.novel_ads.combiner import Combiner
from ramen_ray.method.novel_ads.evaluation import SPLITS, Embedded, RevealedClicks
from ramen_ray.method.novel_ads.neighbours import SeenAds, Vectors
from ramen_ray.method.novel_ads.representation import CombinedAds
from ramen_ray.method.novel_ads.stages import Stages, StageSettings
from ramen_ray.orchestration.combining.inputs import revealed_clicks
from ramen_ray.orchestration.combining.settings import (
    VARIANTS,
    CombinerConfig,
    CombineSettings,
    VariantName,
)
from ramen_ray.presets import bag_ramen

STORE = CACHE / "combiner"
VERSION = 2
"""Change it with what a row computes, so that kept rows are not taken for new ones."""
MEASURED = ("P@1", "P@5", "R@10", "R@100")
CPU = torch.device("cpu")
ENCODERS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "base": ("zero-shot", {**PLAIN, **NO_GRAPH}),
    "RAMEN": ("zero-shot", PLAIN),
    "RAMEN, novel ads' edges kept": ("edges-kept", PLAIN),
    "base, re-trained with the revealed clicks": ("one-shot", {**PLAIN, **NO_GRAPH}),
}
COMBINED = ("base", "RAMEN", "RAMEN, novel ads' edges kept")
ByQuery = dict[str, dict[str, PerQuery]]
"""Metrics by split and name, query by query."""


def main() -> None:
    """Train what is not there yet, and print a row of the table for each kind of ad vectors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=["rdocs", "foldoc"])
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=40, help="of the combiners")
    parser.add_argument("--encoders", nargs="+", default=list(ENCODERS), choices=list(ENCODERS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gain = 1.0
    for name in arguments.sets:
        rows: dict[str, list[ByQuery]] = {}
        for seed in range(arguments.splits):
            for encoder in arguments.encoders:
                for row, values in measured(name, seed, encoder, arguments.epochs):
                    rows.setdefault(f"{encoder}: {row}", []).append(values)
        print(f"\n## {name}, {arguments.splits} splits\n\n{table(rows)}", flush=True)
        gain = mean(rows["base: combiner (release)"]) / mean(rows["base: text alone"])
    finish(gain, {})


def measured(name: str, seed: int, encoder: str, epochs: int) -> Iterator[tuple[str, ByQuery]]:
    """Yield the rows of an encoder on a split, computed now or earlier."""
    kind, changes = ENCODERS[encoder]
    data = split_of(name, kind, seed)
    config = run_config(name, data, {**changes, "seed": seed})
    settings: dict[str, StageSettings] = {one: settings_of(one, epochs) for one in VARIANTS}
    content = [VERSION, flatten(config), data.path.name, str(settings)]
    key = hashlib.blake2b(json.dumps(content, default=str).encode(), digest_size=8).hexdigest()
    folder = STORE / f"{name}-{seed}-{key}"
    if not (folder / "done").exists():
        started = time.monotonic()
        embedded, revealed = embedded_by(config, data, split_of(name, "one-shot", seed))
        found = rows_of(embedded, revealed, settings if encoder in COMBINED else {})
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


def settings_of(variant: VariantName, epochs: int) -> StageSettings:
    """Return a variant's settings, as jobs/combine.py has them."""
    combiner = CombinerConfig(epochs=epochs)
    return CombineSettings(run="", variant=variant, combiner=combiner).stages()


@cache
def split_of(name: str, kind: str, seed: int) -> Prepared:
    """Return a novel split of a built-in dataset, made and prepared once."""
    folder = STORE / "splits" / f"{name}-{kind}-{seed}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        one_shot, keeps_edges = kind == "one-shot", kind == "edges-kept"
        make_novel_split(Path("datasets") / name, folder, 0.1, one_shot, seed, keeps_edges)
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

    def embed(table: TokenTable) -> TextEmbeddings:
        rows = np.arange(len(table))
        return TextEmbeddings(model.embed_texts(table, rows), rows)

    queries = {split: embed(table) for split, table in data.queries.items()}
    ads, rows = revealed_clicks(sibling)
    revealed = ads, model.embed_texts(sibling.queries["train"], rows)
    return Embedded(data, queries, embed(data.ads)), revealed


def rows_of(
    embedded: Embedded, revealed: RevealedClicks, variants: Mapping[str, StageSettings]
) -> Iterator[tuple[str, Vectors]]:
    """Yield the vectors of all ads by row."""
    text = embedded.all_ads()
    yield "text alone", text
    if not variants:
        return
    own = np.flatnonzero(embedded.data.train_click_counts > 0)
    places = np.full(len(text), -1)
    places[own] = np.arange(len(own))
    release = stages_of(embedded, variants["release"])
    list(release.run(release.first_steps))
    combined = release.combined_ads()
    mean_of_all = Combiner("mean", text.shape[1]).eval()
    yield "sum", CombinedAds(mean_of_all, combined.seen, combined.lookup).represent(text, places)
    list(release.run(release.total_steps))
    yield from with_one_shot("combiner (release)", release.combined_ads(), text, places, revealed)
    draft = stages_of(embedded, variants["draft"])
    list(draft.run(draft.total_steps))
    yield from with_one_shot("combiner (draft)", draft.combined_ads(), text, places, revealed)
    # classifiers that are never trained are the texts' embeddings
    by_text = replace(variants["release"], kind="attention", classifier_epochs=0)
    of_texts = stages_of(embedded, by_text)
    list(of_texts.run(of_texts.total_steps))
    yield "attention over neighbours' texts", of_texts.combined_ads().represent(text, places)


def stages_of(embedded: Embedded, settings: StageSettings) -> Stages:
    """Build a training as jobs/combine.py does."""
    ids = np.flatnonzero(embedded.data.train_click_counts > 0)
    vectors = embedded.ads.take(ids)
    clicks = SeenClicks.from_prepared(embedded.data, embedded.queries["train"], ids)
    return Stages(settings, clicks, SeenAds(ids, vectors, vectors), CPU)


def with_one_shot(
    row: str, combined: CombinedAds, text: Vectors, own: Any, revealed: RevealedClicks
) -> Iterator[tuple[str, Vectors]]:
    """Yield the vectors of a combiner without and with revealed clicks."""
    yield row, combined.represent(text, own)
    yield f"{row}, one-shot", combined.represent(text, own, revealed)


def write(file: Path, row: str, embedded: Embedded, vectors: Vectors) -> None:
    """Measure the vectors, and keep the metrics query by query."""
    arrays: dict[str, Any] = {"row": row}
    for split in SPLITS:
        values = embedded.measure(vectors, split, Propensity())
        arrays |= {f"{split}/{metric}": np.stack(values[metric]) for metric in MEASURED}
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)


def table(rows: Mapping[str, list[ByQuery]]) -> str:
    """Return a Markdown table: figures, and what each row has more than the base's text alone."""
    head = [f"{split} {metric}" for split in SPLITS for metric in MEASURED]
    lines = [f"| ads by | {' | '.join(head)} |", f"|---|{'--:|' * len(head)}"]
    base = rows["base: text alone"]
    for name, runs in rows.items():
        cells = []
        for split in SPLITS:
            ours, other = (pooled(some, split) for some in (runs, base))
            less = paired_differences(ours, other) if name != "base: text alone" else {}
            for metric in MEASURED:
                change = f" {shown(*less[metric])}" if less and metric in ("P@1", "R@10") else ""
                cells.append(f"{100 * ratio(ours[metric]):.2f}{change}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pooled(runs: list[ByQuery], split: str) -> dict[str, PerQuery]:
    """Put the queries of all splits of a dataset into one list."""
    return {
        metric: (
            np.concatenate([run[split][metric][0] for run in runs]),
            np.concatenate([run[split][metric][1] for run in runs]),
        )
        for metric in MEASURED
    }


def mean(runs: list[ByQuery]) -> float:
    """Return R@10 on zero_shot over all splits."""
    return ratio(pooled(runs, "zero_shot")["R@10"])


if __name__ == "__main__":
    main()
