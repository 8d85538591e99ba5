"""How long training waits for pruning and for new shortlists, and what the graph costs.

The preset foldoc with the base ance trains through Ray, one CPU for the worker and one for
background tasks: `base` without a graph, `ramen` with the preset's graph, pruned, and
`synchronous`, which is `ramen` but waits for each task. `share_waited` is the time that training
waited at the start of epochs, as a share of training and waiting. `ratio` is `ramen` over `base` in
seconds of training and waiting.

    python -m benchmarks.background_tasks [--rounds 1]
"""

import tempfile
from functools import partial
from typing import Any

from benchmarks.common import ROOT, alternate, finish, in_fresh_process, medians, options
from ramen_ray.config import RunConfig, overlay
from ramen_ray.presets import minilm

RENEWED = ("graph", "shortlists")
ANCE: dict[str, Any] = {
    "dataset": str(ROOT / "datasets" / "foldoc"),
    "base.kind": "ance",
    "workers.cpus_per_worker": 1,
}
PRUNED = {"pruning.mode": "asynchronous"}
SIDES: dict[str, dict[str, Any]] = {
    "base": {"regularization.lambda_x": {}, "regularization.lambda_z": {}},
    "ramen": PRUNED,
    "synchronous": PRUNED | {"pruning.mode": "synchronous", "base.refresh_mode": "synchronous"},
}


def main() -> None:
    asked = options(__doc__, rounds=1)
    with tempfile.TemporaryDirectory() as output:
        common = {**ANCE, "output": output}
        runs = {
            side: partial(in_fresh_process, run, overlay(minilm("foldoc"), common | changes))
            for side, changes in SIDES.items()
        }
        found = {side: medians(rows) for side, rows in alternate(asked.rounds, runs).items()}
    finish(found["ramen"]["total_s"] / found["base"]["total_s"], found)


def run(config: RunConfig) -> dict[str, float]:
    """Train once; returns the seconds trained and waited."""
    from ramen_ray.orchestration.run.fit import fit

    result = fit(config)
    metrics = result.run.client.get_run(result.run.id).data.metrics
    waited = sum(metrics.get(f"{name}/waited_s", 0.0) for name in RENEWED)
    total = metrics["trained_seconds"] + waited
    return {"total_s": total, "share_waited": waited / total}


if __name__ == "__main__":
    main()
