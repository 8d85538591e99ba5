"""What Ray, MLflow and memory-mapped data cost per epoch, against a bare loop in memory.

One side is the whole project: the preset minilm on foldoc with all-MiniLM cut to two layers and
both anchor sets, batches of 256, two threads in all, a fresh output folder, every step's losses
logged to MLflow; with validations and checkpoints, an epoch is the time between two validations.
The other is `benchmarks.bare_epochs`, a hand-written loop in as many fresh processes as the project
has workers: with two, DDP on gloo beside Ray Train, a thread each. If both sides' losses differ,
the benchmark fails. `ratio` is project over bare in seconds per epoch.

    python -m benchmarks.epoch_overhead [--workers 1] [--rounds 3] [--epochs 2]
"""

import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mlflow.tracking import MlflowClient

from benchmarks.common import NUM_THREADS, ROOT, alternate, finish, medians, options, run_python
from ramen_ray.config import RunConfig, overlay, write_config
from ramen_ray.presets import minilm
from ramen_ray.tracking.addresses import sqlite_uri
from ramen_ray.tracking.runs import Run

LOSS_TOLERANCE = 1e-3
WEIGHTS = {"links": 0.1, "categories": 0.1}


def main() -> None:
    asked = options(__doc__, workers=1, rounds=3, epochs=2)
    if asked.epochs < 2:
        sys.exit("--epochs: give at least 2, as an epoch is the time between two validations")
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(Path(folder), asked.epochs, asked.workers)
        file = Path(folder) / "config.json"
        write_config(config, file)
        results = alternate(
            asked.rounds,
            {"project": lambda: run_project(config, file), "bare": lambda: run_bare(config, file)},
        )
    runs = [run["losses"] for run in results["project"] + results["bare"]]
    if len({len(losses) for losses in runs}) > 1:
        sys.exit("the two sides differ in their number of steps")
    by_step = zip(*runs, strict=True)
    difference = max((max(losses) - min(losses)) / max(losses) for losses in by_step)
    if difference > LOSS_TOLERANCE:
        sys.exit(f"the two sides' losses differ by {difference:.2g} of them")
    rows = {side: [run["figures"] for run in runs] for side, runs in results.items()}
    project, bare = (medians(rows[side]) for side in ("project", "bare"))
    whole = project["seconds_per_epoch_with_validation"] / bare["seconds_per_epoch"]
    figures = {"ratio_with_validation_and_checkpoint": whole, "project": project, "bare": bare}
    finish(project["seconds_per_epoch"] / bare["seconds_per_epoch"], {**figures, "rounds": rows})


def make_config(output: Path, epochs: int, num_workers: int) -> RunConfig:
    changes = {
        "dataset": str(ROOT / "datasets" / "foldoc"),
        "output": str(output),
        "encoder.kind": "transformer",
        "encoder.num_layers": 2,
        "optimizer.lr": 2e-4,
        "regularization.lambda_x": WEIGHTS,
        "regularization.lambda_z": WEIGHTS,
        "regularization.every_steps": 1,
        "regularization.adaptive": False,  # the bare loop has fixed weights
        "training.epochs": epochs,
        "training.precision": "fp32",
        "workers.num_workers": num_workers,
        "workers.cpus_per_worker": NUM_THREADS // num_workers,
    }
    return overlay(minilm("foldoc"), changes)


def run_project(config: RunConfig, file: Path) -> dict[str, Any]:
    run_python("jobs/train.py", "--config", file)
    client = MlflowClient(tracking_uri=sqlite_uri(Path(config.output)))
    experiment = client.get_experiment_by_name(config.experiment)
    run = client.search_runs([experiment.experiment_id], max_results=1)[0]
    validated = client.get_metric_history(run.info.run_id, "validation/P_at_1")
    times, epochs = sorted(point.timestamp for point in validated), config.training.epochs
    figures = {
        "seconds_per_epoch": run.data.metrics["trained_seconds"] / epochs,
        "seconds_per_epoch_with_validation": (times[-1] - times[0]) / 1000 / (epochs - 1),
    }
    _, losses = Run(sqlite_uri(Path(config.output)), run.info.run_id).read_history("loss/total")
    return {"figures": figures, "losses": losses}


def run_bare(config: RunConfig, file: Path) -> dict[str, Any]:
    """Train through the hand-written loop, in as many processes as the project has workers."""
    (data,) = (Path(config.output) / "prepared").glob("foldoc-*")
    count = config.workers.num_workers
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(count) as pool:
        groups = [[rank, f"{folder}/store"] for rank in range(count)] if count > 1 else [[]]
        command = ["-m", "benchmarks.bare_epochs", data, file]
        said, *_ = pool.map(lambda group: run_python(*command, *group), groups)
    result = json.loads(said.splitlines()[-1])
    figures = {"seconds_per_epoch": result["seconds"] / config.training.epochs}
    return {"figures": figures, "losses": result["losses"]}


if __name__ == "__main__":
    main()
