"""Packed texts against their tokens one by one, and packed encoders against texts alone."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertTokenizer

from ramen_ray.method.model.encoder import TransformerEncoder
from ramen_ray.method.model.texts import TokenBatch, packed

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 140,
    "initializer_range": 0.5,
}
ROWS_OF_TEXTS = [
    "Albert",
    "Bert",
    "Camembert",
    "DistilBert",
    "Electra",
    "MPNet",
    "Roberta",
    "XLMRoberta",
]
ALONE = ["DebertaV2", "ModernBert"]


def _batch(lengths: list[int]) -> TokenBatch:
    lengths = sorted(lengths)
    token_ids = np.random.default_rng(0).integers(5, SIZES["vocab_size"], sum(lengths))
    return TokenBatch(token_ids, np.array(lengths))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.booleans())
def test_every_token_is_laid_out_once_in_its_text(lengths: list[int], side_by_side: bool):
    batch = _batch(lengths)
    texts = np.split(batch.token_ids, batch.lengths.cumsum()[:-1])
    packs = list(packed(batch, side_by_side))
    assert sorted(np.concatenate([pack.numbers for pack in packs])) == list(range(len(lengths)))
    for pack in packs:
        places = np.split(pack.places, pack.lengths.cumsum()[:-1])
        for number, text in enumerate(texts[number] for number in pack.numbers):
            rows, columns = np.nonzero(pack.texts == number)
            assert len(set(rows.tolist())) == 1, "a text is in one row"
            assert pack.token_ids[rows, columns].tolist() == text.tolist()
            assert pack.positions[rows, columns].tolist() == list(range(len(text)))
            assert pack.token_ids.reshape(-1)[places[number]].tolist() == text.tolist()
        assert (pack.texts >= 0).sum() == pack.lengths.sum()
        assert (pack.texts >= 0).any(axis=0).all(), "no column is all padding"
        if not side_by_side:
            assert len(pack.texts) == len(lengths)


def test_rows_are_nearly_full_whatever_the_lengths():
    draw = np.random.default_rng(1)
    for longest in (8, 32, 128):
        batch = _batch(draw.integers(3, longest + 1, 2000).tolist())
        places = sum(pack.token_ids.size for pack in packed(batch))
        assert len(batch.token_ids) > 0.97 * places


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("name", [*ROWS_OF_TEXTS, *ALONE])
def test_a_text_is_encoded_as_if_it_was_alone(name: str, pooling: str):
    config = getattr(transformers, f"{name}Config")(**SIZES, pad_token_id=1)
    if name == "ModernBert":
        config.local_attention = 4
    torch.manual_seed(0)
    backbone = getattr(transformers, f"{name}Model")(config).eval()
    tokenizer = BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1})
    encoder = TransformerEncoder(backbone, tokenizer, pooling)
    batch = _batch([1, 2, 3, 3, 7, 9, 30, 40, 65])
    with torch.inference_mode():
        found = encoder.pool(batch)
        for row, ids in zip(
            found, np.split(batch.token_ids, batch.lengths.cumsum()[:-1]), strict=True
        ):
            states = backbone(input_ids=torch.from_numpy(ids)[None]).last_hidden_state[0]
            alone = states[0] if pooling == "cls" else states.mean(dim=0)
            torch.testing.assert_close(row, alone, rtol=1e-4, atol=1e-4)
    assert sum(len(pack.token_ids) for pack in packed(batch)) < len(batch.lengths)
