"""Train a graph-regularised retrieval encoder.

Examples:
    python jobs/train.py                                  the preset bag on the help pages of R
    python jobs/train.py bag-unidec --with-base           also without the graph, and plain
    python jobs/train.py minilm --dataset debian --seed 1
    python jobs/train.py --dataset path/to/mine           your own dataset directory
    python jobs/train.py --dataset path/to/mine --help    its anchor sets, as flags
    python jobs/train.py bag --base.kind ance --training.epochs 30
    python jobs/train.py --config outputs/runs/NAME/config.json --seed 2
    python jobs/train.py bag --print-config               every setting, and no training
    ray job submit --working-dir . -- python jobs/train.py bag --output $PWD/outputs

Built-in datasets are rdocs, foldoc and debian. --base.kind brings that base's own constants.
Run the same command again to resume an interrupted run.
"""

import shlex
import sys
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from rich.console import Console

from ramen_ray.command_line import asking, parse_with_run_config, run_job, training_command
from ramen_ray.config import RunConfig, Section
from ramen_ray.orchestration.cluster.resources import start_ray

if TYPE_CHECKING:
    from ramen_ray.orchestration.run.fit import TrainResult

# Imported in a thread while Ray starts. Only what Ray does not import: two threads that import the
# same module at once can find it half initialised, which Python reports as a circular import.
SLOW_IMPORTS = ("torch", "transformers")


class JobSettings(Section):
    """Settings of the job besides the run's."""

    print_config: bool = False
    """Print the whole configuration as JSON and exit."""
    with_base: bool = False
    """Also train the base without the graph, and in plain batches, unless that is done, and print
    the differences."""


def main() -> None:
    """Parse, train, and print the results and where to find them."""
    job, config = parse_with_run_config(JobSettings(), __doc__ or "")
    if job.print_config:
        print(config.model_dump_json(indent=2))
        return
    print(f"command: {training_command(config)}")
    imports = Thread(target=_import_slow_ones)
    imports.start()  # takes about as long as starting Ray
    start_ray(for_ray_train=config.workers.num_workers > 1)
    imports.join()
    result = _train_beside_base(config) if job.with_base else _train(config)
    from ramen_ray.tracking.runs import ui_command

    print(f"encoder: {result.encoder}")
    print(f"run:     {result.run_directory} (MLflow run {result.run.id})")
    print(f"look at: {ui_command(result.run.uri)}")
    run = Path(config.output, "runs", result.run_directory.name)
    print(f"next:    {asking(run)}")
    print(f"         python jobs/promote.py {shlex.quote(str(run))} --name NAME")


def _train(config: RunConfig) -> "TrainResult":
    from ramen_ray.orchestration.run.fit import fit

    result = fit(config)
    from ramen_ray.reports.run_report import metrics_table

    Console(width=110).print(metrics_table(result.metrics))
    return result


def _train_beside_base(config: RunConfig) -> "TrainResult":
    from ramen_ray.orchestration.tune.beside_base import fit_beside_base

    rungs = fit_beside_base(config)
    from ramen_ray.reports.run_report import gains_table, metrics_table

    last = list(rungs.values())[-1].result
    rows = {"untrained": last.metrics["untrained"]}
    rows |= {name: rung.result.metrics["trained"] for name, rung in rungs.items()}
    console = Console(width=110)
    console.print(metrics_table({row: {"test": by["test"]} for row, by in rows.items()}))
    steps = zip(rungs, list(rungs.items())[1:], strict=False)
    gains = {f"{name} over {before}": rung.gains for before, (name, rung) in steps}
    console.print(gains_table(gains))
    return last


def _import_slow_ones() -> None:
    for name in SLOW_IMPORTS:
        import_module(name)


if __name__ == "__main__":
    sys.exit(run_job(main))
