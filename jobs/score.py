r"""Let a teacher grade queries and ads of a dataset, for a smaller model to learn from.

Examples:
    python jobs/score.py --model models:/shop@champion --dataset shop --into shop-taught
    python jobs/score.py --model cross-encoder/ --finder models:/shop@champion --dataset shop \
        --queries 20000
    python jobs/score.py --model outputs/runs/A outputs/runs/B outputs/runs/C --dataset shop

Scored are a query's clicked ads, those that the finder ranks first, and judged ones. Grades come of
scores by those of the clicked ads: half is what one in twenty of them is below, 1 what one in
twenty is above, and between and around these they are in proportion, from 0 to 1. They are
judgements by the source teacher, in place of those of an earlier one.
"""

import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ramen_ray.command_line import StoreSettings, parse_settings, run_job
from ramen_ray.config import Positive
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import shown_path
from ramen_ray.long_work import logged_progress


class ScoreSettings(StoreSettings):
    """Grade pairs of query and ad by a teacher."""

    model: Annotated[tuple[str, ...], Field(min_length=1)]
    """Teachers, whose grades are averaged: a retriever (models:/NAME@champion), the folder of a
    run, or that of a sentence-transformers cross-encoder."""
    dataset: Path
    """Dataset directory that the grades are added to, unless --into names another."""
    into: Path | None = None
    """Dataset directory to write instead; must not exist."""
    finder: str | None = None
    """Retriever that finds the ads; by default the first of the teachers that is one."""
    depth: Positive = 20
    """How many of a query's first ads are scored."""
    queries: Positive | None = None
    """How many queries to draw; by default all."""
    split: Literal["train", "validation", "test"] = "train"
    """Split of the queries."""


def main() -> None:
    """Score and say what was done."""
    settings = parse_settings(ScoreSettings, __doc__)
    dataset = Dataset(settings.dataset)
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.judge.teaching import Lesson, load_teachers, teach
    teachers, finder = load_teachers(
        settings.registry(), dataset, settings.model, settings.finder, settings.output
    )
    lesson = Lesson(settings.split, settings.depth, settings.queries)
    num_queries, num_pairs = teach(dataset, teachers, finder, lesson, settings.into)
    path = shown_path(settings.into or settings.dataset)
    print(f"graded {num_pairs:,} ads of {num_queries:,} queries in {path}")
    flags = ["--dataset", path, "--judged.sources", "teacher", "--judged.graded", "0.3"]
    print(f"next: {shlex.join(['python', 'jobs/train.py', *flags])}")


if __name__ == "__main__":
    run_job(main)
