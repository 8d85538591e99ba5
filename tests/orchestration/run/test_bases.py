"""The bases: what each needs in a configuration, and whole runs of each."""

import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from ray.train import UserCallback
from short_runs import ConfiguredRun
from support import WAITS_FOR_TASKS, kill_train_worker, meanwhile, wait_until

from ramen_ray.config import WalkConfig, flatten, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.ground_truth import evaluate
from ramen_ray.method.training.step import StepLosses, global_losses, train_steps
from ramen_ray.orchestration.background.from_checkpoints import GraphPruning
from ramen_ray.orchestration.evaluate import evaluate_checkpoint
from ramen_ray.orchestration.prepare.pipeline import prepare
from ramen_ray.orchestration.run.build import build_propensity
from ramen_ray.orchestration.run.fit import fit, fit_on
from ramen_ray.orchestration.run.identity import Inputs
from ramen_ray.orchestration.run.inputs import encoder_tokenizer
from ramen_ray.orchestration.run.processes import train_in_workers
from ramen_ray.presets import PRESETS


def test_presets_follow_the_papers_table():
    printed = {
        "training.global_batch_size": 1024,
        "training.epochs": 300,
        "optimizer.lr": 2e-4,
        "encoder.max_length": 32,
        "loss.margin": 0.3,
        "pruning.warmup_epochs": 10,
        "pruning.every_epochs": 5,
        "pruning.prune_threshold": 0,
        "base.refresh_every": 5,
    }
    plain = PRESETS["lf-wikiseealsotitles-320k"]()
    assert plain.base.kind == "in_batch"
    for kind in ("ance", "ngame"):
        preset = PRESETS[f"ramen-{kind}"]()
        assert preset.model_copy(update={"base": plain.base}) == plain
        assert flatten(preset).items() >= {**printed, "base.kind": kind}.items()
        assert preset.walk == WalkConfig(enabled=True)
    assert preset.base.double_cluster_size_at == (25, 50, 75, 100, 125, 150, 175, 200)
    bandits = {"regularization.adaptive": True, "regularization.adaptive_step": 0.01}
    for name in ("lf-wikiseealsotitles-320k", "ramen-ance", "ramen-ngame"):
        assert PRESETS[f"{name}-bandit"]() == overlay(PRESETS[name](), bandits)


STEPS_PER_EPOCH = 7
NUM_EPOCHS = 3
PRUNED_AFTER = (1,)  # epochs

CHANGES = {
    "encoder.kind": "transformer",
    "optimizer.lr": 1e-3,
    "regularization.adaptive": True,
    "regularization.adaptive_step": 0.9,
    "regularization.every_steps": 2,
    **WAITS_FOR_TASKS,
    "base.cluster_size": 2,
    "base.double_cluster_size_at": (2,),
    "pruning.every_epochs": 2,
    "training.epochs": NUM_EPOCHS,
    "training.checkpoint_every_steps": 3,
}


def _train_here(config, data, folder):
    """Train without Ray, by plain loops: what is logged of the steps, and the last metrics."""
    run = ConfiguredRun(config, data)
    model = run.model
    state = run.state
    objective = run.objective
    edges = data.path / "edges"
    threshold = config.pruning.prune_threshold
    pruning = GraphPruning(data.path, edges, objective.regularizers, threshold, False)
    propensity = build_propensity(config)
    clip = config.optimizer.max_gradient_norm
    losses = []
    weights = []
    last = {}
    for epoch in range(config.training.epochs):
        state.prepare_next_steps()
        if epoch in PRUNED_AFTER:
            (folder / f"{epoch}").mkdir()
            model.save(folder / f"{epoch}", config.encoder.max_length)
            pruning(folder / f"{epoch}", folder / f"{epoch}")
            state.sources = pruning.take(folder / f"{epoch}", state.sources)
        stop = state.step + STEPS_PER_EPOCH
        for step in train_steps(state, run.sampler, objective, stop, max_gradient_norm=clip):
            losses.append(step)
            weights.append(state.weights.numpy().copy())
        splits = ("validation", "test")
        found = {split: evaluate(model, data, split, propensity)[0] for split in splits}
        last = found  # which answers, as 12 queries do not show that an earlier one is better
    of_steps = StepLosses.from_terms(objective, 0, global_losses(losses))
    names, values, known = of_steps.figures(np.stack(weights), 0.0)
    points = {
        name: [
            (int(step) + 1, float(values[step, column])) for step in known[:, column].nonzero()[0]
        ]
        for column, name in enumerate(names)
    }
    return points, last


@pytest.fixture(scope="module")
def data(cluster, config):
    tokenizer = encoder_tokenizer(config.encoder)
    return prepare(Dataset(config.dataset), Path(config.output) / "prepared", tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_two_workers_of_which_one_may_be_killed_end_like_a_plain_loop(
    is_killed, config, data, tmp_path
):
    changes = {"base.kind": "ngame", "base.loss": "decoupled", "base.heads": "classifier"}
    config = overlay(config, {**changes, "base.num_positives": 2, "classifier.sharded": True})
    expected, last = _train_here(config, data, tmp_path)
    # Checkpoint 12 lies in an epoch whose embeddings are kept for the next clusters.
    in_parts = {"workers.num_workers": 2, "training.texts_at_once": 20}
    two = overlay(config, {"name": f"two-{is_killed}", **in_parts})
    trained = _fit_killing_a_worker(two, at_step=12) if is_killed else fit(two)
    for name in ("loss/task", "loss/classifier", "loss/total", "lambda_x/links"):
        found = dict(zip(*trained.run.read_history(name), strict=True))
        assert found == pytest.approx(dict(expected[name]), rel=1e-3, abs=1e-4), name
    assert trained.metrics["both"]["validation"]["P@1"] > 0
    for split, metrics in last.items():
        for name, value in metrics.items():
            assert trained.metrics["both"][split][name] == pytest.approx(value, abs=0.02), name

    # Both answer, as 12 queries do not show that a part is better; each can be asked for.
    rows = trained.metrics
    assert rows["trained"] == rows["both"]
    for one in ("encoder", "both"):
        found = evaluate_checkpoint(trained.run_directory, "test", part=one)
        assert found == pytest.approx(rows[one]["test"], abs=1e-6), one


def _fit_killing_a_worker(config, at_step):
    """Train, and kill a worker when the checkpoint of ``at_step`` is there."""
    folder = Path(config.output) / "runs" / str(config.name)
    checkpoint = folder / f"checkpoint_{at_step:09d}"
    killed = folder / "killed"

    def kill():
        wait_until(checkpoint.exists, f"no {checkpoint}")
        wait_until(kill_train_worker, "no worker to kill")
        killed.touch()

    class Holds(UserCallback):  # within a function, so that it travels as a whole
        def after_report(self, run_context, metrics, checkpoint):
            while metrics[0]["step"] == at_step and not killed.exists():
                time.sleep(0.05)

    def train():
        return fit_on(Inputs.of(config), partial(train_in_workers, callbacks=[Holds()]))

    return meanwhile(kill, train)
