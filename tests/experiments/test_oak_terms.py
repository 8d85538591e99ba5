"""OAK's calibration against a double loop."""

import numpy as np
import pytest
import torch

from experiments.oak.terms import calibration_losses


def _by_loops(plain: np.ndarray, enriched: np.ndarray, clicked: np.ndarray, margin: float) -> list:
    losses = []
    for row in range(len(plain)):
        hinges = []
        for column in range(plain.shape[1]):
            sign = 1 if clicked[row, column] else -1
            difference = sign * (plain[row, column] - enriched[row, column])
            hinges.append(max(difference + margin, 0))
        furthest = sorted(hinges, reverse=True)[:10]
        losses.append(sum(furthest) / len(furthest))
    return losses


@pytest.mark.parametrize("num_ads", [1, 4, 10, 37])
@pytest.mark.parametrize("share_clicked", [0, 0.3, 1])
def test_it_is_the_mean_of_the_ten_largest_hinges(num_ads: int, share_clicked: float):
    draw = np.random.default_rng(num_ads)
    plain, enriched = draw.integers(-4, 5, size=(2, 8, num_ads)) / 4  # with ties
    clicked = draw.random((8, num_ads)) < share_clicked
    found = calibration_losses(
        torch.from_numpy(plain), torch.from_numpy(enriched), torch.from_numpy(clicked), 0.05
    )
    assert found.tolist() == pytest.approx(_by_loops(plain, enriched, clicked, 0.05))


def test_equal_scores_cost_the_margin():
    scores, clicked = torch.rand(5, 20), torch.rand(5, 20) < 0.2
    assert calibration_losses(scores, scores, clicked, 0.0).tolist() == [0.0] * 5
    assert calibration_losses(scores, scores, clicked, 0.05).tolist() == pytest.approx([0.05] * 5)


def test_it_pulls_enriched_scores_up_for_clicks_and_down_for_others():
    scores = torch.zeros(1, 2)
    enriched = torch.zeros(1, 2, requires_grad=True)
    calibration_losses(scores, enriched, torch.tensor([[True, False]]), 0.05).sum().backward()
    assert enriched.grad[0, 0] < 0 < enriched.grad[0, 1]
