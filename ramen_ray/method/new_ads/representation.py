"""Combiners: one vector from an ad's text and its neighbours' classifiers, as an index holds it.

A retriever that has a combiner keeps it in a folder ``combiner/`` with

    settings.json           kind of combiner, and how neighbours are found
    combiner.safetensors    parameters of the combiner
    seen_ads.npy            ids of the seen ads
    embeddings.npy          their texts' embeddings, float16
    classifiers.npy         their classifiers, float16

Shapes: N ads, K neighbours, D width of a vector.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import faiss
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from ramen_ray.answering.retriever import INDEX
from ramen_ray.data.arrays import Int64s
from ramen_ray.data.store.made_folder import read_json, write_json
from ramen_ray.method.new_ads.neighbours import (
    Lookup,
    SeenAds,
    Vectors,
    find_neighbours,
    similarities,
)
from ramen_ray.method.retrieval.index import IndexKind, filled_index

COMBINER_FOLDER = "combiner"
ADS_PER_PASS = 4096
SETTINGS_FILE = "settings.json"
WEIGHTS_FILE = "combiner.safetensors"
TABLES = ("seen_ads", "embeddings", "classifiers")
CombinerKind = Literal["attention", "transformer", "mean"]

HIDDEN = 2048
DROPOUT = 0.1
SCORES = 11  # tenths of a cosine, 0 to 10


class Combiner(nn.Module):
    """Maps text embeddings (N, D), neighbours' vectors (N, K, D) and cosines (N, K) to (N, D).

    Cosines are of an ad's text and its neighbours' texts, -inf where no neighbour is.

    A kind mixes an ad's text with its neighbours and averages the mixed vectors. ``mean`` mixes
    nothing: up to scale, it is the sum. ``attention`` is one layer of self-attention and a linear
    map (IRENE's draft), added to the text; the map starts at zero, so the combiner starts as the
    text alone. ``transformer`` is a layer of a transformer (IRENE's released code). Both add one
    vector to the text and another to the neighbours, to tell them apart; ``transformer`` also adds
    one to each neighbour by its cosine, in tenths.
    """

    def __init__(self, kind: CombinerKind, dim: int, heads: int = 4) -> None:
        """Build a combiner of a kind; ``heads`` must divide ``dim``."""
        super().__init__()
        self.kind = kind
        self.dim = dim
        self.heads = heads
        self.text_type = nn.Parameter(torch.zeros(dim))
        self.neighbour_type = nn.Parameter(torch.zeros(dim))
        self.score_types: nn.Parameter | None = None
        self.mix: nn.Module | None = None
        self.output: nn.Linear | None = None
        if kind == "transformer":
            self.mix = nn.TransformerEncoderLayer(dim, heads, HIDDEN, DROPOUT, batch_first=True)
            self.score_types = nn.Parameter(torch.zeros(SCORES, dim))
        elif kind == "attention":
            self.mix = nn.MultiheadAttention(dim, heads, batch_first=True)
            self.output = nn.Linear(dim, dim)
            nn.init.zeros_(self.output.weight)
            nn.init.zeros_(self.output.bias)

    def forward(self, text_ND: Tensor, neighbours_NKD: Tensor, cosines_NK: Tensor) -> Tensor:
        """Return the ads' vectors (N, D); neighbours that are not there have no influence."""
        is_there_NK = torch.isfinite(cosines_NK)
        neighbours_NKD = torch.where(is_there_NK[..., None], neighbours_NKD, 0.0)
        types = self.neighbour_type
        if self.score_types is not None:
            scores_NK = (cosines_NK.clamp(0, 1) * (SCORES - 1)).long()
            types = types + functional.embedding(scores_NK, self.score_types)
        tokens_NTD = torch.cat([(text_ND + self.text_type)[:, None], neighbours_NKD + types], dim=1)
        has_text_N1 = is_there_NK.new_ones((len(text_ND), 1))
        mask_NT = torch.cat([has_text_N1, is_there_NK], dim=1)
        mixed_NTD = self._mixed(tokens_NTD, ~mask_NT)
        weights_NT1 = mask_NT[..., None].to(mixed_NTD.dtype)
        mean_ND = (mixed_NTD * weights_NT1).sum(dim=1) / weights_NT1.sum(dim=1)
        return mean_ND if self.output is None else text_ND + self.output(mean_ND)

    def _mixed(self, tokens_NTD: Tensor, is_padding_NT: Tensor) -> Tensor:
        if isinstance(self.mix, nn.MultiheadAttention):
            mixed: Tensor = self.mix(
                tokens_NTD, tokens_NTD, tokens_NTD, is_padding_NT, need_weights=False
            )[0]
            return mixed
        if self.mix is None:
            return tokens_NTD
        mixed = self.mix(tokens_NTD, src_key_padding_mask=is_padding_NT)
        return mixed


@dataclass(frozen=True)
class CombinedAds:
    """Represents ads by a combiner."""

    combiner: Combiner  # in evaluation mode, on the CPU
    seen: SeenAds  # the ads that can be neighbours
    lookup: Lookup  # how neighbours are found
    # vectors are divided by it, so that none of the first index is longer than 1
    scale: float = 1.0

    def represent(self, embeddings: Vectors, own_rows: Int64s | None = None) -> Vectors:
        """Return the vectors (n, D) float32 of ads, given the ``embeddings`` (n, D) of their texts.

        Each is represented as if it were new: its own classifier, of ``own_rows`` (n,) of the seen
        ads (-1 for none), is never used.
        """
        neighbours = find_neighbours(self.seen, self.lookup, embeddings, own_rows)
        return self.combine(embeddings, neighbours)

    @torch.inference_mode()
    def combine(self, embeddings: Vectors, neighbours: Int64s) -> Vectors:
        """Return the vectors (n, D) of ads with given ``neighbours`` (n, K), -1 for none."""
        vectors = np.empty_like(embeddings)
        for start in range(0, len(embeddings), ADS_PER_PASS):
            part = slice(start, start + ADS_PER_PASS)
            classifiers = torch.from_numpy(self.seen.classifiers[neighbours[part]])
            cosines = similarities(embeddings[part], self.seen.embeddings, neighbours[part])
            text = torch.from_numpy(np.ascontiguousarray(embeddings[part]))
            vectors[part] = self.combiner(text, classifiers, torch.from_numpy(cosines)).numpy()
        return vectors / np.float32(self.scale)

    def save(self, folder: Path) -> None:
        """Write everything into ``folder``, for :func:`open_combined_ads`."""
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "kind": self.combiner.kind,
            "dim": self.combiner.dim,
            "heads": self.combiner.heads,
            "lookup": asdict(self.lookup),
            "scale": self.scale,
        }
        write_json(folder / SETTINGS_FILE, settings)
        save_file(self.combiner.state_dict(), folder / WEIGHTS_FILE)
        np.save(folder / "seen_ads.npy", self.seen.ids)
        np.save(folder / "embeddings.npy", self.seen.embeddings.astype(np.float16))
        np.save(folder / "classifiers.npy", self.seen.classifiers.astype(np.float16))


def open_combined_ads(folder: Path) -> CombinedAds:
    """Open what :meth:`CombinedAds.save` wrote, without unpickling code."""
    settings = read_json(folder / SETTINGS_FILE)
    combiner = Combiner(settings["kind"], settings["dim"], settings["heads"])
    combiner.load_state_dict(load_file(folder / WEIGHTS_FILE))
    combiner.eval()
    ids, embeddings, classifiers = (np.load(folder / f"{name}.npy") for name in TABLES)
    seen = SeenAds(ids, embeddings.astype(np.float32), classifiers.astype(np.float32))
    return CombinedAds(combiner, seen, Lookup(**settings["lookup"]), settings["scale"])


def use_combiner(folder: Path, combiner: Path, embeddings: Vectors, kind: IndexKind) -> None:
    """Give a retriever's folder a combiner, and an index made of its ads' text embeddings."""
    combined = open_combined_ads(combiner)
    vectors = combined.represent(embeddings, combined.seen.rows_of(np.arange(len(embeddings))))
    # Indexes expect no vector to be longer than 1.
    longest = float(np.linalg.norm(vectors, axis=1).max())
    replace(combined, scale=combined.scale * longest).save(folder / COMBINER_FOLDER)
    vectors /= np.float32(longest)
    faiss.write_index(filled_index(kind, vectors), str(folder / INDEX))


def combiner_of(folder: Path) -> CombinedAds | None:
    """Open a retriever's combiner; None if it has none."""
    combiner = folder / COMBINER_FOLDER
    return open_combined_ads(combiner) if combiner.is_dir() else None
