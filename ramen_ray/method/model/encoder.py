"""The encoders: a transformer with pooling, and a bag of token embeddings.

A text becomes a vector in three moves: :mod:`~ramen_ray.method.model.texts` makes token ids of it,
``pool`` one state of them all, ``finish`` projects and normalises that. Dropout stays off, as in
NGAME's training. Shapes: N texts, R rows of W tokens, D width of an embedding.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerFast

from ramen_ray.method.distributed import to_device
from ramen_ray.method.model.heads import Head, unit
from ramen_ray.method.model.pretrained import (
    EncoderError,
    first_position,
    load_backbone,
    load_tokenizer,
    load_transformer_tokenizer,
    text_tokenizer,
)
from ramen_ray.method.model.sentence_folder import (
    Pooling,
    load_projection,
    load_table,
    open_encoder,
    write_modules,
    write_transformer_settings,
)
from ramen_ray.method.model.texts import NO_PROMPTS, PackedTexts, TextTokenizer, TokenBatch, packed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

EmbeddingTable = nn.Embedding | nn.EmbeddingBag

ROWS_OF_TEXTS = {
    *("albert", "bert", "camembert", "distilbert"),
    *("electra", "mpnet", "roberta", "xlm-roberta"),
}
"""Types of transformers whose attention and positions can be told for each token. Others may see
the neighbours of a text (ModernBERT's windows, DeBERTa's distances), and get one text a row."""


class PooledEncoder(nn.Module):
    """What both encoders share: pool, project if there is a projection, normalise.

    Each has a ``token_table``, which looks up token embeddings: an EmbeddingTable, or a stand-in.
    """

    add_special_tokens: bool

    def __init__(self, width: int, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.width = width
        self.tokenizer = tokenizer
        self.prompts = NO_PROMPTS
        self.projection: Head | None = None

    def text_tokenizer(self, max_length: int) -> TextTokenizer:
        """Return the tokenizer, which cuts texts to ``max_length`` tokens."""
        return text_tokenizer(self.tokenizer, max_length, self.add_special_tokens, self.prompts)

    @property
    def token_embeddings(self) -> nn.Parameter:
        """The token embeddings (tokens, width)."""
        weight: nn.Parameter = self.token_table.weight
        return weight

    @property
    def dim(self) -> int:
        """Width of an embedding."""
        return self.projection.dim if self.projection is not None else self.width

    def finish(self, pooled: Tensor) -> Tensor:
        """Turn pooled states (N, width) into unit-norm embeddings (N, D) float32."""
        return unit(pooled if self.projection is None else self.projection(pooled))

    def forward(self, texts: TokenBatch) -> Tensor:
        """Return unit-norm embeddings (N, D) float32 in the order of ``texts``."""
        return self.finish(self.pool(texts))


class TransformerEncoder(PooledEncoder):
    """A transformers encoder, pooled and L2-normalised."""

    add_special_tokens = True

    def __init__(
        self,
        backbone: "PreTrainedModel",
        tokenizer: PreTrainedTokenizerFast,
        pooling: Pooling = "mean",
    ) -> None:
        super().__init__(int(backbone.config.hidden_size), tokenizer)
        self.backbone = backbone
        self.pooling = pooling
        self._attention = backbone.config._attn_implementation
        self._takes_rows_of_texts = backbone.config.model_type in ROWS_OF_TEXTS
        self._first_position = first_position(backbone.config)
        self.eval()

    @property
    def token_table(self) -> Any:
        """The transformer's input embeddings."""
        return self.backbone.get_input_embeddings()

    def set_token_table(self, table: nn.Module) -> None:
        """Replace the transformer's input embeddings."""
        self.backbone.set_input_embeddings(table)

    def pool(self, texts: TokenBatch) -> Tensor:
        """Return pooled states (N, width) float32, not normalised, in the order of ``texts``."""
        device = next(self.parameters()).device
        # Under bfloat16 on CPUs PyTorch's fused attention is slower than the eager one.
        is_bf16 = device.type == "cpu" and torch.is_autocast_enabled("cpu")
        attention = "eager" if is_bf16 else self._attention
        if attention != self.backbone.config._attn_implementation:
            self.backbone.set_attn_implementation(attention)
        packs = list(packed(texts, self._takes_rows_of_texts))
        all_ids = to_device(np.concatenate([pack.token_ids.reshape(-1) for pack in packs]), device)
        # One look-up for all packs: each would have a gradient as large as the table.
        embedded = self.token_table(all_ids).split([pack.token_ids.size for pack in packs])
        pooled_ND = torch.cat(
            [
                self._pool(self._states(words_TD.unflatten(0, pack.token_ids.shape), pack), pack)
                for words_TD, pack in zip(embedded, packs, strict=True)
            ]
        )
        in_order = np.argsort(np.concatenate([pack.numbers for pack in packs]))
        return pooled_ND[to_device(in_order, device)].float()

    def _states(self, words_RWD: Tensor, pack: PackedTexts) -> Tensor:
        """Return the states (R W, D) of packed texts, from their token embeddings."""
        texts_RW = to_device(pack.texts, words_RWD.device)
        if self._takes_rows_of_texts:
            # A token attends to its own text only. transformers takes a mask of this shape as it
            # is, and does not wait to look at it.
            is_same_R1WW = (texts_RW[:, :, None] == texts_RW[:, None]).unsqueeze(1)
            inputs = {
                "attention_mask": torch.where(is_same_R1WW, 0.0, -torch.inf),
                "position_ids": to_device(pack.positions, words_RWD.device) + self._first_position,
            }
        else:
            inputs = {"attention_mask": (texts_RW >= 0).long()}
        states_RWD: Tensor = self.backbone(inputs_embeds=words_RWD, **inputs).last_hidden_state
        return states_RWD.flatten(0, 1)

    def _pool(self, states_TD: Tensor, pack: PackedTexts) -> Tensor:
        """Return the pooled states (N, D) of a pack from its states (R W, D)."""
        starts = pack.lengths.cumsum() - pack.lengths
        if self.pooling == "cls":
            return states_TD[to_device(pack.places[starts], states_TD.device)]
        places = to_device(pack.places, states_TD.device)
        starts_N = to_device(starts, states_TD.device)
        return functional.embedding_bag(places, states_TD, starts_N, mode="mean")

    def save(self, folder: Path, max_length: int) -> None:
        """Write a folder that both transformers libraries load; texts are cut to a length."""
        folder.mkdir(parents=True, exist_ok=True)
        self.backbone.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        write_transformer_settings(folder, self.pooling, self.width, max_length)
        write_modules(folder, ["Transformer", "Pooling"], self.projection, self.prompts)


class BagEncoder(PooledEncoder):
    """The mean of a text's token embeddings, L2-normalised: a classic of XC for short texts."""

    add_special_tokens = False

    def __init__(self, weights: Tensor, tokenizer: PreTrainedTokenizerFast) -> None:
        """Start from token embeddings ``weights`` (vocabulary, D)."""
        super().__init__(weights.shape[1], tokenizer)
        self.embedding: Any = nn.EmbeddingBag.from_pretrained(weights, freeze=False, mode="mean")
        self.eval()

    @property
    def token_table(self) -> Any:
        """The bag."""
        return self.embedding

    def set_token_table(self, table: nn.Module) -> None:
        """Replace the bag."""
        self.embedding = table

    def pool(self, texts: TokenBatch) -> Tensor:
        """Return pooled states (N, width) float32, not normalised, in the order of ``texts``."""
        device = self.embedding.weight.device
        token_ids = to_device(texts.token_ids, device)
        starts = to_device(texts.lengths.cumsum() - texts.lengths, device)
        bags_ND = self.embedding(token_ids, starts)
        return bags_ND.float()

    def save(self, folder: Path, max_length: int) -> None:
        """Write a folder that sentence-transformers loads unchanged (a StaticEmbedding)."""
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer.save_pretrained(folder)
        static = folder / "0_StaticEmbedding"
        static.mkdir(exist_ok=True)
        save_file(
            {"embedding.weight": self.embedding.weight.detach()}, static / "model.safetensors"
        )
        backend = self.tokenizer.backend_tokenizer
        backend.enable_truncation(max_length)
        backend.no_padding()
        backend.save(str(static / "tokenizer.json"))
        write_modules(folder, ["StaticEmbedding"], self.projection, self.prompts)


Encoder = TransformerEncoder | BagEncoder


def build_transformer(
    pretrained: str, pooling: Pooling | None = None, num_layers: int | None = None
) -> TransformerEncoder:
    """Load a transformer encoder and its tokenizer, or only its first layers; or an EncoderError.

    ``pooling`` None takes that of a sentence-transformers folder, and the mean for others.
    """
    folder = open_encoder(pretrained, "transformer")
    pooling = folder.choose_pooling(pooling)
    tokenizer = load_transformer_tokenizer(pretrained)
    backbone = load_backbone(pretrained, num_layers)
    _check_vocabulary(pretrained, tokenizer, backbone.get_input_embeddings().num_embeddings)
    encoder = TransformerEncoder(backbone, tokenizer, pooling)
    encoder.prompts = folder.prompts
    encoder.projection = load_projection(pretrained, folder.dense)
    return encoder


def build_bag(pretrained: str) -> BagEncoder:
    """Build a bag of token embeddings: one that was saved, or a transformer's input embeddings."""
    folder = open_encoder(pretrained, "bag")
    tokenizer = load_tokenizer(pretrained)
    if folder.table is None:
        weights = load_backbone(pretrained).get_input_embeddings().weight.detach().clone()
    else:
        weights = load_table(pretrained, folder.table)
    _check_vocabulary(pretrained, tokenizer, len(weights))
    encoder = BagEncoder(weights, tokenizer)
    encoder.prompts = folder.prompts
    encoder.projection = load_projection(pretrained, folder.dense)
    return encoder


def build_encoder(pretrained: str) -> Encoder:
    """Load an encoder of either kind, as what it was trained, or an EncoderError."""
    is_bag = open_encoder(pretrained).kind == "bag"
    return build_bag(pretrained) if is_bag else build_transformer(pretrained)


def load_encoder(folder: Path) -> Encoder:
    """Load an encoder of either kind from the sentence-transformers folder that it was saved as."""
    if not (folder / "modules.json").is_file():
        raise EncoderError(f"{folder} is not an encoder folder: it has no modules.json")
    return build_encoder(str(folder))


def _check_vocabulary(name: str, tokenizer: PreTrainedTokenizerFast, num_embeddings: int) -> None:
    if len(tokenizer) > num_embeddings:
        raise EncoderError(
            f"{name!r}: the tokenizer has {len(tokenizer)} tokens but the encoder only "
            f"{num_embeddings} embeddings; they do not belong together"
        )
