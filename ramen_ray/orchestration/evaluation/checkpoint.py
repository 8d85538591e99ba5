"""Evaluate a checkpoint: Ray Data encodes its share by share, a task searches and measures."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data
import torch
from numpy.typing import NDArray

from ramen_ray.config import ConfigError, RunConfig, read_config
from ramen_ray.data.names.matching import NameList
from ramen_ray.data.names.tables import read_names
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.predictions import shown_ads, write_predictions
from ramen_ray.method.metrics.bad_matches import KS, bad_match_metrics
from ramen_ray.method.metrics.evaluation import Propensity, encode_rows, retrieve, score
from ramen_ray.method.model.encoder import load_encoder
from ramen_ray.method.retrieval.search import TopK
from ramen_ray.method.training.checkpoints import ENCODER_FOLDER, CheckpointError
from ramen_ray.orchestration.cluster.resources import check_resources, start_ray
from ramen_ray.orchestration.preparation.pipeline import prepare
from ramen_ray.orchestration.training.components import build_propensity, encoder_tokenizer
from ramen_ray.orchestration.training.run_directory import CONFIG_FILE, RUN_FILE, RunDirectory

ROWS_PER_SHARE = 8192


def evaluate_checkpoint(
    checkpoint: Path,
    split: str,
    dataset: str | None = None,
    predictions: Path | None = None,
    names: str | None = None,
) -> dict[str, float]:
    """Return the metrics of a checkpoint's encoder on a split.

    Args:
        checkpoint: a folder that training wrote, with ``encoder`` and ``config.json``; or the
            folder of a finished run, for its best checkpoint.
        split: ``validation``, ``test`` or ``zero_shot``.
        dataset: another dataset directory than the one trained on.
        predictions: a parquet file to write the predictions to, in the users' ids.
        names: a list of names, to measure how often predictions name another than the query does.

    Raises:
        CheckpointError: the folder is not a checkpoint.
        ConfigError: the predictions cannot be written there.
        DatasetError: the dataset directory or the list of names is not usable, or the split is
            not there.
    """
    checkpoint = _best_checkpoint(checkpoint)
    config = _read_checkpoint_config(checkpoint)
    opened = Dataset(dataset or config.dataset)
    if not opened.has(f"queries/{split}"):
        raise DatasetError(f"{opened.path} has no {split} split (no queries/{split})")
    if predictions is not None and (predictions.is_dir() or not predictions.parent.is_dir()):
        raise ConfigError(f"--predictions {predictions} must be a file in a folder that exists")
    name_list = None if names is None else read_names(names)
    start_ray()
    check_resources(config.workers)
    cache = Path(config.output) / "prepared"
    data = prepare(opened, cache, encoder_tokenizer(config.encoder))
    shares = Path(tempfile.mkdtemp(prefix=".embeddings-", dir=cache))
    try:
        _encode(checkpoint / ENCODER_FOLDER, data, split, shares, config)
        propensity = build_propensity(config)
        task = ray.remote(_measure).options(num_cpus=config.workers.cpus_per_worker, num_returns=2)
        measured, topk = task.remote(data, split, shares, propensity)
        metrics: dict[str, float] = ray.get(measured)
        if predictions is not None:
            write_predictions(predictions, opened, split, ray.get(topk))
        if name_list is not None:
            metrics |= _measure_bad_matches(name_list, opened, split, ray.get(topk))
    finally:
        shutil.rmtree(shares, ignore_errors=True)
    return metrics


def _best_checkpoint(folder: Path) -> Path:
    """Return the best checkpoint of a run's folder; any other folder as it is."""
    if not (folder / RUN_FILE).is_file():
        return folder
    name = RunDirectory(folder).facts.get("best_checkpoint")
    if name is None:
        raise CheckpointError(f"the run {folder} is not finished; name one of its checkpoints")
    return folder / name


def _read_checkpoint_config(checkpoint: Path) -> RunConfig:
    if not (checkpoint / ENCODER_FOLDER / "modules.json").is_file():
        raise CheckpointError(
            f"{checkpoint} is not a checkpoint: it has no {ENCODER_FOLDER} folder"
        )
    try:
        return read_config(checkpoint / CONFIG_FILE)
    except ConfigError as error:
        raise CheckpointError(f"{checkpoint} is not a checkpoint: {error}") from error


def _encode(encoder: Path, data: Prepared, split: str, shares: Path, config: RunConfig) -> None:
    """Write the embeddings of the split's candidates and of its queries into ``shares``."""
    tables = {"ads": len(data.candidates(split)), "queries": len(data.queries[split])}
    items = [
        {"table": table, "start": start, "stop": min(start + ROWS_PER_SHARE, num_rows)}
        for table, num_rows in tables.items()
        for start in range(0, num_rows, ROWS_PER_SHARE)
    ]
    workers = config.workers
    ray.data.from_items(items).map_batches(
        _ShareEncoder,
        fn_constructor_args=(encoder, data, split, shares, workers.cpus_per_worker),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=workers.num_workers),
        num_cpus=workers.cpus_per_worker,
        num_gpus=int(workers.use_gpu),
    ).materialize()


class _ShareEncoder:
    """Holds the encoder in an actor and encodes one share of a table after the other."""

    def __init__(
        self, encoder: Path, data: Prepared, split: str, shares: Path, num_threads: int
    ) -> None:
        torch.set_num_threads(num_threads)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.encoder = load_encoder(encoder).to(device)
        queries = data.queries[split]
        self.tables: dict[str, tuple[TokenTable, NDArray[np.int64]]] = {
            "ads": (data.ads, data.candidates(split)),
            "queries": (queries, np.arange(len(queries))),
        }
        self.shares = shares

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        table, start, stop = batch["table"][0], int(batch["start"][0]), int(batch["stop"][0])
        texts, rows = self.tables[table]
        embeddings = encode_rows(self.encoder, texts, rows[start:stop])
        np.save(self.shares / f"{table}-{start:015d}.npy", embeddings)
        return {"rows": np.array([stop - start])}


def _measure(
    data: Prepared, split: str, shares: Path, propensity: Propensity
) -> tuple[dict[str, float], TopK]:
    queries = np.concatenate([np.load(file) for file in sorted(shares.glob("queries-*.npy"))])
    ads = (np.load(file) for file in sorted(shares.glob("ads-*.npy")))
    topk = retrieve(queries, ads, data.candidates(split), data.filters(split))
    return score(topk, data, split, propensity), topk


def _measure_bad_matches(
    names: NameList, dataset: Dataset, split: str, topk: TopK
) -> dict[str, float]:
    ads = topk[0][:, : max(KS)]
    query_names = names.find_in_table(dataset, f"queries/{split}")
    ad_names = names.find_in_table(dataset, "ads", shown_ads(ads))
    return bad_match_metrics(ads, query_names, ad_names, names.kind_of, names.kinds)
