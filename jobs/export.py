"""Write a retriever as files for other programs: ads with vectors, the vectors alone, the index.

Examples:
    python jobs/export.py models:/NAME@champion --to exports/shop
"""

from pathlib import Path

import tyro

from ramen_ray.command_line import StoreSettings, parse_settings, run_job
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.long_work import logged_progress


class ExportSettings(StoreSettings):
    """Which retriever to write, and where."""

    model: tyro.conf.Positional[str]
    """The retriever (models:/NAME@champion, models:/NAME/VERSION, models:/MODEL_ID), or the folder
    of a run."""
    to: Path
    """Folder to write."""


def main() -> None:
    """Copy the retriever, write its parts, and say so."""
    settings = parse_settings(ExportSettings, __doc__)
    registry = settings.registry()
    from ramen_ray.orchestration.deploy.retrievers import retriever_uri

    uri = retriever_uri(registry, settings.model, settings.output)
    with logged_progress("loading libraries"):
        from ramen_ray.method.retrieval.retriever_folder import export_retriever
    with logged_progress(f"writing {settings.to}"), owned_folder() as aside:
        num_ads = export_retriever(registry.download(uri, aside), settings.to)
    print(f"wrote {settings.to}: {num_ads:,} ads of {uri}")
    print("next: docs/how_to/other_engines.md loads it into other engines")


if __name__ == "__main__":
    run_job(main)
