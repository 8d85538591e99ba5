"""The training of combiners on planted data: what it learns, leaves alone, and how it resumes.

Ads come in groups, and clicks follow the groups. Texts of a group share a direction, hidden in
noise; what its queries ask for is another direction, which only the classifiers of the group's seen
ads can know."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import run_in_two_processes

from ramen_ray.config import overlay
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.method.model.dual_encoder import TextEmbeddings
from ramen_ray.method.new_ads.evaluation import Embedded
from ramen_ray.method.new_ads.representation import CombinedAds, open_combined_ads
from ramen_ray.method.training.state import restore_checkpoint, save_checkpoint
from ramen_ray.method.training.step import train_steps
from ramen_ray.orchestration.new_ads.combiner_worker import combiner_setup
from ramen_ray.orchestration.new_ads.settings import CombineSettings
from ramen_ray.orchestration.run.processes import WorkerContext

DIM, GROUPS, SEEN, NOVEL, QUERIES = 16, 12, 10, 2, 30
CPU = torch.device("cpu")


def unit(points):
    return (points / np.linalg.norm(points, axis=-1, keepdims=True)).astype(np.float32)


class Planted:
    """Seen ads (S, D), novel ads and test queries with their groups, and train clicks."""

    def __init__(self):
        draw = np.random.default_rng(1)
        of_texts, of_queries = unit(draw.normal(size=(2, GROUPS, DIM)))
        self.novel_groups = np.repeat(np.arange(GROUPS), NOVEL)
        self.query_groups = np.repeat(np.arange(GROUPS), QUERIES)

        def near(centres, noise):
            return unit(centres + noise * draw.normal(size=centres.shape) / DIM**0.5)

        self.train, self.queries = (near(of_queries[self.query_groups], 0.5) for _ in range(2))
        rows = np.repeat(np.arange(len(self.train)), 2)
        ads = self.query_groups[rows] * SEEN + draw.integers(SEEN, size=len(rows))
        pairs = np.unique(np.stack([rows, ads]), axis=1)
        self.clicks = Csr.from_pairs(*pairs, len(self.train))
        self.seen = near(of_texts[np.repeat(np.arange(GROUPS), SEEN)], 0.7)
        self.novel = near(of_texts[self.novel_groups], 0.7)

    def training(self, settings):
        """Start a training on the clicks."""
        count = len(self.train)
        ids = np.arange(len(self.seen))
        rows = np.concatenate([self.train, self.seen])
        queries, ads = TextEmbeddings(rows, np.arange(count)), TextEmbeddings(rows, count + ids)
        data = SimpleNamespace(
            query_ids=np.arange(count),
            clicks={"train": self.clicks},
            train_click_counts=np.bincount(self.clicks.indices, minlength=len(ids)),
        )
        embedded = Embedded(data, {"train": queries}, ads)
        return Training(combiner_setup(settings, embedded, None, Path(), WorkerContext(CPU)))

    def recall(self, vectors):
        """R@k of the novel ads' ``vectors``, for as many k as a group has."""
        found = np.argsort(-(self.queries @ vectors.T), axis=1)[:, :NOVEL]
        return float((self.novel_groups[found] == self.query_groups[:, None]).mean())


class Training:
    """A training in progress, in this process."""

    def __init__(self, setup):
        self.setup = setup
        self.model = setup.new_model()
        self.state = setup.new_state(self.model)
        self.state.prepare_next_steps()

    def run(self, stop=None):
        """Return the losses (steps, terms) up to a step, by default the last."""
        last = self.setup.plan.total_steps if stop is None else stop
        losses = []
        for end in (min(self.setup.first_steps, last), last):
            losses += train_steps(self.state, self.setup.sampler, self.setup.objective, end)
            self.state.prepare_next_steps()
        return np.array([loss.numpy() for loss in losses])

    def combined_ads(self):
        return self.setup.combined_ads(self.model)


RELEASE = overlay(
    CombineSettings(run=""),
    {"combiner.lr": 1e-3, "combiner.epochs": 20, "combiner.batch_size": 60, "classifiers.lr": 1e-2},
)
DRAFT = overlay(RELEASE, {"variant": "draft", "combiner.lr": 3e-3, "combiner.epochs": 40})
VARIANTS = pytest.mark.parametrize("settings", [DRAFT, RELEASE], ids=["draft", "release"])


@pytest.fixture(scope="module")
def data():
    return Planted()


def _trained(data, settings):
    training = data.training(settings)
    training.run()
    return training.combined_ads()


def _short(settings, num_epochs, **changes):
    of_classifiers = {f"classifiers.{name}": value for name, value in changes.items()}
    return overlay(settings, {"combiner.epochs": num_epochs, **of_classifiers})


@VARIANTS
def test_new_ads_are_found_by_what_their_neighbours_classifiers_know(data, settings):
    combined = _trained(data, settings)
    by_text, by_combiner = (
        data.recall(vectors) for vectors in (data.novel, combined.represent(data.novel))
    )
    assert by_text < 0.3
    assert by_combiner > 0.6
    draw = np.random.default_rng(0)
    combined.seen.classifiers = draw.permuted(combined.seen.classifiers, axis=1)
    assert data.recall(combined.represent(data.novel)) < by_combiner - 0.15


@VARIANTS
def test_what_is_frozen_does_not_change_and_an_ad_is_not_represented_by_its_own_classifier(
    data, settings
):
    before = data.seen.copy(), data.train.copy()
    training = data.training(_short(settings, 2))
    training.run(training.setup.first_steps)
    classifiers = training.model.classifiers.vectors.numpy().copy()
    training.run()
    np.testing.assert_array_equal(training.setup.seen.embeddings, before[0])
    np.testing.assert_array_equal(training.model.embeddings[: len(before[1])], before[1])
    combined = training.combined_ads()
    is_same = np.array_equal(combined.seen.classifiers, classifiers)
    assert is_same == (training.setup.variant.loss == "bce")

    own = np.arange(len(data.seen))
    neighbours = combined.represent(data.seen, own)
    combined.seen.classifiers[7] = 5 * np.random.default_rng(7).normal(size=DIM)
    changed = combined.represent(data.seen, own)
    np.testing.assert_array_equal(changed[7], neighbours[7])
    assert not np.array_equal(changed, neighbours)


@VARIANTS
@pytest.mark.parametrize("break_at", [7, 14])
def test_a_resumed_training_equals_an_uninterrupted_one(data, settings, break_at, tmp_path):
    short = _short(settings, 3, epochs=min(settings.chosen_variant().classifier_epochs, 2))
    whole, begun, resumed = (data.training(short) for _ in range(3))
    losses = whole.run()
    assert len(losses) > break_at
    first = begun.run(break_at)
    begun.model.save(tmp_path)
    save_checkpoint(tmp_path, begun.state, {})
    resumed.model.load(tmp_path)
    restore_checkpoint(tmp_path, resumed.state)
    rest = resumed.run()
    np.testing.assert_array_equal(np.concatenate([first, rest]), losses)
    for one, other in zip(
        resumed.model.combiner.parameters(), whole.model.combiner.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_the_drafts_batches_are_clusters_of_queries(data):
    training = data.training(_short(DRAFT, 1))
    training.run(0)
    clusters = training.state.sources.clusters
    assert clusters.num_clusters == 8 * training.setup.sampler.steps_per_epoch
    groups = np.array_split(data.query_groups[clusters.rows], clusters.num_clusters)
    assert np.mean([len(np.unique(one)) for one in groups]) < 2, "of 5.8 in random order"


def _train_on_a_worker(rank, store, settings, file):
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    data = Planted()
    vectors = _trained(data, settings).represent(data.novel)
    if rank == 0:
        np.save(file, vectors)
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_workers_compute_what_one_does(data, tmp_path):
    short = _short(DRAFT, 1, epochs=1, dropout=0.0)  # each worker drops its own
    file = tmp_path / "vectors.npy"
    run_in_two_processes(_train_on_a_worker, f"file://{tmp_path}/store", short, file)
    expected = _trained(data, short).represent(data.novel)
    np.testing.assert_allclose(np.load(file), expected, atol=1e-3)


def test_saved_and_opened_it_represents_ads_alike_in_any_blocks(data, tmp_path):
    combined = _trained(data, _short(RELEASE, 2))
    combined.save(tmp_path)
    opened = open_combined_ads(tmp_path)
    together = opened.represent(data.novel)
    np.testing.assert_allclose(together, combined.represent(data.novel), atol=5e-3)
    alone = np.concatenate([opened.represent(ad[None]) for ad in data.novel])
    np.testing.assert_allclose(alone, together, atol=1e-6)
    longer = CombinedAds(opened.combiner, opened.seen, opened.lookup, scale=2.0)
    np.testing.assert_allclose(2 * longer.represent(data.novel), together, atol=1e-6)
