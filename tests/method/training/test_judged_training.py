"""Trainings on judgements: what is drawn, terms and gradients against loops, workers, resuming."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from short_runs import ConfiguredRun, run_two_workers
from support import prepare_in_process, rows_of, shares_of, with_tables
from torch import Tensor, nn
from written_out import column_of

from ramen_ray.config import ConfigError, EncoderConfig, RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.schemas import JUDGEMENTS
from ramen_ray.idle_settings import refuse_idle
from ramen_ray.method.sampling.encoded import encode
from ramen_ray.method.training.state import restore_checkpoint
from ramen_ray.method.training.step import step_inputs
from ramen_ray.orchestration.run.build import build_training_data

CONFIGS = {
    "triplet": {"judged.graded": 0.5},
    "softmax": {
        "base.kind": "unidec",
        "base.hard_negatives": "none",
        "base.order": "random",
        "base.num_positives": 2,
        "loss.reverse_share": 0.3,
        "classifier.bce": 0.5,
        "judged.graded": 0.5,
    },
    "positives": {"judged.as_positives": True, "training.sampling": "clicks"},
}


@pytest.fixture(scope="module")
def parent(dataset_path, tmp_path_factory):
    """The dataset with weights of clicks, and judgements of clicked ads and of others."""
    draw = np.random.default_rng(4)
    before = Dataset(dataset_path)
    train = before.read("queries/train")
    weights = [[draw.integers(1, 9) for _ in ads] for ads in train["ad_ids"].to_pylist()]
    column = pa.array(weights, pa.list_(pa.float32()))
    tables = {"queries/train": train.append_column("weights", column)}
    held_out = {
        text.lower()
        for split in ("validation", "test")
        for text in column_of(before, f"queries/{split}")
    }
    rows = []
    for row in train.to_pylist():
        if row["text"].lower() in held_out:
            continue
        ads = {*row["ad_ids"], *draw.choice(40, 9, replace=False).tolist()}
        rows += [(row["query_id"], ad, "human", draw.integers(0, 4) / 3) for ad in sorted(ads)[::2]]
    tables["judged/train"] = pa.table([*zip(*rows, strict=True)], JUDGEMENTS.names)
    return with_tables(before, tmp_path_factory.mktemp("judged") / "d", tables)


@pytest.fixture(scope="module")
def data(parent, encoder_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged") / "p"
    return prepare_in_process(parent, folder, encoder_path, 16, add_special_tokens=False)


@pytest.fixture(scope="module")
def configs(encoder_path, parent):
    encoder = EncoderConfig(kind="bag", pretrained=encoder_path)
    changes = {"training.global_batch_size": 15, "optimizer.lr": 0.05, "training.epochs": 3}
    start = overlay(RunConfig(encoder=encoder, dataset=str(parent.path)), changes)
    return {name: overlay(start, more) for name, more in CONFIGS.items()}


@pytest.fixture
def config(request, configs):
    return configs[getattr(request, "param", "triplet")]


def _grades(parent, data):
    """Return the grades by train query row and ad."""
    row_of = {query: row for row, query in enumerate(data.query_ids.tolist())}
    judged = parent.read("judged/train").to_pylist()
    return {(row_of[row["query_id"]], row["ad_id"]): row["grade"] for row in judged}


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_ads_judged_low_are_no_positives_and_high_ones_may_be(config, parent, data):
    run = ConfiguredRun(config, data)
    grades = _grades(parent, data)
    expected = []
    shares = []
    weighted = zip(rows_of(data.clicks["train"]), shares_of(data.weighted_clicks), strict=True)
    for row, (ads, own) in enumerate(weighted):
        weights = {
            ad: weight
            for ad, weight in zip(ads, own, strict=True)
            if grades.get((row, ad), 1.0) >= 0.5
        }
        if config.judged.as_positives:
            high = {ad for (other, ad), grade in grades.items() if other == row and grade >= 0.5}
            weights |= dict.fromkeys(high - {*ads}, 1 / len(ads))
        expected.append(sorted(weights))
        total = sum(weights.values())
        shares.append([weight / total for _, weight in sorted(weights.items())])
    assert rows_of(run.sampler.data.clicks) == expected
    assert expected != rows_of(data.clicks["train"])
    if run.sampler.clicks is not None:
        assert rows_of(run.sampler.clicks) == expected
        for share, wanted in zip(shares_of(run.sampler.clicks), shares, strict=True):
            assert share == pytest.approx(wanted)


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_judged_ads_of_each_query_join_the_pool(config, parent, data):
    run = ConfiguredRun(config, data)
    grades = _grades(parent, data)
    given = [set() for _ in data.query_ids]
    for (row, ad), grade in grades.items():
        if config.judged.graded or grade < 0.5:
            given[row].add(ad)
    seen = set()
    for step in range(8 * run.sampler.steps_per_epoch):
        batch = run.sampler.draw(step, run.state.sources, [])
        for row, ads in zip(batch.queries.tolist(), batch.hard_negatives.tolist(), strict=True):
            drawn = [ad for ad in ads if ad >= 0]
            assert len({*drawn}) == len(drawn) == min(len(given[row]), 2)
            assert {*drawn} <= given[row]
            seen |= {(row, ad) for ad in drawn}
    assert len(seen) > 0.8 * sum(map(len, given))


def _encoded(run, step):
    steps = range(step, step + 1)
    device = torch.device("cpu")
    drawn = run.sampler, run.state.sources, run.objective, steps, device, run.state.parts
    (inputs,) = step_inputs(*drawn)
    encoded = encode(run.model, inputs)
    for part in run.state.parts:
        encoded = part.before(encoded)
    return encoded


def _triplet(scores, own, others):
    hardest = sorted((scores[place] for place in others), key=Tensor.item, reverse=True)[:10]
    losses = [(rival - scores[place] + 0.3).clamp(min=0) for place in own for rival in hardest]
    return sum(losses, torch.zeros(())) / max(len(losses), 1)


def _softmax(scores, own, others):
    rivals = sum((scores[place].exp() for place in others), torch.zeros(()))
    losses = [-(scores[place].exp() / (scores[place].exp() + rivals)).log() for place in own]
    return sum(losses, torch.zeros(())) / max(len(losses), 1)


def _graded(scores, grades, temperature):
    judged = [place for place, grade in enumerate(grades) if grade is not None]
    if temperature is None:
        errors = [
            (scores[i] - scores[j] - grades[i] + grades[j]) ** 2
            for i in judged
            for j in judged
            if i < j
        ]
        return sum(errors, torch.zeros(())) / max(len(errors), 1)
    weights = [np.exp(grades[place] / temperature) for place in judged]
    total = sum((scores[place] / temperature).exp() for place in judged)
    divergence = torch.zeros(())
    for place, weight in zip(judged, weights, strict=True):
        share = weight / sum(weights)
        divergence = divergence + share * (
            np.log(share) - ((scores[place] / temperature).exp() / total).log()
        )
    return divergence


def _places(of_row, kind):
    return [place for place, name in enumerate(of_row) if name == kind]


def _mean(kinds, scores):
    """Return the mean of the softmax loss over the rows that have a positive."""
    losses = [
        _softmax([*similar], _places(of_row, "own"), _places(of_row, "rival"))
        for of_row, similar in zip(kinds, scores, strict=True)
    ]
    return sum(losses) / sum("own" in of_row for of_row in kinds)


def _softmax_terms(encoded, kinds):
    asking = encoded.added["classifier_queries_Ud"][encoded.inputs.task.rows]
    logits = asking @ encoded.added["classifiers_Ld"].T / 0.1
    cosines = encoded.queries_bD @ encoded.ads_LD.T
    terms = {}
    for name, scores in {"task": cosines / 0.05, "classifier": logits}.items():
        terms[name] = _mean(kinds, scores)
        terms[f"{name}_reverse"] = _mean([*zip(*kinds, strict=True)], scores.T)
    entropy = torch.zeros(())
    for of_row, similar in zip(kinds, logits, strict=True):
        for place in _places(of_row, "own"):
            entropy = entropy - nn.functional.logsigmoid(similar[place])
        for place in _places(of_row, "rival"):
            entropy = entropy - nn.functional.logsigmoid(-similar[place])
    return terms | {"classifier_bce": entropy / logits.numel()}


def _triplet_terms(encoded, kinds):
    cosines = encoded.queries_bD @ encoded.ads_LD.T
    losses = [
        _triplet([*similar], own, _places(of_row, "rival"))
        for own, of_row, similar in zip(encoded.own_places.tolist(), kinds, cosines, strict=True)
    ]
    return {"task": sum(losses) / len(losses)}


@pytest.mark.parametrize("config", ["triplet", "softmax"], indirect=True)
def test_terms_and_gradients_equal_loops_in_which_high_ads_are_no_negatives(config, parent, data):
    run = ConfiguredRun(config, data)
    grades = _grades(parent, data)
    encoded = _encoded(run, 1)
    rows = encoded.batch.queries.tolist()
    pool = encoded.ad_pool.ids.tolist()
    clicks = rows_of(run.sampler.data.clicks)

    def kind(row, ad):
        if ad in clicks[row]:
            return "own"
        return "no rival" if grades.get((row, ad), 0) >= 0.5 else "rival"

    kinds = [[kind(row, ad) for ad in pool] for row in rows]
    assert sum(of_row.count("no rival") for of_row in kinds) > 20
    is_softmax = config.base.parts.loss == "decoupled"
    expected = (_softmax_terms if is_softmax else _triplet_terms)(encoded, kinds)
    cosines = encoded.queries_bD @ encoded.ads_LD.T
    graded = [
        _graded([*similar], [grades.get((row, ad)) for ad in pool], 0.05 if is_softmax else None)
        for row, similar in zip(rows, cosines, strict=True)
    ]
    expected["graded"] = sum(graded) / len(rows)
    assert {*expected} == {*run.objective.names}
    losses = run.objective.losses(encoded, 1)
    ordered = torch.stack([expected[name] for name in run.objective.names])
    torch.testing.assert_close(losses, ordered, rtol=1e-4, atol=1e-5)
    weights = torch.tensor(run.objective.weights)
    parameters = [*run.model.parameters()]
    gradients = [
        torch.autograd.grad((terms * weights).sum(), parameters, retain_graph=True)
        for terms in (losses, ordered)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def _worker(rank, folder, configs, prepared):
    for name, config in configs.items():
        run = ConfiguredRun(config, Prepared(prepared))
        run.state.model = nn.parallel.DistributedDataParallel(run.model)
        losses = run.train(4)
        if rank == 0:
            (folder / name).write_text(json.dumps(losses))


def test_two_workers_and_a_resumed_run_equal_one_that_is_whole(configs, data, tmp_path):
    run_two_workers(_worker, tmp_path, configs, data.path)
    for name, config in configs.items():
        whole = ConfiguredRun(config, data)
        expected = whole.train(4)
        np.testing.assert_allclose(json.loads((tmp_path / name).read_text()), expected, 1e-4)
        first = ConfiguredRun(config, data)
        before = first.train(2)
        first.save(tmp_path / "c" / name)
        second = ConfiguredRun(config, data, tmp_path / "c" / name)
        restore_checkpoint(tmp_path / "c" / name, second.state)
        assert before + second.train(4) == expected


def test_without_a_use_judgements_change_no_bit_and_without_judgements_no_setting_acts(
    config, parent, data, prepared_bag, dataset_path
):
    off = {"judged.num_negatives": 0, "judged.graded": 0.0}
    trained = ConfiguredRun(overlay(config, off), data).train(6)
    assert trained == ConfiguredRun(overlay(config, {"judged.graded": 0.0}), prepared_bag).train(6)
    assert trained != ConfiguredRun(overlay(config, {"judged.graded": 0.0}), data).train(6)
    refuse_idle(config, ["judged.num_negatives"])
    without = overlay(config, {"dataset": str(dataset_path)})
    with pytest.raises(ConfigError, match=r"^judged\.num_negatives"):
        refuse_idle(without, ["judged.num_negatives"])
    with pytest.raises(ConfigError, match=r"^judged\.graded"):
        build_training_data(without, prepared_bag)
    with pytest.raises(DatasetError, match=r"'teacher'.*human"):
        build_training_data(overlay(config, {"judged.sources": ("teacher",)}), data)
