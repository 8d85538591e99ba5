"""The retriever of a combiner: that of its run, with combined vectors in the index."""

from pathlib import Path

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.whole_files import scratch_folder
from ramen_ray.method.novel_ads.evaluation import Embedded
from ramen_ray.method.novel_ads.representation import COMBINER_FOLDER
from ramen_ray.method.novel_ads.retriever import use_combiner
from ramen_ray.orchestration.combining.inputs import FinishedRun
from ramen_ray.orchestration.run.results import SINCE_IT_BEGAN
from ramen_ray.tracking.registry import Registry
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import Run

EXAMPLE_QUERIES = 2


def log_combined_retriever(
    registry: Registry, finished: FinishedRun, embedded: Embedded, folder: Path, run: Run
) -> str:
    """Log a run's retriever with combined vectors of all ads; returns the model's id.

    Args:
        registry: the registry of the run's store.
        finished: the run.
        embedded: its data.
        folder: where the combiner's training wrote its result.
        run: the MLflow run of the combiner.
    """
    with scratch_folder(folder / ".retriever") as aside:
        copied = registry.download(finished.retriever.uri, aside)
        kind = finished.retriever.metadata["index"]
        use_combiner(copied, folder / COMBINER_FOLDER, embedded.all_ads(), kind)
        metadata = {**finished.retriever.metadata, "combiner": True}
        with finished.dataset.unchanged(SINCE_IT_BEGAN):
            example = _example(finished.dataset)
        return log_retriever(run, copied, example, metadata)


def _example(dataset: Dataset) -> list[str]:
    batch = next(dataset.batches("queries/test", ["text"], EXAMPLE_QUERIES))
    return list(batch["text"].to_pylist())
