"""The trainer on one page gives a job's numbers."""

import numpy as np
import pytest

from examples.plain import IN_BATCH, Training
from ramen_ray.config import overlay
from ramen_ray.orchestration.run.fit import fit
from ramen_ray.presets import with_base

CHANGES = {
    "regularization.lambda_x": {},
    "regularization.adaptive": True,
    "regularization.adaptive_step": 0.3,
    "training.selection_metric": "R@10",
}
NAMES = ["task", "classifier", "R_z/links", "R_z/topics"]


def test_losses_weights_and_metrics_are_those_of_a_job(cluster, small_run):
    config = with_base(overlay(small_run, CHANGES | IN_BATCH), {"base.kind": "unidec"})
    job = fit(config, on_report=lambda metrics: None)
    history, metrics = Training(config).train()
    names = [f"loss/{name}" for name in NAMES] + ["lambda_z/links", "lambda_z/topics"]
    logged = np.stack([job.run.read_history(name)[1] for name in names], axis=1)
    np.testing.assert_allclose(history, logged, rtol=1e-5, atol=1e-7)
    assert logged[0, 4] == 0 < logged[-1, 4], "a graph earns its weight"
    for split, of_split in metrics.items():
        expected = {name: job.metrics["both"][split][name] for name in of_split}
        assert of_split == pytest.approx(expected), split
