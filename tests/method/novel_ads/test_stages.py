"""The training of combiners on planted data: what it learns, leaves alone, and how it resumes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from planted import Planted, planted
from support import run_in_two_processes

from ramen_ray.method.novel_ads.combining import CombinerRates
from ramen_ray.method.novel_ads.representation import CombinedAds, open_combined_ads
from ramen_ray.method.novel_ads.stages import Stages, StageSettings

RELEASE = StageSettings(
    kind="transformer",
    rates=CombinerRates("bce", lr=1e-3),
    epochs=20,
    classifier_epochs=20,
    classifier_lr=1e-2,
    batch_size=60,
)
DRAFT = replace(
    RELEASE,
    kind="attention",
    neighbours_by="clicks",
    rates=CombinerRates("triplet", lr=3e-3),
    classifier_epochs=0,
    epochs=40,
)
VARIANTS = pytest.mark.parametrize("settings", [DRAFT, RELEASE], ids=["draft", "release"])


@pytest.fixture(scope="module")
def data() -> Planted:
    return planted()


def _trained(data: Planted, settings: StageSettings) -> Stages:
    stages = data.stages(settings)
    list(stages.run(stages.total_steps))
    return stages


@VARIANTS
def test_new_ads_are_found_by_what_their_neighbours_classifiers_know(
    data: Planted, settings: StageSettings
) -> None:
    combined = _trained(data, settings).combined_ads()
    by_text, by_combiner = (
        data.recall(vectors) for vectors in (data.novel, combined.represent(data.novel))
    )
    assert by_text < 0.3
    assert by_combiner > 0.8
    combined.seen.classifiers = np.random.default_rng(0).permutation(combined.seen.classifiers)
    assert data.recall(combined.represent(data.novel)) < 0.5


@VARIANTS
def test_a_seen_ad_is_not_represented_by_its_own_classifier(
    data: Planted, settings: StageSettings
) -> None:
    combined = _trained(data, replace(settings, epochs=2)).combined_ads()
    own = np.arange(len(data.seen))
    neighbours = combined.represent(data.seen, own)
    for row in (0, 7, 50):
        kept = combined.seen.classifiers[row].copy()
        combined.seen.classifiers[row] = 5 * np.random.default_rng(row).normal(size=len(kept))
        changed = combined.represent(data.seen, own)
        np.testing.assert_array_equal(changed[row], neighbours[row])
        combined.seen.classifiers[row] = kept


@VARIANTS
def test_what_is_frozen_does_not_change(data: Planted, settings: StageSettings) -> None:
    before = data.seen.copy(), data.clicks.queries.embeddings.copy()
    stages = data.stages(replace(settings, epochs=2))
    list(stages.run(stages.first_steps))
    classifiers = stages.combined_ads().seen.classifiers.copy()
    list(stages.run(stages.total_steps))
    np.testing.assert_array_equal(stages.seen.embeddings, before[0])
    np.testing.assert_array_equal(data.clicks.queries.embeddings, before[1])
    is_same = np.array_equal(stages.combined_ads().seen.classifiers, classifiers)
    assert is_same == (settings.rates.loss == "bce")


@VARIANTS
@pytest.mark.parametrize("break_at", [7, 14])
def test_a_resumed_training_equals_an_uninterrupted_one(
    data: Planted, settings: StageSettings, break_at: int, tmp_path: Path
) -> None:
    short = replace(settings, classifier_epochs=min(settings.classifier_epochs, 2), epochs=3)
    whole = data.stages(short)
    losses = list(whole.run(whole.total_steps))
    assert whole.total_steps > break_at
    begun = data.stages(short)
    first = list(begun.run(break_at))
    begun.save(tmp_path)
    resumed = data.stages(short)
    resumed.restore(tmp_path)
    rest = list(resumed.run(resumed.total_steps))
    assert torch.equal(torch.stack(first + rest), torch.stack(losses))
    for one, other in zip(
        resumed.combined_ads().combiner.parameters(),
        whole.combined_ads().combiner.parameters(),
        strict=True,
    ):
        assert torch.equal(one, other)


def _train_on_a_worker(rank: int, store: str, settings: StageSettings, file: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    data = planted()
    vectors = _trained(data, settings).combined_ads().represent(data.novel)
    if rank == 0:
        np.save(file, vectors)
    torch.distributed.destroy_process_group()


def test_two_workers_compute_what_one_does(data: Planted, tmp_path: Path) -> None:
    hinge = replace(DRAFT.hinge, dropout=0.0)  # each worker drops its own
    short = replace(DRAFT, classifier_epochs=1, hinge=hinge, epochs=1)
    file = tmp_path / "vectors.npy"
    run_in_two_processes(_train_on_a_worker, f"file://{tmp_path}/store", short, file)
    expected = _trained(data, short).combined_ads().represent(data.novel)
    np.testing.assert_allclose(np.load(file), expected, atol=1e-3)


def test_saved_and_opened_it_represents_ads_alike_in_any_blocks(
    data: Planted, tmp_path: Path
) -> None:
    combined = _trained(data, replace(RELEASE, epochs=2)).combined_ads()
    combined.save(tmp_path)
    opened = open_combined_ads(tmp_path)
    together = opened.represent(data.novel)
    np.testing.assert_allclose(together, combined.represent(data.novel), atol=5e-3)
    alone = np.concatenate([opened.represent(one[None]) for one in data.novel])
    blocks = np.concatenate([opened.represent(data.novel[:7]), opened.represent(data.novel[7:])])
    np.testing.assert_allclose(alone, together, atol=1e-6)
    np.testing.assert_allclose(blocks, together, atol=1e-6)
    longer = CombinedAds(opened.combiner, opened.seen, opened.lookup, scale=2.0)
    np.testing.assert_allclose(2 * longer.represent(data.novel), together, atol=1e-6)
