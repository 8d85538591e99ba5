"""What a combiner's training starts from: its settings, a finished run, frozen embeddings, data."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from ramen_ray.bases import Part
from ramen_ray.config import (
    Fraction,
    NotNegative,
    Positive,
    PositiveFloat,
    RunConfig,
    Section,
    WorkersConfig,
    read_config,
)
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.errors import UserError, shown_path
from ramen_ray.method.model.dual_encoder import DualEncoder, TextEmbeddings, number_distinct
from ramen_ray.method.novel_ads.evaluation import Embedded
from ramen_ray.method.novel_ads.representation import CombinerKind
from ramen_ray.orchestration.embed import embed_distinct
from ramen_ray.orchestration.run.directory import CONFIG_FILE, RunDirectory, RunError, run_with_id
from ramen_ray.tracking.registry import LoggedRetriever, Registry
from ramen_ray.tracking.runs import MODELS

TRAIN_QUERIES = Path("tokens/queries/train")
LossName = Literal["bce", "triplet"]
NeighboursBy = Literal["text", "clicks"]
VariantName = Literal["draft", "release"]


@dataclass(frozen=True)
class IreneVariant:
    """What IRENE's draft and its released code do differently."""

    kind: CombinerKind
    loss: LossName
    neighbours_by: NeighboursBy
    threshold: float | None
    classifier_epochs: int


VARIANTS: dict[VariantName, IreneVariant] = {
    "draft": IreneVariant("attention", "triplet", "clicks", 0.2, 0),
    "release": IreneVariant("transformer", "bce", "text", None, 20),
}


class ClassifiersConfig(Section):
    """The classifiers of the seen ads: free vectors, trained on the frozen encoder's embeddings."""

    lr: PositiveFloat = 1e-3
    """Peak learning rate, which falls linearly."""
    epochs: Annotated[int, Field(ge=0)] | None = None
    """Epochs before the combiner's training. None takes the variant's, or 0 if the run has
    classifiers; the draft trains both at once."""
    margin: NotNegative = 0.2
    """Margin of their hinge."""
    hard_negatives: Positive = 4
    """How many ads count as a query's hard negatives: the nearest of those not clicked for it."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of a query's dimensions that are dropped in training."""
    min_clicks: Positive = 1
    """Ads with fewer train clicks have no classifier, and are never neighbours."""


class CombinerConfig(Section):
    """The combiner, and the neighbours that it is given."""

    kind: Literal["attention", "transformer"] | None = None
    """One layer of self-attention, or of a transformer. None takes the variant's."""
    loss: LossName | None = None
    """Cross-entropy with frozen classifiers (bce), or a hinge that trains them too (triplet). None
    takes the variant's."""
    neighbours_by: NeighboursBy | None = None
    """In training, an ad's neighbours are the nearest by text of all seen ads, or of those that
    share a train query with it (clicks). None takes the variant's."""
    neighbours: Positive = 3
    """Most neighbours of an ad."""
    shortlist: Positive = 200
    """How many of the nearest ads by text classifiers choose from, if they choose."""
    threshold: float | None = None
    """A classifier chooses a new ad if it scores its text above this. None takes the variant's;
    the release takes the nearest by text."""
    heads: Positive = 4
    """Heads of the attention; must divide the encoder's width."""
    lr: PositiveFloat = 2e-4
    """Peak learning rate, after a linear rise, before a linear fall."""
    warmup_fraction: Fraction = 0.1
    """Share of the steps over which it rises."""
    margin: NotNegative = 0.3
    """Margin of the combined vectors' hinge (triplet)."""
    classifier_margin: NotNegative = 0.1
    """Margin of the classifiers' hinge (triplet)."""
    epochs: Positive = 40
    """Passes over the train queries."""
    batch_size: Positive = 256
    """Queries of a step, over all workers."""


class CombineSettings(Section):
    """Train a combiner on a finished run, and log a retriever that uses it for new ads."""

    run: str
    """The run: its folder, or the URI of its retriever (models:/...)."""
    variant: VariantName = "release"
    """As in IRENE's draft, or as in its released code."""
    revealed: Path | None = None
    """The one-shot sibling of the run's dataset (ingest.py novel --one-shot, with the same seed and
    fraction): its clicks on novel ads are revealed, after training."""
    output: Path = Path("outputs")
    """Folder of the runs and, unless MLFLOW_TRACKING_URI is set, of the MLflow store."""
    combiner: CombinerConfig = CombinerConfig()
    classifiers: ClassifiersConfig = ClassifiersConfig()
    workers: WorkersConfig = WorkersConfig()
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of every random draw."""
    allow_changed: bool = False
    """Go on with what another version of ramen_ray or its libraries has begun."""

    def chosen_variant(self, has_classifiers: bool = False) -> IreneVariant:
        """Return the variant, with what is set instead; a run's own classifiers are not trained."""
        variant, own, first = VARIANTS[self.variant], self.combiner, self.classifiers
        epochs = 0 if has_classifiers else variant.classifier_epochs
        return IreneVariant(
            own.kind or variant.kind,
            own.loss or variant.loss,
            own.neighbours_by or variant.neighbours_by,
            variant.threshold if own.threshold is None else own.threshold,
            epochs if first.epochs is None else first.epochs,
        )


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
        logged_by = registry.look_up(run).run_id
        if (found := run_with_id(output, logged_by)) is None:
            raise RunError(
                f"no run in {output.absolute() / 'runs'} logged {run} (MLflow run {logged_by}); "
                f"give the folder of the run that trained its encoder"
            )
        directory = found
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
            f"{shlex.quote(shown_path(dataset.path))} ...) and train on that"
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
    """Write the embeddings of all texts of queries and ads into ``file``, unless it exists."""
    if file.exists():
        return
    with whole_file(file) as aside:
        embed_distinct(model, _tables(data, sibling), aside, False, num_threads, part)


def open_embedded(
    model: DualEncoder, data: Prepared, sibling: Prepared | None, file: Path
) -> tuple[Embedded, TextEmbeddings | None]:
    """Map what :func:`embed_texts` wrote: the dataset's, and of the sibling's train queries."""
    tables = [TokenTable.open(folder) for folder in _tables(data, sibling)]
    vectors = np.load(file, mmap_mode="r")
    found = [TextEmbeddings(vectors, places) for places in number_distinct(tables)[1]]
    queries = dict(zip(data.splits, found, strict=False))  # what follows them: ads, the sibling's
    of_sibling = found[-1] if sibling is not None else None
    ads = replace(found[len(queries)], scales=model.text_scales)
    return Embedded(data, queries, ads), of_sibling


def _tables(data: Prepared, sibling: Prepared | None) -> list[Path]:
    queries = [data.path / "tokens" / "queries" / split for split in data.splits]
    of_sibling = [] if sibling is None else [sibling.path / TRAIN_QUERIES]
    return [*queries, data.path / "tokens" / "ads", *of_sibling]
