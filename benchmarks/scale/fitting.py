"""Costs of the stages, fitted to their seconds at several sizes, as ``machines.toml`` has them.

Each stage is taken to cost a constant, and something for each of what it counts; the relative
errors are least. Sizes with different numbers of edges per node tell texts from edges; batches of
several sizes tell a step's texts from its pairs of a node with a candidate.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

Row = Mapping[str, float]
"""A stage's figures at one size, with its ``texts`` and ``edges``."""

DATA = {"text_s": "texts", "edge_s": "edges"}
COUNTED = {
    "clicks": {"row_s": "rows"},
    "edges": DATA,
    "validate": DATA,
    "describe": DATA,
    "prepare": DATA,
    "walk": {"hop_s": "rows"},
    "train": {"text_s": "texts", "pair_s": "pairs"},
    "prune": {"edge_s": "rows"},
    "sessions": {"event_s": "rows"},
}


def fit(stage: str, rows: Sequence[Row]) -> dict[str, float]:
    """Return the seconds of a stage's start, and of each of what it counts."""
    counted = COUNTED[stage]
    features = np.array([[1.0, *(row[name] for name in counted.values())] for row in rows])
    seconds = np.array([row["seconds"] for row in rows])
    scale = features.max(axis=0)
    found, _ = nnls(features / scale / seconds[:, None], np.ones(len(rows)))
    return dict(zip(("start_s", *counted), (found / scale).tolist(), strict=True))


def as_toml(stage: str, costs: Mapping[str, float], most_queries: int) -> str:
    """Return the costs of a stage as lines of ``machines.toml``, to go below a machine's."""
    lines = [f"{name} = {value:.3g}" for name, value in costs.items()]
    source = "benchmarks.scale --unit-costs"
    head = [f"[MACHINE.costs.{stage}]", f'source = "{source}"', f"most_queries = {most_queries}"]
    return "\n".join([*head, *lines]) + "\n"
