"""Describe a dataset directory: compute its figures, and log them with their page in MLflow."""

from pathlib import Path

from ramen_ray.data.checks.validation import check
from ramen_ray.data.describe.content import Description, Distribution, SplitSize, TokenLengths
from ramen_ray.data.describe.counts import (
    count_clicks,
    count_edges,
    dataset_statistics,
    largest_hubs,
    node_degrees,
    node_shares,
    popularity_group,
    sample_ids,
    sample_queries,
)
from ramen_ray.data.describe.graph_signal import graph_signals
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import shown_path
from ramen_ray.long_work import logged_progress
from ramen_ray.method.metrics.ranking import popularity_groups
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.method.model.texts import measure_tokens
from ramen_ray.tracking.runs import Run, open_run, prefixed, tracking_uri

SEED = 0
NUM_HUBS = 5
NUM_SAMPLES = 3
TEXTS_PER_TABLE = 100_000
UNCUT = 2**31


def describe(dataset: Dataset, encoder: str, max_length: int) -> Description:
    """Compute the description of ``dataset``, whose tables are read as streams.

    The encoder's tokenizer counts tokens; texts with more than ``max_length`` are too long. Raises
    a DatasetError with all errors of the dataset directory, or an EncoderError.
    """
    with logged_progress(f"checking {shown_path(dataset.path)}"):
        check(dataset)
    tokenizer = text_tokenizer(load_tokenizer(encoder), UNCUT, add_special_tokens=True)
    tables = [
        *(f"queries/{split}" for split in dataset.splits),
        "ads",
        *(f"anchors/{name}" for name in dataset.anchor_sets),
    ]
    tokens = {}
    with logged_progress(f"counting clicks, edges and tokens of {shown_path(dataset.path)}"):
        clicks = {split: count_clicks(dataset, split) for split in dataset.splits}
        edges = {name: count_edges(dataset, name) for name in dataset.anchor_sets}
        groups = popularity_groups(clicks["train"].per_ad)
        for table in tables:
            num_texts = dataset.num_rows(table)
            ids = sample_ids(num_texts, TEXTS_PER_TABLE, SEED)
            texts = dataset.rows_with_ids(table, ids)["text"].to_pylist()
            lengths, figures = measure_tokens(tokenizer, texts, max_length)
            tokens[table] = TokenLengths(num_texts, Distribution.of(lengths), figures)
        splits = {
            split: SplitSize(len(counts.per_query), int(counts.per_query.sum()), counts.weight)
            for split, counts in clicks.items()
        }
        hubs = {
            name: largest_hubs(dataset, name, counts, NUM_HUBS) for name, counts in edges.items()
        }
        return Description(
            metadata=dataset.metadata,
            statistics=dataset_statistics(dataset, clicks),
            splits=splits,
            degrees=node_degrees(clicks["train"], edges),
            shares=node_shares(clicks, edges),
            groups={name: popularity_group(member, clicks) for name, member in groups.items()},
            hubs=hubs,
            tokens=tokens,
            max_length=max_length,
            tokenizer=encoder,
            samples=sample_queries(dataset, NUM_SAMPLES, SEED),
            signals=graph_signals(dataset, clicks, edges),
        )


def log_description(description: Description, page: Path, experiment: str, output: Path) -> Run:
    """Log the numbers and the page as a run of its own in ``experiment``; or a TrackingError."""
    name = str(description.metadata["name"])
    run = open_run(tracking_uri(output), experiment, f"describe-{name}", output)
    with run.closing():
        settings = {"tokenizer": description.tokenizer, "max_length": description.max_length}
        run.log_parameters(settings, {"dataset": name})
        run.log_metrics(prefixed("dataset.", description.metrics))
        run.log_artifacts(page)
    return run
