"""Answer a table of queries of any size with a retriever, partition by partition."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
from numpy.typing import NDArray

from ramen_ray.config import ConfigError
from ramen_ray.data.dataset import DatasetError
from ramen_ray.data.sources import Piece, find_pieces
from ramen_ray.data.whole_files import whole_file
from ramen_ray.orchestration.cluster import ClusterError, has_room, num_cpus, start_ray, user_errors
from ramen_ray.tracking.registry import LoggedRetriever, Registry

PLAN_FILE = "_predictions.json"  # readers of parquet folders pass over such names
PART = "part-{:06d}.parquet"
ANSWERS = pa.schema(
    [
        ("ad_ids", pa.list_(pa.string())),
        ("ads", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("error", pa.string()),
    ]
)
QUERIES_PER_BATCH = 4096
CPUS_PER_ACTOR = 2
MOMENT_S, PATIENCE_S = 2, 600

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answered:
    """What was done: rows in all, those without an answer, partitions that were there already."""

    rows: int
    errors: int
    partitions: int
    done_before: int


def predict(
    registry: Registry, model_uri: str, queries: str, output: Path, column: str, top_k: int
) -> Answered:
    """Write each query's best ads beside it; a call that was cut off goes on where it was.

    A partition is a row group of the source. Its file in ``output`` has the source's columns and
    those of ANSWERS, and appears whole. A row that cannot be answered says so in ``error``.

    Args:
        registry: of the store that the retriever is in.
        model_uri: the retriever, such as ``models:/NAME@champion``.
        queries: parquet: a file, a folder or a glob, on any file system that pyarrow knows.
        output: folder that all machines see; made if it is missing.
        column: of the queries' texts.
        top_k: ads per query.

    Raises:
        DatasetError: the source cannot be read.
        ConfigError: ``top_k`` is more than there are ads, or ``output`` is of another call or of
            queries that have changed since.
        RegistryError, TrackingError: there is no such retriever.
        ClusterError: the cluster has no room for it.
    """
    retriever = registry.look_up(model_uri)
    num_ads = retriever.facts["num_ads"]
    if not 1 <= top_k <= num_ads:
        raise ConfigError(f"--top-k {top_k}: the retriever has {num_ads} ads to choose from")
    pieces = _parquet_pieces(queries, column)
    plan = {
        "model": retriever.uri,
        "top_k": top_k,
        "column": column,
        "queries": _contents(pieces),
        "partitions": [[piece.path, piece.start] for piece in pieces],
    }
    _claim(output, plan)
    missing = [n for n in range(len(pieces)) if not (output / PART.format(n)).exists()]
    logger.info("%d of %d partitions to answer with %s", len(missing), len(pieces), retriever.uri)
    if missing:
        start_ray()
        with user_errors():
            _answer(registry.uri, retriever, missing, pieces, plan, output)
    return _count(output, len(pieces), len(pieces) - len(missing))


def _parquet_pieces(queries: str, column: str) -> list[Piece]:
    pieces = find_pieces(queries, [column])
    for piece in pieces:
        if piece.format != "parquet":
            raise DatasetError(f"{piece.path}: queries are read from parquet only")
        if taken := set(ANSWERS.names) & set(piece.header):
            raise DatasetError(
                f"{piece.path} has a column {', '.join(map(repr, sorted(taken)))}, as the answers "
                f"have; rename it"
            )
    return pieces


def _contents(pieces: list[Piece]) -> dict[str, list[int]]:
    """Return the files with what tells one content from another: bytes and time of change."""
    files = {piece.path: piece.filesystem for piece in pieces}
    found = {path: filesystem.get_file_info(path) for path, filesystem in files.items()}
    return {path: [info.size, info.mtime_ns] for path, info in found.items()}


def _claim(output: Path, plan: dict[str, Any]) -> None:
    """Note in ``output`` what is written there, or refuse if it is something else."""
    file = output / PLAN_FILE
    try:
        output.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            with whole_file(file) as aside:
                aside.write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
        before = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--answers {output}: {error.strerror}") from error
    differ = [key for key in plan if before.get(key) != plan[key]]
    if differ:
        raise ConfigError(
            f"--answers {output} has predictions of another call ({', '.join(differ)} "
            f"differ); choose another folder"
        )


def _answer(
    uri: str,
    retriever: LoggedRetriever,
    missing: list[int],
    pieces: list[Piece],
    plan: dict[str, Any],
    output: Path,
) -> None:
    num_gpus = int(ray.cluster_resources().get("GPU", 0)) if retriever.uses_gpu else 0
    cpus = min(CPUS_PER_ACTOR, num_cpus())
    most = num_gpus or num_cpus() // cpus
    _wait_for_room({"CPU": cpus, "GPU": 1} if num_gpus else {"CPU": cpus})
    items = [{"partition": number} for number in missing]
    ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        _Answerer,
        fn_constructor_args=(uri, retriever.uri, pieces, plan["column"], plan["top_k"], output),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(most, len(items))),
        num_cpus=cpus,
        num_gpus=1 if num_gpus else 0,
    ).materialize()


def _wait_for_room(asked: dict[str, float]) -> None:
    """Wait until a machine has ``asked`` free, and say so if it takes longer than a moment."""
    told = " and ".join(f"{count} {name}" for name, count in asked.items())
    if has_room([asked], MOMENT_S):
        return
    logger.info("waiting for a machine with %s free", told)
    if not has_room([asked], PATIENCE_S):
        raise ClusterError(
            f"no machine has had {told} free for {PATIENCE_S} s; start this again when one has"
        )


class _Answerer:
    """Holds the retriever in an actor and answers one partition after the other."""

    def __init__(
        self, uri: str, model_uri: str, pieces: list[Piece], column: str, top_k: int, output: Path
    ) -> None:
        self.model: Any = Registry(uri).load(model_uri)
        self.pieces, self.column, self.top_k, self.output = pieces, column, top_k, output

    def __call__(self, batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        (number,) = batch["partition"].tolist()
        piece = self.pieces[number]
        with piece.filesystem.open_input_file(piece.path) as source:
            parquet = pq.ParquetFile(source)
            schema = pa.schema([*parquet.schema_arrow, *ANSWERS])
            with (
                whole_file(self.output / PART.format(number)) as aside,
                pq.ParquetWriter(aside, schema, compression="zstd") as writer,
            ):
                for rows in parquet.iter_batches(QUERIES_PER_BATCH, row_groups=[piece.start]):
                    columns = [*rows.columns, *self._answer(rows[self.column]).columns]
                    writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        return {"partition": np.array([number])}

    def _answer(self, texts: pa.Array) -> pa.Table:
        asked = pd.Series(texts.to_pylist(), dtype=object)
        answers = self.model.predict(asked, params={"top_k": self.top_k})
        columns = {field.name: pa.array(answers[field.name], field.type) for field in ANSWERS}
        return pa.table(columns)


def _count(output: Path, num_partitions: int, done_before: int) -> Answered:
    rows = errors = 0
    for number in range(num_partitions):
        column = pq.read_table(output / PART.format(number), columns=["error"])["error"]
        rows += len(column)
        errors += len(column) - column.null_count
    return Answered(rows, errors, num_partitions, done_before)
