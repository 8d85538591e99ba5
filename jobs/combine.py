"""Give new ads better vectors: train a combiner on a finished run (IRENE).

An ad's vector is then made from its text and the classifiers of similar ads that have clicks. The
encoder and the queries' vectors stay as they are.

Examples:
    python jobs/ingest.py novel --dataset datasets/rdocs --output rdocs-zero-shot
    python jobs/train.py bag --dataset rdocs-zero-shot --name zero-shot
    python jobs/combine.py --run outputs/runs/zero-shot
    python jobs/combine.py --run outputs/runs/zero-shot --variant draft
    python jobs/index.py --model models:/MODEL_ID --ads new_ads.csv     with the URI that is printed

Run the same command again to resume an interrupted one. The method is covered by a patent of its
authors (docs/how_to/new_ads.md); find out whether you may use it before you do.
"""

from pathlib import Path

from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.errors import shown_path
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.new_ads.settings import CombineSettings
from ramen_ray.orchestration.run.directory import checkpoint_of
from ramen_ray.printed_commands import asking
from ramen_ray.tracking.addresses import tracking_uri, ui_command
from ramen_ray.tracking.runs import MODELS


def main() -> None:
    """Train, evaluate, and print how the combiner compares with texts alone."""
    settings = parse_settings(CombineSettings, __doc__)
    if not settings.run.startswith(MODELS):
        checkpoint_of(Path(settings.run))
    from ramen_ray.orchestration.new_ads.finished import open_finished_run
    from ramen_ray.tracking.registry import Registry

    open_finished_run(Registry(tracking_uri(settings.output)), settings.run, settings.output)
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.new_ads.combine import combine
        from ramen_ray.reports.report_tables import combiner_table, show
    result = combine(settings)
    evaluation = result.evaluation
    show(combiner_table(evaluation.metrics, evaluation.differences))
    print(f"combiner:  {shown_path(result.folder)}")
    print(f"retriever: {result.model_uri} (MLflow run {result.run.id})")
    print(f"look at:   {ui_command(result.run.uri)}")
    print(f"next:      {asking(result.model_uri, settings.output)}")


if __name__ == "__main__":
    run_job(main)
