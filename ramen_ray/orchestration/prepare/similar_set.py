"""An anchor set of similar texts: each train query and ad is linked to its nearest texts.

The anchors are these texts themselves ("similar queries/ads" of the RAMEN paper). Memory holds a
few batches, a shard of embeddings, and a few numbers a text.
"""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from ramen_ray.config import GB_PER_SHARD
from ramen_ray.data.arrays import UInt64s, map_array
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
from ramen_ray.method.model.encoder import build_bag, build_encoder
from ramen_ray.method.model.sentence_folder import open_encoder
from ramen_ray.method.model.texts import TextTokenizer
from ramen_ray.method.retrieval.search import keep_sample, search, share_found
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
        embeddings = _embed(staging, settings.encoder, settings.max_length)
        _write_nearest(staging, embeddings, plain, settings, gb_per_shard, counts)
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
    model = DualEncoder(build_bag(MINILM) if encoder is None else build_encoder(encoder))
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


def _write_nearest(
    staging: Path,
    file: Path,
    plain: UInt64s,
    settings: SimilarSettings,
    gb_per_shard: float,
    counts: Counter[str],
) -> None:
    """Search the embeddings in ``file`` and write what is near; approximately if it takes long."""
    embeddings = map_array(file)
    num_texts, dim = embeddings.shape
    is_exact = num_texts**2 * dim <= MOST_EXACT_PRODUCTS
    k = min(settings.top_k + SPARE_NEIGHBOURS, num_texts)
    sample = sampled_queries(num_texts, SAMPLED_TEXTS)
    found = np.full((len(sample), k), -1)
    shards = embedded_shards(file, 0, gb_per_shard, is_exact, EFFORT)
    blocks = logged_blocks(
        "searching similar texts",
        keep_sample(search_shards(shards, file, num_texts, k), sample, found),
        lambda block: len(block[1][0]),
        num_texts,
    )
    write_near(staging, similar_by_embeddings(blocks, plain, settings, counts))
    if not is_exact:
        num_nearest = settings.top_k + 1  # a text itself among them
        nearest, _ = search(embeddings[sample], embeddings, num_nearest)
        others = np.where(nearest == sample[:, None], -1, nearest)
        counts[FOUND] = round(100 * share_found(found[:, :num_nearest], others))
