"""Training with the embeddings of the dataset's tokens gives what training with all would."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SPECIAL_TOKENS
from short_runs import Run, build_encoder, build_sampler
from support import MAX_LENGTH, prepare_in_process
from torch import nn
from transformers import BertTokenizer

from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.ground_truth import Propensity, evaluate
from ramen_ray.method.model.dual_encoder import load_model
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.objectives.losses import TripletLoss
from ramen_ray.method.objectives.terms import ramen_objective
from ramen_ray.method.training.state import CheckpointError, restore_checkpoint

OBJECTIVE = ramen_objective(TripletLoss(0.3, 4), {"links": 0.3}, {"links": 0.2})
STEPS = 6
CLOSE = {"rtol": 1e-6, "atol": 1e-7}


def _begin(data, encoder, is_cut):
    """Begin a run with large weight decay; ``is_cut`` if it has the dataset's tokens only."""
    if is_cut:
        keep_tokens(encoder, data.occurring_tokens)
    sampler = build_sampler(data, OBJECTIVE)
    return Run(encoder, sampler, OBJECTIVE, (), (2e-2, 0.5, 5e-2), (2, 2 * STEPS))


def _metrics(model, data):
    return evaluate(model, data, "test", Propensity())[0]


@pytest.mark.parametrize("kind", ["transformer", "bag"])
def test_losses_metrics_and_weights_are_those_of_all_tokens(kind, encoder_path, tmp_path, request):
    data = request.getfixturevalue("prepared_bag" if kind == "bag" else "prepared")
    whole = _begin(data, build_encoder(kind, encoder_path), is_cut=False)
    cut = _begin(data, build_encoder(kind, encoder_path), is_cut=True)
    start = build_encoder(kind, encoder_path).token_embeddings
    num_rows = len(cut.model.encoder.token_embeddings)
    assert num_rows == len(np.union1d(data.occurring_tokens, [0])) + 1 < len(start)
    assert cut.train(STEPS) == whole.train(STEPS)
    assert _metrics(cut.model, data) == _metrics(whole.model, data)

    with pytest.raises(CheckpointError, match=r"no state\.pt"):
        restore_checkpoint(tmp_path, cut.state)
    cut.save(tmp_path, best=0.25)
    saved = load_model(tmp_path).encoder
    for found, wanted in zip(saved.parameters(), whole.model.encoder.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, **CLOSE)
    occurring = torch.from_numpy(data.occurring_tokens)
    rows, expected = saved.token_embeddings, whole.model.encoder.token_embeddings
    assert torch.equal(rows[occurring], expected[occurring])
    others = np.setdiff1d(np.arange(len(start)), occurring)
    decayed = rows[others].norm() / start[others].norm()
    assert 0 < decayed < 0.95
    kept = torch.load(tmp_path / "state.pt", weights_only=True)["optimizer"]["state"][0]
    assert len(kept["exp_avg"]) == len(kept["exp_avg_sq"]) == num_rows

    # Saving leaves the run as it was, and a resumed one goes on alike.
    resumed = _begin(data, saved, is_cut=True)
    assert restore_checkpoint(tmp_path, resumed.state) == {"best": 0.25}
    assert resumed.train(2 * STEPS) == cut.train(2 * STEPS) == whole.train(2 * STEPS)
    assert _metrics(resumed.model, data) == _metrics(cut.model, data)


def test_an_encoder_of_more_tokens_than_two_bytes_count_trains_alike(
    prepared, dataset_path, encoder_path, tmp_path
):
    narrow = build_encoder("transformer", encoder_path)
    num_added = 1 << 16
    words = json.loads(Path(encoder_path, "tokenizer.json").read_text())["model"]["vocab"]
    in_order = [*SPECIAL_TOKENS, *map(str, range(num_added))]
    in_order += [word for word in words if word not in SPECIAL_TOKENS]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(in_order)})
    backbone = copy.deepcopy(narrow.backbone)
    rows = narrow.token_embeddings.detach()
    special, others = rows.split([len(SPECIAL_TOKENS), len(rows) - len(SPECIAL_TOKENS)])
    spread = torch.cat([special, torch.zeros(num_added, rows.shape[1]), others])
    backbone.resize_token_embeddings(len(spread), mean_resizing=False)
    backbone.get_input_embeddings().weight = nn.Parameter(spread)
    backbone.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    wide = prepare_in_process(
        Dataset(dataset_path), tmp_path / "prepared", str(tmp_path), MAX_LENGTH, True
    )
    assert wide.ads.token_ids.max() >= num_added
    losses = _begin(prepared, narrow, is_cut=True).train(STEPS)
    found = _begin(wide, build_encoder("transformer", str(tmp_path)), is_cut=True).train(STEPS)
    np.testing.assert_allclose(found, losses, rtol=1e-5)
