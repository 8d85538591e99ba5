"""Ask a retriever: print the best ads of queries, with their scores.

Examples:
    python jobs/ask.py "sort a data frame"                         the run that was finished last
    python jobs/ask.py "red shoes" "blue shoes" --top-k 3 --model outputs/runs/NAME
    python jobs/ask.py "red shoes" --model models:/shop@champion --filter market=DE --min-score 0.5

For many queries there is jobs/predict.py.
"""

from typing import Annotated

import tyro

from ramen_ray.command_line import StoreSettings, parse_settings, run_job
from ramen_ray.config import ConfigError, FilterSettings, Positive
from ramen_ray.long_work import logged_progress
from ramen_ray.printed_commands import in_store


class AskSettings(FilterSettings, StoreSettings):
    """Print the best ads of queries."""

    queries: Annotated[
        tyro.conf.Positional[tuple[str, ...]],
        tyro.conf.arg(metavar="QUERY...", help_behavior_hint="(required)"),
    ]
    """One text or several."""
    model: str | None = None
    """The retriever (models:/NAME@champion, models:/NAME/VERSION, models:/MODEL_ID), or the folder
    of a run. Default: the run in --output that was finished last."""
    top_k: Positive = 5
    """Ads per query."""


def main() -> None:
    """Load the retriever, and print what it answers."""
    settings = parse_settings(AskSettings, __doc__)
    if not settings.queries:
        raise ConfigError('give a query, such as "red shoes"')
    params = {"top_k": settings.top_k, **settings.params}
    registry = settings.registry()
    from ramen_ray.orchestration.deploy.retrievers import retriever_uri
    from ramen_ray.reports.report_tables import answers_table, show
    from ramen_ray.tracking.registry import ask

    uri = retriever_uri(registry, settings.model, settings.output)
    with logged_progress(f"loading {uri}"):
        retriever = registry.load(uri, "cpu")
    answers = ask(retriever, settings.queries, params)
    show(answers_table(settings.queries, answers.to_pylist(), settings.with_columns))
    print(f"asked: {uri}")
    of_table = "--model", uri, "--queries", "FILE", "--answers", "FOLDER"
    print(f"next:  {in_store(settings.output, 'jobs/predict.py', *of_table)}")


if __name__ == "__main__":
    run_job(main)
