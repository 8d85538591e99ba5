"""MiniLM as it is, and trained by sentence-transformers' own trainer.

As its documentation has it: MultipleNegativesRankingLoss at scale 20, for a transformer also cached
for large batches, batches without duplicates, a tenth of warm-up, 2e-5 for a transformer, and hard
negatives mined by the untrained model at least 5 % below the positive. Static embeddings are its
fast kind of encoder; here they start from MiniLM's, as our bags of tokens do, and want a lower rate
than the 2e-1 that its authors use from random ones.
"""

from collections.abc import Sequence
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets.utils.logging import disable_progress_bar
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.training_args import BatchSamplers
from sentence_transformers.util import mine_hard_negatives

from benchmarks.peers.rivals import Corpus, Rival, Settings, use_threads
from datasets import Dataset as Pairs
from ramen_ray.data.arrays import Int64s
from ramen_ray.method.model.pretrained import resolve_pretrained
from ramen_ray.method.retrieval.search import build_index, search_index
from ramen_ray.presets import MINILM

MAX_LENGTH = 32
LOSSES = {
    "mnrl": MultipleNegativesRankingLoss,
    "cached": partial(CachedMultipleNegativesRankingLoss, mini_batch_size=64),
}


class Embedded:
    """An encoder, and exact search among its embeddings of the ads."""

    def __init__(self, model: SentenceTransformer, ads: list[str]) -> None:
        self.model = model.eval()
        embeddings = self._embed(ads)
        self.index = build_index(embeddings)
        self.model_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self.index_bytes = embeddings.nbytes

    def answer(self, queries: Sequence[str], k: int) -> Int64s:
        return search_index(self.index, self._embed(list(queries)), k)[0]

    def _embed(self, texts: list[str]) -> Any:
        return self.model.encode(
            texts, batch_size=128, normalize_embeddings=True, show_progress_bar=False
        )


def minilm() -> SentenceTransformer:
    model = SentenceTransformer(resolve_pretrained(MINILM), device="cpu")
    model.max_seq_length = MAX_LENGTH
    return model


def static() -> SentenceTransformer:
    """Make a mean of token embeddings that starts from MiniLM's."""
    whole = minilm()
    weights = whole[0].auto_model.get_input_embeddings().weight.detach().clone()
    return SentenceTransformer(modules=[StaticEmbedding(whole.tokenizer, weights)], device="cpu")


ENCODERS = {"minilm": minilm, "static": static}


def fit_zero_shot(corpus: Corpus, _: None, settings: Settings, seed: int, threads: int) -> Embedded:
    use_threads(threads)
    return Embedded(minilm(), corpus.ads)


def fit_trained(corpus: Corpus, _: None, settings: Settings, seed: int, threads: int) -> Embedded:
    """Mine if asked for, train, and index the ads."""
    use_threads(threads)
    disable_progress_bar()
    torch.manual_seed(seed)
    rows, ads = corpus.train_pairs()
    queries = corpus.queries["train"]
    pairs = Pairs.from_dict(
        {"query": [queries[row] for row in rows], "ad": [corpus.ads[ad] for ad in ads]}
    )
    if settings["negatives"]:
        pairs = mine_hard_negatives(
            pairs,
            minilm(),
            corpus=corpus.ads,
            num_negatives=settings["negatives"],
            relative_margin=0.05,
            sampling_strategy="top",
            use_faiss=True,
            batch_size=128,
            verbose=False,
        )
    model = ENCODERS[settings["encoder"]]()
    with TemporaryDirectory() as folder:
        arguments = quiet_arguments(
            folder,
            num_train_epochs=settings["epochs"],
            per_device_train_batch_size=settings["batch"],
            learning_rate=settings["rate"],
            warmup_steps=0.1,  # a share of all steps
            batch_sampler=BatchSamplers.NO_DUPLICATES,
            seed=seed,
        )
        loss = LOSSES[settings["loss"]](model)
        SentenceTransformerTrainer(model, arguments, pairs, loss=loss).train()
    return Embedded(model, corpus.ads)


def quiet_arguments(folder: str, **given: Any) -> SentenceTransformerTrainingArguments:
    """Return arguments of a training on the processor that saves, measures and says nothing."""
    return SentenceTransformerTrainingArguments(
        output_dir=folder,
        use_cpu=True,
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **given,
    )


STATIC = {
    "encoder": "static", "loss": "mnrl", "rate": 1e-2, "batch": 256, "epochs": 8, "negatives": 0
}  # fmt: skip
WHOLE = {
    "encoder": "minilm", "loss": "mnrl", "rate": 2e-5, "batch": 64, "epochs": 1, "negatives": 0
}  # fmt: skip
RIVALS = {
    "MiniLM, zero-shot": Rival(fit_zero_shot, ({},)),
    "static, trained": Rival(
        fit_trained,
        (
            STATIC,
            {**STATIC, "rate": 3e-3},
            {**STATIC, "rate": 1e-3},
            {**STATIC, "rate": 3e-3, "negatives": 1},
            {**STATIC, "batch": 2048, "epochs": 16},
            {**STATIC, "rate": 3e-3, "epochs": 16},
            {**STATIC, "rate": 2e-1, "batch": 2048},
        ),
        is_random=True,
    ),
    "MiniLM, trained": Rival(
        fit_trained,
        (
            WHOLE,
            {**WHOLE, "loss": "cached", "rate": 1e-4, "batch": 512},
            {**WHOLE, "negatives": 1},
            {**WHOLE, "rate": 1e-4, "batch": 256, "epochs": 2},
        ),
        is_random=True,
    ),
}
