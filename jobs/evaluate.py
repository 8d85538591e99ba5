r"""Evaluate a checkpoint on a split.

Examples:
    python jobs/evaluate.py --checkpoint outputs/runs/NAME
    python jobs/evaluate.py --checkpoint outputs/runs/NAME --split zero_shot
    python jobs/evaluate.py --checkpoint outputs/runs/NAME/checkpoint_000000420 --split validation
    python jobs/evaluate.py --checkpoint outputs/runs/NAME --predictions predictions.parquet
    python jobs/evaluate.py --checkpoint outputs/runs/NAME --predictions new.parquet \
        --against predictions.parquet
"""

from pathlib import Path
from typing import Literal

from ramen_ray.bases import Part
from ramen_ray.command_line import parse_settings, run_job, write_json
from ramen_ray.config import ConfigError, Section
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.run.directory import checkpoint_of


class EvaluateSettings(Section):
    """Evaluate a checkpoint and print its metrics."""

    checkpoint: Path
    """Folder of a finished run, to use its best checkpoint, or folder of a checkpoint."""
    split: Literal["validation", "test", "zero_shot"] = "test"
    """Split to evaluate on; zero_shot searches among the novel ads only."""
    dataset: str | None = None
    """A dataset directory other than the one trained on."""
    part: Part | None = None
    """What a model with classifiers finds ads by: encoder, classifier, or both; by default what
    validation chose."""
    judged_by: tuple[str, ...] = ()
    """Sources whose judgements count, such as human; by default all."""
    json_file: Path | None = None
    """Also write all metrics to this file, as JSON."""
    predictions: Path | None = None
    """Also write each query's best ads to this file, as parquet, with the dataset's own ids; and
    beside it, as NAME.html, a page of the worst queries and the most harmful ads."""
    against: Path | None = None
    """Such a file of another run; the page then shows which queries are won and lost."""


def main() -> None:
    """Evaluate, print the tables and the files written."""
    settings = parse_settings(EvaluateSettings, __doc__)
    checkpoint = settings.checkpoint
    predictions = settings.predictions
    if settings.against is not None and predictions is None:
        raise ConfigError("--against compares --predictions; give a file for both")
    checkpoint_of(checkpoint)
    if settings.dataset is not None:
        Dataset(settings.dataset)
    from ramen_ray.reports.predictions_page import read_predictions, write_predictions_page

    other = None if settings.against is None else read_predictions(settings.against)
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.evaluate import evaluate_checkpoint
        from ramen_ray.reports.report_tables import metrics_table, show
    metrics = evaluate_checkpoint(
        checkpoint.absolute(),
        settings.split,
        settings.dataset,
        None if predictions is None else predictions.absolute(),
        settings.part,
        settings.judged_by,
    )
    show(metrics_table({checkpoint.name: {settings.split: metrics}}))
    if settings.json_file is not None:
        write_json(settings.json_file, metrics)
        print(f"all metrics: {settings.json_file}")
    if predictions is None:
        print("next: --predictions FILE shows the answers")
    else:
        page = predictions.with_suffix(".html")
        title = f"{checkpoint.name}: {settings.split} queries"
        write_predictions_page(page, title, read_predictions(predictions), other)
        print(f"predictions: {predictions}; to look at: {page}")


if __name__ == "__main__":
    run_job(main)
