"""Evaluate a checkpoint: Ray Data embeds queries and ads, a task searches and measures.

If one process cannot hold the embeddings of the ads, they are searched in shards.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import ray
import ray.data

from ramen_ray.bases import Part
from ramen_ray.config import ConfigError, RunConfig, WorkersConfig
from ramen_ray.data.names.matching import NameList
from ramen_ray.data.names.tables import read_names
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.checksums import check_intact, checksum_files
from ramen_ray.data.store.dataset import WHILE_READ, Dataset, DatasetError
from ramen_ray.data.store.predictions import shown_ads, write_predictions
from ramen_ray.method.metrics import bad_matches
from ramen_ray.method.metrics.judgement import KS, Judgement, Propensity
from ramen_ray.method.model.dual_encoder import CLASSIFIER_FOLDER, ENCODER_FOLDER
from ramen_ray.method.retrieval.search import (
    TopK,
    drop_filtered,
    most_filters,
    search_parts,
)
from ramen_ray.method.retrieval.shards import embedded_shards
from ramen_ray.method.training.checkpoints import CheckpointError
from ramen_ray.orchestration.cluster.resources import check_resources, start_ray, user_errors
from ramen_ray.orchestration.embedding import EmbeddingResources, TableRows, embed_tables
from ramen_ray.orchestration.preparation.pipeline import prepare
from ramen_ray.orchestration.run.build import build_propensity, trained_tokenizer
from ramen_ray.orchestration.run.directory import (
    CONFIG_FILE,
    IDENTITY_FILE,
    RUN_FILE,
    RunDirectory,
    read_run_config,
)
from ramen_ray.orchestration.search import ShardResources, search_shards

ADS_PER_PART = 65_536


def evaluate_checkpoint(
    checkpoint: Path,
    split: str,
    dataset: str | None = None,
    predictions: Path | None = None,
    names: str | None = None,
    part: Part | None = None,
) -> dict[str, float]:
    """Return the metrics of a checkpoint's model on a split.

    Args:
        checkpoint: a folder that training wrote, with ``encoder`` and ``config.json``; or the
            folder of a finished run, to use its best checkpoint.
        split: ``validation``, ``test`` or ``zero_shot``.
        dataset: a dataset directory other than the one trained on.
        predictions: a parquet file to write the predictions to, with the users' ids.
        names: a list of names, to measure how often predictions have other names than the query.
        part: which of its vectors a model with classifiers answers by; None for what validation
            chose for the run, or both if that is not known.

    Raises:
        CheckpointError: the folder is not a checkpoint, or lacks classifiers that its configuration
            has, or what ``part`` asks for.
        DamagedError: a file of it has changed since it was written.
        ConfigError: the predictions cannot be written there.
        DatasetError: the dataset directory or the list of names is not usable, or another one than
            trained on, or there is no such split.
    """
    checkpoint, chosen = _best_checkpoint(checkpoint)
    config = _read_checkpoint_config(checkpoint)
    part = part or chosen
    _check_classifiers(checkpoint, config, part)
    opened = _open_dataset(checkpoint, config, dataset, part)
    if not opened.has(f"queries/{split}"):
        raise DatasetError(f"{opened.path} has no {split} split (no queries/{split})")
    if predictions is not None and (predictions.is_dir() or not predictions.parent.is_dir()):
        raise ConfigError(f"predictions {predictions} must be a file in a folder that exists")
    name_list = None if names is None else read_names(names)
    start_ray()
    check_resources(config.workers)
    cache = Path(config.output) / "prepared"
    data = prepare(opened, cache, trained_tokenizer(checkpoint, config.encoder))
    with tempfile.TemporaryDirectory(prefix=".embeddings-", dir=cache) as folder:
        file = Path(folder) / "embeddings.npy"
        _embed(checkpoint, data, split, file, config, part)
        propensity = build_propensity(config)
        found = _search_shards(config.workers, data, split, file)
        task = ray.remote(_measure).options(num_cpus=config.workers.cpus_per_worker, num_returns=2)
        measured, topk = task.remote(data, split, file, propensity, found)
        metrics: dict[str, float] = ray.get(measured)
        if predictions is not None:
            write_predictions(predictions, opened, split, ray.get(topk))
        if name_list is not None:
            with opened.unchanged(WHILE_READ):
                metrics |= _measure_bad_matches(name_list, opened, split, ray.get(topk))
    return metrics


def _best_checkpoint(folder: Path) -> tuple[Path, Part | None]:
    """Return the best checkpoint of a run's folder and what it finds ads by.

    Any other folder is returned as it is.
    """
    if not (folder / RUN_FILE).is_file():
        return folder, None
    notes = RunDirectory(folder).notes
    if "best_checkpoint" not in notes:
        raise CheckpointError(f"the run {folder} is not finished; give one of its checkpoints")
    return folder / notes["best_checkpoint"], notes.get("part")


def _open_dataset(
    checkpoint: Path, config: RunConfig, given: str | None, part: Part | None
) -> Dataset:
    """Open the dataset to evaluate on.

    Raises:
        DatasetError: it is not what the checkpoint was trained on, and was not asked for, or the
            checkpoint has vectors of the ads.
    """
    file = checkpoint / IDENTITY_FILE
    made_from = dict(json.loads(file.read_text())) if file.is_file() else {}
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


def _check_classifiers(checkpoint: Path, config: RunConfig, part: Part | None) -> None:
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


def _read_checkpoint_config(checkpoint: Path) -> RunConfig:
    if not (checkpoint / ENCODER_FOLDER / "modules.json").is_file():
        raise CheckpointError(
            f"{checkpoint} is not a checkpoint: it has no {ENCODER_FOLDER} folder"
        )
    if checksum_files(checkpoint):
        check_intact(checkpoint)
    try:
        return read_run_config(checkpoint / CONFIG_FILE)
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint} is not a checkpoint: {error}") from error


def _embed(
    checkpoint: Path,
    data: Prepared,
    split: str,
    file: Path,
    config: RunConfig,
    part: Part | None,
) -> None:
    """Write the embeddings of the split's queries, then of its candidates, into ``file``."""
    tokens, workers = data.path / "tokens", config.workers
    num_queries = len(data.queries[split])
    queries = TableRows(tokens / "queries" / split, np.arange(num_queries), "queries")
    ads = TableRows(tokens / "ads", data.candidates(split), "ads")
    cpus, gpus = workers.cpus_per_worker, int(workers.use_gpu)
    resources = EmbeddingResources(cpus, cpus, gpus)
    embed_tables(checkpoint, [queries, ads], file, resources, part=part)


def _search_shards(workers: WorkersConfig, data: Prepared, split: str, file: Path) -> TopK | None:
    """Search the candidates by number, as deep as filters need; None if one shard holds them."""
    num_queries = len(data.queries[split])
    shards = embedded_shards(file, num_queries, workers.gb_per_shard)
    if len(shards) <= 1:
        return None
    k = max(KS) + most_filters(data.filters(split))
    resources = ShardResources(workers.cpus_per_worker, workers.cpus_per_worker)
    with user_errors():
        return search_shards(shards, (file, num_queries), k, resources, file.parent / "attempts")


def _measure(
    data: Prepared, split: str, file: Path, propensity: Propensity, found: TopK | None
) -> tuple[dict[str, float], TopK]:
    """Measure what a search of shards has found, or search first."""
    ids, filters = data.candidates(split), data.filters(split)
    if found is None:
        embeddings = np.load(file, mmap_mode="r")
        num_queries = len(data.queries[split])
        queries, ads = embeddings[:num_queries], embeddings[num_queries:]
        parts = (ads[start : start + ADS_PER_PART] for start in range(0, len(ads), ADS_PER_PART))
        topk = search_parts(queries, parts, ids, filters, max(KS))
    else:
        topk = drop_filtered((np.append(ids, -1)[found[0]], found[1]), filters, max(KS))
    return Judgement.from_prepared(data, split, propensity).metrics(topk[0]), topk


def _measure_bad_matches(
    names: NameList, dataset: Dataset, split: str, topk: TopK
) -> dict[str, float]:
    ads = topk[0][:, : max(bad_matches.KS)]
    query_names = names.find_in_table(dataset, f"queries/{split}")
    ad_names = names.find_in_table(dataset, "ads", shown_ads(ads))
    return bad_matches.bad_match_metrics(ads, query_names, ad_names, names.kind_of, names.kinds)
