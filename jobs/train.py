"""Train a graph-regularised retrieval encoder.

Examples:
    python jobs/train.py                                  the preset bag-unidec on R's help pages
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

from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

from ramen_ray.command_line import parse_with_run_config, refuse_early, run_job
from ramen_ray.config import RunConfig, Section, check_epochs
from ramen_ray.errors import shown_path
from ramen_ray.orchestration.run.directory import deciding_settings
from ramen_ray.printed_commands import asking, cheaper_than, in_store, training_command

if TYPE_CHECKING:
    from ramen_ray.orchestration.run.fit import TrainResult
    from ramen_ray.orchestration.run.worker import Metrics

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
    job, config = parse_with_run_config(JobSettings(), __doc__)
    if job.print_config:
        print(config.model_dump_json(indent=2))
        return
    check_epochs(config)
    refuse_early(config, deciding_settings(config))
    from ramen_ray.orchestration.cluster.joining import start_ray  # takes a second

    print(f"command: {training_command(config)}{' --with-base' if job.with_base else ''}")
    if cheaper := cheaper_than(config):
        print(f"sooner:  {cheaper} (a bag; on the built-in data its P@1 is no lower)")
    imports = Thread(target=lambda: [import_module(name) for name in SLOW_IMPORTS])
    imports.start()  # takes about as long as starting Ray
    start_ray(for_ray_train=config.workers.num_workers > 1)
    imports.join()
    result, rows = _train_beside_base(config) if job.with_base else _train(config)
    from ramen_ray.reports.report_tables import unearned_note, worse_note
    from ramen_ray.tracking.addresses import ui_command

    unearned = unearned_note(result.run.read_histories("lambda_"))
    worse = worse_note(rows, config.training.selection_metric)
    for note in filter(None, (unearned, worse)):
        print(note)

    run = shown_path(result.run_directory)
    print(f"encoder: {shown_path(result.encoder)}")
    print(f"run:     {run} (MLflow run {result.run.id})")
    print(f"look at: {ui_command(result.run.uri)}")
    print(f"next:    {asking(run, config.output)}")
    print(f"         {in_store(config.output, 'jobs/promote.py', run, '--name', 'NAME')}")


def _train(config: RunConfig) -> "tuple[TrainResult, Metrics]":
    from ramen_ray.orchestration.run.fit import fit

    result = fit(config)
    from ramen_ray.reports.report_tables import metrics_table, show

    show(metrics_table(result.rows()))
    return result, result.rows()


def _train_beside_base(config: RunConfig) -> "tuple[TrainResult, Metrics]":
    from ramen_ray.orchestration.tune.beside_base import fit_beside_base

    ladder = fit_beside_base(config)
    from ramen_ray.reports.report_tables import GAINS_NOTE, gains_table, metrics_table, show

    show(metrics_table(ladder.metrics))
    show(gains_table(ladder.gains))
    print(GAINS_NOTE)
    return list(ladder.results.values())[-1], ladder.rows


if __name__ == "__main__":
    run_job(main)
