"""Combiners against plain loops, and what has no influence on their result."""

import math

import pytest
import torch

from ramen_ray.method.new_ads.representation import Combiner

DIM, ADS, NEIGHBOURS = 6, 5, 3


def _attend(combiner, tokens):
    """One head of self-attention over ``tokens``, written out."""
    mix = combiner.mix if combiner.kind == "attention" else combiner.mix.self_attn
    query, key, value = mix.in_proj_weight.split(DIM)
    of_query, of_key, of_value = mix.in_proj_bias.split(DIM)
    mixed = []
    for token in tokens:
        projected = query @ token + of_query
        scores = torch.stack([projected @ (key @ other + of_key) for other in tokens])
        weights = torch.softmax(scores / math.sqrt(DIM), 0)
        values = [value @ other + of_value for other in tokens]
        attended = sum(w * v for w, v in zip(weights, values, strict=True))
        mixed.append(mix.out_proj.weight @ attended + mix.out_proj.bias)
    return mixed


def _layer(combiner, tokens):
    """A layer of a transformer that normalises after each part."""
    layer = combiner.mix
    out = []
    for token, attended in zip(tokens, _attend(combiner, tokens), strict=True):
        middle = layer.norm1(token + attended)
        hidden = torch.relu(layer.linear1(middle))
        out.append(layer.norm2(middle + layer.linear2(hidden)))
    return out


@pytest.mark.parametrize("kind", ["attention", "transformer", "mean"])
def test_a_combiner_is_what_a_plain_loop_computes(kind):
    draw = torch.manual_seed(1)
    combiner = Combiner(kind, DIM, heads=1).eval()
    text = torch.randn(ADS, DIM, generator=draw)
    neighbours = torch.randn(ADS, NEIGHBOURS, DIM, generator=draw)
    is_there = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 1]]).bool()
    cosines = torch.where(is_there, torch.tensor([0.99, 0.31, -0.2]), -torch.inf)
    scores = [9, 3, 0]
    with torch.no_grad():
        for parameter in combiner.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
        found = combiner(text, neighbours, cosines)
        noise = torch.where(is_there[..., None], neighbours, torch.nan)
        assert torch.equal(combiner(text, noise, cosines), found), "what is not there"
        for row in range(ADS):
            tokens = [text[row] + combiner.text_type]
            tokens += [
                neighbours[row, place] + combiner.neighbour_type
                for place in range(NEIGHBOURS)
                if is_there[row, place]
            ]
            if kind == "transformer":
                for place in range(1, len(tokens)):
                    tokens[place] = tokens[place] + combiner.score_types[scores[place - 1]]
            if kind == "attention":
                tokens = _attend(combiner, tokens)
            elif kind == "transformer":
                tokens = _layer(combiner, tokens)
            expected = sum(tokens) / len(tokens)
            if combiner.output is not None:
                expected = text[row] + combiner.output(expected)
            torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-5)
