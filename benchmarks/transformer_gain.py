"""What the graph brings to a transformer: no graph, adaptive and fixed λ, and a shuffled graph.

Trains a preset without Ray, on a GPU if there is one. Every run is kept, so that the same command
goes on; rows are printed as soon as they are known. `ratio` is R@10 with the graph over without.

    python -m benchmarks.transformer_gain [--sets rdocs foldoc debian] [--preset minilm-6-unidec]
        [--epochs 20] [--seeds 3] [--split validation] [--into docs/evidence]
"""

from dataclasses import replace

from benchmarks.common import finish, options
from benchmarks.graph_gain import FIXED, UNWALKED, GraphVariant, measured
from benchmarks.tables import ByQuery, compared, mean, write
from ramen_ray.bases import Part
from ramen_ray.config import WITHOUT_GRAPH, overlay
from ramen_ray.presets import PRESETS

BASE = "no graph"
ROWS = {
    BASE: GraphVariant(WITHOUT_GRAPH),
    "graph": GraphVariant(UNWALKED),
    "graph, fixed λ": GraphVariant({**UNWALKED, **FIXED}),
    "shuffled graph": GraphVariant(UNWALKED, random_edges=1.0),
}


def main() -> None:
    asked = options(
        __doc__,
        sets=["rdocs", "foldoc", "debian"],
        preset="minilm-6-unidec",
        epochs=20,
        seeds=3,
        split="validation",
        into="",
    )
    lines, gain = list[dict[str, str]](), 1.0
    for dataset in asked.sets:
        config = overlay(PRESETS[asked.preset](dataset), {"training.epochs": asked.epochs})
        part: Part = "encoder" if config.base.parts.heads == "none" else "both"
        runs: dict[str, list[ByQuery]] = {}
        for title, variant in ROWS.items():
            answering = replace(variant, part=part)
            runs[title] = [
                measured(config, answering, seed, asked.split) for seed in range(asked.seeds)
            ]
            over = "" if title == BASE else BASE
            shown = f"{dataset}, {asked.preset}"
            lines += compared(shown, title, runs[title], over, runs[BASE])
            write("transformer_gain", lines, asked.into)  # now, as a GPU may be taken away
        gain = mean(runs["graph"], "R@10") / mean(runs[BASE], "R@10")
    finish(gain, {})


if __name__ == "__main__":
    main()
