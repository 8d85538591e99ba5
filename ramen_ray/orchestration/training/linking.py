"""The linker of an OAK run: a finished run whose model gives held-out queries their anchors."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import ray
import torch

from ramen_ray.bases.combination import Part
from ramen_ray.config import ConfigError, OakConfig, RunConfig, read_config
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.splits.links import LINKS_OF
from ramen_ray.data.store.checksums import check_intact
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.links import LINKER_DEPTH, link_figures
from ramen_ray.method.model.augmented_queries import save_links
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.model.pretrained import content_of
from ramen_ray.method.retrieval.links import held_out_links, nearest_anchors, train_links
from ramen_ray.orchestration.cluster.resources import user_errors, worker_task
from ramen_ray.orchestration.preparation.pipeline import prepare
from ramen_ray.orchestration.runs.components import trained_tokenizer, use_bf16
from ramen_ray.orchestration.runs.identity import check_meanwhile
from ramen_ray.orchestration.runs.run_directory import (
    CONFIG_FILE,
    RUN_FILE,
    Identity,
    RunDirectory,
)


@dataclass(frozen=True)
class Linker:
    """A model that finds queries' anchors.

    Attributes:
        config: of the run that trained it.
        model: its folder.
        part: what it answers by: the encoder, unless it was trained with the anchors as ads.
    """

    config: RunConfig
    model: Path
    part: Part | None


def open_linker(oak: OakConfig, dataset: Dataset) -> Linker:
    """Open the run ``oak.linker``, and check that it links to the anchors of a dataset.

    Raises:
        ConfigError: there is no such run, it is not finished, or it was trained for other anchors.
    """
    sets = " ".join(oak.anchor_sets)
    how = (
        f"make its data (python jobs/ingest.py links --dataset {dataset.path} --anchor-sets {sets} "
        f"--output LINKS), train on it (python jobs/train.py --dataset LINKS), and give that run; "
        f"or give any other finished run"
    )
    if oak.linker is None:
        raise ConfigError(f"oak.linker: OAK needs a run that links queries to anchors; {how}")
    folder = Path(oak.linker)
    notes = RunDirectory(folder).notes if (folder / RUN_FILE).is_file() else {}
    if not notes.get("finished"):
        raise ConfigError(f"oak.linker: {folder} is not the folder of a finished run; {how}")
    config = read_config(folder / CONFIG_FILE)
    model = folder / str(notes["best_checkpoint"])
    if LINKS_OF not in notes:
        raise ConfigError(f"oak.linker: {folder} does not say what its ads are; train it again")
    links_of = notes[LINKS_OF]
    if links_of is None:
        return Linker(config, model, "encoder")
    expected = {"parent_fingerprint": dataset.fingerprint, "anchor_sets": list(oak.anchor_sets)}
    differ = [key for key, value in expected.items() if links_of[key] != value]
    if differ:
        raise ConfigError(
            f"oak.linker: {folder} was trained to link to other anchors than the sets {sets} of "
            f"{dataset.path} ({', '.join(differ)} differ); {how}"
        )
    return Linker(config, model, notes.get("part"))


def write_links(
    config: RunConfig, dataset: Dataset, folder: Path, made_from: Identity
) -> dict[str, float]:
    """Write the links of all held-out queries into ``folder``, for :func:`with_links`.

    Args:
        config: an OAK run's.
        dataset: what it is trained on.
        folder: a folder that all machines can reach.
        made_from: what the run is made from.

    Returns:
        Figures of the linker, such as ``linker/test/P@3``.

    Raises:
        ConfigError: see :func:`open_linker`.
        RunError: the linker is another one than the run is made from.
    """
    linker, workers = open_linker(config.oak, dataset), config.workers
    tokenizer = trained_tokenizer(linker.model, linker.config.encoder)
    data = prepare(dataset, Path(config.output) / "prepared", tokenizer)
    task = worker_task(_write_links, workers)
    with user_errors():
        figures: dict[str, float] = ray.get(task.remote(linker, data, config.oak, folder))
    check_meanwhile({"linker": made_from.get("linker")}, {"linker": content_of(str(linker.model))})
    return figures


def _write_links(linker: Linker, data: Prepared, oak: OakConfig, folder: Path) -> dict[str, float]:
    check_intact(linker.model)
    device = torch.device("cuda" if ray.get_gpu_ids() else "cpu")
    model = load_model(linker.model, part=linker.part).to(device)
    is_known = np.zeros(sum(len(data.anchors(name)) for name in oak.anchor_sets), dtype=bool)
    is_known[train_links(data, oak.anchor_sets).indices] = True
    figures: dict[str, float] = {}
    for split in data.splits[1:]:
        depth, half = max(oak.links_at_test, LINKER_DEPTH), use_bf16(linker.config, device)
        anchors = nearest_anchors(model, data, oak.anchor_sets, split, depth, half)
        save_links(folder, split, anchors[:, : oak.links_at_test])
        true_edges = held_out_links(data, oak.anchor_sets, split)
        found = link_figures(anchors, oak.links_at_test, true_edges, is_known)
        figures |= {f"linker/{split}/{name}": value for name, value in found.items()}
    return figures
