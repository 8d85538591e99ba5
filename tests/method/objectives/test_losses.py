"""The losses against double loops over Python floats, with gradients by autograd."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramen_ray.method.objectives.losses import SoftmaxLoss, TripletLoss

MARGIN = 0.3

cases = st.tuples(
    st.integers(1, 6), st.integers(1, 9), st.integers(1, 12), st.booleans(), st.integers(0, 9999)
)


def _naive(similarity, positive, known, num_negatives, soft):
    rows = []
    for row, own in enumerate(positive):
        pool = similarity.shape[1]
        negatives = sorted(
            (j for j in range(pool) if j not in known[row]),
            key=lambda j: -similarity[row, j].item(),
        )
        violators = [
            j
            for j in negatives[:num_negatives]
            if own >= 0 and similarity[row, j] - similarity[row, own] + MARGIN > 0
        ]
        total = similarity[row, 0] * 0.0
        normaliser = sum(torch.exp(similarity[row, j] / 0.1) for j in violators)
        for j in violators:
            violation = similarity[row, j] - similarity[row, own] + MARGIN
            weight = torch.exp(similarity[row, j] / 0.1) / normaliser if soft else 1.0
            total = total + violation * weight
        rows.append(total / max(1, min(num_negatives, len(negatives))))
    return torch.stack(rows)


def _draw(num_rows, pool, seed):
    """Some rows without a positive, some with all candidates known, most with a few."""
    generator = torch.Generator().manual_seed(seed)
    similarity = torch.rand(num_rows, pool, generator=generator, dtype=torch.float64) * 2 - 1
    positive = torch.randint(-1, pool, (num_rows,), generator=generator).tolist()
    share = torch.rand(num_rows, 1, generator=generator).round(decimals=1)
    marked = torch.rand(num_rows, pool, generator=generator) < share
    known = [set(row.nonzero().flatten().tolist()) for row in marked]
    return similarity, positive, [k | {p} - {-1} for k, p in zip(known, positive, strict=True)]


def _mask(known, pool):
    return torch.tensor([[j in row for j in range(pool)] for row in known])


@settings(max_examples=60)
@given(cases)
def test_values_and_gradients_equal_a_double_loop(case):
    num_rows, pool, num_negatives, soft, seed = case
    values, positive, known = _draw(num_rows, pool, seed)
    ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
    loss = TripletLoss(MARGIN, num_negatives, soft)
    found = loss(ours, torch.tensor(positive)[:, None], _mask(known, pool))
    expected = _naive(theirs, positive, known, num_negatives, soft)
    torch.testing.assert_close(found, expected)
    row_weights = torch.arange(1.0, num_rows + 1, dtype=torch.float64)
    (found * row_weights).sum().backward()
    (expected * row_weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


softmax_cases = st.tuples(
    st.integers(1, 6), st.integers(1, 9), st.booleans(), st.integers(0, 9999), st.floats(0.05, 2)
)


def _naive_softmax(logits, known, is_decoupled):
    """The printed sums: -log exp(s_p) / (exp(s_p) + Σ exp(s_l)), averaged over the positives."""
    rows = []
    for row, positives in enumerate(known):
        total = logits[row, 0] * 0.0
        for own in positives:
            left_out = positives - {own} if is_decoupled else set()
            pool = [j for j in range(logits.shape[1]) if j not in left_out]
            denominator = sum(torch.exp(logits[row, j]) for j in pool)
            total = total - torch.log(torch.exp(logits[row, own]) / denominator)
        rows.append(total / max(1, len(positives)))
    return torch.stack(rows)


@settings(max_examples=60)
@given(softmax_cases)
def test_the_softmax_losses_equal_double_loops(case):
    num_rows, pool, is_decoupled, seed, temperature = case
    similarity, _, known = _draw(num_rows, pool, seed)
    no_places = torch.full((num_rows, 1), -1)
    mask = _mask(known, pool)
    ours, theirs = similarity.clone().requires_grad_(), similarity.clone().requires_grad_()
    found = SoftmaxLoss(temperature, is_decoupled)(ours, no_places, mask)
    expected = _naive_softmax(theirs / temperature, known, is_decoupled)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    found.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-9)
