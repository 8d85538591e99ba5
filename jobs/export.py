"""Write a retriever, or a dataset directory, as files for other programs.

Examples:
    python jobs/export.py retriever models:/NAME@champion --to exports/shop
    python jobs/export.py xc datasets/foldoc --output exports/foldoc
    python jobs/ingest.py xc --source exports/foldoc --output datasets/foldoc-again

A retriever becomes a table of ads with vectors, the vectors alone, and its faiss index; a dataset
directory becomes files of the extreme classification (XC) repository.
"""

import shlex
import sys
import tempfile
from pathlib import Path

import tyro

from ramen_ray.command_line import StoreSettings, parse_settings, run_job
from ramen_ray.config import Section
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.xc.exporting import export_xc
from ramen_ray.errors import shown_path
from ramen_ray.told import told


class ExportRetriever(StoreSettings):
    """Write vectors, ads and index of a retriever."""

    model: tyro.conf.Positional[str]
    """The retriever (models:/NAME@champion, models:/NAME/VERSION, models:/MODEL_ID), or the folder
    of a run."""
    to: Path
    """Folder to write."""

    def write(self) -> str:
        """Copy the retriever and write its parts; returns what to say."""
        with told("loading libraries"):
            from ramen_ray.method.retrieval.retriever_folder import export_retriever
            from ramen_ray.orchestration.serve.retrievers import retriever_uri
        registry = self.registry()
        uri = retriever_uri(registry, self.model, self.output)
        with told(f"writing {self.to}"), tempfile.TemporaryDirectory() as aside:
            num_ads = export_retriever(registry.download(uri, Path(aside)), self.to)
        return (
            f"wrote {self.to}: {num_ads:,} ads of {uri}\n"
            "next: docs/how_to/other_engines.md loads it into other engines"
        )


class ExportXC(Section):
    """Write a dataset directory as XC files."""

    dataset: tyro.conf.Positional[Path]
    """Dataset directory to read."""
    output: Path
    """Folder to write."""

    def write(self) -> str:
        """Check the dataset directory and write it; returns what to say."""
        with told(f"writing {self.output}"):
            export_xc(Dataset(self.dataset), self.output)
        back = f"python jobs/ingest.py xc --source {shlex.quote(shown_path(self.output))}"
        return f"wrote {self.output}\nnext: {back} --output DATASET reads it back"


EXPORTS: dict[str, type[ExportRetriever | ExportXC]] = {
    "retriever": ExportRetriever,
    "xc": ExportXC,
}


def main() -> None:
    """Write what the first word names."""
    print(parse_settings(EXPORTS, __doc__).write())


if __name__ == "__main__":
    sys.exit(run_job(main))
