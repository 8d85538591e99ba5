"""OAK's training: what a step moves, workers, resuming, and planted data that only it can learn."""

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import (
    MAX_LENGTH,
    node_edges,
    prepare_in_process,
    query_table,
    rows_of,
    run_in_two_processes,
    text_table,
)
from torch import Tensor, distributed

from ramen_ray.config import EncoderConfig, RunConfig, overlay
from ramen_ray.data.prepared.csr import side_by_side
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import write_dataset
from ramen_ray.method.metrics.evaluation import evaluate
from ramen_ray.method.metrics.judgement import Propensity
from ramen_ray.method.model.augmented_queries import AugmentedQueries
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.model.pretrained import load_tokenizer
from ramen_ray.method.objectives.terms import Objective
from ramen_ray.method.retrieval.links import (
    bank_texts,
    first_links,
    held_out_links,
    nearest_anchors,
    train_links,
)
from ramen_ray.method.sampling.training_data import TrainingData
from ramen_ray.method.training.checkpoints import restore_checkpoint, save_checkpoint
from ramen_ray.method.training.step import global_losses, train_steps
from ramen_ray.orchestration.runs.components import (
    add_free_vectors,
    build_model,
    build_objective,
    build_sampler,
    build_state,
)

SETS = ("links", "topics")
CHANGES = {
    "oak.anchor_sets": SETS,
    "oak.max_links": 3,
    "oak.bank_lr": 0.1,
    "training.epochs": 3,
    "training.global_batch_size": 8,
    "optimizer.lr": 0.02,
}


@pytest.fixture(scope="module")
def config(encoder_path: Path) -> RunConfig:
    encoder = EncoderConfig(kind="bag", pretrained=str(encoder_path))
    return overlay(RunConfig(encoder=encoder), CHANGES)


class Run:
    """A run without Ray: its sampler, objective and state."""

    def __init__(self, config: RunConfig, data: Prepared, folder: Path | None = None) -> None:
        """Begin anew, or with the model in ``folder``."""
        self.data = data
        self.objective = build_objective(config)
        if folder is None:
            self.model = add_free_vectors(config, build_model(config), data)
        else:
            self.model = load_model(folder)
        training_data = TrainingData.from_prepared(data, self.objective.regularizers)
        self.sampler = build_sampler(config, data, training_data)
        self.state = build_state(config, self.model, self.model, self.sampler)

    @property
    def bank(self) -> Tensor:
        return self.model.augmentation.bank.vectors

    def losses(self, stop: int) -> list[list[float]]:
        steps = list(train_steps(self.state, self.sampler, self.objective, stop))
        return global_losses(steps).tolist()

    def metrics(self, split: str, links: np.ndarray) -> dict[str, float]:
        answering = AugmentedQueries(self.model, links)
        return evaluate(answering, self.data, split, Propensity())[0]


def test_the_bank_starts_at_the_anchors_texts(config: RunConfig, prepared_bag: Prepared):
    run = Run(config, prepared_bag)
    texts = bank_texts(prepared_bag, SETS)
    assert len(texts) == 30 + 6
    weights = run.model.encoder.token_embeddings
    for row, vector in enumerate(run.bank):
        tokens = torch.from_numpy(texts.gather(np.array([row])))
        torch.testing.assert_close(vector, weights[tokens].mean(dim=0))
    edges = train_links(prepared_bag, SETS)
    assert run.model.augmentation.bank.is_trained.nonzero()[0].tolist() == sorted(
        set(edges.indices.tolist())
    )


def test_a_bank_of_two_sets_has_the_edges_of_both(prepared_bag: Prepared):
    links, topics = (prepared_bag.edges(name, "query") for name in SETS)
    both = side_by_side([links, topics], [30, 6])
    assert rows_of(both) == [
        [*own, *(30 + topic for topic in more)]
        for own, more in zip(rows_of(links), rows_of(topics), strict=True)
    ]
    assert first_links(both, 2).tolist() == [[*row, -1, -1][:2] for row in rows_of(both)]


def test_links_are_distinct_edges_of_the_query_and_change_with_the_epoch(
    config: RunConfig, prepared_bag: Prepared
):
    run, edges = Run(config, prepared_bag), rows_of(train_links(prepared_bag, SETS))
    drawn: dict[int, set[tuple[int, ...]]] = {}
    for step in range(10 * run.sampler.steps_per_epoch):
        batch = run.sampler.draw(step, run.state.sources, [])
        for row, links in zip(batch.queries.tolist(), batch.links.tolist(), strict=True):
            own = [link for link in links if link >= 0]
            assert len(own) == len(set(own)) == min(3, len(edges[row]))
            assert set(own) <= set(edges[row])
            drawn.setdefault(row, set()).add(tuple(sorted(own)))
    assert all(len(drawn[row]) > 1 for row in drawn if len(edges[row]) > 3)
    again = run.sampler.draw(5, run.state.sources, []).links
    assert np.array_equal(again, run.sampler.draw(5, run.state.sources, []).links)


def _moments(run: Run) -> list[Tensor]:
    (state,) = run.state.parts[0].bank.optimizer.state.values()
    return [state["exp_avg"].clone(), state["exp_avg_sq"].clone()]


def test_a_step_moves_the_linked_rows_only(config: RunConfig, prepared_bag: Prepared):
    run = Run(config, prepared_bag)
    run.losses(1)
    before, moments = run.bank.clone(), _moments(run)
    links = run.sampler.draw(1, run.state.sources, []).links
    linked = np.unique(links[links >= 0])
    run.losses(2)
    moved = (run.bank != before).any(dim=1).numpy()
    assert np.flatnonzero(moved).tolist() == linked.tolist()
    others = np.setdiff1d(np.arange(len(before)), linked)
    for old, new in zip(moments, _moments(run), strict=True):
        assert torch.equal(old[others], new[others])


def test_a_bank_without_a_rate_stays_as_it_starts(config: RunConfig, prepared_bag: Prepared):
    run = Run(overlay(config, {"oak.bank_lr": 0.0}), prepared_bag)
    before = run.bank.clone()
    run.losses(4)
    assert torch.equal(run.bank, before)


def test_the_term_of_the_encoder_alone_is_the_base(config: RunConfig, prepared_bag: Prepared):
    """With the other weights at 0, losses and what they move are the base's, to the bit."""
    base, ours = (
        Run(overlay(config, {"oak.anchor_sets": ()}), prepared_bag),
        Run(config, prepared_bag),
    )
    weights = {"task": 0.0, "encoder": 1.0, "calibration": 0.0}
    terms = (replace(term, weight=weights[term.name]) for term in ours.objective.terms)
    ours.objective = Objective(tuple(terms))
    of_encoder = ours.objective.names.index("encoder")
    assert [step[of_encoder] for step in ours.losses(9)] == [step[0] for step in base.losses(9)]
    for found, expected in zip(
        ours.model.encoder.parameters(), base.model.encoder.parameters(), strict=True
    ):
        assert torch.equal(found, expected)


def test_terms_without_weight_are_left_out(config: RunConfig):
    assert build_objective(config).names == ["task", "encoder", "calibration"]
    without = overlay(config, {"oak.encoder_weight": 0.0, "oak.calibration_weight": 0.0})
    assert build_objective(without).names == ["task"]


@pytest.mark.parametrize("pooling", ["attention", "mean"])
def test_a_resumed_run_equals_an_uninterrupted_one(
    pooling: str, config: RunConfig, prepared_bag: Prepared, tmp_path: Path
):
    config = overlay(config, {"oak.pooling": pooling})
    whole = Run(config, prepared_bag)
    expected = whole.losses(7)
    first = Run(config, prepared_bag)
    before = first.losses(3)
    save_checkpoint(tmp_path, first.model, first.state, MAX_LENGTH, {})
    second = Run(config, prepared_bag, tmp_path)
    restore_checkpoint(tmp_path, second.state)
    assert before + second.losses(7) == expected
    assert torch.equal(second.bank, whole.bank)
    for found, wanted in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(found, wanted)


def _two_workers(rank: int, folder: Path, config: RunConfig, prepared: Path) -> None:
    """Train three steps on one of two workers, and evaluate."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    run = Run(config, Prepared(prepared))
    trained = torch.nn.parallel.DistributedDataParallel(run.model)
    run.state.model = trained
    links = run.sampler.draw(0, run.state.sources, []).links
    found = {"losses": run.losses(3), "bank": run.bank, "links": torch.from_numpy(links)}
    found["metrics"] = run.metrics("validation", _some_links())
    torch.save(found, folder / f"{rank}.pt")
    del trained, run
    gc.collect()  # a DDP model that outlives the process group can deadlock when it is freed
    distributed.destroy_process_group()


def _some_links() -> np.ndarray:
    return np.random.default_rng(0).integers(-1, 36, size=(12, 3)).astype(np.int32)


def test_two_workers_train_and_answer_as_one(
    config: RunConfig, prepared_bag: Prepared, tmp_path: Path
):
    run_in_two_processes(_two_workers, tmp_path, config, prepared_bag.path)
    alone = Run(config, prepared_bag)
    start, expected = alone.bank.clone(), alone.losses(3)
    metrics = alone.metrics("validation", _some_links())
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    own = [set(one["links"].flatten().tolist()) - {-1} for one in found]
    assert own[0] - own[1] and own[1] - own[0] and own[0] & own[1]
    for one in found:
        assert np.array(one["losses"]) == pytest.approx(np.array(expected), rel=1e-4)
        torch.testing.assert_close(one["bank"], alone.bank, rtol=0, atol=1e-4)
        still = (alone.bank == start).all(dim=1)
        assert torch.equal(one["bank"][still], start[still])
        assert one["metrics"] == pytest.approx(metrics, abs=1e-6)


@pytest.fixture(scope="module")
def planted(encoder_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Queries of random words, whose one anchor alone says which ad they led to."""
    draw = np.random.default_rng(0)
    vocabulary = load_tokenizer(str(encoder_path)).get_vocab()
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
    return prepare_in_process(dataset, folder / "bag", str(encoder_path), MAX_LENGTH, False)


def test_planted_anchors_decide_the_ad(config: RunConfig, planted: Prepared):
    """The oracle finds what no text tells; random links do not."""
    changes = {"oak.anchor_sets": ("links",), "training.epochs": 6, "optimizer.lr": 0.003}
    run = Run(overlay(config, changes), planted)
    run.losses(6 * run.sampler.steps_per_epoch)
    oracle = held_out_links(planted, ["links"], "test")
    assert run.metrics("test", first_links(oracle, 3))["P@1"] > 0.9
    base = evaluate(run.model, planted, "test", Propensity())[0]["P@1"]
    chosen = np.random.default_rng(1).integers(0, 12, size=(36, 1))
    chance = run.metrics("test", chosen)["P@1"]
    assert max(base, chance) < 0.35
    assert held_out_links(planted, ["links"], "zero_shot") is None


def test_nearest_anchors_are_those_of_most_alike_texts_but_never_the_own_one(
    config: RunConfig, planted: Prepared
):
    model, texts = build_model(config), bank_texts(planted, ["links"])
    queries = planted.queries["test"]
    scores = model.embed_texts(queries, np.arange(36)) @ model.embed_texts(texts, np.arange(12)).T
    is_own = queries.hashes[:, None] == texts.hashes[None]
    assert is_own.sum() == 6
    scores[is_own] = -2
    found = nearest_anchors(model, planted, ["links"], "test", 4)
    assert not is_own[np.arange(36)[:, None], found].any()
    expected = -np.sort(-scores, axis=1)[:, :4]
    np.testing.assert_allclose(np.take_along_axis(scores, found, axis=1), expected, atol=1e-6)
