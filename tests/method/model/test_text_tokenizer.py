"""Tokens of many texts at once against those that the library gives to one text after another."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest
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

from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.method.model.texts import TextTokenizer

LETTERS = [
    "a",
    "b",
    "ab",
    "##ab",
    "İ",
    "ß",
    "ΣΑΣ",
    "ﬁ",
    "é",
    "e\u0301",
    "\u0301",
    "中文",
    "한",
    "ก็",
]
SIGNS = ["[SEP]", "[MASK]x", "new york", "👩‍💻", "1,000", "C++", "a-b", "'", "▁", "x" * 101]
SPACES = [" ", "  ", "\xa0", "\t", "\n", "\0", "\ufffd", "\u200b", "\u2028", "\u3000"]
PIECES = st.sampled_from([*LETTERS, *SIGNS, *SPACES])
TEXTS = st.lists(st.lists(PIECES | st.characters(codec="utf-8")).map("".join), max_size=6)


@pytest.fixture(scope="module", params=["bert", "bert with a name", "bytes"])
def tokenizer(request: pytest.FixtureRequest, encoder_path: Path) -> TextTokenizer:
    if request.param == "bytes":
        return replace(_of_bytes(), max_length=12)
    fast = load_tokenizer(str(encoder_path))
    if request.param == "bert with a name":
        fast.add_tokens([AddedToken("new york"), AddedToken("a b", single_word=True)])
    return text_tokenizer(fast, 12, add_special_tokens=True)


def _of_bytes() -> TextTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    whole = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    whole.normalizer = normalizers.NFC()
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    whole.decoder = decoders.ByteLevel()
    whole.add_special_tokens(["<s>", "</s>"])
    ends = [(token, whole.token_to_id(token)) for token in ("<s>", "</s>")]
    whole.post_processor = processors.TemplateProcessing("<s> $A </s> </s>", None, ends)
    return TextTokenizer(whole.to_str(), 12, True, 5, whole.get_vocab_size())


def _one_by_one(tokenizer: TextTokenizer, texts: list[str]) -> list[list[int]]:
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
