"""Classifiers: their terms against loops, what a step moves, workers, resuming, saving."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from short_runs import ConfiguredRun, run_two_workers
from support import rows_of
from torch.nn import functional

from ramen_ray.config import EncoderConfig, RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.ground_truth import Propensity, evaluate
from ramen_ray.method.model.dual_encoder import ENCODER_FOLDER, Scoring, load_model
from ramen_ray.method.model.pretrained import EncoderError
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.sampling.batches import SamplingSources
from ramen_ray.method.sampling.encoded import encode
from ramen_ray.method.sampling.training_data import ADS, QUERIES
from ramen_ray.method.training.classifier_training import ClassifierPart
from ramen_ray.method.training.state import restore_checkpoint, save_checkpoint, save_shares
from ramen_ray.method.training.step import step_inputs

CHANGES = {
    "base.kind": "unidec",
    "base.first_clustered_epoch": 1,
    "base.num_positives": 2,
    "encoder.projection_dim": 5,
    "loss.reverse_share": 0.3,
    "regularization.lambda_z": {"links": 0.2},
    "training.epochs": 3,
    "training.global_batch_size": 7,  # which two workers cannot share evenly
    "optimizer.lr": 0.05,
    "classifier.lr": 0.05,
    "classifier.bce": 0.5,
}


@pytest.fixture(scope="module")
def config(encoder_path):
    encoder = EncoderConfig(kind="bag", pretrained=encoder_path)
    return overlay(RunConfig(encoder=encoder), CHANGES)


class Run(ConfiguredRun):
    """A run with hard negatives from random shortlists."""

    def __init__(self, config, data, folder=None):
        super().__init__(config, data, folder)
        size = (len(data.queries["train"]), 4)
        lists = np.random.default_rng(0).integers(0, len(data.ads), size).astype(np.int32)
        self.state.sources = SamplingSources(self.sampler.data.graphs, shortlists=lists)

    @property
    def part(self):
        (part,) = (one for one in self.state.parts if isinstance(one, ClassifierPart))
        return part


@pytest.mark.parametrize("own_hard_negatives", [False, True])
def test_terms_equal_loops_over_the_printed_sums(own_hard_negatives, config, prepared_bag):
    changes = {"classifier.own_hard_negatives": own_hard_negatives}
    run = Run(overlay(config, changes), prepared_bag)
    steps = range(1, 2)
    device = run.model.device
    (inputs,) = step_inputs(run.sampler, run.state.sources, run.objective, steps, device)
    encoded = run.part.before(encode(run.model, inputs))
    losses = run.objective.losses(encoded, step=1)
    found = dict(zip(run.objective.names, losses.tolist(), strict=True))
    clicks = rows_of(prepared_bag.clicks["train"])
    batch = encoded.batch
    drawn = np.concatenate([batch.ads, batch.hard_negatives, batch.unencoded], axis=1)
    pool = sorted({ad for ad in drawn.ravel().tolist() if ad >= 0})
    clicked = [set(clicks[row]) for row in batch.queries]
    assert any((ads & set(pool)) - set(own) for ads, own in zip(clicked, batch.ads, strict=True))

    pooled = {
        table: _pooled(run.model, prepared_bag, table, rows)
        for table, rows in ((QUERIES, batch.queries), (ADS, np.array(pool)))
    }
    norm = partial(functional.normalize, dim=-1)
    model = run.model
    cosines = (
        norm(torch.tanh(model.encoder.projection.linear(pooled[QUERIES])))
        @ norm(torch.tanh(model.encoder.projection.linear(pooled[ADS]))).T
    )
    logits = model.classifier_head.linear(pooled[QUERIES]) @ model.classifiers.vectors[pool].T / 0.1
    expected = {}
    for name, scores in (("task", cosines / 0.05), ("classifier", logits)):
        positives = [[place for place, ad in enumerate(pool) if ad in ads] for ads in clicked]
        reverse = [[i for i, ads in enumerate(clicked) if ad in ads] for ad in pool]
        if own_hard_negatives and name == "task":
            texts = encoded.inputs.texts
            encoded_ads = texts.rows[texts.tables == list(run.sampler.data.tables).index(ADS)]
            ((nodes, _),) = batch.anchors.values()
            assert np.isin(encoded_ads, [*batch.ads.ravel(), *nodes]).all()
            places = [place for place, ad in enumerate(pool) if ad in batch.ads]
            assert any(set(own) - set(places) for own in positives)
            positives = [
                [places.index(place) for place in own if place in places] for own in positives
            ]
            reverse = [reverse[place] for place in places]
            scores = scores[:, places]
        rows = [_decoupled(row, own) for row, own in zip(scores, positives, strict=True)]
        expected[name] = sum(rows) / len(rows)
        columns = [_decoupled(column, own) for column, own in zip(scores.T, reverse, strict=True)]
        expected[f"{name}_reverse"] = sum(columns) / sum(map(bool, reverse))
    truth = torch.tensor([[float(ad in ads) for ad in pool] for ads in clicked])
    expected["classifier_bce"] = functional.binary_cross_entropy_with_logits(logits, truth).item()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4), name
    assert set(found) == {*expected, "R_z/links"}


def test_a_transformers_head_begins_centred_on_the_ads_and_goes_on_as_it_was(
    config, prepared, tmp_path
):
    transformer = {"encoder.kind": "transformer", "regularization.lambda_z": {}}
    config = overlay(config, transformer)
    model = ConfiguredRun(config, prepared).model
    head = model.classifier_head
    rows = np.arange(len(prepared.ads))
    with torch.no_grad():
        alone = [prepared.ads.gather(rows[row : row + 1]) for row in rows]
        batches = [TokenBatch(ids, np.array([len(ids)])) for ids in alone]
        vectors = torch.cat([head(model.encoder.pool(batch)) for batch in batches])
        assert vectors.mean(dim=0).norm() < 0.01 * vectors.norm(dim=1).mean()
        head.linear.bias += 1
    model.save(tmp_path, 16)
    trained = overlay(config, {"encoder.pretrained": str(tmp_path / ENCODER_FOLDER)})
    further = ConfiguredRun(trained, prepared).model.classifier_head
    torch.testing.assert_close(further.linear.bias, head.linear.bias)


def _pooled(model, data, table, rows):
    """Return mean token embeddings, one text at a time."""
    texts = data.queries["train"] if table == QUERIES else data.ads
    weights = model.encoder.token_embeddings
    return torch.stack([weights[texts.gather(np.array([row])).astype(int)].mean(0) for row in rows])


def _decoupled(scores, positives):
    others = [s for place, s in enumerate(scores.tolist()) if place not in positives]
    total = sum(
        -np.log(np.exp(own) / (np.exp(own) + np.exp(others).sum()))
        for own in scores[positives].tolist()
    )
    return total / max(len(positives), 1)


def _moments(run):
    (state,) = run.part.training.optimizer.state.values()
    return [state["exp_avg"].clone(), state["exp_avg_sq"].clone()]


def test_a_resumed_run_equals_an_uninterrupted_one(config, prepared_bag, tmp_path):
    whole = Run(config, prepared_bag)
    expected = whole.train(7)
    first = Run(config, prepared_bag)
    before = first.train(3)
    first.save(tmp_path)
    second = Run(config, prepared_bag, tmp_path)
    restore_checkpoint(tmp_path, second.state)
    assert before + second.train(7) == expected
    assert torch.equal(second.model.classifiers.vectors, whole.model.classifiers.vectors)
    for found, wanted in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(found, wanted)


def _two_workers(rank, folder, config, prepared):
    """Train three steps on one of two workers, save, evaluate; replicated, then shared out."""
    for sharded in (False, True):
        run = Run(overlay(config, {"classifier.sharded": sharded}), Prepared(prepared))
        run.state.model = torch.nn.parallel.DistributedDataParallel(run.model)
        run.objective = replace(run.objective, is_frugal=True)
        found = {"losses": run.train(3), "held": len(run.model.classifiers.held)}
        found["metrics"] = evaluate(run.model, run.data, "validation", Propensity())[0]
        checkpoint = folder / f"sharded-{sharded}"
        if rank == 0:
            run.model.save(checkpoint, 16)
            save_checkpoint(checkpoint, run.state, {})
        else:
            save_shares(checkpoint, run.state)
        torch.save(found, folder / f"{sharded}-{rank}.pt")


def test_two_workers_train_as_one_with_the_table_whole_or_in_shares(config, prepared_bag, tmp_path):
    config = overlay(config, {"classifier.own_hard_negatives": True})
    run_two_workers(_two_workers, tmp_path, config, prepared_bag.path)
    alone = Run(config, prepared_bag)
    expected = alone.train(3)
    metrics = evaluate(alone.model, prepared_bag, "validation", Propensity())[0]
    num_ads = len(prepared_bag.ads)
    for sharded in (False, True):
        found = [torch.load(tmp_path / f"{sharded}-{rank}.pt") for rank in range(2)]
        assert sum(one["held"] for one in found) == (num_ads if sharded else 2 * num_ads)
        for one in found:
            assert np.array(one["losses"]) == pytest.approx(np.array(expected), rel=1e-4)
            assert one["metrics"] == pytest.approx(metrics, abs=1e-6)
        # What two workers saved, one goes on with.
        checkpoint = tmp_path / f"sharded-{sharded}"
        resumed = Run(config, prepared_bag, checkpoint)
        restore_checkpoint(checkpoint, resumed.state)
        torch.testing.assert_close(
            resumed.model.classifiers.vectors, alone.model.classifiers.vectors, rtol=0, atol=1e-5
        )
        for old, new in zip(_moments(alone), _moments(resumed), strict=True):
            torch.testing.assert_close(old, new, rtol=1e-3, atol=1e-6)


def test_both_vectors_score_as_a_weighted_mean_of_two_cosines(config, prepared_bag, tmp_path):
    run = Run(config, prepared_bag)
    run.train(4)
    run.save(tmp_path)
    rows = np.arange(12)
    scores = {}
    for part in ("encoder", "classifier", "both"):
        model = load_model(tmp_path, part=part)
        queries = model.embed_queries(prepared_bag.queries["test"], rows)
        ads = model.embed_ads(prepared_bag.ads, np.arange(len(prepared_bag.ads)))
        assert np.linalg.norm(queries, axis=1) == pytest.approx(np.ones(12), abs=1e-5)
        assert queries.shape[1] == model.dim
        scores[part] = queries @ ads.T
    mean = (scores["encoder"] + 0.5 * scores["classifier"]) / 1.5
    np.testing.assert_allclose(scores["both"], mean, atol=1e-6)

    # An ad without a train click is found by its text; its classifier answers if that is asked for.
    unclicked = np.flatnonzero(prepared_bag.train_click_counts == 0)
    assert len(unclicked)
    model = load_model(tmp_path, part="classifier")
    by_text = 0.6 * model.embed_queries(prepared_bag.ads, unclicked)
    np.testing.assert_allclose(model.embed_ads(prepared_bag.ads, unclicked), by_text, atol=1e-6)
    own = Run(overlay(config, {"classifier.unclicked": "own"}), prepared_bag)
    assert own.model.classifiers.is_trained.all()


@pytest.mark.parametrize("part", ["encoder", "classifier", "both"])
def test_vectors_of_ads_follow_from_those_of_queries(config, prepared_bag, part):
    run = Run(config, prepared_bag)
    run.train(4)
    model = run.model
    ads = np.flatnonzero(prepared_bag.train_click_counts)
    model.part = part
    model.scoring = Scoring(weight=0.5, text_scale=0.6)
    as_queries = model.embed_queries(prepared_bag.ads, ads)
    by_text = as_queries * model.text_scales
    np.testing.assert_allclose(by_text, model.embed_new_ads(prepared_bag.ads, ads), atol=1e-6)
    by_classifier = model.with_classifiers(by_text, ads)
    np.testing.assert_allclose(by_classifier, model.embed_ads(prepared_bag.ads, ads), atol=1e-6)
    assert (by_classifier == by_text).all() == (part == "encoder")


def test_classifiers_of_which_some_are_lost_are_refused(config, prepared_bag, tmp_path):
    Run(config, prepared_bag).save(tmp_path / "run")
    (file,) = (tmp_path / "run" / "classifiers").glob("vectors-*.npy")
    np.save(file, np.load(file)[:-3])
    with pytest.raises(EncoderError, match="run/classifiers"):
        load_model(tmp_path / "run")
