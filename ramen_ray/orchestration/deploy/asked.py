"""What is asked of a retriever, and whether the table of queries is there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ramen_ray.answering.requests import ANSWERS, COLUMNS
from ramen_ray.config import GB_PER_SHARD
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.table_file import TableFile
from ramen_ray.errors import DatasetError


@dataclass(frozen=True)
class Asked:
    """What is asked of a retriever, and by how large processes it is answered."""

    queries: str  # a file, a folder or a glob
    top_k: int  # most ads of a query
    column: str = "text"  # with the queries' texts
    encoding: str = "utf-8"  # of text files
    # by column, the values that ads may have
    filter: Mapping[str, Sequence[str]] = field(default_factory=dict)
    min_score: float | None = None  # the lowest score of an ad
    # by column, how many of a query's ads may have one value of it
    at_most: Mapping[str, int] = field(default_factory=dict)
    columns: Sequence[str] = ()  # those whose values are written with each ad
    # wait for a machine with GPUs; else GPUs are used only if the cluster has some now
    use_gpu: bool = False
    # GB of a retriever that one process holds; a larger one is cut into shards
    gb_per_shard: float = GB_PER_SHARD


def query_files(asked: Asked) -> list[TableFile]:
    """Find the files of the queries by their headers; a DatasetError if they cannot be answered."""
    advice = "; --columns.query-text names another"
    files = find_files(asked.queries, [asked.column], advice, asked.encoding)
    for file in files:
        if asked.column in file.partitions:
            raise DatasetError(f"{file.path} has no column {asked.column!r} in itself")
        if taken := sorted({*ANSWERS.names, COLUMNS} & set(file.header)):
            raise DatasetError(
                f"{file.path} has a column {', '.join(map(repr, taken))}, as the answers do"
                f"; rename it"
            )
    return files
