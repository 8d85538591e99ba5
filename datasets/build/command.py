"""The command line that all recipes have."""

from collections.abc import Callable
from pathlib import Path

from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.config import Section
from ramen_ray.data.store.dataset import Dataset


class Recipe(Section):
    """Where a recipe reads and writes."""

    source: Path
    """What to build from."""
    output: Path
    """Dataset directory to write; must not exist."""


def run_recipe(build: Callable[[Path, Path], Dataset], description: str | None) -> None:
    """Build the dataset directory that the command line asks for, and exit."""

    def job() -> None:
        recipe = parse_settings(Recipe, str(description))
        dataset = build(recipe.source, recipe.output)
        print(f"wrote {dataset.name} to {dataset.path}")

    run_job(job)
