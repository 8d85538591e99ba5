"""The frozen embeddings of a run's texts: computed once, then memory-mapped where needed."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from ramen_ray.bases import Part
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.prepared.tokens import TokenTable
from ramen_ray.data.store.whole_files import whole_file
from ramen_ray.method.model.dual_encoder import DualEncoder
from ramen_ray.method.model.embeddings import TextEmbeddings, number_distinct
from ramen_ray.method.novel_ads.evaluation import Embedded
from ramen_ray.orchestration.embed import embed_distinct

TRAIN_QUERIES = Path("tokens/queries/train")


def embed_texts(
    model: Path, part: Part, data: Prepared, sibling: Prepared | None, file: Path, num_threads: int
) -> None:
    """Write the embeddings of all queries and ads into ``file``, unless it exists.

    A text that several tables have is embedded once.

    Args:
        model: folder of the run's best model.
        part: which of its vectors answer.
        data: the run's dataset.
        sibling: its one-shot sibling, whose train queries are embedded too.
        file: the ``.npy`` file.
        num_threads: CPU threads of a task that embeds.
    """
    if file.exists():
        return
    with whole_file(file) as aside:
        named = aside.with_suffix(".npy")
        embed_distinct(model, _tables(data, sibling), named, False, num_threads, part)
        named.rename(aside)


def open_embedded(
    model: DualEncoder, data: Prepared, sibling: Prepared | None, file: Path
) -> tuple[Embedded, TextEmbeddings | None]:
    """Map what :func:`embed_texts` wrote with a model.

    Returns:
        The dataset's embeddings, and those of the sibling's train queries.
    """
    tables = [TokenTable.open(folder) for folder in _tables(data, sibling)]
    vectors = np.load(file, mmap_mode="r")
    found = [TextEmbeddings(vectors, places) for places in number_distinct(tables)[1]]
    queries = dict(zip(data.splits, found, strict=False))
    of_sibling = found[-1] if sibling is not None else None
    ads = replace(found[len(queries)], scales=model.text_scales)
    return Embedded(data, queries, ads), of_sibling


def _tables(data: Prepared, sibling: Prepared | None) -> list[Path]:
    queries = [data.path / "tokens" / "queries" / split for split in data.splits]
    of_sibling = [] if sibling is None else [sibling.path / TRAIN_QUERIES]
    return [*queries, data.path / "tokens" / "ads", *of_sibling]
