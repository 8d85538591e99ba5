"""Fixtures of the tests that need a GPU.

These tests need neither Ray nor MLflow. On a machine without them, leave out the fixtures of all
other tests: ``pytest -m gpu --confcutdir tests/gpu tests/gpu``.
"""

from collections import Counter
from pathlib import Path

import pytest
from support import ROOT, prepare_in_process

from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset

NUM_WORDS = 8000
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="session")
def word_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer BERT over foldoc's words, as transformers saves it."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    dataset = Dataset(ROOT / "datasets" / "foldoc")
    words: Counter[str] = Counter()
    for table in ("queries/train", "ads", "anchors/links", "anchors/categories"):
        for text in dataset.read(table)["text"].to_pylist():
            words.update(text.lower().split())
    vocabulary = [*SPECIAL_TOKENS, *(word for word, _ in words.most_common(NUM_WORDS))]
    path = tmp_path_factory.mktemp("encoders") / "words"
    numbers = {token: number for number, token in enumerate(dict.fromkeys(vocabulary))}
    BertTokenizer(vocab=numbers).save_pretrained(path)
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(numbers),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=64,
        initializer_range=0.05,
    )
    model = BertModel(config)
    # The words outweigh all else: so texts with common words are alike before any training.
    torch.nn.init.normal_(model.embeddings.word_embeddings.weight)
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def foldoc(word_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The dictionary, prepared for this encoder."""
    folder = tmp_path_factory.mktemp("prepared") / "foldoc"
    dataset = Dataset(ROOT / "datasets" / "foldoc")
    return prepare_in_process(dataset, folder, str(word_encoder), 16, add_special_tokens=True)
