"""Describe a dataset directory: compute its figures, write the page, log both in MLflow."""

import logging
from pathlib import Path

import numpy as np

from ramen_ray.config import DEFAULT_EXPERIMENT
from ramen_ray.data.description.content import Description, Hub, TokenLengths
from ramen_ray.data.description.degrees import EdgeCounts, count_clicks, count_edges
from ramen_ray.data.description.graph_signal import graph_signals
from ramen_ray.data.description.samples import sample_queries, sample_texts, texts_of
from ramen_ray.data.description.statistics import dataset_statistics
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.validation import check
from ramen_ray.method.metrics.ranking import popularity_groups
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.method.model.texts import TextTokenizer, count_tokens
from ramen_ray.tracking.runs import Run, open_run, tracking_uri

SEED = 0
NUM_HUBS = 5
NUM_SAMPLES = 3
TEXTS_PER_TABLE = 100_000
UNCUT = 2**31

logger = logging.getLogger(__name__)


def describe(dataset: Dataset, encoder: str, max_length: int) -> Description:
    """Compute the description of ``dataset``; texts are read as a stream.

    Args:
        dataset: the dataset directory.
        encoder: its tokenizer counts the tokens; a folder, package:MODULE/FOLDER or a hub id.
        max_length: texts with more tokens count as too long.

    Raises:
        DatasetError: the dataset directory has errors; lists all of them.
        EncoderError: there is no such encoder.
    """
    logger.info("checking %s", dataset.path)
    check(dataset)
    tokenizer = text_tokenizer(load_tokenizer(encoder), UNCUT, add_special_tokens=True)
    logger.info("counting clicks and edges of %s", dataset.path)
    clicks = {split: count_clicks(dataset, split) for split in dataset.splits}
    edges = {name: count_edges(dataset, name) for name in dataset.anchor_sets}
    statistics = dataset_statistics(dataset)
    logger.info("counting tokens")
    tables = [
        *(f"queries/{split}" for split in dataset.splits),
        "ads",
        *(f"anchors/{name}" for name in dataset.anchor_sets),
    ]
    return Description(
        metadata=dataset.metadata,
        statistics=statistics,
        clicks=clicks,
        edges=edges,
        groups=popularity_groups(clicks["train"].per_ad),
        hubs={name: _find_hubs(dataset, name, ends) for name, ends in edges.items()},
        tokens={table: _count_tokens(dataset, table, tokenizer) for table in tables},
        max_length=max_length,
        tokenizer=encoder,
        samples=sample_queries(dataset, NUM_SAMPLES, SEED),
        signals=graph_signals(dataset, clicks, edges),
    )


def log_description(description: Description, page: Path, output: Path) -> Run:
    """Log the numbers and the page as a run of their own, and return it.

    Raises:
        TrackingError: the MLflow store cannot be used.
    """
    name = str(description.metadata["name"])
    run = open_run(tracking_uri(output), DEFAULT_EXPERIMENT, f"describe-{name}", output)
    with run.closing():
        settings = {"tokenizer": description.tokenizer, "max_length": description.max_length}
        run.log_parameters(settings, {"dataset": name})
        metrics = {f"dataset.{key}": value for key, value in description.metrics.items()}
        run.log_metrics(metrics)
        run.log_artifacts(page)
    return run


def _find_hubs(dataset: Dataset, anchor_set: str, edges: EdgeCounts) -> list[Hub]:
    degrees = edges.per_anchor
    largest = np.argsort(-degrees, kind="stable")[:NUM_HUBS].tolist()
    texts = texts_of(dataset, f"anchors/{anchor_set}", largest)
    return [
        Hub(
            texts[anchor],
            int(edges.queries_per_anchor[anchor]),
            int(edges.ads_per_anchor[anchor]),
            float(degrees[anchor] / degrees.sum()),
        )
        for anchor in largest
    ]


def _count_tokens(dataset: Dataset, table: str, tokenizer: TextTokenizer) -> TokenLengths:
    texts = sample_texts(dataset, table, TEXTS_PER_TABLE, SEED)
    return TokenLengths(dataset.num_rows(table), count_tokens(tokenizer, texts))
