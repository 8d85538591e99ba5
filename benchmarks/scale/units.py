"""Unit costs that one process can measure alone: of a token's operation, a text, an edge, an ad.

All are seconds of processor time of one thread, on the data of one size.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from benchmarks.scale.stages import BATCH_SIZE, SIDES, bag_run, prepared_in
from ramen_ray.config import EncoderConfig
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.stages import edge_rows, join_parts, text_rows, write_parts
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.graph.pruning import prune
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.embeddings import TextEmbeddings, number_distinct
from ramen_ray.method.retrieval.index import IndexKind, filled_index, new_index
from ramen_ray.method.retrieval.search import build_index, search_index
from ramen_ray.method.sampling.step_inputs import DistinctTexts, gather_tokens
from ramen_ray.orchestration.runs.components import build_encoder, encoder_tokenizer
from ramen_ray.planning.machines import measure_reference
from ramen_ray.planning.sizes import ENCODERS
from ramen_ray.presets import MINILM

DIM = 384
TRAIN = "queries/train"
TEXTS = 50_000
SEARCHED_ADS, SEARCHES, INDEXED_ADS = 50_000, 500, 20_000
CODED_ADS, SEARCHES_OF_CODES, FEW, MANY = 240_000, 4096, 10, 100
STEPS = 10
TEXTS_PER_QUERY = 2 + 3  # itself, its ad, its anchor, and an ad and an anchor of R_z
MINILM_STEPS, MINILM_BATCH = 2, 64


def unit_costs(folder: Path) -> dict[str, float]:
    """Measure all of them in this process, on the prepared data in ``folder``."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    data = prepared_in(folder)
    reference = measure_reference()
    return {
        "reference_s": (reference + measure_reference()) / 2,
        **_encoding(data),
        **_drawing(folder),
        **_transformer(data),
        **_pruning(data),
        **_joining(folder),
        **_searching(),
        **_searching_codes(data),
    }


def _encoding(data: Prepared) -> dict[str, float]:
    count = min(TEXTS, len(data.ads))
    bag = DualEncoder(build_encoder(EncoderConfig(kind="bag", pretrained=MINILM)))
    seconds = _processor_s(lambda: bag.embed_ads(data.ads, np.arange(count)))
    return {"encode_bag_text_s": seconds / count}


def _drawing(folder: Path) -> dict[str, float]:
    """Draw as much as steps do; `benchmarks.step_growth` measures the rest of a bag's step."""
    run = bag_run(folder, BATCH_SIZE)
    tables = run.sampler.data.tables

    def draw() -> None:
        for step in range(STEPS):
            batch = run.sampler.draw(step, run.state.sources, run.objective.regularizers)
            found = DistinctTexts.from_batch(batch, tables)
            gather_tokens(found.tables, found.rows, list(tables.values()))

    num_texts = STEPS * BATCH_SIZE * TEXTS_PER_QUERY
    return {"draw_text_s": _processor_s(draw) / num_texts}


def _transformer(data: Prepared) -> dict[str, float]:
    """Train MiniLM's six layers on the texts of some ads, towards nothing in particular."""
    model = DualEncoder(build_encoder(EncoderConfig(pretrained=MINILM)))
    count = MINILM_STEPS * MINILM_BATCH
    lengths = data.ads.lengths(np.arange(count))
    rows = np.argsort(lengths, kind="stable")  # an encoder takes the shortest first

    def train() -> None:
        for chosen in np.split(rows, MINILM_STEPS):
            texts = gather_tokens(np.zeros(len(chosen), dtype=np.int64), chosen, [data.ads])
            model(texts).square().sum().backward()

    train()
    seconds = _processor_s(train)
    operations = sum(ENCODERS["minilm"].operations(1, length, True) for length in lengths.tolist())
    return {"core_operations": operations / seconds}


def _pruning(data: Prepared) -> dict[str, float]:
    tables = [data.ads, data.anchors(SIDES[1].anchor_set)]
    num_texts = sum(map(len, tables))
    number_s = _processor_s(lambda: number_distinct(tables))
    edges = data.edges(*SIDES[1])
    draw = np.random.default_rng(0)
    embeddings = draw.standard_normal((num_texts, DIM), dtype=np.float32).astype(np.float16)
    nodes, anchors = (
        TextEmbeddings(embeddings, draw.integers(0, num_texts, len(table))) for table in tables
    )
    with tempfile.TemporaryDirectory() as folder:
        prune_s = _processor_s(lambda: prune(edges, nodes, anchors, 0.0, Path(folder)))
    return {
        "number_text_s": number_s / num_texts,
        "prune_edge_s": prune_s / len(edges.indices),
    }


def _joining(folder: Path) -> dict[str, float]:
    """Join parts of the queries, the ads and their edges, as a preparation's last task does."""
    dataset, aside = Dataset(folder / "dataset"), folder / "joined"
    tokenize = encoder_tokenizer(EncoderConfig(kind="bag", pretrained=MINILM))
    read = {table: pa.Table.from_batches(dataset.batches(table)) for table in ("ads", TRAIN)}
    edges = pa.Table.from_batches(dataset.batches(f"edges/{SIDES[1].path}"))
    parts = [
        write_parts(_sorted(text_rows(table, rows, tokenize), "key"), aside / "parts")
        for table, rows in read.items()
    ]
    num_rows = {table: len(rows) for table, rows in read.items()}
    text_s = _processor_s(
        partial(join_parts, pa.concat_tables(parts), aside / "texts", num_rows, 1 << 15)
    )
    of_edges = _sorted(edge_rows(f"edges/{SIDES[1].path}", edges), "key", "anchor_id")
    parts.append(write_parts(of_edges, aside / "parts"))
    anchors = f"anchors/{SIDES[1].anchor_set}"
    num_rows[anchors] = dataset.num_rows(anchors)
    both_s = _processor_s(
        partial(join_parts, pa.concat_tables(parts), aside / "both", num_rows, 1 << 15)
    )
    shutil.rmtree(aside)
    return {
        "join_text_s": text_s / sum(map(len, read.values())),
        "join_edge_s": max(both_s - text_s, 0.0) / len(edges),
    }


def _sorted(rows: pa.Table, *keys: str) -> pa.Table:
    return rows.sort_by([(key, "ascending") for key in keys])


def _searching() -> dict[str, float]:
    draw = np.random.default_rng(0)
    ads = draw.standard_normal((SEARCHED_ADS, DIM), dtype=np.float32)
    ads /= np.linalg.norm(ads, axis=1, keepdims=True)
    flat = build_index(ads)
    seconds = _processor_s(lambda: search_index(flat, ads[:SEARCHES], 100))
    figures = {"core_search_operations": 2.0 * SEARCHES * SEARCHED_ADS * DIM / seconds}
    kinds: tuple[IndexKind, ...] = ("flat", "hnsw", "ivf_pq")
    for kind in kinds:
        build = partial(_build, new_index(kind, DIM, INDEXED_ADS), ads[:INDEXED_ADS])
        figures[f"index_{kind}_ad_s"] = _processor_s(build) / INDEXED_ADS
    return figures


def _searching_codes(data: Prepared) -> dict[str, float]:
    """Index ads in short codes, and ask for few and for many of them.

    The ads are texts, as the cells of random vectors would be of one size.
    """
    count = min(CODED_ADS, len(data.ads))
    bag = DualEncoder(build_encoder(EncoderConfig(kind="bag", pretrained=MINILM)))
    ads = bag.embed_ads(data.ads, np.arange(count))
    index = filled_index("short_codes", ads)
    queries = ads[:SEARCHES_OF_CODES]
    few_s, many_s = (
        _processor_s(partial(search_index, index, queries, k)) / len(queries) for k in (FEW, MANY)
    )
    answer_s = (many_s - few_s) / (MANY - FEW)
    cells = faiss.downcast_index(faiss.downcast_index(index.base_index).quantizer)
    cells_s = _processor_s(lambda: cells.search(ads, 1))
    add_s = _processor_s(lambda: index.add(ads))
    return {
        "core_cell_operations": 2.0 * DIM * cells.ntotal * count / cells_s,
        "index_short_codes_ad_s": (add_s - cells_s) / count,
        "short_codes_answer_s": answer_s,
        "short_codes_cells_s": (few_s - FEW * answer_s) / math.sqrt(count),
    }


def _build(index: Any, ads: NDArray[np.float32]) -> None:
    index.train(ads)
    index.add(ads)


def _processor_s(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started
