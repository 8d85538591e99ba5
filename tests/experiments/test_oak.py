"""OAK as a part of the step: what it moves, and planted data that only it can learn."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from short_runs import ConfiguredRun
from support import (
    MAX_LENGTH,
    node_edges,
    prepare_in_process,
    query_table,
    text_table,
)

from experiments.oak.links import first_links, held_out_links
from experiments.oak.method import (
    AugmentedQueries,
    OakSettings,
    calibration_losses,
    oak_objective,
    oak_part,
)
from ramen_ray.config import EncoderConfig, RunConfig, overlay
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.method.metrics.ground_truth import Propensity, evaluate
from ramen_ray.method.model.pretrained import load_tokenizer
from ramen_ray.method.objectives.terms import Objective

SETS = ("links", "topics")
OAK = OakSettings(anchor_sets=SETS, max_links=3, bank_lr=0.1)
CHANGES = {"training.epochs": 3, "training.global_batch_size": 8, "optimizer.lr": 0.02}


@pytest.fixture(scope="module")
def config(encoder_path):
    encoder = EncoderConfig(kind="bag", pretrained=encoder_path)
    return overlay(RunConfig(encoder=encoder), CHANGES)


class Run(ConfiguredRun):
    """A run in this process: of OAK, or of its base."""

    def __init__(self, config, data, oak=OAK):
        super().__init__(config, data)
        if oak is not None:
            self.objective = oak_objective(config, oak)
            self.part = oak_part(config, oak, data, self.model, self.sampler)
            self.state.parts = [self.part]

    def metrics(self, split, links):
        answering = AugmentedQueries(self.model, self.part.augmentation, links)
        return evaluate(answering, self.data, split, Propensity())[0]


def test_the_term_of_the_encoder_alone_is_the_base(config, prepared_bag):
    """With the other weights at 0, losses and what they move are the base's, to the bit."""
    base, ours = Run(config, prepared_bag, None), Run(config, prepared_bag)
    weights = {"task": 0.0, "encoder": 1.0, "calibration": 0.0}
    terms = (replace(term, weight=weights[term.name]) for term in ours.objective.terms)
    ours.objective = Objective(tuple(terms))
    of_encoder = ours.objective.names.index("encoder")
    assert [step[of_encoder] for step in ours.train(9)] == [step[0] for step in base.train(9)]
    for found, expected in zip(
        ours.model.encoder.parameters(), base.model.encoder.parameters(), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.fixture(scope="module")
def planted(encoder_path, tmp_path_factory):
    """Queries of random words, whose one anchor alone says which ad they led to."""
    draw = np.random.default_rng(0)
    vocabulary = load_tokenizer(encoder_path).get_vocab()
    words = sorted(word for word in vocabulary if word.isalpha())
    tables = {
        "ads": text_table("ad_id", words[:12]),
        "anchors/links": text_table("anchor_id", words[12:24]),
    }
    for split, count in (("train", 144), ("validation", 24), ("test", 36)):
        kinds = draw.integers(0, 12, size=count)
        texts = [" ".join(draw.choice(words[24:40], 3, replace=False)) for _ in range(count)]
        if split == "test":
            texts[:6] = words[12:18]  # the texts of anchors
        tables[f"queries/{split}"] = query_table(texts, [[kind] for kind in kinds])
        side = "query" if split == "train" else f"{split}_query"
        tables[f"edges/links/{side}"] = node_edges("query_id", [[kind] for kind in kinds])
    folder = tmp_path_factory.mktemp("planted")
    dataset = write_dataset(folder / "dataset", tables, name="planted")
    return prepare_in_process(dataset, folder / "bag", encoder_path, MAX_LENGTH, False)


def test_planted_anchors_decide_the_ad(config, planted):
    """The oracle finds what no text tells; random links do not."""
    oak = OAK.model_copy(update={"anchor_sets": ("links",)})
    run = Run(overlay(config, {"training.epochs": 6, "optimizer.lr": 0.003}), planted, oak)
    run.train(6 * run.sampler.steps_per_epoch)
    dataset = Dataset(planted.metadata["dataset"])
    oracle = held_out_links(dataset, ["links"], "test")
    assert run.metrics("test", first_links(oracle, 3))["P@1"] > 0.9
    base = evaluate(run.model, planted, "test", Propensity())[0]["P@1"]
    chosen = np.random.default_rng(1).integers(0, 12, size=(36, 1))
    chance = run.metrics("test", chosen)["P@1"]
    assert max(base, chance) < 0.35
    assert held_out_links(dataset, ["links"], "zero_shot") is None


@pytest.mark.parametrize("num_ads", [1, 4, 10, 37])
@pytest.mark.parametrize("share_clicked", [0, 0.3, 1])
def test_it_is_the_mean_of_the_ten_largest_hinges(num_ads, share_clicked):
    draw = np.random.default_rng(num_ads)
    plain, enriched = draw.integers(-4, 5, size=(2, 8, num_ads)) / 4  # with ties
    clicked = draw.random((8, num_ads)) < share_clicked
    found = calibration_losses(*map(torch.from_numpy, (plain, enriched, clicked)), 0.05)
    hinges = np.maximum(np.where(clicked, 1, -1) * (plain - enriched) + 0.05, 0)
    furthest = np.sort(hinges, axis=1)[:, -10:]
    assert found.tolist() == pytest.approx(furthest.mean(axis=1))
