"""OAK's combiner against loops over queries, and what it does with no links, order and padding."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from experiments.oak.augmentation import Augmentation, Combiner
from ramen_ray.method.model.heads import Classifiers

DIM, NUM_ANCHORS = 6, 9
LINKS = np.array([[3, 0, -1, -1], [-1, -1, -1, -1], [8, 2, 5, 0], [4, -1, -1, -1]])


def _normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _augmentation(pooling):
    """Build one whose maps, biases and norm are anything, as after training."""
    combiner = Combiner(DIM, pooling)
    with torch.no_grad():
        for number, parameter in enumerate(combiner.parameters()):
            parameter.add_(_normal(*parameter.shape, seed=10 + number))
    bank = Classifiers(3 * _normal(NUM_ANCHORS, DIM, seed=2), 0, np.ones(NUM_ANCHORS, dtype=bool))
    return Augmentation(combiner.eval(), bank)


def _map(module, vector):
    """Apply a map whose weights are divided by their norm as torch's own layer finds it."""
    plain = nn.Linear(DIM, DIM)
    normed = nn.utils.spectral_norm(plain).eval()
    state = module.state_dict()
    plain.weight_orig.data = state["parametrizations.weight.original"]
    plain.weight_u, plain.weight_v = (state[f"parametrizations.weight.0._{n}"] for n in "uv")
    plain.bias.data = state["bias"]
    return normed(vector)


@pytest.mark.parametrize("pooling", ["attention", "mean"])
def test_each_query_gets_the_printed_sum(pooling):
    queries = functional.normalize(_normal(len(LINKS), DIM, seed=1), dim=1)
    augmentation = _augmentation(pooling)
    combiner = augmentation.combiner
    anchors = np.unique(LINKS[LINKS >= 0])
    found = augmentation(queries, LINKS, anchors, augmentation.bank.take(anchors))
    for x, links, enriched in zip(queries, LINKS, found, strict=True):
        linked = [anchor for anchor in links.tolist() if anchor >= 0]
        if not linked:
            assert torch.equal(enriched, x)
            continue
        vectors = [v / v.norm() for v in augmentation.bank.vectors[linked]]
        scores = torch.zeros(len(linked))
        if pooling == "attention":
            asking = _map(combiner.of_query, x)
            keys = [_map(combiner.of_anchor, v) for v in vectors]
            scores = torch.stack([asking @ key / DIM**0.5 for key in keys])
        weights = torch.exp(scores) / torch.exp(scores).sum()
        mixed = sum(w * v for w, v in zip(weights, vectors, strict=True))
        summed = x + _map(combiner.output, mixed)
        centred = (summed - summed.mean()) / (summed.var(unbiased=False) + 1e-5).sqrt()
        expected = centred * combiner.norm.weight + combiner.norm.bias
        torch.testing.assert_close(enriched, expected / expected.norm(), rtol=1e-5, atol=1e-6)
