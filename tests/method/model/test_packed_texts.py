"""Tokens of many texts, and packed texts with their gradients, against those of texts alone."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import BertTokenizer

from ramen_ray.method.model.encoder import TransformerEncoder
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.method.model.texts import TextTokenizer, TokenBatch, packed

LETTERS = [
    *("a", "b", "ab", "##ab", "İ", "ß", "ΣΑΣ", "ﬁ"),
    *("é", "e\u0301", "\u0301", "中文", "한", "ก็"),
]
SIGNS = ["[SEP]", "[MASK]x", "new york", "👩‍💻", "1,000", "C++", "a-b", "'", "▁", "x" * 101]
SPACES = [" ", "  ", "\xa0", "\t", "\n", "\0", "\ufffd", "\u200b", "\u2028", "\u3000"]
PIECES = st.sampled_from([*LETTERS, *SIGNS, *SPACES])
TEXTS = st.lists(st.lists(PIECES | st.characters(codec="utf-8")).map("".join), max_size=6)


@pytest.fixture(scope="module", params=["bert", "bert with a name", "bytes"])
def tokenizer(request, encoder_path):
    if request.param == "bytes":
        return replace(_of_bytes(), max_length=12)
    fast = load_tokenizer(encoder_path)
    if request.param == "bert with a name":
        fast.add_tokens([AddedToken("new york"), AddedToken("a b", single_word=True)])
    return text_tokenizer(fast, 12, add_special_tokens=True)


def _of_bytes():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    whole = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    whole.normalizer = normalizers.NFC()
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    whole.decoder = decoders.ByteLevel()
    whole.add_special_tokens(["<s>", "</s>"])
    ends = [(token, whole.token_to_id(token)) for token in ("<s>", "</s>")]
    whole.post_processor = processors.TemplateProcessing("<s> $A </s> </s>", None, ends)
    return TextTokenizer(whole.to_str(), 12, True, 5, whole.get_vocab_size())


def _one_by_one(tokenizer, texts):
    backend = Tokenizer.from_str(tokenizer.definition)
    backend.enable_truncation(tokenizer.max_length)
    backend.no_padding()
    special = tokenizer.add_special_tokens
    found = [backend.encode(text, add_special_tokens=special).ids for text in texts]
    return [tokens or [tokenizer.placeholder] for tokens in found]


@given(TEXTS, st.booleans(), st.sampled_from([4, 5, 9, 1000]))
def test_tokens_are_those_of_each_text_alone(tokenizer, texts, special, max_length):
    asked = replace(tokenizer, add_special_tokens=special, max_length=max_length)
    tokens, lengths = asked(pa.array(texts, pa.string()))
    wanted = _one_by_one(asked, texts)
    assert lengths.tolist() == [*map(len, wanted)]
    assert tokens.tolist() == [*chain.from_iterable(wanted)]


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
    *("Albert", "Bert", "Camembert", "DistilBert"),
    *("Electra", "MPNet", "Roberta", "XLMRoberta"),
]
ALONE = ["DebertaV2", "ModernBert"]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("name", [*ROWS_OF_TEXTS, *ALONE])
def test_a_text_is_encoded_as_if_it_was_alone(name, pooling):
    config = getattr(transformers, f"{name}Config")(**SIZES, pad_token_id=1)
    if name == "ModernBert":
        config.local_attention = 4
    torch.manual_seed(0)
    backbone = getattr(transformers, f"{name}Model")(config).eval()
    tokenizer = BertTokenizer(vocab={"[PAD]": 0, "[UNK]": 1})
    encoder = TransformerEncoder(backbone, tokenizer, pooling)
    lengths = np.array([1, 2, 3, 3, 7, 9, 30, 40, 65])
    token_ids = np.random.default_rng(0).integers(5, SIZES["vocab_size"], lengths.sum())
    batch = TokenBatch(token_ids, lengths)
    found = encoder.pool(batch)
    alone = []
    for ids in np.split(token_ids, lengths.cumsum()[:-1]):
        states = backbone(input_ids=torch.from_numpy(ids)[None]).last_hidden_state[0]
        alone.append(states[0] if pooling == "cls" else states.mean(dim=0))
    expected = torch.stack(alone)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    pulls = torch.randn_like(found)
    weights = [*backbone.parameters()]
    gradients = [
        torch.autograd.grad((states * pulls).sum(), weights, materialize_grads=True)
        for states in (found, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)
    assert sum(len(pack.token_ids) for pack in packed(batch)) < len(lengths)
