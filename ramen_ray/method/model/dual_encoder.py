"""The model: it turns queries and ads into vectors, and is trained, saved and loaded whole.

Beside the encoder it can have classifiers, a free vector for each ad, and a head for the queries
that ask them (UniDEC, section 3). Its vectors for search then have both, one after the other.
"""

import math
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ramen_ray.bases import Part
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.folder import TokenTable
from ramen_ray.data.store.made_folder import read_json, write_json
from ramen_ray.method.distributed import own_range, to_device
from ramen_ray.method.model.encoder import Encoder, load_encoder
from ramen_ray.method.model.heads import Classifiers, Head, unit
from ramen_ray.method.model.occurring_tokens import all_tokens
from ramen_ray.method.model.pretrained import EncoderError
from ramen_ray.method.model.texts import TextTokenizer, TokenBatch

ENCODER_FOLDER = "encoder"
HEAD_FOLDER = "classifier_head"
CLASSIFIER_FOLDER = "classifiers"
SCORING_FILE = "scoring.json"
TEXTS_PER_PASS = 2048

Rows = NDArray[Any]
Embeddings = NDArray[np.float32]


@dataclass(frozen=True)
class Scoring:
    """How classifiers take part in a score."""

    weight: float = 1.0  # of the classifier's cosine if both vectors answer; the encoder's is 1
    # Below 1: a query is more like the texts it shares words with than like any classifier.
    # norm of the vector of an ad's text that takes the place of a classifier
    text_scale: float = 1.0


class DualEncoder(nn.Module):
    """One encoder for queries, ads and anchors, and perhaps classifiers of the ads.

    Training steps call the module itself on the texts of a batch. All other code gets its vectors
    from ``embed_*``, which take rows (n,) of a table of texts and return (n, D) float32, unit norm;
    ``use_bf16`` encodes under bfloat16 autocast.

    Attributes:
        encoder: its embeddings are what graphs, clusters and shortlists see.
        classifier_head: makes the vectors that ask the classifiers; None without classifiers.
        classifiers: of all ads, or this worker's share. They are no parameters of the module, as
            a step trains few rows. Without them ads are searched by their texts.
        part: what ``embed_queries`` and ``embed_ads`` return.
        texts_at_once: how many texts of a batch a training step encodes at once; None for all.
    """

    def __init__(
        self,
        encoder: Encoder,
        classifier_head: Head | None = None,
        classifiers: Classifiers | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier_head = classifier_head
        self.classifiers = classifiers
        self.part: Part = "encoder" if classifier_head is None else "both"
        self.scoring = Scoring()
        self.texts_at_once: int | None = None

    @property
    def dim(self) -> int:
        """Width of a vector for search."""
        return {
            "encoder": self.encoder.dim,
            "classifier": self.classifier_dim,
            "both": self.encoder.dim + self.classifier_dim,
        }[self.part]

    @property
    def classifier_dim(self) -> int:
        """Width of a classifier; 0 without a head for them."""
        return 0 if self.classifier_head is None else self.classifier_head.dim

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device

    def forward(self, texts: TokenBatch) -> Tensor:
        """Return (N, D) float32: embeddings of unit norm, then vectors of the head as they are.

        With ``texts_at_once`` memory holds the states of one part of the texts: its backward pass
        encodes each part once more (GradCache, Gao et al., 2021).
        """
        num_parts = math.ceil(len(texts.lengths) / (self.texts_at_once or len(texts.lengths) or 1))
        if num_parts <= 1:
            return self._trained_vectors(texts)
        places = [np.arange(first, len(texts.lengths), num_parts) for first in range(num_parts)]
        vectors = [
            checkpoint(self._trained_vectors, texts.take(part), use_reentrant=False)
            for part in places
        ]
        in_order = np.argsort(np.concatenate(places))
        return torch.cat(vectors)[to_device(in_order, self.device)]

    def _trained_vectors(self, texts: TokenBatch) -> Tensor:
        pooled = self.encoder.pool(texts)
        embeddings = self.encoder.finish(pooled)
        if self.classifier_head is None:
            return embeddings
        return torch.cat([embeddings, self.classifier_head(pooled)], dim=1)

    def embed_queries(self, texts: TokenTable, rows: Rows, use_bf16: bool = False) -> Embeddings:
        """Return the queries' vectors for search."""
        return self._embed(texts, rows, use_bf16, lambda pooled, _: self._text_vectors(pooled, 1.0))

    def embed_ads(self, texts: TokenTable, rows: Rows, use_bf16: bool = False) -> Embeddings:
        """Return trained ads' vectors for search; without a classifier their norm is lower."""
        if self.classifiers is None or self.part == "encoder":
            return self.embed_new_ads(texts, rows, use_bf16)
        is_trained = self.classifiers.is_trained
        take = self.classifiers.take

        def vectors(pooled: Tensor, ads: Rows) -> Tensor:
            by_text = self.scoring.text_scale * unit(self._asking(pooled))
            has_classifier = torch.from_numpy(is_trained[ads]).to(pooled.device)[:, None]
            classifiers = unit(take(ads).to(pooled.device))
            return self._joined(pooled, torch.where(has_classifier, classifiers, by_text))

        return self._embed(texts, rows, use_bf16, vectors)

    def embed_new_ads(self, texts: TokenTable, rows: Rows, use_bf16: bool = False) -> Embeddings:
        """Return the vectors for search of new ads, whose texts take the place of classifiers."""
        scale = self.scoring.text_scale
        return self._embed(
            texts, rows, use_bf16, lambda pooled, _: self._text_vectors(pooled, scale)
        )

    def embed_texts(self, texts: TokenTable, rows: Rows, use_bf16: bool = False) -> Embeddings:
        """Return the encoder's embeddings of any texts, anchors too."""
        return self._embed(texts, rows, use_bf16, lambda pooled, _: self.encoder.finish(pooled))

    def unscaled(self, texts: TokenTable, rows: Rows) -> Embeddings:
        """Return the encoder's embeddings (n, D) of texts before they are normalised."""
        project = self.encoder.projection or nn.Identity()
        return self._embed(texts, rows, False, lambda pooled, _: project(pooled))

    @property
    def text_scales(self) -> Embeddings:
        """(D,) factors that turn a query's vector into that of a new ad with the same text."""
        of_encoder = np.ones(0 if self.part == "classifier" else self.encoder.dim)
        of_classifier = np.full(self.dim - len(of_encoder), self.scoring.text_scale)
        return np.concatenate([of_encoder, of_classifier]).astype(np.float32)

    def with_classifiers(self, vectors: Embeddings, ads: Int64s) -> Embeddings:
        """Return the ads' ``vectors`` (n, D) with classifiers for texts, if classifiers answer."""
        vectors = vectors.copy()
        if self.classifiers is not None and self.part != "encoder":
            weight = self.scoring.weight
            scale = 1.0 if self.part == "classifier" else (weight / (1 + weight)) ** 0.5
            classifiers = scale * unit(self.classifiers.take(ads))
            vectors[:, -self.classifier_dim :] = classifiers.cpu().numpy()
        return vectors

    def own_share(self, ads: Int64s) -> Int64s:
        """Return the part of ``ads`` (n,), ascending, that this worker embeds for all workers."""
        if self.classifiers is not None and self.classifiers.is_share:
            return ads[self.classifiers.holds(ads)]
        return ads[own_range(len(ads))]

    def classifier_vectors(self, texts: TokenTable, rows: Rows) -> Embeddings:
        """Return the head's vectors (n, d) of texts, unit norm: what classifiers start from."""
        return self._embed(texts, rows, False, lambda pooled, _: unit(self._asking(pooled)))

    def centre_classifier_head(self, texts: TokenTable, rows: Rows) -> None:
        """Shift the head's bias so that its vectors of these texts have a mean of zero."""
        assert self.classifier_head is not None, "the model needs a head"
        vectors = self._embed(texts, rows, False, lambda pooled, _: self._asking(pooled))
        with torch.no_grad():
            mean = torch.from_numpy(vectors.mean(axis=0)).to(self.device)
            self.classifier_head.linear.bias -= mean

    def _asking(self, pooled: Tensor) -> Tensor:
        """Return the vectors (N, d), not normalised, that ask the classifiers."""
        assert self.classifier_head is not None, "the part needs a head"
        vectors: Tensor = self.classifier_head(pooled)
        return vectors

    def _text_vectors(self, pooled: Tensor, scale: float) -> Tensor:
        if self.part == "encoder":
            return self.encoder.finish(pooled)
        return self._joined(pooled, scale * unit(self._asking(pooled)))

    def _joined(self, pooled: Tensor, second: Tensor) -> Tensor:
        """Join embeddings and vectors (N, d): products are weighted means of two cosines."""
        if self.part == "classifier":
            return second
        # Section 3 of UniDEC adds the cosines; the mean ranks the same, and has unit norm.
        weight = self.scoring.weight
        parts = [self.encoder.finish(pooled), weight**0.5 * second]
        return torch.cat(parts, dim=1) / (1 + weight) ** 0.5

    @torch.inference_mode()
    def _embed(
        self,
        texts: TokenTable,
        rows: Rows,
        use_bf16: bool,
        vectors_of: Callable[[Tensor, Rows], Tensor],
    ) -> Embeddings:
        """Return ``vectors_of`` the pooled states of texts and their rows."""
        if not len(rows):
            return np.empty((0, self.dim), dtype=np.float32)
        by_length = np.argsort(texts.lengths(rows), kind="stable")
        embeddings: Embeddings | None = None
        for start in range(0, len(rows), TEXTS_PER_PASS):
            places = by_length[start : start + TEXTS_PER_PASS]
            chosen = rows[places]
            batch = TokenBatch(texts.gather(chosen), texts.lengths(chosen))
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=use_bf16):
                vectors = vectors_of(self.encoder.pool(batch), chosen).float().cpu().numpy()
            if embeddings is None:  # one array, filled pass by pass: memory holds the result once
                embeddings = np.empty((len(rows), vectors.shape[1]), dtype=np.float32)
            embeddings[places] = vectors
        assert embeddings is not None, "there are rows"
        return embeddings

    def save(self, folder: Path, max_length: int) -> None:
        """Write the encoder and the head, for :func:`load_model`; classifiers are saved apart."""
        with all_tokens(self.encoder):
            self.encoder.save(folder / ENCODER_FOLDER, max_length)
        if self.classifier_head is not None:
            self.classifier_head.save(folder / HEAD_FOLDER)
            write_json(folder / HEAD_FOLDER / SCORING_FILE, asdict(self.scoring))


def load_model(folder: Path, held: range | None = None, part: Part | None = None) -> DualEncoder:
    """Load what :meth:`DualEncoder.save` wrote, to search by ``part``, or by all that it has.

    ``held`` are the ads whose classifiers are opened, if there are any; None for all.
    """
    encoder = load_encoder(folder / ENCODER_FOLDER)
    has_head = (folder / HEAD_FOLDER).is_dir()
    if part in {"both", "classifier"} and not has_head:
        raise EncoderError(f"{folder} has no classifiers: it can only answer by its encoder")
    if not has_head:
        return DualEncoder(encoder)
    has_classifiers = (folder / CLASSIFIER_FOLDER).is_dir()
    classifiers = Classifiers.open(folder / CLASSIFIER_FOLDER, held) if has_classifiers else None
    model = DualEncoder(encoder, Head.load(folder / HEAD_FOLDER), classifiers)
    model.part = part or model.part
    model.scoring = Scoring(**read_json(folder / HEAD_FOLDER / SCORING_FILE))
    return model


def copy_model(folder: Path, target: Path) -> None:
    """Copy what embeds texts from a saved model into the folder ``target``; no classifiers."""
    for name in (ENCODER_FOLDER, HEAD_FOLDER):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, target / name)


def tokenize_texts(tokenize: TextTokenizer, texts: list[str], prompt: str = "") -> TokenTable:
    """Tokenise ``texts`` into a table for ``embed_*``; equal texts stay separate."""
    token_ids, lengths = tokenize(texts, prompt)
    no_hashes = np.zeros(len(texts), dtype=np.uint64)
    return TokenTable(token_ids, np.append(0, lengths.cumsum()), no_hashes)


@dataclass(frozen=True)
class TextEmbeddings:
    """The embeddings of one table's texts."""

    embeddings: NDArray[Any]  # (U, D) unit-norm float16 or float32, one per distinct text
    positions: Int64s  # (texts,) the row of each text among them
    scales: NDArray[np.float32] | None = None  # (D,) factors of what is taken; None for 1

    def take(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Return the embeddings (n, D) float32 of the texts ``rows`` (n,)."""
        taken: NDArray[np.float32] = self.embeddings[self.positions[rows]].astype(np.float32)
        return taken if self.scales is None else taken * self.scales


def number_distinct(tables: list[TokenTable]) -> tuple[list[Int64s], list[Int64s]]:
    """Number the distinct texts of all ``tables``, by their hashes, in order of first appearance.

    Per table, returns the rows (n,) whose texts no earlier row has; and all rows' numbers.
    """
    hashes = np.concatenate([table.hashes for table in tables])
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    first_seen = np.argsort(first)
    number = np.empty_like(first_seen)
    number[first_seen] = np.arange(len(first))
    bounds = np.cumsum([0, *map(len, tables)])
    rows = np.split(first[first_seen], np.searchsorted(first[first_seen], bounds[1:-1]))
    rows = [part - start for part, start in zip(rows, bounds[:-1], strict=True)]
    return rows, np.split(number[inverse], bounds[1:-1])
