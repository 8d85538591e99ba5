"""Find what is best for your data within some minutes, without looking at the test split.

Trains bases with and without the graph, then what is near the best of them: learning rates, single
anchor sets, highest λ. Candidates that lag behind are stopped early; earlier runs in the same
output count. The best are trained again with further seeds, which decide against the default.

Examples:
    python jobs/recommend.py path/to/mine
    python jobs/recommend.py path/to/mine --minutes 60             also a layer of a transformer
    python jobs/recommend.py debian --workers.cpus-per-worker 2

Run the same command again to resume an interrupted search.
"""

from typing import Annotated

from tyro.conf import Positional, arg

from ramen_ray.command_line import parse_settings, refuse_early, run_job
from ramen_ray.config import DatasetPath
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.tune.settings import SEARCHES, RecommendConfig
from ramen_ray.printed_commands import looking_at, training_command


class JobSettings(RecommendConfig):
    """What to look for, and for how long."""

    dataset: Annotated[Positional[DatasetPath], arg(metavar="DATASET")]
    """The dataset directory; or rdocs, foldoc or debian, which are built in."""


def main() -> None:
    """Parse, search, and print what was found and how to train with it."""
    settings = parse_settings(JobSettings, __doc__)
    refuse_early(settings, {}, SEARCHES)
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.tune.recommend import recommend
        from ramen_ray.reports.report_tables import show
    result = recommend(settings)
    show(result.table)
    for sentence in result.sentences:
        print(sentence)
    print(looking_at(result.report, result.run))
    print(f"next:    {training_command(result.config)}")


if __name__ == "__main__":
    run_job(main)
