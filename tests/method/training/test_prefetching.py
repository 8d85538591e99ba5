"""Items that a thread makes ahead, and the inputs of steps with and without it."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from short_runs import Run, build_sampler, run_two_workers
from torch import Tensor

from ramen_ray.data.prefetching import prefetched
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.model.encoder import build_bag
from ramen_ray.method.objectives.adaptation import LINKED, AdaptiveWeights
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import ramen_objective
from ramen_ray.method.sampling.batches import DrawState, Sampler
from ramen_ray.method.sampling.step_inputs import StepInputs
from ramen_ray.method.training import step as step_module
from ramen_ray.method.training.step import step_inputs, train_steps

CPU = torch.device("cpu")
WEIGHTS = {"links": 0.3, "topics": 0.2}
OBJECTIVE = ramen_objective(TripletLoss(0.3, 4), WEIGHTS, WEIGHTS, every_steps=2)
PATIENCE_S = 900.0


def _threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("prefetched")]


def _sampler(data: Prepared) -> Sampler:
    return build_sampler(data, OBJECTIVE, num_hard_negatives=2)


def _sources(sampler: Sampler) -> DrawState:
    num_queries = len(sampler.data.query_ids)
    ads = np.arange(num_queries * 4, dtype=np.int32).reshape(num_queries, 4) % 40
    return DrawState(sampler.data.graphs, shortlists=ads)


def _made(sampler: Sampler, draws: DrawState, steps: range) -> Iterator[StepInputs]:
    """Make inputs of steps with adaptive λ."""
    parts = [AdaptiveWeights(OBJECTIVE, 0.3, 0.01, CPU)]
    return step_inputs(sampler, draws, OBJECTIVE, steps, CPU, parts)


def _arrays(inputs: StepInputs) -> list[Any]:
    """Return all that differs from step to step."""
    arrays: list[Any] = [inputs.queries]
    for one in (inputs.task, *inputs.regularizers.values()):
        arrays += [one.pool.ids, one.rows, one.candidates, one.drawn, one.known]
    for linked in inputs.added[LINKED].values():
        arrays += linked
    texts = [inputs.texts.rows, inputs.texts.tables, inputs.tokens.token_ids]
    drawn = [ids for _, ids in (*inputs.batch.drawn(), *inputs.local.drawn())]
    return [array.tolist() for array in (*arrays, *texts, *drawn)]


@pytest.mark.parametrize("how_many", [0, 1, 7])
def test_items_come_in_order_from_another_thread(how_many):
    makers = []

    def items() -> Iterator[int]:
        for number in range(how_many):
            makers.append(threading.current_thread())
            yield number

    assert list(prefetched(items())) == list(range(how_many))
    assert threading.current_thread() not in makers
    assert len(set(makers)) == min(how_many, 1)
    assert not _threads()


def test_the_next_item_is_made_meanwhile_and_no_other():
    begun = [threading.Event() for _ in range(4)]

    def items() -> Iterator[int]:
        for number, event in enumerate(begun):
            event.set()
            yield number

    with closing(prefetched(items())) as ahead:
        assert next(ahead) == 0
        assert begun[1].wait(PATIENCE_S)
        assert next(ahead) == 1
        assert begun[2].wait(PATIENCE_S)
        assert not begun[3].is_set()
    assert not begun[3].is_set()
    assert not _threads()


def test_an_error_is_raised_in_the_place_of_its_item():
    def items() -> Iterator[int]:
        yield from (1, 2)
        raise ValueError("the third")

    ahead, found = prefetched(items()), []
    with pytest.raises(ValueError, match="the third"):
        for item in ahead:
            found.append(item)
    assert found == [1, 2]
    assert not _threads()


def test_a_thread_makes_the_same_inputs(prepared_bag):
    _assert_same_ahead(prepared_bag, range(1, 3 * _sampler(prepared_bag).steps_per_epoch))


def _assert_same_ahead(data: Prepared, steps: range) -> None:
    plain, ahead = (
        [_arrays(inputs) for inputs in of(_made(sampler, _sources(sampler), steps))]
        for of, sampler in ((iter, _sampler(data)), (prefetched, _sampler(data)))
    )
    assert len(plain) == len(steps)
    assert ahead == plain
    assert plain[0] != plain[1]


def _worker(rank: int, folder: Path, prepared: Path, encoder: Path) -> None:
    sampler = _sampler(Prepared(prepared))
    _assert_same_ahead(Prepared(prepared), range(5))
    losses = [_train(sampler, encoder, on) for on in (False, True)]
    assert losses[0] == losses[1]
    assert not _threads()


def _train(sampler: Sampler, encoder: Path, prefetch: bool) -> list[list[float]]:
    """Train five steps, which have collectives of their own; returns this worker's losses."""
    run = Run(build_bag(str(encoder)), sampler, OBJECTIVE)
    run.state.draws = _sources(sampler)
    with patch.object(step_module, "ahead_for", _on_a_thread if prefetch else _here):
        return run.train(5)


def _on_a_thread(device: torch.device, items: Any) -> Any:
    return prefetched(items)


def _here(device: torch.device, items: Any) -> Any:
    return items


@pytest.mark.slow
def test_two_workers_have_the_same_inputs_with_a_thread(prepared_bag, encoder_path, tmp_path):
    run_two_workers(_worker, tmp_path, prepared_bag.path, encoder_path)


class _Fails(torch.nn.Module):
    """An encoder that fails in its second step."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder, self.calls = encoder, 0

    def forward(self, texts: Any) -> Tensor:
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("out of memory")
        embeddings: Tensor = self.encoder(texts)
        return embeddings


@pytest.mark.parametrize("ends", ["early", "by an error"])
def test_the_thread_ends_with_the_training(ends, prepared_bag, encoder_path, monkeypatch):
    monkeypatch.setattr(step_module, "ahead_for", _on_a_thread)
    encoder, sampler = build_bag(str(encoder_path)), _sampler(prepared_bag)
    state = Run(encoder, sampler, OBJECTIVE).state
    if ends == "by an error":
        state.model = _Fails(encoder)
    steps = train_steps(state, sampler, OBJECTIVE, 5)
    next(steps)
    assert _threads()
    if ends == "early":
        steps.close()
    else:
        with pytest.raises(RuntimeError, match="out of memory"):
            next(steps)
    assert state.step == 1
    assert not _threads()
