"""An anchor set of similar texts: each train query and ad is linked to its nearest texts.

The anchors are these texts themselves ("similar queries/ads" of the RAMEN paper). Memory holds a
few batches, a shard of embeddings, and a few numbers a text.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from ramen_ray.config import GB_PER_SHARD
from ramen_ray.data.arrays import Int64s, map_array
from ramen_ray.data.checks.validation import check
from ramen_ray.data.engine import engine
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.data.tables.graphs.anchor_sets import (
    check_name,
    folder_beside,
    made_by,
    put_in_place,
    read_texts,
    write_near,
    write_text_edges,
    write_texts,
)
from ramen_ray.long_work import logged_blocks
from ramen_ray.method.graph.similar import (
    FOUND,
    SAMPLED_TEXTS,
    SPARE_NEIGHBOURS,
    SimilarSettings,
    plain_hashes,
    similar_by_embeddings,
)
from ramen_ray.method.model.dual_encoder import DualEncoder, tokenize_texts
from ramen_ray.method.model.encoder import Encoder, build_bag, build_transformer
from ramen_ray.method.model.sentence_folder import open_encoder
from ramen_ray.method.model.texts import TextTokenizer
from ramen_ray.method.retrieval.search import TopK, keep_sample, search, share_found
from ramen_ray.method.retrieval.shards import embedded_shards
from ramen_ray.method.retrieval.shortlists import sampled_queries
from ramen_ray.orchestration.cluster.joining import start_ray
from ramen_ray.orchestration.cluster.resources import free_share, in_tasks
from ramen_ray.orchestration.embed import FEW_TEXTS, EmbeddingResources, TableRows, embed_tables
from ramen_ray.orchestration.sharded_search import search_shards
from ramen_ray.presets import MINILM

TEXTS_HERE = 2_000_000  # about those that one process tokenises while a cluster starts
MOST_EXACT_PRODUCTS = 3 * 10**12  # of numbers; a minute of two cores
EFFORT = 2


def add_similar(
    dataset_path: Path,
    name: str,
    settings: SimilarSettings,
    replace: bool = False,
    gb_per_shard: float = GB_PER_SHARD,
) -> dict[str, int]:
    """Add an anchor set of similar texts to a dataset directory; similarities are edge weights.

    A process searches at most ``gb_per_shard`` of embeddings. Returns counts of rows written, of
    nodes without edges and of what was left out, and the recall in per cent if it is not exact.

    Raises:
        DatasetError: the dataset is not usable, the name is taken, or there would be no edges.
        EncoderError: the encoder cannot be loaded.
    """
    dataset = Dataset(dataset_path)
    check_name(dataset, name, replace)
    check(dataset)
    encoder = settings.encoder
    if encoder is not None:
        folder_of_encoder = open_encoder(encoder)
        if folder_of_encoder.kind == "transformer":  # now, as the work is long
            folder_of_encoder.check_length(settings.max_length, "max_length")
    counts = Counter[str]()
    with folder_beside(dataset) as folder, owned_folder(folder) as staging:
        with engine(folder, dataset=dataset) as connection:
            texts = write_texts(connection, staging)
        plain = np.concatenate([plain_hashes(batch) for batch in texts.chunks])
        find = _Search(_embed(staging, settings.encoder, settings.max_length), gb_per_shard)
        blocks = find(settings.top_k + SPARE_NEIGHBOURS)
        write_near(staging, similar_by_embeddings(blocks, plain, settings, counts))
        if not find.is_exact:
            counts[FOUND] = round(100 * find.recall(settings.top_k))
        with engine(folder, dataset=dataset) as connection:
            writer = DatasetWriter(folder)
            written = write_text_edges(
                connection, dataset, staging, settings.protocol, name, writer
            )
        if f"anchors/{name}" not in written:
            raise DatasetError(f"no texts are similar enough; {dataset.path} is unchanged")
        made = made_by("similar", settings)
        put_in_place(folder, dataset, name, made, replace)
    return written | counts


def _embed(folder: Path, encoder: str | None, max_length: int) -> Path:
    """Write the embeddings of all texts into a file, in their order."""
    model = DualEncoder(_load_encoder(encoder))
    model.save(folder / "model", max_length)
    tokenize = model.encoder.text_tokenizer(max_length)
    texts = read_texts(folder)
    batches = [partial(_tokenize, folder, number, tokenize) for number in range(texts.num_chunks)]
    is_many = len(texts) > TEXTS_HERE
    tables = in_tasks(batches) if is_many else [batch() for batch in batches]
    resources = EmbeddingResources(1)
    if len(texts) > FEW_TEXTS:
        start_ray()
        resources = EmbeddingResources(1, **free_share(), use_bf16=False)
    embed_tables(folder / "model", tables, folder / "embeddings.npy", resources)
    return folder / "embeddings.npy"


def _tokenize(folder: Path, number: int, tokenize: TextTokenizer) -> TableRows:
    batch = read_texts(folder).chunk(number)
    tokens = folder / f"tokens-{number}"
    tokenize_texts(tokenize, batch.to_pylist(), tokenize.prompts.ad).save(tokens)
    return TableRows(tokens, range(len(batch)), "queries")


class _Search:
    """Searches the embeddings of all texts, approximately if it takes long; keeps a sample."""

    def __init__(self, file: Path, gb_per_shard: float) -> None:
        self.file = file
        self.gb_per_shard = gb_per_shard
        self.num_texts, self.dim = map_array(file).shape
        self.is_exact = self.num_texts**2 * self.dim <= MOST_EXACT_PRODUCTS
        self.sample = sampled_queries(self.num_texts, SAMPLED_TEXTS)

    def __call__(self, most: int) -> Iterator[tuple[Int64s, TopK]]:
        """Yield blocks of texts with up to ``most`` of their nearest, themselves among them."""
        k = min(most, self.num_texts)
        shards = embedded_shards(self.file, 0, self.gb_per_shard, self.is_exact, EFFORT)
        self.found = np.full((len(self.sample), k), -1)
        blocks = keep_sample(
            search_shards(shards, self.file, self.num_texts, k), self.sample, self.found
        )
        done = logged_blocks(
            "searching similar texts", blocks, lambda block: len(block[1][0]), self.num_texts
        )
        for start, best in done:
            yield np.arange(start, start + len(best[0])), best

    def recall(self, k: int) -> float:
        """Return the share of the k nearest others of the sample that are among the k found."""
        embeddings = map_array(self.file)
        nearest, _ = search(embeddings[self.sample], embeddings, k + 1)  # itself among them
        others = np.where(nearest == self.sample[:, None], -1, nearest)
        return share_found(self.found[:, : k + 1], others)


def _load_encoder(name: str | None) -> Encoder:
    if name is None or open_encoder(name).kind == "bag":
        return build_bag(name or MINILM)
    return build_transformer(name)
