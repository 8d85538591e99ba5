"""The bases: clusters and their batches, shortlists and hard negatives, and whole runs of each."""

import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from mlflow.tracking import MlflowClient
from support import rows_of, wait_until
from torch.nn.functional import normalize

from ramen_ray.config import ConfigError, EncoderConfig, RunConfig, WalkConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.evaluation import encode_rows
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.retrieval.shortlists import open_shortlists, write_shortlists
from ramen_ray.method.sampling import clustering
from ramen_ray.method.sampling.clustering import Clusters, balanced_clusters, halve
from ramen_ray.method.sampling.draws import clustered_order, draw_hard_negatives, num_steps
from ramen_ray.orchestration.training.checks import check_config
from ramen_ray.orchestration.training.results import TrainResult
from ramen_ray.orchestration.training.run import fit
from ramen_ray.presets import PRESETS

NUM_CPUS = 4
SIZES = [(7, 2), (64, 8), (100, 3), (129, 16), (5, 5), (5, 9), (9, 1)]


def _random_embeddings(num_rows: int, dim: int = 16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(num_rows, dim, generator=generator), dim=1)


def _planted(num_groups: int, group_size: int) -> tuple[torch.Tensor, np.ndarray]:
    """Rows around planted centres, in random order, and the group of each."""
    groups = np.random.default_rng(1).permutation(np.repeat(np.arange(num_groups), group_size))
    noise = 0.05 * torch.randn(len(groups), 32, generator=torch.Generator().manual_seed(2))
    return normalize(_random_embeddings(num_groups, 32)[groups] + noise, dim=1), groups


def _members(clusters: Clusters) -> list[list[int]]:
    bounds = np.arange(clusters.num_clusters + 1) * len(clusters.rows) // clusters.num_clusters
    return [clusters.rows[a:b].tolist() for a, b in pairwise(bounds.tolist())]


def _mean_cosine_within(embeddings: torch.Tensor, clusters: Clusters) -> float:
    means = [(embeddings[rows] @ embeddings[rows].T).mean().item() for rows in _members(clusters)]
    return float(np.mean(means))


@pytest.mark.parametrize(("num_rows", "size"), SIZES)
def test_clusters_are_a_balanced_partition(num_rows: int, size: int) -> None:
    clusters = balanced_clusters(_random_embeddings(num_rows), size, seed=0)
    sizes = [len(rows) for rows in _members(clusters)]
    assert sorted(clusters.rows.tolist()) == list(range(num_rows))
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1
    assert clusters.num_clusters == 1 or num_rows / (clusters.num_clusters // 2) > size


def test_clusters_find_planted_groups() -> None:
    embeddings, groups = _planted(num_groups=32, group_size=16)
    found = balanced_clusters(embeddings, 16, seed=0)
    shuffled = Clusters(np.random.default_rng(0).permutation(len(groups)), found.num_clusters)
    assert _mean_cosine_within(embeddings, found) > 0.7
    assert _mean_cosine_within(embeddings, shuffled) < 0.2
    purity = [np.bincount(groups[rows]).max() / len(rows) for rows in _members(found)]
    assert np.mean(purity) > 0.75


def test_clusters_repeat_with_the_seed_and_are_found_on_samples_and_in_pieces(monkeypatch) -> None:
    embeddings = _random_embeddings(300)
    first = balanced_clusters(embeddings, 8, seed=4)
    assert balanced_clusters(embeddings, 8, seed=4).rows.tolist() == first.rows.tolist()
    assert balanced_clusters(embeddings, 8, seed=5).rows.tolist() != first.rows.tolist()
    monkeypatch.setattr(clustering, "MAX_SAMPLE", 32)
    sampled = balanced_clusters(_planted(8, 32)[0], 32, seed=4)
    monkeypatch.setattr(clustering, "ROWS_AT_ONCE", 50)
    in_pieces = balanced_clusters(_planted(8, 32)[0], 32, seed=4)
    for clusters in (sampled, in_pieces):
        assert _mean_cosine_within(_planted(8, 32)[0], clusters) > 0.6


def _halve_naively(embeddings: torch.Tensor, rows: list[int]) -> set[frozenset[int]]:
    """Two-means on one cluster, written out, from the same first centres: its first two rows."""
    vectors = {row: embeddings[row].double() for row in rows}
    half = (len(rows) + 1) // 2
    one, other = vectors[rows[0]], vectors[rows[-1]]
    for _ in range(clustering.MAX_ITERATIONS):
        by_preference = sorted(rows, key=lambda row: -float(vectors[row] @ (one - other)))
        left, right = by_preference[:half], by_preference[half:]
        one, other = (normalize(sum(vectors[r] for r in side), dim=0) for side in (left, right))
    by_preference = sorted(rows, key=lambda row: -float(vectors[row] @ (one - other)))
    return {frozenset(by_preference[:half]), frozenset(by_preference[half:])}


def test_a_level_equals_two_means_on_each_cluster_alone(monkeypatch) -> None:
    monkeypatch.setattr(torch, "randperm", lambda n, **_: torch.arange(n))
    monkeypatch.setattr(clustering, "LEAST_GAIN", -1.0)
    embeddings, rows = _random_embeddings(96), torch.randperm(96)
    rows = rows.flip(0)
    halved = halve(embeddings, rows, 8, torch.Generator())
    for start in range(0, 96, 12):
        found = halved[start : start + 12].tolist()
        sides = {frozenset(found[:6]), frozenset(found[6:])}
        assert sides == _halve_naively(embeddings, rows[start : start + 12].tolist())


@st.composite
def _clustered(draw_value):
    """Clusters of a random permutation, and a batch size that four workers can share."""
    batch_size = 4 * draw_value(st.integers(1, 6))
    num_queries = batch_size + draw_value(st.integers(0, 100))
    num_clusters = 2 ** draw_value(st.integers(0, int(np.log2(num_queries))))
    seed = draw_value(st.integers(0, 99))
    return Clusters(np.random.default_rng(seed).permutation(num_queries), num_clusters), batch_size


@given(_clustered(), st.integers(0, 20))
def test_clustered_batches_take_each_query_once_whatever_the_workers(clustered, epoch) -> None:
    clusters, batch_size = clustered
    whole = clustered_order(clusters, batch_size, range(batch_size), 3, epoch)
    assert whole.shape == (num_steps(len(clusters.rows), batch_size), batch_size)
    assert len(set(whole.flatten().tolist())) == whole.size
    for num_workers in (2, 4):
        share = batch_size // num_workers
        parts = [
            clustered_order(clusters, batch_size, range(a, a + share), 3, epoch)
            for a in range(0, batch_size, share)
        ]
        assert np.concatenate(parts, axis=1).tolist() == whole.tolist()


def test_clusters_stay_together_and_their_order_changes_with_the_epoch() -> None:
    clusters = Clusters(np.random.default_rng(0).permutation(64), 16)
    orders = [clustered_order(clusters, 8, range(8), 0, epoch) for epoch in range(20)]
    together = {frozenset(rows) for rows in _members(clusters)}
    for order in orders:
        assert {frozenset(four) for four in order.reshape(-1, 4).tolist()} == together
    assert len({order.tobytes() for order in orders}) == len(orders)


@pytest.fixture(scope="module")
def shortlists(prepared_bag: Prepared, encoder_path: Path, tmp_path_factory) -> np.ndarray:
    file = tmp_path_factory.mktemp("shortlists") / "shortlists.npy"
    write_shortlists(build_bag(str(encoder_path)), prepared_bag, 12, file)
    return open_shortlists(file)


def test_shortlists_are_the_nearest_ads_without_the_positives(
    shortlists: np.ndarray, prepared_bag: Prepared, encoder_path: Path
) -> None:
    encoder, data = build_bag(str(encoder_path)), prepared_bag
    queries = encode_rows(encoder, data.queries["train"], np.arange(len(shortlists)))
    ads = encode_rows(encoder, data.ads, np.arange(len(data.ads)))
    assert shortlists.dtype == np.int32
    assert isinstance(shortlists.base, np.memmap)
    for row, clicked in enumerate(rows_of(data.clicks["train"])):
        similarity = ads @ queries[row]
        best = np.sort(similarity)[::-1][:12]
        found = shortlists[row][shortlists[row] >= 0]
        assert not set(found.tolist()) & set(clicked)
        assert similarity[found] == pytest.approx(np.sort(similarity[found])[::-1], abs=1e-5)
        assert (similarity[found] >= best[-1] - 1e-5).all()
        surely = set(np.flatnonzero(similarity > best[-1] + 1e-5).tolist()) - set(clicked)
        assert surely <= set(found.tolist())
        assert (shortlists[row][len(found) :] == -1).all()
    assert (shortlists == -1).any()


@given(
    arrays(np.int32, (6, 5), elements=st.integers(0, 30), unique=True),
    st.lists(st.integers(0, 5), min_size=6, max_size=6),
    st.integers(1, 5),
    st.integers(0, 9),
)
def test_hard_negatives_are_distinct_and_from_the_shortlist(ads, lengths, count, epoch) -> None:
    shortlists = np.where(np.arange(5) < np.array(lengths)[:, None], ads, -1)
    rows, ids = np.array([4, 0, 2]), np.array([40, 7, 13])
    drawn = draw_hard_negatives(shortlists, rows, ids, count, (0, epoch))
    alone = draw_hard_negatives(shortlists, rows[1:2], ids[1:2], count, (0, epoch))
    assert alone.tolist() == drawn[1:2].tolist()
    for row, found in zip(rows.tolist(), drawn.tolist(), strict=True):
        present = [ad for ad in found if ad >= 0]
        assert len(present) == len(set(present)) == min(count, lengths[row])
        assert set(present) <= set(shortlists[row].tolist())


def test_hard_negatives_are_drawn_uniformly() -> None:
    shortlists = np.array([[5, 2, 9, 4]], dtype=np.int32)
    drawn = [
        draw_hard_negatives(shortlists, np.zeros(200, int), np.arange(200), 2, (0, epoch))
        for epoch in range(20)
    ]
    ads, counts = np.unique(np.concatenate(drawn), return_counts=True)
    assert ads.tolist() == [2, 4, 5, 9]
    assert counts == pytest.approx(np.full(4, 2000), rel=0.1)


def test_presets_follow_the_papers_table() -> None:
    ance, ngame = PRESETS["ramen-ance"](), PRESETS["ramen-ngame"]()
    plain = PRESETS["lf-wikiseealsotitles-320k"]()
    for preset in (ance, ngame):
        assert preset.model_copy(update={"base": plain.base}) == plain
        assert preset.training.global_batch_size == 1024
        assert preset.training.epochs == 300
        assert preset.optimizer.lr == 2e-4
        assert preset.encoder.max_length == 32
        assert preset.loss.margin == 0.3
        assert preset.walk == WalkConfig(enabled=True)
        assert (preset.walk.num_hops, preset.walk.restart_probability) == (400, 0.8)
        assert (preset.walk.max_anchor_degree, preset.walk.top_k) == (500, 10)
        assert (preset.pruning.warmup_epochs, preset.pruning.every_epochs) == (10, 5)
        assert preset.pruning.prune_threshold == 0
        assert preset.base.refresh_every == 5
    assert (ance.base.kind, ngame.base.kind) == ("ance", "ngame")
    assert plain.base.kind == "in_batch"
    assert ngame.base.double_cluster_size_at == (25, 50, 75, 100, 125, 150, 175, 200)


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"base.kind": "ance"}, "base.refresh_every 5"),
        ({"base.kind": "ance", "base.refresh_every": 1}, "base.refresh_every 1"),
        ({"base.kind": "ngame"}, "base.first_clustered_epoch 10"),
        (
            {
                "base.kind": "ngame",
                "base.first_clustered_epoch": 1,
                "base.double_cluster_size_at": (1, 1, 2),
                "base.cluster_size": 4,
            },
            "base.cluster_size 4 doubles to 16",
        ),
        (
            {
                "base.kind": "ngame",
                "base.first_clustered_epoch": 1,
                "base.refresh_every": 2,
                "base.double_cluster_size_at": (3, 4),
                "training.epochs": 6,
            },
            "base.double_cluster_size_at 4: .*base.refresh_every 2 .*base.first_clustered_epoch 1 ",
        ),
    ],
)
def test_a_base_that_cannot_work_is_refused(
    changes: dict[str, Any], fragment: str, dataset_path: Path, encoder_path: Path
) -> None:
    config = {
        "dataset": str(dataset_path),
        "regularization.lambda_x": {},
        "regularization.lambda_z": {},
        "training.epochs": 2,
        "training.global_batch_size": 8,
    }
    plain = RunConfig(encoder=EncoderConfig(pretrained=str(encoder_path)))
    check_config(overlay(plain, config), Dataset(dataset_path))
    with pytest.raises(ConfigError, match=fragment):
        check_config(overlay(plain, config | changes), Dataset(dataset_path))


STEPS_PER_EPOCH, NUM_EPOCHS = 7, 5


@pytest.fixture(scope="module")
def config(small_run: RunConfig) -> RunConfig:
    return overlay(
        small_run,
        {
            "base.refresh_every": 2,
            "base.refresh_mode": "synchronous",
            "base.shortlist_size": 10,
            "base.num_hard_negatives": 2,
            "base.first_clustered_epoch": 1,
            "base.cluster_size": 2,
            "base.double_cluster_size_at": (3,),
            "pruning.mode": "synchronous",
            "pruning.warmup_epochs": 1,
            "pruning.every_epochs": 2,
            "training.epochs": NUM_EPOCHS,
            "training.checkpoint_every_steps": 3,
        },
    )


@pytest.fixture(scope="module")
def ngame(cluster: None, config: RunConfig) -> TrainResult:
    return fit(overlay(config, {"base.kind": "ngame", "name": "ngame"}))


@pytest.fixture(scope="module")
def ance(cluster: None, config: RunConfig) -> TrainResult:
    return fit(overlay(config, {"base.kind": "ance", "name": "ance"}))


def test_bases_train_alike_until_they_have_seen_the_encoder(
    ngame: TrainResult, ance: TrainResult
) -> None:
    assert _losses(ngame)[:STEPS_PER_EPOCH] == _losses(ance)[:STEPS_PER_EPOCH]
    assert len(_losses(ngame)) == len(_losses(ance)) == NUM_EPOCHS * STEPS_PER_EPOCH
    assert _losses(ngame)[STEPS_PER_EPOCH] != _losses(ance)[STEPS_PER_EPOCH]
    for result in (ngame, ance):
        assert result.metrics["trained"]["validation"]["P@1"] > 0


def test_ance_renews_its_shortlists_at_epochs(ance: TrainResult) -> None:
    made = {path.name for path in (ance.run_directory / "shortlists").iterdir()}
    assert made == {"step_000000028"}, "only those in use are left"
    history = MlflowClient(tracking_uri=ance.tracking_uri).get_metric_history
    taken = [(point.step, point.value) for point in history(ance.mlflow_run_id, "shortlists/step")]
    assert sorted(taken) == [(14, 14), (28, 28)]


def test_a_killed_worker_changes_nothing(config: RunConfig, ance: TrainResult) -> None:
    changes = {"base.kind": "ance", "name": "ance-killed"}
    killed = _fit_killing_a_worker(overlay(config, changes), at_step=18)
    assert _losses(killed) == _losses(ance)
    assert killed.metrics == ance.metrics


def test_two_workers_of_which_one_is_killed_share_clustered_batches(
    config: RunConfig, ngame: TrainResult
) -> None:
    changes = {"base.kind": "ngame", "name": "two", "workers.num_workers": 2}
    # Checkpoint 18 lies in an epoch whose embeddings are kept for the next clusters.
    killed = _fit_killing_a_worker(overlay(config, changes), at_step=18)
    assert _losses(killed) == pytest.approx(_losses(ngame), abs=1e-4)


def _losses(result: TrainResult) -> list[float]:
    client = MlflowClient(tracking_uri=result.tracking_uri)
    history = client.get_metric_history(result.mlflow_run_id, "loss/total")
    return [value for _, value in sorted((point.step, point.value) for point in history)]


def _fit_killing_a_worker(config: RunConfig, at_step: int) -> TrainResult:
    """Train, and kill the worker when the checkpoint of ``at_step`` is there."""
    checkpoint = Path(config.output) / "runs" / str(config.name) / f"checkpoint_{at_step:09d}"
    killed: list[int] = []
    killer = threading.Thread(target=_kill_worker_after, args=(checkpoint, killed))
    killer.start()
    result = fit(config)
    killer.join()
    assert killed
    return result


def _kill_worker_after(checkpoint: Path, killed: list[int]) -> None:
    wait_until(checkpoint.exists, f"no {checkpoint}")
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "RayTrainWorker" in " ".join(process.cmdline()):
                process.kill()
                killed.append(process.pid)
                return
