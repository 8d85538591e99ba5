"""Train a graph-regularised retrieval encoder.

Examples:
    python jobs/train.py                                  the built-in dictionary of computing
    python jobs/train.py debian --seed 1                  another preset, another seed
    python jobs/train.py foldoc --regularization.lambda-x.links 0.3 --training.epochs 30
    python jobs/train.py foldoc --dataset path/to/mine    your own dataset directory
    python jobs/train.py --dataset path/to/mine --help    its anchor sets, as flags
    python jobs/train.py --config outputs/runs/NAME/config.json --seed 2
    ray job submit --working-dir . -- python jobs/train.py foldoc --output $PWD/outputs

Run the same command again to resume a run that was interrupted.
"""

import json
import logging
import sys

from rich.console import Console

from ramen_ray.command_line import parse_run_config, run_job
from ramen_ray.orchestration.training.run import fit
from ramen_ray.reports.run import metrics_table
from ramen_ray.tracking.runs import ui_command


def main() -> None:
    """Parse, train, and say what was learned and where to see it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    config = parse_run_config(__doc__ or "")
    print(json.dumps(config.model_dump(), indent=2))
    result = fit(config)
    console = Console(width=110)
    console.print(metrics_table(result.metrics))
    print(f"encoder: {result.encoder}")
    print(f"run:     {result.run_directory} (MLflow run {result.run.id})")
    print(f"look at: {ui_command(result.run.uri)}")


if __name__ == "__main__":
    sys.exit(run_job(main))
