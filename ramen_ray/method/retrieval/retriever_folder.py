"""A retriever: a model, an index of the ads, and the settings to answer queries with them.

It is a folder with

    encoder/          the sentence-transformers folder of a checkpoint; onnx/ in it if compiled
    classifier_head/  turns queries into vectors to compare with classifiers, if there are any
    index.faiss       one vector per ad
    ads.parquet       ad_id (the user's), text, and filter_NAME: columns that answers can be
                      filtered by; in the order of the index
    retriever.json    how texts become vectors
    numbers.npy       which number an ad has when ties are broken, where ads have come and gone
    code/             a copy of `ramen_ray.answering`, which answers, once it is logged
"""

import logging
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from ramen_ray.answering.ads import ADS, NUMBERS, numbers_of
from ramen_ray.answering.encoding import INPUTS, SETTINGS
from ramen_ray.answering.retriever import INDEX
from ramen_ray.data.arrays import map_new_array
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.made_folder import (
    new_folder,
    owned_folder,
    read_json,
    whole_file,
    write_json,
)
from ramen_ray.data.store.predictions import users_ids
from ramen_ray.data.store.schemas import FILTER
from ramen_ray.long_work import logged_blocks
from ramen_ray.method.model.dual_encoder import (
    ENCODER_FOLDER,
    DualEncoder,
    Embeddings,
    load_model,
    tokenize_texts,
)
from ramen_ray.method.model.encoder import TransformerEncoder
from ramen_ray.method.model.pretrained import EncoderError
from ramen_ray.method.retrieval.index import (
    ADS_PER_BLOCK,
    IndexKind,
    trained_index,
    with_rows_only,
)
from ramen_ray.method.retrieval.search import TopK, merge_topk, search, search_index, share_found

VECTORS = "vectors.npy"
VECTOR = "vector"
MOST_QUERIES = 1000
SHARE_BELOW = 0.01  # of train queries, whose best ads have a score that is called low
RECALL_AT = 100
ONNX_FOLDER = "onnx"  # where sentence-transformers looks for graphs
FLOAT32_FILE = "model.onnx"
INT8_FILE = "model_qint8.onnx"

Represent = Callable[[Embeddings], Embeddings]
"""Maps the embeddings (n, D) of new ads' texts to the vectors (n, D) that are indexed."""


@dataclass(frozen=True)
class RetrieverSettings:
    """How a retriever is made."""

    kind: IndexKind
    max_length: int  # tokens of a text


def write_retriever(
    folder: Path, model: DualEncoder, dataset: Dataset, data: Prepared, settings: RetrieverSettings
) -> dict[str, float]:
    """Write a retriever of all ads into ``folder``; memory holds its index and a batch of ads.

    The model is on the device to run it on; ``data`` is the dataset, prepared. Returns the index's
    size in ``megabytes`` and ``recall@100``: the share of the 100 best ads by exact search that it
    finds, over at most a thousand test queries.
    """
    model.save(folder, settings.max_length)
    names = [name for name in dataset.schema("ads").names if name.startswith(FILTER)]
    schema = pa.schema([(name, pa.string()) for name in ("ad_id", "text", *names)])
    with pq.ParquetWriter(folder / ADS, schema, compression="zstd") as out:
        for batch in dataset.in_order("ads"):
            columns = users_ids(batch), *(batch[name] for name in ("text", *names))
            strings = [column.cast(pa.string()) for column in columns]
            out.write_batch(pa.record_batch(strings, schema))
    encoder = model.encoder
    tokenizer = encoder.text_tokenizer(settings.max_length)
    how_texts_become_vectors = {
        "pooling": encoder.pooling if isinstance(encoder, TransformerEncoder) else "bag",
        "max_length": tokenizer.max_length,
        "add_special_tokens": tokenizer.add_special_tokens,
        "placeholder": tokenizer.placeholder,
        "unknown": tokenizer.unknown,
        "query_prompt": tokenizer.prompts.query,
        "part": model.part,
        "classifier_weight": model.scoring.weight,
    }
    recall, least_score = _write_index(folder / INDEX, model, data, settings)
    write_json(folder / SETTINGS, how_texts_become_vectors | {"least_score": least_score})
    return {
        f"recall@{RECALL_AT}": recall,
        "megabytes": (folder / INDEX).stat().st_size / 1e6,
    }


def known_ads(folder: Path) -> pa.Table:
    """Return a retriever's table of ads, in the order of its index."""
    return pq.read_table(folder / ADS).combine_chunks()


def keep_ads(folder: Path, rows: NDArray[np.int64]) -> None:
    """Keep only the ads of a retriever that are in ``rows`` of its index, which ascend."""
    mapped = faiss.read_index(str(folder / INDEX), faiss.IO_FLAG_MMAP_IFC)
    numbers = numbers_of(folder, mapped.ntotal)[rows]  # one with cells is changed in what follows
    with whole_file(folder / INDEX) as aside:
        faiss.write_index(with_rows_only(mapped, rows), str(aside))
    np.save(folder / NUMBERS, numbers)
    write_ads(folder, known_ads(folder).take(pa.array(rows)))


def write_ads(folder: Path, ads: pa.Table) -> None:
    """Replace a retriever's table of ads."""
    pq.write_table(ads, folder / ADS, compression="zstd")


def add_ads(folder: Path, ads: pa.Table, represent: Represent | None = None) -> int:
    """Add ``ads``, a table with its columns, to a retriever; returns how many it has then.

    Its encoder and its index's cells do not change. ``represent`` makes the vectors that are
    indexed; without it, these are the texts' embeddings.
    """
    embed = text_embedder(folder)
    starts = range(0, len(ads), ADS_PER_BLOCK)
    index = faiss.read_index(str(folder / INDEX))
    for start in logged_blocks("embedding ads", starts, lambda _: ADS_PER_BLOCK, len(ads)):
        vectors = embed(ads["text"][start : start + ADS_PER_BLOCK].to_pylist())
        index.add(vectors if represent is None else represent(vectors))
    with whole_file(folder / INDEX) as aside:
        faiss.write_index(index, str(aside))
    old_ads = known_ads(folder)
    numbers = numbers_of(folder, len(old_ads))
    next_number = numbers.max(initial=-1) + 1
    np.save(folder / NUMBERS, np.append(numbers, next_number + np.arange(len(ads))))
    write_ads(
        folder, pa.concat_tables([old_ads, ads.select(old_ads.column_names).cast(old_ads.schema)])
    )
    return len(old_ads) + len(ads)


def text_embedder(folder: Path) -> Callable[[list[str]], Embeddings]:
    """Load a retriever's model; returns a function that embeds new ads (texts, D)."""
    settings = read_json(folder / SETTINGS)
    model = load_model(folder, part=settings.get("part"))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    tokenize = model.encoder.text_tokenizer(settings["max_length"])

    def embed(texts: list[str]) -> Embeddings:
        table = tokenize_texts(tokenize, texts, tokenize.prompts.ad)
        return model.embed_new_ads(table, np.arange(len(texts)))

    return embed


def compile_retriever(folder: Path, int8: bool) -> None:
    """Compile a retriever's encoder for queries into an ONNX graph; the original embeds new ads.

    ``int8`` multiplies matrices of 8-bit integers: weights are quantised here, per output channel,
    activations at run time. Raises an EncoderError if it is a bag, or a package is missing.
    """
    encoder = load_model(folder).encoder
    if not isinstance(encoder, TransformerEncoder):
        raise EncoderError("a bag of embeddings has nothing to compile: it looks up and adds")
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise EncoderError(f"{error}; compiling needs: pip install -e '.[onnx]'") from None
    (folder / ENCODER_FOLDER / ONNX_FOLDER).mkdir(exist_ok=True)
    name = f"{ONNX_FOLDER}/{INT8_FILE if int8 else FLOAT32_FILE}"
    file = folder / ENCODER_FOLDER / name
    with owned_folder() as aside:
        graph = aside / FLOAT32_FILE if int8 else file
        _export_graph(encoder.backbone, graph)
        if int8:
            quantize_dynamic(graph, file, per_channel=True, weight_type=QuantType.QInt8)
    settings = read_json(folder / SETTINGS)
    write_json(folder / SETTINGS, settings | {"onnx": name})


class _States(nn.Module):
    """A transformer that maps token ids (N, T) and mask (N, T) to states (N, T, D)."""

    def __init__(self, backbone: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        outputs = self.backbone(input_ids=input_ids, attention_mask=attention_mask)
        return outputs.last_hidden_state


def _export_graph(backbone: PreTrainedModel, file: Path) -> None:
    """Write a transformer, on the CPU, as an ONNX graph of token ids and mask."""
    from torch.export import Dim  # the import takes a second, and only compiling needs it

    token_ids = torch.ones(2, 3, dtype=torch.long)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])  # another tensor than the ids: else one input
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        torch.onnx.export(
            _States(backbone),
            (token_ids, mask),
            file,
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=INPUTS,
            output_names=["last_hidden_state"],
            dynamic_shapes=[{0: Dim.DYNAMIC, 1: Dim.DYNAMIC}] * len(INPUTS),
        )


def export_retriever(folder: Path, output: Path) -> int:
    """Write a retriever's parts into ``output``; returns the number of its ads.

    - ``ads.parquet``: its table of ads, with a column ``vector`` (float32, unit norm); vectors of
      an ``ivf_pq`` index are what its codes stand for.
    - ``vectors.npy``: (ads, D) float32, in the same order.
    - ``index.faiss``: its index, searched by inner product; row numbers are ids.
    - ``encoder``: a sentence-transformers folder that embeds queries, if no classifiers answer.

    Raises a DatasetError if ``output`` exists, or cannot be written.
    """
    index = faiss.read_index(str(folder / INDEX), faiss.IO_FLAG_MMAP_IFC)
    ads = known_ads(folder)
    if isinstance(index, faiss.IndexIVF):
        index.make_direct_map()
    kind = pa.list_(pa.float32(), index.d)
    schema = ads.schema.append(pa.field(VECTOR, kind))
    with new_folder(output) as aside:
        vectors = map_new_array(aside / VECTORS, np.float32, (index.ntotal, index.d))
        with pq.ParquetWriter(aside / ADS, schema, compression="zstd") as out:
            for start in range(0, index.ntotal, ADS_PER_BLOCK):
                rows = ads[start : start + ADS_PER_BLOCK]
                block = index.reconstruct_n(start, len(rows))
                vectors[start : start + len(rows)] = block
                column = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), type=kind)
                out.write_table(pa.table([*rows.columns, column], schema=schema))
        vectors.flush()
        shutil.copy(folder / INDEX, aside)
        if read_json(folder / SETTINGS)["part"] == "encoder":
            shutil.copytree(folder / ENCODER_FOLDER, aside / ENCODER_FOLDER)
    return int(index.ntotal)


def _write_index(
    file: Path, model: DualEncoder, data: Prepared, settings: RetrieverSettings
) -> tuple[float, float]:
    """Write the index of all ads; each is encoded once.

    Returns its recall, and the score that the best ads of nearly all train queries reach.
    """
    rows = np.arange(min(len(data.queries["test"]), MOST_QUERIES))
    queries = model.embed_queries(data.queries["test"], rows)
    index = trained_index(
        settings.kind, model.dim, len(data.ads), lambda ads: model.embed_ads(data.ads, ads)
    )
    exact: list[TopK] = []
    starts = range(0, len(data.ads), ADS_PER_BLOCK)
    for start in logged_blocks("indexing ads", starts, lambda _: ADS_PER_BLOCK, len(data.ads)):
        ads = np.arange(start, min(start + ADS_PER_BLOCK, len(data.ads)))
        block = model.embed_ads(data.ads, ads)
        index.add(block)
        exact = [merge_topk([*exact, search(queries, block, RECALL_AT, ids=ads)], RECALL_AT)]
    faiss.write_index(index, str(file))
    recall = share_found(search_index(index, queries, RECALL_AT)[0], exact[0][0])
    trained_on = np.linspace(0, len(data.queries["train"]) - 1, MOST_QUERIES).astype(int)
    known = model.embed_queries(data.queries["train"], np.unique(trained_on))
    best = search_index(index, known, 1)[1]
    return recall, float(np.quantile(best, SHARE_BELOW))
