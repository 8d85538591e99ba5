"""Time and memory of the encoders that people use: their architectures, with random weights.

Each embeds the same texts of debian (at most 32 tokens, a thread) as evaluation and serving do,
with the tokens of MiniLM; rounds alternate. Figures are of the processor time. `ratio` is the time
of BERT's base size over that of MiniLM's six layers.

    python -m benchmarks.encoders [--rounds 3] [--texts 64] [--into docs/evidence]
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from transformers import (
    AutoModel,
    BertConfig,
    DistilBertConfig,
    ModernBertConfig,
    PreTrainedConfig,
    XLMRobertaConfig,
)

from benchmarks.common import ROOT, alternate, finish, options
from benchmarks.tables import write
from ramen_ray.data.prepared.folder import TokenTable
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.dual_encoder import DualEncoder, tokenize_texts
from ramen_ray.method.model.encoder import BagEncoder, TransformerEncoder
from ramen_ray.method.model.pretrained import load_transformer_tokenizer
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


def main() -> None:
    asked = options(__doc__, rounds=3, texts=64, into="")
    torch.set_num_threads(1)
    tokenizer = load_transformer_tokenizer(MINILM)
    texts = Dataset(ROOT / "datasets" / "debian").read("queries/test")["text"].to_pylist()

    def built(config: PreTrainedConfig) -> DualEncoder:
        return DualEncoder(TransformerEncoder(AutoModel.from_config(config), tokenizer))

    models = {name: built(config) for name, config in ARCHITECTURES.items()}
    models[STATIC] = DualEncoder(BagEncoder(torch.randn(len(tokenizer), STATIC_WIDTH), tokenizer))
    sides: dict[str, Callable[[], float]] = {}
    for name, model in models.items():
        some = texts[: asked.texts] if name != STATIC else texts
        tokenize = model.encoder.text_tokenizer(MAX_LENGTH)
        sides[name] = partial(milliseconds_a_text, model, tokenize_texts(tokenize, some))
    found = {name: median(rows) for name, rows in alternate(asked.rounds, sides).items()}
    sizes = {name: sum(one.numel() for one in of.parameters()) for name, of in models.items()}
    lines = [
        {
            "architecture": name,
            "million parameters": f"{sizes[name] / 1e6:.1f}",
            "MB": f"{4 * sizes[name] / 1e6:.0f}",
            "ms a text": f"{spent:.3g}",
            "time over MiniLM's six layers": f"{spent / found[SIX_LAYERS]:.2g}",
        }
        for name, spent in found.items()
    ]
    write("encoders", lines, asked.into)
    finish(found[BASE] / found[SIX_LAYERS], found)


def milliseconds_a_text(model: DualEncoder, texts: TokenTable) -> float:
    """Return the processor's milliseconds to embed a text."""
    model.embed_queries(texts, np.arange(16))
    started = time.process_time()
    model.embed_queries(texts, np.arange(len(texts)))
    return 1000 * (time.process_time() - started) / len(texts)


if __name__ == "__main__":
    main()
