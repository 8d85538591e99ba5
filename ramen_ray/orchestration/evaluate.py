"""Evaluate a checkpoint: tasks embed queries and ads into a file, shards of which are searched."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ramen_ray.bases import Part
from ramen_ray.config import ConfigError, RunConfig, WorkersConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.made_folder import (
    check_intact,
    checksum_files,
    in_use,
    owned_folder,
    read_json,
)
from ramen_ray.data.store.predictions import write_predictions
from ramen_ray.method.metrics.ground_truth import GroundTruth
from ramen_ray.method.metrics.ranking import PerQuery
from ramen_ray.method.model.dual_encoder import CLASSIFIER_FOLDER, ENCODER_FOLDER
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.method.retrieval.shards import embedded_shards
from ramen_ray.method.training.state import CheckpointError
from ramen_ray.orchestration.cluster.joining import start_ray
from ramen_ray.orchestration.cluster.resources import check_resources
from ramen_ray.orchestration.embed import EmbeddingResources, TableRows, embed_tables
from ramen_ray.orchestration.prepare.pipeline import prepare
from ramen_ray.orchestration.run.build import build_ground_truth
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    IDENTITY_FILE,
    PART_ADS_FILE,
    TEST_ADS_FILE,
    VALIDATION_ADS_FILE,
    RunDirectory,
    checkpoint_of,
    read_run_config,
)
from ramen_ray.orchestration.run.inputs import trained_tokenizer
from ramen_ray.orchestration.sharded_search import put_together, search_shards


def evaluate_checkpoint(
    checkpoint: Path,
    split: str,
    dataset: str | None = None,
    predictions: Path | None = None,
    part: Part | None = None,
    judged_by: Sequence[str] = (),
) -> dict[str, float]:
    """Return the metrics of a checkpoint's model on a split.

    Args:
        checkpoint: folder of a checkpoint, or of a finished run, to use its best one.
        split: ``validation``, ``test`` or ``zero_shot``.
        dataset: a dataset directory other than the one trained on.
        predictions: a parquet file to write the predictions to, with the users' ids.
        part: which of its vectors a model with classifiers answers by; None for what validation
            chose for the run, or both if that is not known.
        judged_by: the sources whose judgements count; by default all.

    Raises:
        RunError: it does not exist, or is a run that is not finished.
        CheckpointError: it is not a checkpoint, or has no classifiers where it should.
        DamagedError: a file of it has changed since it was written.
        ConfigError: the predictions cannot be written there.
        DatasetError: the dataset is not usable, or not what was trained on, or has no judgement by
            one of ``judged_by``.
    """
    if (directory := RunDirectory(checkpoint)).is_run:
        part = part or directory.notes.get("part")
    checkpoint = checkpoint_of(checkpoint)
    config = _read_checkpoint_config(checkpoint, part)
    opened = _open_dataset(checkpoint, config, dataset, part)
    if not opened.has(f"queries/{split}"):
        raise DatasetError(f"{opened.path} has no {split} split (no queries/{split})")
    if predictions is not None and not _can_be_written(predictions):
        raise ConfigError(f"predictions {predictions} must be NAME.parquet in a folder that exists")
    start_ray()
    check_resources(config.workers)
    cache = Path(config.output) / "prepared"
    with in_use(opened.path):
        data = prepare(opened, cache, trained_tokenizer(checkpoint, config.encoder))
        judged = data.judgements(split, judged_by)
        ground_truth = replace(build_ground_truth(config, data, split), judged=judged)
        shown = _retrieve(checkpoint, part, data, split, ground_truth, config.workers)
        if predictions is not None:
            write_predictions(predictions, opened, split, shown, ground_truth.known(data, split))
    return ground_truth.metrics(shown[0])


def _can_be_written(predictions: Path) -> bool:
    """Tell whether it is no folder, nor the page that is written beside it, NAME.html."""
    is_parquet = predictions.suffix == ".parquet" and not predictions.is_dir()
    return is_parquet and predictions.parent.is_dir()


def scores_of_run(
    folder: Path, config: RunConfig, data: Prepared, split: str, part: Part | None = None
) -> dict[str, PerQuery]:
    """Return the metrics of a finished run by query, from the best ads that it has kept.

    With a ``part`` of its vectors these are test queries' ads by that, if it has classifiers.
    """
    file = {"test": TEST_ADS_FILE, "validation": VALIDATION_ADS_FILE}[split]
    if part is not None:
        file = PART_ADS_FILE.format(part)
    ground_truth = build_ground_truth(config, data, split)
    return ground_truth.by_query(np.load(folder / file))


def _open_dataset(
    checkpoint: Path, config: RunConfig, given: str | None, part: Part | None
) -> Dataset:
    """Open the dataset to evaluate on: what was trained on, or what was asked for."""
    file = checkpoint / IDENTITY_FILE
    made_from = read_json(file) if file.is_file() else {}
    opened = Dataset(given or config.dataset)
    if opened.fingerprint == made_from.get("dataset"):
        return opened
    if given is None:
        raise DatasetError(
            f"{opened.path} is not what {checkpoint} was trained on, or has changed since; give "
            f"--dataset {opened.path} to evaluate on it as it is now"
        )
    if config.base.parts.heads == "classifier" and part != "encoder":
        raise DatasetError(
            f"{opened.path} is not what {checkpoint} was trained on, whose ads have vectors of "
            f"their own there; only the encoder can answer here (--part encoder)"
        )
    return opened


def _read_checkpoint_config(checkpoint: Path, part: Part | None) -> RunConfig:
    """Read how a checkpoint was trained, and check that it is whole and can answer by ``part``."""
    if not (checkpoint / ENCODER_FOLDER / "modules.json").is_file():
        raise CheckpointError(
            f"{checkpoint} is not a checkpoint: it has no {ENCODER_FOLDER} folder"
        )
    if checksum_files(checkpoint):
        check_intact(checkpoint)
    try:
        config = read_run_config(checkpoint / CONFIG_FILE)
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint} is not a checkpoint: {error}") from error
    has_classifiers = (checkpoint / CLASSIFIER_FOLDER).is_dir()
    if config.base.parts.heads == "classifier" and not has_classifiers:
        raise CheckpointError(
            f"{checkpoint} has no {CLASSIFIER_FOLDER} folder, but its {CONFIG_FILE} has base.heads "
            f"classifier; it is not whole"
        )
    if part in {"classifier", "both"} and not has_classifiers:
        raise CheckpointError(
            f"{checkpoint} has no classifiers, so part {part!r} cannot answer; the base unidec, or "
            f"base.heads classifier, trains them"
        )
    return config


def _retrieve(
    checkpoint: Path,
    part: Part | None,
    data: Prepared,
    split: str,
    ground_truth: GroundTruth,
    workers: WorkersConfig,
) -> TopK:
    """Return the best ads of each query of a split, by id; embeddings go through a file."""
    tokens = data.path / "tokens"
    num_queries = len(data.queries[split])
    queries = TableRows(tokens / "queries" / split, range(num_queries), "queries")
    ads = TableRows(tokens / "ads", data.candidates(split), "ads")
    cpus = workers.cpus_per_worker
    resources = EmbeddingResources(cpus, cpus, int(workers.use_gpu))
    with owned_folder(data.path.parent) as folder:
        file = folder / "embeddings.npy"
        ids = folder / "ids.npy"
        np.save(ids, ads.rows)
        embed_tables(checkpoint, [queries, ads], file, resources, part=part)
        shards = embedded_shards(file, num_queries, workers.gb_per_shard, ids=ids)
        answers = search_shards(shards, file, num_queries, ground_truth.depth, cpus)
        return ground_truth.shown(put_together(answers, num_queries, ground_truth.depth))
