"""An anchor set of similar texts: each train query and ad is linked to its nearest texts.

The anchors are the texts of the train queries and ads themselves ("similar queries/ads" of the
RAMEN paper). Validation and test queries have no edges and are not anchors, except that an ad may
have the same text as one.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from ramen_ray.data.graphs.anchor_sets import Edges, add_anchor_set, apply_protocol, check_name
from ramen_ray.data.graphs.ranking import heaviest
from ramen_ray.data.prepared.csr import ragged_positions
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.validation import check
from ramen_ray.data.validation.leaks import Protocol
from ramen_ray.method.model.dual_encoder import DualEncoder, tokenize_texts
from ramen_ray.method.model.encoder import Encoder, build_transformer, load_encoder
from ramen_ray.method.model.pretrained import resolve_pretrained, text_tokenizer
from ramen_ray.method.retrieval.search import TopK, search

NGRAM_LENGTHS = (2, 4)
PRODUCTS_AT_ONCE = 1 << 24
SPARE_NEIGHBOURS = 16
MAX_NEIGHBOURS = 1024

Search = Callable[[NDArray[np.float32], NDArray[np.float32], int], TopK]
"""Finds the k texts that are nearest to each query, as :func:`search`."""


@dataclass(frozen=True)
class SimilarSettings:
    """Which texts are similar enough, but not duplicates.

    Attributes:
        encoder: Encoder that measures similarity: a folder that training wrote, a pretrained
            folder, package:MODULE/FOLDER or a hub id; without it, TF-IDF of character n-grams,
            whose time grows with the square of the number of texts.
        top_k: Largest number of anchors of a node.
        min_similarity: Texts with a lower cosine are not linked.
        max_similarity: Texts with a higher cosine count as duplicates and are not linked, as are
            texts that differ only in case, punctuation or white space.
        max_length: Tokens of a text that an encoder reads.
        protocol: strict leaves out edges that join a held-out query to its answer; as-published
            keeps them.
    """

    encoder: str | None = None
    top_k: int = 5
    min_similarity: float = 0.3
    max_similarity: float = 0.95
    max_length: int = 32
    protocol: Protocol = "strict"

    def __post_init__(self) -> None:
        """Refuse settings that leave no edges."""
        if self.top_k < 1 or self.max_length < 3:
            raise DatasetError("top_k must be at least 1, and max_length at least 3")
        if not 0 < self.min_similarity < self.max_similarity <= 1:
            raise DatasetError(
                f"min_similarity {self.min_similarity} must be above 0 and below "
                f"max_similarity {self.max_similarity}, which must be at most 1"
            )


def add_similar(
    dataset_path: Path,
    name: str,
    settings: SimilarSettings,
    replace: bool = False,
    find: Search = search,
) -> dict[str, int]:
    """Add an anchor set of similar texts to a dataset directory; similarities are edge weights.

    Args:
        dataset_path: the dataset directory.
        name: what to call the set.
        settings: which texts are similar.
        replace: replace a set of that name.
        find: how the embeddings are searched if an encoder makes them.

    Returns:
        Counts of the rows written, of the nodes without edges, and of edges left out.

    Raises:
        DatasetError: the dataset is not usable, or the name is taken.
        EncoderError: the encoder cannot be loaded.
    """
    dataset = Dataset(dataset_path)
    check_name(dataset, name, replace)
    check(dataset)
    tables = (("queries/train", "query_id"), ("ads", "ad_id"))
    nodes = [dataset.read(table).sort_by(id_column)["text"] for table, id_column in tables]
    encoded = pa.chunked_array([chunk for texts in nodes for chunk in texts.chunks])
    encoded = encoded.combine_chunks().dictionary_encode()
    texts, text_of_node = encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)
    neighbours = nearest_texts(texts, settings, find)
    edges = {
        "query": _edges_of(text_of_node[: len(nodes[0])], neighbours),
        "ad": _edges_of(text_of_node[len(nodes[0]) :], neighbours),
    }
    made = {"made_by": "similar", "settings": asdict(settings)}
    edges, left_out = apply_protocol(settings.protocol, dataset, texts, edges)
    return add_anchor_set(dataset_path, name, texts, edges, made, replace) | left_out


def nearest_texts(texts: pa.StringArray, settings: SimilarSettings, find: Search = search) -> Edges:
    """Find the ``top_k`` texts nearest to each text (n,), best first; ties by position."""
    folded = _folded(texts)
    if settings.encoder is None:
        parts = list(_by_ngrams(texts, folded, settings))
    else:
        embeddings = _embed(texts, settings.encoder, settings.max_length)
        parts = list(_by_embeddings(embeddings, folded, settings, find))
    rows, others, similarities = (np.concatenate(column) for column in zip(*parts, strict=True))
    best = heaviest(rows, similarities, others, settings.top_k)
    return Edges(rows[best], others[best], similarities[best])


Found = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]


def _folded(texts: pa.StringArray) -> NDArray[np.int64]:
    """Number the texts; texts that differ only in case, punctuation and space share a number."""
    plain = pc.replace_substring_regex(pc.utf8_lower(texts), r"[^\p{L}\p{N}]+", "")
    return plain.dictionary_encode().indices.to_numpy().astype(np.int64)


def _by_ngrams(
    texts: pa.StringArray, folded: NDArray[np.int64], settings: SimilarSettings
) -> Iterator[Found]:
    """Yield all near pairs (row, other, similarity), by sparse products of some rows at a time."""
    vectorizer = TfidfVectorizer(
        analyzer="char_wb", ngram_range=NGRAM_LENGTHS, sublinear_tf=True, dtype=np.float32
    )
    vectors = vectorizer.fit_transform(texts.to_pylist())
    columns = vectors.T.tocsr()
    rows_at_once = max(PRODUCTS_AT_ONCE // len(texts), 1)
    for start in range(0, len(texts), rows_at_once):
        product = (vectors[start : start + rows_at_once] @ columns).tocoo()
        near = product.data >= settings.min_similarity
        rows, others = product.row[near].astype(np.int64) + start, product.col[near]
        similarities = product.data[near]
        kept = (similarities <= settings.max_similarity) & (folded[rows] != folded[others])
        yield rows[kept], others[kept].astype(np.int64), similarities[kept]


def _by_embeddings(
    embeddings: NDArray[np.float32],
    folded: NDArray[np.int64],
    settings: SimilarSettings,
    find: Search,
) -> Iterator[Found]:
    """Yield near pairs (row, other, similarity); searches deeper if duplicates fill the top."""
    rows, k = np.arange(len(embeddings)), settings.top_k + SPARE_NEIGHBOURS
    while len(rows):
        others, similarities = find(embeddings[rows], embeddings, min(k, len(embeddings)))
        kept = (similarities >= settings.min_similarity) & (folded[others] != folded[rows][:, None])
        kept &= similarities <= settings.max_similarity
        done = kept.sum(axis=1) >= settings.top_k
        done |= similarities[:, -1] < settings.min_similarity
        done |= k >= min(len(embeddings), MAX_NEIGHBOURS)
        kept &= done[:, None]
        yield rows[np.nonzero(kept)[0]], others[kept], similarities[kept]
        rows, k = rows[~done], 2 * k


def _embed(texts: pa.StringArray, name: str, max_length: int) -> NDArray[np.float32]:
    encoder = _load(name).to("cuda" if torch.cuda.is_available() else "cpu")
    tokenize = text_tokenizer(encoder.tokenizer, max_length, encoder.add_special_tokens)
    table = tokenize_texts(tokenize, texts.to_pylist())
    return DualEncoder(encoder).embed_texts(table, np.arange(len(texts)))


def _load(name: str) -> Encoder:
    folder = Path(resolve_pretrained(name))
    return load_encoder(folder) if (folder / "modules.json").is_file() else build_transformer(name)


def _edges_of(text_of_node: NDArray[np.int64], neighbours: Edges) -> Edges:
    """Give every node (n,) the neighbours of its text."""
    starts = np.searchsorted(neighbours.nodes, text_of_node)
    degrees = np.searchsorted(neighbours.nodes, text_of_node, side="right") - starts
    positions = ragged_positions(starts, degrees)
    nodes = np.repeat(np.arange(len(text_of_node)), degrees)
    return Edges(nodes, neighbours.anchors[positions], neighbours.weights[positions])
