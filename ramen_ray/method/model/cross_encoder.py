"""Cross-encoders: transformers that read a query and an ad together and return one score."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification

from ramen_ray.method.model.pretrained import (
    EncoderError,
    json_of,
    load_config,
    load_transformer_tokenizer,
    most_tokens,
    opening,
    resolve_pretrained,
)

PAIRS_PER_PASS = 64
MOST_TOKENS = 512
HEAD = "ForSequenceClassification"


def is_cross_encoder(name: str) -> bool:
    """Say whether ``name`` is a folder with a transformer that classifies texts."""
    config = json_of(name, "config.json") if Path(name).is_dir() else None
    kinds = config.get("architectures") if isinstance(config, dict) else None
    return isinstance(kinds, list) and any(str(kind).endswith(HEAD) for kind in kinds)


class CrossEncoder:
    """Scores pairs of texts as sentence-transformers' class of that name does, without its sigmoid.

    Raises an EncoderError if it cannot be loaded, or has other than one score.
    """

    def __init__(self, name: str, device: str | None = None) -> None:
        """Load the folder ``name``, onto a GPU if there is one and no ``device``."""
        config = load_config(name)
        if config.num_labels != 1:
            raise EncoderError(
                f"{name!r} gives {config.num_labels} scores for a pair; a teacher gives one"
            )
        self.tokenizer = load_transformer_tokenizer(name)
        self.most_tokens = min(most_tokens(config) or MOST_TOKENS, MOST_TOKENS)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        with opening("a cross-encoder", name):
            model = AutoModelForSequenceClassification.from_pretrained(
                resolve_pretrained(name),
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
            )
        self.model = model.eval().to(self.device)

    @torch.inference_mode()
    def scores(self, queries: Sequence[str], ads: Sequence[str]) -> NDArray[np.float32]:
        """Return the scores (pairs,) of queries (pairs,) and ads (pairs,)."""
        by_length = sorted(range(len(queries)), key=lambda row: len(queries[row]) + len(ads[row]))
        scores = np.empty(len(queries), dtype=np.float32)
        for start in range(0, len(queries), PAIRS_PER_PASS):
            rows = by_length[start : start + PAIRS_PER_PASS]
            inputs = self.tokenizer(
                [queries[row] for row in rows],
                [ads[row] for row in rows],
                truncation="longest_first",
                max_length=self.most_tokens,
                padding=True,
                return_tensors="pt",
            )
            scores[rows] = self.model(**inputs.to(self.device)).logits[:, 0].cpu().numpy()
        return scores
