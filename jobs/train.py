"""Train a graph-regularised retrieval encoder.

Examples:
    python jobs/train.py                                  the built-in dictionary of computing
    python jobs/train.py debian --seed 1                  another preset, another seed
    python jobs/train.py foldoc --regularization.lambda-x.links 0.3 --training.epochs 30
    python jobs/train.py foldoc --dataset path/to/mine    your own dataset directory
    python jobs/train.py --dataset path/to/mine --help    its anchor sets, as flags
    python jobs/train.py --config outputs/runs/NAME/config.json --seed 2
    python jobs/train.py debian --print-config            every setting, and no training
    ray job submit --working-dir . -- python jobs/train.py foldoc --output $PWD/outputs

Run the same command again to resume an interrupted run.
"""

import logging
import sys
from importlib import import_module
from threading import Thread

from rich.console import Console

from ramen_ray.command_line import parse_with_run_config, run_job, training_command
from ramen_ray.config import Section
from ramen_ray.orchestration.cluster.resources import start_ray

# Two threads must not import what both need: Python stops at circular imports. Ray needs neither.
SLOW_IMPORTS = ("torch", "transformers")


class Output(Section):
    """What the job prints."""

    print_config: bool = False
    """Print the whole configuration as JSON and exit."""


def main() -> None:
    """Parse, train, and print the results and where to find them."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("ramen_ray").setLevel(logging.INFO)
    shown, config = parse_with_run_config(Output(), __doc__ or "")
    if shown.print_config:
        print(config.model_dump_json(indent=2))
        return
    print(f"command: {training_command(config)}")
    imports = Thread(target=_import_slow_ones)
    imports.start()  # Ray takes as long to start
    start_ray()
    imports.join()
    from ramen_ray.orchestration.training.run import fit

    result = fit(config)
    from ramen_ray.reports.run import metrics_table
    from ramen_ray.tracking.runs import ui_command

    console = Console(width=110)
    console.print(metrics_table(result.metrics))
    print(f"encoder: {result.encoder}")
    print(f"run:     {result.run_directory} (MLflow run {result.run.id})")
    print(f"look at: {ui_command(result.run.uri)}")


def _import_slow_ones() -> None:
    for name in SLOW_IMPORTS:
        import_module(name)


if __name__ == "__main__":
    sys.exit(run_job(main))
