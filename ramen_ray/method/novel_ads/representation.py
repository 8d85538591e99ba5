"""Vectors of ads as an index holds them: combined, on one scale, for seen and for new ads.

A retriever that has a combiner keeps it in a folder ``combiner/`` with

    settings.json           kind of combiner, and how neighbours are found
    combiner.safetensors    parameters of the combiner
    seen_ads.npy            ids of the seen ads
    embeddings.npy          their texts' embeddings, float16
    classifiers.npy         their classifiers, float16
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import faiss
import numpy as np
import torch
from safetensors.torch import load_file, save_file

from ramen_ray.data.arrays import Int64s
from ramen_ray.method.novel_ads.combiner import Combiner
from ramen_ray.method.novel_ads.neighbours import Lookup, SeenAds, Vectors, find_neighbours
from ramen_ray.method.retrieval.index import IndexKind, filled_index
from ramen_ray.method.retrieval.retriever_folder import INDEX

COMBINER_FOLDER = "combiner"
ADS_PER_BLOCK = 4096
SETTINGS, WEIGHTS = "settings.json", "combiner.safetensors"
TABLES = ("seen_ads", "embeddings", "classifiers")


@dataclass(frozen=True)
class CombinedAds:
    """Represents ads by a combiner."""

    combiner: Combiner  # in evaluation mode, on the CPU
    seen: SeenAds  # the ads that can be neighbours
    lookup: Lookup  # how neighbours are found
    # vectors are divided by it, so that none of the first index is longer than 1
    scale: float = 1.0

    def represent(
        self,
        embeddings: Vectors,
        own: Int64s | None = None,
        revealed: tuple[Int64s, Vectors] | None = None,
    ) -> Vectors:
        """Return the vectors (n, D) float32 of ads, given the ``embeddings`` (n, D) of their texts.

        Each is represented as if it were new: its own classifier, in row ``own`` (n,) of the seen
        ads (-1 for none), is never used. See
        :func:`~ramen_ray.method.novel_ads.neighbours.find_neighbours`.
        """
        return self.combine(
            embeddings, find_neighbours(self.seen, self.lookup, embeddings, own, revealed)
        )

    @torch.inference_mode()
    def combine(self, embeddings: Vectors, neighbours: Int64s) -> Vectors:
        """Return the vectors (n, D) of ads with given ``neighbours`` (n, K), -1 for none."""
        vectors = np.empty_like(embeddings)
        for start in range(0, len(embeddings), ADS_PER_BLOCK):
            part = slice(start, start + ADS_PER_BLOCK)
            classifiers = torch.from_numpy(self.seen.classifiers[neighbours[part]])
            is_there = torch.from_numpy(neighbours[part] >= 0)
            text = torch.from_numpy(np.ascontiguousarray(embeddings[part]))
            vectors[part] = self.combiner(text, classifiers, is_there).numpy()
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
        (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        save_file(self.combiner.state_dict(), folder / WEIGHTS)
        np.save(folder / "seen_ads.npy", self.seen.ids)
        np.save(folder / "embeddings.npy", self.seen.embeddings.astype(np.float16))
        np.save(folder / "classifiers.npy", self.seen.classifiers.astype(np.float16))


def open_combined_ads(folder: Path) -> CombinedAds:
    """Open what :meth:`CombinedAds.save` wrote, without unpickling code."""
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    combiner = Combiner(settings["kind"], settings["dim"], settings["heads"])
    combiner.load_state_dict(load_file(folder / WEIGHTS))
    combiner.eval()
    ids, embeddings, classifiers = (np.load(folder / f"{name}.npy") for name in TABLES)
    seen = SeenAds(ids, embeddings.astype(np.float32), classifiers.astype(np.float32))
    return CombinedAds(combiner, seen, Lookup(**settings["lookup"]), settings["scale"])


def use_combiner(folder: Path, combiner: Path, embeddings: Vectors, kind: IndexKind) -> None:
    """Give a retriever's folder a saved combiner, and an index of its ads' combined vectors.

    ``embeddings`` (ads, D) are those of its ads' texts.
    """
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
