"""A setting that is given acts, or is refused: every leaf, against short trainings."""

import pytest
import torch
from support import another_value

from benchmarks.in_process import train
from ramen_ray.config import flatten, overlay
from ramen_ray.idle_settings import advice_on_idle
from ramen_ray.presets import tiny

OTHER_VALUES = {
    "regularization.nodes": "clicked",
    "optimizer.decay": "cosine",
    "training.sampling": "clicks",
    "base.double_cluster_size_at": (2,),
    "base.num_hard_negatives": 2,
    "base.shortlist_size": 8,
    "pruning.prune_threshold": 0.5,
    "pruning.warmup_epochs": 2,
    "walk.top_k": 1,
    "walk.max_anchor_degree": 2,
}
"""Of settings that are no numbers, or where half as much changes nothing on few texts."""
SECTIONS = ("optimizer", "loss", "regularization", "base", "classifier", "walk", "pruning")
NOT_IN_STEPS = {
    *("optimizer.max_gradient_norm", "optimizer.head_lr", "optimizer.embedding_lr"),
    *("base.kind", "base.order", "base.hard_negatives", "base.loss", "base.heads"),
    *("classifier.sharded", "base.refresh_mode", "classifier.weight", "classifier.text_scale"),
    *("classifier.unclicked", "loss.reverse_share", "base.num_positives"),
    "loss.own_text_negatives",
}
"""Names of other settings, what several workers or answers see, and what needs more clicks."""


def _config(dataset_path, encoder_path, **changes):
    start = {
        "encoder.pretrained": encoder_path,
        "regularization.lambda_z": {"links": 0.3},
        "training.epochs": 3,
        "training.global_batch_size": 16,
        "base.refresh_every": 1,
        "base.cluster_size": 2,
    }
    return overlay(tiny(str(dataset_path)), {**start, **changes})


CONFIGS = {
    "plain": {"regularization.lambda_z": {}, "regularization.adaptive": False},
    "graph": {
        "base.kind": "ance",
        "walk.enabled": True,
        "pruning.mode": "synchronous",
        "pruning.prune_threshold": 0.3,
    },
    "softmax": {
        "base.kind": "unidec",
        "base.num_hard_negatives": 1,
        "regularization.adaptive": False,
    },
    "clustered": {
        "base.kind": "ngame",
        "regularization.lambda_z": {},
        "regularization.adaptive": False,
    },
}


def _fingerprint(config, data):
    model = train(config, data)
    parameters = [p.detach().numpy().tobytes() for p in model.parameters()]
    if model.classifiers is not None:
        parameters.append(model.classifiers.vectors.numpy().tobytes())
    return b"".join(parameters)


@pytest.mark.parametrize("name", CONFIGS)
def test_of_every_setting_it_is_known_whether_it_acts(
    name, dataset_path, encoder_path, prepared_bag
):
    torch.set_num_threads(1)
    config = _config(dataset_path, encoder_path, **CONFIGS[name])
    expected = _fingerprint(config, prepared_bag)
    others = {
        key: OTHER_VALUES.get(key, another_value(value))
        for key, value in flatten(config).items()
        if key.split(".")[0] in SECTIONS and key not in NOT_IN_STEPS and ".lambda_" not in key
    }
    idle = {
        key: value
        for key, value in others.items()
        if advice_on_idle(overlay(config, {key: value}), key)
    }
    assert _fingerprint(overlay(config, idle), prepared_bag) == expected, f"one acts of {idle}"
    acting = others.keys() - idle.keys()
    changed = {key: overlay(config, {key: others[key]}) for key in acting}
    assert not [key for key in acting if _fingerprint(changed[key], prepared_bag) == expected]
