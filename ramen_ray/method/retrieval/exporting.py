"""Export a retriever for other search engines: vectors, ads and index as plain files."""

import json
import shutil
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ramen_ray.data.store.mapped_files import map_new_array
from ramen_ray.data.store.whole_files import new_folder
from ramen_ray.method.model.dual_encoder import ENCODER_FOLDER
from ramen_ray.method.retrieval.index import ADS_PER_BLOCK
from ramen_ray.method.retrieval.retriever_folder import ADS, INDEX, SETTINGS, known_ads

VECTORS, VECTOR = "vectors.npy", "vector"


def export_retriever(folder: Path, output: Path) -> int:
    """Write a retriever's parts into ``output``; returns the number of its ads.

    - ``ads.parquet``: its table of ads, with a column ``vector`` (float32, unit norm); vectors of
      an ``ivf_pq`` index are what its codes stand for.
    - ``vectors.npy``: (ads, D) float32, in the same order.
    - ``index.faiss``: its index, searched by inner product; row numbers are ids.
    - ``encoder``: a sentence-transformers folder that embeds queries, if no classifiers answer.

    Raises:
        DatasetError: ``output`` exists, or cannot be written.
    """
    index, ads = faiss.read_index(str(folder / INDEX), faiss.IO_FLAG_MMAP_IFC), known_ads(folder)
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
        if json.loads((folder / SETTINGS).read_text())["part"] == "encoder":
            shutil.copytree(folder / ENCODER_FOLDER, aside / ENCODER_FOLDER)
    return int(index.ntotal)
