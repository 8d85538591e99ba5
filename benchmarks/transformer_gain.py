"""What the graph brings to a transformer: adaptive and fixed λ, shuffled, and of queries too.

Trains presets without Ray, on a GPU if there is one. Every run is kept, so that the same command
goes on; rows are written as soon as they are known. `--kept` trains nothing: its table has each row
with the seeds that are kept, so that costly rows may have fewer. `--epochs 0` is the preset's own
number. `ratio` is R@10 with the graph over without, of the last preset and dataset; the table is of
the last split.

    python -m benchmarks.transformer_gain [--sets rdocs foldoc debian] [--presets minilm-6-unidec]
        [--rows "no graph" graph ...] [--epochs 20] [--seeds 3] [--precision auto]
        [--splits validation] [--kept] [--into docs/evidence]
"""

from dataclasses import replace
from itertools import product

from benchmarks.common import finish, options
from benchmarks.graph_gain import FIXED, UNWALKED, GraphVariant, is_kept, measured
from benchmarks.tables import ByQuery, compared, mean, write
from ramen_ray.bases import Part
from ramen_ray.config import WITHOUT_GRAPH, RunConfig, overlay
from ramen_ray.presets import PRESETS

BASE, GRAPH = "no graph", "graph"
QUERIES = "graph of queries too"
ROWS = {
    BASE: GraphVariant(WITHOUT_GRAPH),
    GRAPH: GraphVariant(UNWALKED),
    "graph, fixed λ": GraphVariant({**UNWALKED, **FIXED}),
    "shuffled graph": GraphVariant(UNWALKED, random_edges=1.0),
    "shuffled graph, fixed λ": GraphVariant({**UNWALKED, **FIXED}, random_edges=1.0),
    QUERIES: GraphVariant(UNWALKED),
}


def main() -> None:
    asked = options(
        __doc__,
        sets=["rdocs", "foldoc", "debian"],
        presets=["minilm-6-unidec"],
        rows=list(ROWS),
        epochs=20,
        seeds=3,
        precision="auto",
        splits=["validation"],
        kept=False,
        into="",
    )
    lines, gain = list[dict[str, str]](), 1.0
    for preset, dataset in product(asked.presets, asked.sets):
        config = overlay(PRESETS[preset](dataset), {"training.precision": asked.precision})
        if asked.epochs:
            config = overlay(config, {"training.epochs": asked.epochs})
        runs = dict[str, list[ByQuery]]()
        for title in dict.fromkeys((BASE, *asked.rows)):
            runs[title] = row_of(config, title, asked.seeds, asked.splits, asked.kept)
            if runs[BASE] and runs[title]:
                over = "" if title == BASE else f"{preset}: {BASE}"
                lines += compared(dataset, f"{preset}: {title}", runs[title], over, runs[BASE])
                write("transformer_gain", lines, asked.into)  # now, as a GPU may be taken away
        if runs[BASE] and runs.get(GRAPH):
            gain = mean(runs[GRAPH], "R@10") / mean(runs[BASE], "R@10")
    finish(gain, {})


def row_of(
    preset: RunConfig, title: str, seeds: int, splits: list[str], only_kept: bool
) -> list[ByQuery]:
    """Return a row's metrics of the last split, by seed."""
    part: Part = "encoder" if preset.base.parts.heads == "none" else "both"
    variant = replace(ROWS[title], part=part)
    if title == QUERIES:
        sets = {"regularization.lambda_x": preset.regularization.lambda_z}
        variant = replace(variant, changes={**variant.changes, **sets})
    runs = list[ByQuery]()
    for seed in range(seeds):
        if only_kept and not is_kept(preset, variant, seed, splits[-1]):
            break
        for split in splits:
            by_query = measured(preset, variant, seed, split)
        runs.append(by_query)
    return runs


if __name__ == "__main__":
    main()
