"""Evaluate a checkpoint on a split.

Examples:
    python jobs/evaluate.py --checkpoint outputs/runs/NAME
    python jobs/evaluate.py --checkpoint outputs/runs/NAME --split zero_shot
    python jobs/evaluate.py --checkpoint outputs/runs/NAME/checkpoint_000000420 --split validation
    python jobs/evaluate.py --checkpoint outputs/runs/NAME --predictions predictions.parquet
    python jobs/evaluate.py --checkpoint outputs/runs/debian --names datasets/debian/names.csv
"""

import sys
from pathlib import Path
from typing import Literal

from rich.console import Console

from ramen_ray.command_line import parse_call, run_job, write_json
from ramen_ray.orchestration.evaluation.checkpoint import evaluate_checkpoint
from ramen_ray.reports.run import bad_match_table, metrics_table


def evaluate(
    checkpoint: Path,
    split: Literal["validation", "test", "zero_shot"] = "test",
    dataset: str | None = None,
    json_file: Path | None = None,
    predictions: Path | None = None,
    names: str | None = None,
) -> None:
    """Evaluate a checkpoint and print its metrics.

    Args:
        checkpoint: Folder of a finished run, for its best checkpoint, or of one checkpoint.
        split: Split to evaluate on; zero_shot searches among the novel ads only.
        dataset: Another dataset directory than the one trained on.
        json_file: Also write all metrics there, as JSON.
        predictions: Also write each query's best ads there, as parquet, in the dataset's own ids.
        names: Also estimate how often predictions name another brand, place, ... than the query
            does: a CSV of kind and name, such as brand,sony; with a third column same_as also
            place,nyc,new york.
    """
    file = None if predictions is None else predictions.absolute()
    metrics = evaluate_checkpoint(checkpoint.absolute(), split, dataset, file, names)
    console = Console(width=110)
    console.print(metrics_table({checkpoint.name: {split: metrics}}))
    if names is not None:
        console.print(bad_match_table(metrics))
    if json_file is not None:
        write_json(json_file, metrics)
        print(f"all metrics: {json_file}")
    if predictions is not None:
        print(f"predictions: {predictions}")


def main() -> None:
    """Parse and evaluate."""
    parse_call(evaluate, __doc__)()


if __name__ == "__main__":
    sys.exit(run_job(main))
