r"""Add, replace and remove ads of a retriever by their texts, without training.

Examples:
    python jobs/index.py --model models:/NAME@champion --ads new_ads.csv
    python jobs/index.py --model models:/NAME/3 --ads new_ads.parquet --columns.ad-text title
    python jobs/index.py --model models:/NAME@champion --remove ended.csv
    python jobs/index.py --model models:/NAME@champion --sync catalogue.csv    exactly these ads
    python jobs/index.py --model models:/NAME@champion --sync catalogue.csv \
        --columns.ad-filters market status      kept to filter answers by (jobs/ask.py --filter)

If the retriever has a combiner (jobs/combine.py), it makes the ads' vectors.
The result is a new version, which takes over the alias if one was given; jobs/promote.py --restore
moves the alias back.
"""

from typing import Annotated

import tyro

from ramen_ray.command_line import ModelSettings, parse_settings, run_job
from ramen_ray.data.tables.new_ads import NewAds, check_given
from ramen_ray.long_work import logged_progress
from ramen_ray.printed_commands import asking


class IndexSettings(ModelSettings):
    """Add, replace and remove ads of a retriever."""

    changes: Annotated[NewAds, tyro.conf.arg(name="")]


def main() -> None:
    """Change the ads and print the new retriever's URI."""
    settings = parse_settings(IndexSettings, __doc__)
    check_given(settings.changes)
    registry = settings.registry()
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.deploy.extend import extend_retriever
    with logged_progress("making the new version"):
        changed = extend_retriever(registry, settings.model, settings.changes, settings.output)
    model = settings.model if "@" in settings.model else changed.model_uri
    print(f"{changed.model_uri} has {changed}")
    print(f"next: {asking(model, settings.output)}")


if __name__ == "__main__":
    run_job(main)
