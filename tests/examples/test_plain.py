"""The trainer on one page gives a job's numbers."""

import numpy as np
import pytest
from short_runs import ConfiguredRun

from examples import plain
from examples.plain import IN_BATCH, Training
from ramen_ray.config import overlay
from ramen_ray.method.metrics.ground_truth import Propensity, evaluate
from ramen_ray.method.objectives import adaptation
from ramen_ray.method.training.step import train_steps
from ramen_ray.presets import tiny, with_base

CHANGES = {
    "regularization.lambda_x": {},
    "regularization.lambda_z": {"links": 0.1, "topics": 0.2},
    "regularization.adaptive": True,
    "regularization.adaptive_step": 0.3,
    "training.epochs": 4,
    "training.global_batch_size": 8,
    "training.selection_metric": "R@10",
}
NAMES = ["task", "classifier", "R_z/links", "R_z/topics"]


def test_losses_weights_and_metrics_are_those_of_a_job(
    dataset_path, encoder_path, prepared_bag, monkeypatch
):
    """Of the steps of a job, with which test_bases compares the job."""
    for module in (adaptation, plain):
        monkeypatch.setattr(module, "ERROR", 3.28)  # so few clicks would not show much
    changes = {**CHANGES, **IN_BATCH, "encoder.pretrained": encoder_path}
    config = with_base(overlay(tiny(str(dataset_path)), changes), {"base.kind": "unidec"})
    job = ConfiguredRun(config, prepared_bag)
    assert job.objective.names == NAMES
    job.model.part = "both"
    expected = []
    epochs = []
    for epoch in range(4):
        job.state.prepare_next_steps()
        stop = (epoch + 1) * job.sampler.steps_per_epoch
        clip = config.optimizer.max_gradient_norm
        for losses in train_steps(
            job.state, job.sampler, job.objective, stop, max_gradient_norm=clip
        ):
            expected.append([*losses.tolist(), *job.state.weights.tolist()[2:]])
        splits = ("validation", "test")
        epochs.append({one: evaluate(job.model, job.data, one, Propensity())[0] for one in splits})
    history, metrics = Training(config).train()
    np.testing.assert_allclose(history, expected, rtol=1e-5, atol=1e-7)
    lambdas = np.array(expected)[:, 4:]
    assert lambdas.min() == 0 < lambdas[-1].max() != lambdas[0].max(), "a graph earns its weight"
    for split, by_query in metrics.items():
        means = {name: values.mean() for name, values in by_query.items()}
        assert means == pytest.approx({name: epochs[-1][split][name] for name in means}), split
