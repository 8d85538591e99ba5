"""What Ray, MLflow and memory-mapped data cost per epoch, against a bare loop in memory.

One side is the whole project: the preset minilm on foldoc with all-MiniLM cut to two layers and
both anchor sets, batches of 256, two threads in all, a fresh output folder, every step's losses
logged to MLflow. Its seconds per epoch are the run's metric `trained_seconds` over the epochs; with
validations and checkpoints they are the time from the first to the last epoch's validation. The
other side is `benchmarks.bare_epochs`, a hand-written loop in as many fresh processes as the
project has workers: with two, DDP on gloo beside Ray Train, a thread each. Both sides' losses are
compared step by step; if they differ, the benchmark fails. `ratio` is project over bare (goal: at
most 1.05, and 1.10 with validation and checkpoint).

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

LOSS_TOLERANCE = 1e-3
WEIGHTS = {"links": 0.1, "categories": 0.1}


def main() -> None:
    """Alternate the two sides and compare."""
    asked = options(__doc__, workers=1, rounds=3, epochs=2)
    with tempfile.TemporaryDirectory() as folder:
        config = make_config(Path(folder), asked.epochs, asked.workers)
        file = Path(folder) / "config.json"
        write_config(config, file)
        results = alternate(
            asked.rounds,
            {"project": lambda: run_project(config, file), "bare": lambda: run_bare(config, file)},
        )
    difference = largest_difference(results["project"] + results["bare"])
    print(f"largest relative difference between any two runs' losses: {difference:.2g}")
    if difference > LOSS_TOLERANCE:
        sys.exit("the two sides do not do the same steps")
    rows = {side: [run["figures"] for run in runs] for side, runs in results.items()}
    project, bare = (medians(rows[side]) for side in ("project", "bare"))
    whole = project["seconds_per_epoch_with_validation"] / bare["seconds_per_epoch"]
    figures = {
        "workers": asked.workers,
        "ratio_with_validation_and_checkpoint": whole,
        "project": project,
        "bare": bare,
        "largest_loss_difference": difference,
        "rounds": rows,
    }
    finish(project["seconds_per_epoch"] / bare["seconds_per_epoch"], figures)


def make_config(output: Path, epochs: int, num_workers: int) -> RunConfig:
    """Return the configuration of both sides."""
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
    """Train through the project and read the run from MLflow."""
    run_python("jobs/train.py", "--config", file)
    client = MlflowClient(tracking_uri=f"sqlite:///{config.output}/mlflow.db")
    experiment = client.get_experiment_by_name(config.experiment)
    run = client.search_runs([experiment.experiment_id], max_results=1)[0]
    losses = client.get_metric_history(run.info.run_id, "loss/total")
    validated = sorted(
        point.timestamp for point in client.get_metric_history(run.info.run_id, "validation/P_at_1")
    )
    epochs = config.training.epochs
    figures = {
        "seconds_per_epoch": run.data.metrics["trained_seconds"] / epochs,
        "seconds_per_epoch_with_validation": (validated[-1] - validated[0]) / 1000 / (epochs - 1),
    }
    in_order = sorted(losses, key=lambda point: point.step)
    return {"figures": figures, "losses": [point.value for point in in_order]}


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


def largest_difference(runs: list[dict[str, Any]]) -> float:
    """Return the largest relative difference between any two runs' losses at the same step."""
    if len({len(run["losses"]) for run in runs}) > 1:
        sys.exit("the two sides differ in their number of steps")
    by_step = zip(*(run["losses"] for run in runs), strict=True)
    return max((max(losses) - min(losses)) / max(losses) for losses in by_step)


if __name__ == "__main__":
    main()
