"""Answer a table of queries of any size with a retriever, partition by partition.

Actors answer partitions (:mod:`.prediction_actors`); if one cannot hold the index, others hold a
shard of it each.
"""

import logging
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import ray
import ray.data
from ray.data import ActorPoolStrategy

from ramen_ray.answering.ads import ADS
from ramen_ray.answering.retriever import INDEX
from ramen_ray.config import ConfigError
from ramen_ray.data.store.made_folder import content_digest
from ramen_ray.method.model.dual_encoder import ENCODER_FOLDER
from ramen_ray.method.retrieval.retriever_folder import keep_ads
from ramen_ray.method.retrieval.shards import index_shards
from ramen_ray.orchestration.cluster.joining import ClusterError, start_ray
from ramen_ray.orchestration.cluster.resources import (
    MAX_ATTEMPTS,
    Needs,
    find_room,
    in_words,
    most_cpus,
    num_cpus,
    user_errors,
)
from ramen_ray.orchestration.deploy.prediction_actors import Answer, ShardActor, Work
from ramen_ray.orchestration.deploy.prediction_files import (
    Answers,
    Asked,
    as_parquet,
    changed,
    is_made_of,
    locked,
    partitions,
    query_files,
)
from ramen_ray.orchestration.sharded_search import needs_of
from ramen_ray.tracking.registry import Registry, matching_rows

CPUS_PER_ACTOR = 2
MADE_FILE = ".queries.parquet"
"""In the folder of the answers until all is answered: the rows of a table that is not parquet."""
BYTES_PER_PROCESS = 1 << 30
"""Memory of a process that answers, besides the files that it reads."""
RESTARTED = {"max_restarts": -1, "max_task_retries": MAX_ATTEMPTS}  # on other machines, too

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answered:
    """All rows, rows without an answer, and partitions."""

    rows: int
    errors: int
    partitions: int


def predict(registry: Registry, model_uri: str, asked: Asked, output: Path) -> Answered:
    """Write each query's best ads beside it, in ``output``, which all machines can reach.

    A partition's file has the source's columns and those of ANSWERS, and appears when it is whole:
    the same call resumes an interrupted one. ``error`` says why a row has no answer.

    Raises:
        DatasetError: the source cannot be read.
        ConfigError: there are fewer than ``top_k`` ads, the retriever cannot use a GPU, or another
            call writes or wrote ``output``, perhaps with other queries.
        RegistryError, TrackingError: there is no such retriever, or column.
        ClusterError: the cluster has no room for it.
    """
    retriever = registry.look_up(model_uri)
    num_ads = retriever.metadata["num_ads"]
    if not 1 <= asked.top_k <= num_ads:
        raise ConfigError(f"top_k {asked.top_k}: the retriever has {num_ads} ads to choose from")
    if asked.use_gpu and not retriever.uses_gpu:
        raise ConfigError(
            f"use_gpu: {retriever.uri} answers on CPUs only, as all bags and compiled encoders do"
        )
    files = query_files(asked)
    with locked(output) as aside:
        made = output / MADE_FILE
        parquet = as_parquet(asked, files, made, aside)
        folder = registry.download(retriever.uri, aside / "retriever")
        content = _content_of(folder)
        none = _keep_wanted(folder, asked)
        pieces = partitions(parquet)
        made_from = {
            "model": retriever.uri,
            "model_content": content,
            "top_k": asked.top_k,
            "filter": dict(asked.filter) or None,
            "min_score": asked.min_score,
            "at_most": dict(asked.at_most) or None,
            "columns": list(asked.columns) or None,
            "column": asked.column,
        }
        answers = Answers(output, aside, pieces, made_from, asked.columns)
        work = Work(asked, answers, folder, none)
        counts = answers.counts()
        missing = [number for number, part in enumerate(counts) if part is None]
        logger.info(
            "%d of %d partitions to answer with %s", len(missing), len(pieces), retriever.uri
        )
        if missing:
            start_ray()
            has_gpus = ray.cluster_resources().get("GPU", 0) >= 1
            num_gpus = int(asked.use_gpu or (retriever.uses_gpu and has_gpus))
            with user_errors():
                _answer(work, missing, num_gpus)
            counts = answers.counts()
        if made.exists() and not is_made_of(made, query_files(asked)):
            raise changed(asked.queries)
        whole = [part for part in counts if part is not None]
        if len(whole) < len(pieces):
            raise ClusterError(f"parts in {output} were changed meanwhile; run this again")
        made.unlink(missing_ok=True)
    return Answered(sum(rows for rows, _ in whole), sum(errors for _, errors in whole), len(pieces))


def _keep_wanted(folder: Path, asked: Asked) -> str | None:
    """Keep a retriever's ads that match the filter, or one; returns why none does, or None."""
    others = [*asked.at_most, *asked.columns]
    if asked.filter or others:
        rows = matching_rows(folder, asked.filter, others)
    if not asked.filter:
        return None
    keep_ads(folder, rows if len(rows) else np.arange(1), few_exactly=True)
    return None if len(rows) else f"no ad has the wanted values of {', '.join(asked.filter)}"


def _content_of(folder: Path) -> str:
    """Hash the content of all files of the retriever in its own ``folder``."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return content_digest((str(file.relative_to(folder)), file) for file in files)


def _answer(work: Work, missing: list[int], num_gpus: int) -> None:
    """Let as many processes as there is room for answer, and others hold a large index's shards."""
    whole, *others = index_shards(work.retriever / INDEX, work.asked.gb_per_shard)
    shards = [whole, *others] if others else []
    files = [file for file in (work.retriever / ENCODER_FOLDER).rglob("*") if file.is_file()]
    memory = BYTES_PER_PROCESS + sum(file.stat().st_size for file in files)
    memory += _bytes_of_ads(work.retriever) + (0 if shards else whole.num_bytes)
    answering: Needs = {"memory": float(memory)} | ({"GPU": num_gpus} if num_gpus else {})

    def all_needs(cpus: float) -> list[Needs]:
        return [{**answering, "CPU": cpus}, *(needs_of(shard, cpus) for shard in shards)]

    share = min(CPUS_PER_ACTOR, most_cpus(), num_cpus() / (len(shards) + 1))
    what = "a process that answers" + (f" and {len(shards)} with shards" if shards else "")
    # Others may hold CPUs: if a share of them is not free now, a half or a quarter of it does.
    cpus = find_room(all_needs, [_whole(share / part) for part in (1, 2, 4)], what)
    num_threads = max(int(cpus), 1)
    needs, *needs_of_shards = all_needs(cpus)
    left = Counter(ray.cluster_resources())
    held = []
    for shard, its in zip(shards, needs_of_shards, strict=True):
        left.subtract(its)
        started = ray.remote(ShardActor).options(**_options(its), **RESTARTED)
        held.append(started.remote(shard, num_threads, work.answers.aside))
    fit = max(min(int(left[name] // count) for name, count in needs.items() if count), 1)
    size = min(fit, len(missing))
    logger.info(
        "answering in %d processes, each with %s, %d shards", size, in_words([needs]), len(shards)
    )
    items = [{"partition": number} for number in missing]
    ray.data.from_items(items, override_num_blocks=len(items)).map(
        Answer,
        fn_constructor_args=(work, num_threads, held),
        compute=ActorPoolStrategy(size=size),
        **_options(needs),
    ).materialize()


def _whole(share: float) -> float:
    """Return whole CPUs, a thread for each, or a part of one in hundredths."""
    return math.floor(share) if share >= 1 else math.floor(100 * share) / 100


def _bytes_of_ads(retriever: Path) -> int:
    footer = pq.read_metadata(retriever / ADS)
    return sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))


def _options(needs: Needs) -> dict[str, float]:
    names = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    return {option: needs.get(name, 0) for name, option in names.items()}
