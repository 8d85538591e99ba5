"""Time and memory of the encoders that people use: their architectures, with random weights.

Each embeds the same texts of debian (at most 32 tokens, a thread) as evaluation and serving do,
with the tokens of MiniLM; rounds alternate. In a process of its own each is then trained, on
batches of 32 pairs; memory is what the process grew by. Figures are of the processor time. `ratio`
is the time of BERT's base size over that of MiniLM's six layers.

    python -m benchmarks.encoders [--rounds 3] [--texts 64] [--into docs/evidence]
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import psutil
import torch
from torch.nn import functional
from transformers import (
    AutoModel,
    BertConfig,
    DistilBertConfig,
    ModernBertConfig,
    PreTrainedConfig,
    XLMRobertaConfig,
)

from benchmarks.common import ROOT, alternate, finish, in_fresh_process, options, sampled
from benchmarks.tables import write
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.folder import TokenTable
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import DualEncoder, tokenize_texts
from ramen_ray.method.model.encoder import BagEncoder, TransformerEncoder
from ramen_ray.method.model.occurring_tokens import keep_tokens
from ramen_ray.method.model.pretrained import load_transformer_tokenizer, text_tokenizer
from ramen_ray.method.model.texts import TokenBatch
from ramen_ray.method.training.state import build_optimizer
from ramen_ray.presets import MINILM

SIX_LAYERS, BASE = "MiniLM, 6 layers", "BERT, base"
MAX_LENGTH, MANY_TOKENS = 32, 250_002
SMALL = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
LARGE = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
ARCHITECTURES: dict[str, PreTrainedConfig] = {
    SIX_LAYERS: BertConfig(num_hidden_layers=6, **SMALL),
    "MiniLM, 1 layer": BertConfig(num_hidden_layers=1, **SMALL),
    "BERT, small": BertConfig(num_hidden_layers=12, **SMALL),
    "BERT, small, many languages": BertConfig(
        num_hidden_layers=12, vocab_size=MANY_TOKENS, **SMALL
    ),
    "DistilBERT": DistilBertConfig(),
    BASE: BertConfig(),
    "XLM-RoBERTa, base": XLMRobertaConfig(vocab_size=MANY_TOKENS),
    "ModernBERT, base": ModernBertConfig(),
    "BERT, large": BertConfig(num_hidden_layers=24, **LARGE),
}
STATIC, STATIC_WIDTH = "static, 1,024 dimensions", 1024
PAIRS, STEPS = 32, 3
DEBIAN = ROOT / "datasets" / "debian"


def main() -> None:
    asked = options(__doc__, rounds=3, texts=64, into="")
    torch.set_num_threads(1)
    texts = Dataset(DEBIAN).read("queries/test")["text"].to_pylist()
    models = {name: built(name) for name in (*ARCHITECTURES, STATIC)}
    sides: dict[str, Callable[[], float]] = {}
    for name, model in models.items():
        some = texts[: asked.texts] if name != STATIC else texts
        tokenize = model.encoder.text_tokenizer(MAX_LENGTH)
        sides[name] = partial(milliseconds_a_text, model, tokenize_texts(tokenize, some))
    found = {name: median(rows) for name, rows in alternate(asked.rounds, sides).items()}
    sizes = {name: sum(one.numel() for one in of.parameters()) for name, of in models.items()}
    del models, sides
    trained = {name: in_fresh_process(cost_of_training, name) for name in found}
    lines = [
        {
            "architecture": name,
            "million parameters": f"{sizes[name] / 1e6:.1f}",
            "MB": f"{4 * sizes[name] / 1e6:.0f}",
            "ms a text": f"{spent:.3g}",
            "time over MiniLM's six layers": f"{spent / found[SIX_LAYERS]:.2g}",
            "training, ms a text": f"{trained[name]['milliseconds']:.3g}",
            "training, MB": f"{trained[name]['memory_bytes'] / 1e6:.0f}",
        }
        for name, spent in found.items()
    ]
    write("encoders", lines, asked.into)
    finish(found[BASE] / found[SIX_LAYERS], found)


def built(name: str) -> DualEncoder:
    """Build a model with random weights, and MiniLM's tokens."""
    tokenizer = load_transformer_tokenizer(MINILM)
    if name == STATIC:
        return DualEncoder(BagEncoder(torch.randn(len(tokenizer), STATIC_WIDTH), tokenizer))
    backbone = AutoModel.from_config(ARCHITECTURES[name])
    return DualEncoder(TransformerEncoder(backbone, tokenizer))


def cost_of_training(name: str) -> dict[str, float]:
    """Train some steps on pairs of ads; returns milliseconds a text, and bytes."""
    torch.set_num_threads(1)
    tokenize = text_tokenizer(load_transformer_tokenizer(MINILM), MAX_LENGTH, name != STATIC)
    ads = tokenize_texts(tokenize, Dataset(DEBIAN).read("ads")["text"].to_pylist())
    occurring = np.unique(ads.token_ids).astype(np.int64)
    before = psutil.Process().memory_info().rss
    with sampled() as found:
        milliseconds = milliseconds_a_trained_text(built(name), ads, occurring)
    return {"milliseconds": milliseconds, "memory_bytes": found["driver"] - before}


def milliseconds_a_trained_text(model: DualEncoder, texts: TokenTable, occurring: Int64s) -> float:
    """Return the processor's milliseconds to train on a text."""
    keep_tokens(model.encoder, occurring)
    optimizer = build_optimizer(model.encoder, 1e-5, 0.01)
    started = 0.0
    for step in range(1 + STEPS):  # the first is not timed
        rows = np.arange(2 * PAIRS * step, 2 * PAIRS * (step + 1))
        rows = rows[np.argsort(texts.lengths(rows), kind="stable")]
        vectors = model(TokenBatch(texts.gather(rows), texts.lengths(rows)))
        loss = functional.cross_entropy(vectors[::2] @ vectors[1::2].T / 0.05, torch.arange(PAIRS))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        started = started or time.process_time()
    return 1000 * (time.process_time() - started) / (2 * PAIRS * STEPS)


def milliseconds_a_text(model: DualEncoder, texts: TokenTable) -> float:
    """Return the processor's milliseconds to embed a text."""
    model.embed_queries(texts, np.arange(16))
    started = time.process_time()
    model.embed_queries(texts, np.arange(len(texts)))
    return 1000 * (time.process_time() - started) / len(texts)


if __name__ == "__main__":
    main()
