"""What a combiner's training starts from: a finished run, its frozen embeddings, its data."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ramen_ray.bases import Part
from ramen_ray.config import RunConfig, read_config
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.errors import UserError
from ramen_ray.method.model.dual_encoder import DualEncoder, TextEmbeddings, number_distinct
from ramen_ray.method.novel_ads.evaluation import Embedded
from ramen_ray.orchestration.combining.combine_settings import CombineSettings
from ramen_ray.orchestration.embed import embed_distinct
from ramen_ray.orchestration.run.directory import CONFIG_FILE, RunDirectory, RunError, run_with_id
from ramen_ray.tracking.registry import LoggedRetriever, Registry
from ramen_ray.tracking.runs import MODELS

TRAIN_QUERIES = Path("tokens/queries/train")


class CombinerError(UserError):
    """A combiner cannot be trained on a run."""


@dataclass(frozen=True)
class FinishedRun:
    """A run that a combiner extends."""

    directory: RunDirectory
    model: Path  # folder of its best model
    config: RunConfig
    dataset: Dataset  # the zero-shot split that it was trained on
    retriever: LoggedRetriever

    @property
    def part(self) -> Part:
        """Which of its vectors answer."""
        part: Part = self.directory.notes.get("part") or "encoder"
        return part


def open_finished_run(registry: Registry, run: str, output: Path) -> FinishedRun:
    """Open a run, and check that its dataset is the novel split that it was trained on.

    ``run`` is its folder, or the URI of its retriever, to look for the run in ``output``.

    Raises:
        RunError: there is no such run, or it is not finished.
        CombinerError: its dataset has no novel ads, or reveals clicks on them.
        DatasetError: its dataset is missing or has changed since.
    """
    directory = RunDirectory(Path(run).absolute())
    if run.startswith(MODELS):
        directory = _that_logged(run, registry.look_up(run).run_id, output)
    path = directory.path
    if not directory.is_run:
        raise RunError(f"{path} is not the folder of a run; see {output.absolute() / 'runs'}")
    model, config = directory.best_checkpoint, read_config(path / CONFIG_FILE)
    dataset = Dataset(config.dataset)
    split = novel_split(dataset)
    if not dataset.has("novel_ads") or split is None:
        raise CombinerError(
            f"{dataset.path}, on which the run was trained, has no novel ads to evaluate on; make "
            f"a split of it (python jobs/ingest.py novel --dataset "
            f"{shlex.quote(str(dataset.path))} ...) and train on that"
        )
    if split["one_shot"]:
        raise CombinerError(
            f"{dataset.path}, on which the run was trained, reveals a click of each novel ad to "
            f"training; train on its zero-shot split, and give this one as --revealed"
        )
    run_id, model_id = registry.find_logged(str(directory.mlflow_run_id), None)
    retriever = registry.look_up(f"{MODELS}{model_id}")
    if dataset.fingerprint != retriever.metadata["dataset_fingerprint"]:
        raise DatasetError(
            f"{dataset.path} has changed since the run {directory.name} was trained on it "
            f"(MLflow run {run_id}); train again"
        )
    return FinishedRun(directory, model, config, dataset, retriever)


def _that_logged(uri: str, run_id: str, output: Path) -> RunDirectory:
    if (found := run_with_id(output, run_id)) is not None:
        return found
    raise RunError(
        f"no run in {output.absolute() / 'runs'} logged {uri} (MLflow run {run_id}); give "
        f"the folder of the run that trained its encoder"
    )


def novel_split(dataset: Dataset) -> dict[str, Any] | None:
    """Return how a dataset's novel ads were drawn; None if it was not made from another."""
    return dataset.metadata.get("novel_split")


def open_sibling(dataset: Dataset, revealed: Path) -> Dataset:
    """Open the one-shot sibling of a zero-shot split; a CombinerError if it is another's."""
    sibling = Dataset(revealed)
    own, other = novel_split(dataset), novel_split(sibling)
    if own is None or other is None or not other["one_shot"]:
        raise CombinerError(
            f"--revealed {revealed} is not a one-shot split; make one with "
            f"python jobs/ingest.py novel --one-shot"
        )
    different = [
        f"{key} {other[key]} there, {own[key]} in {dataset.path}"
        for key in ("parent_fingerprint", "novel_fraction", "seed")
        if own[key] != other[key]
    ]
    if different:
        raise CombinerError(
            f"--revealed {revealed} is not the one-shot sibling of the run's dataset: "
            f"{'; '.join(different)}"
        )
    return sibling


def revealed_clicks(sibling: Prepared) -> tuple[np.ndarray, np.ndarray]:
    """Return the ads (r,) and the train query rows (r,) of the clicks on a split's novel ads."""
    clicks = sibling.clicks["train"]
    rows, ads = clicks.gather(np.arange(clicks.num_rows))
    is_novel = np.isin(ads, sibling.candidates("zero_shot"))
    return np.asarray(ads[is_novel], dtype=np.int64), rows[is_novel]


def check_sizes(settings: CombineSettings, data: Prepared, dim: int) -> None:
    """Check that there is enough to train on, and that the heads fit; else a CombinerError."""
    own, name, least = settings.combiner, data.metadata["name"], settings.classifiers.min_clicks
    is_seen = data.train_click_counts >= least
    rows, ads = data.clicks["train"].gather(data.clicked_queries)
    num_seen, num_queries = int(is_seen.sum()), len(np.unique(rows[is_seen[ads]]))
    if num_seen <= own.neighbours:
        raise CombinerError(
            f"{name} has {num_seen} ads with at least {least} train clicks; combiner.neighbours "
            f"{own.neighbours} needs more"
        )
    if num_queries < own.batch_size:
        raise CombinerError(
            f"{name} has {num_queries} train queries with clicks on these ads, fewer than "
            f"combiner.batch_size {own.batch_size}"
        )
    if own.batch_size % settings.workers.num_workers:
        raise CombinerError(
            f"combiner.batch_size {own.batch_size} cannot be shared evenly by "
            f"workers.num_workers {settings.workers.num_workers}"
        )
    if dim % own.heads:
        raise CombinerError(f"combiner.heads {own.heads} must divide the vectors' width {dim}")


def embed_texts(
    model: Path, part: Part, data: Prepared, sibling: Prepared | None, file: Path, num_threads: int
) -> None:
    """Write the embeddings of all distinct queries and ads into ``file``, unless it exists.

    Train queries of the one-shot ``sibling`` are among them.
    """
    if file.exists():
        return
    with whole_file(file) as aside:
        named = aside.with_suffix(".npy")
        embed_distinct(model, _tables(data, sibling), named, False, num_threads, part)
        named.rename(aside)


def open_embedded(
    model: DualEncoder, data: Prepared, sibling: Prepared | None, file: Path
) -> tuple[Embedded, TextEmbeddings | None]:
    """Map what :func:`embed_texts` wrote: the dataset's, and of the sibling's train queries."""
    tables = [TokenTable.open(folder) for folder in _tables(data, sibling)]
    vectors = np.load(file, mmap_mode="r")
    found = [TextEmbeddings(vectors, places) for places in number_distinct(tables)[1]]
    queries = dict(zip(data.splits, found, strict=False))
    of_sibling = found[-1] if sibling is not None else None
    ads = replace(found[len(queries)], scales=model.text_scales)
    return Embedded(data, queries, ads), of_sibling


def _tables(data: Prepared, sibling: Prepared | None) -> list[Path]:
    queries = [data.path / "tokens" / "queries" / split for split in data.splits]
    of_sibling = [] if sibling is None else [sibling.path / TRAIN_QUERIES]
    return [*queries, data.path / "tokens" / "ads", *of_sibling]
