"""Partitions of a table of queries: what is read, answered and written as a whole."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ramen_ray.data.sources import Piece
from ramen_ray.data.store.parquet_files import open_parquet
from ramen_ray.data.store.whole_files import whole_file

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

Answer = Callable[[pa.Array], pa.Table]
"""Maps the texts of a batch to their answers, with the columns of ANSWERS."""


@dataclass(frozen=True)
class Partition:
    """Rows ``start`` to ``stop`` of a row group."""

    group: Piece
    start: int
    stop: int

    @property
    def name(self) -> str:
        """How errors name it."""
        return f"{self.group.path}, row group {self.group.start}, rows from {self.start}"

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows batch by batch; rows before ``start`` are read and dropped."""
        with open_parquet(self.group.path, self.group.filesystem) as source:
            yield from self._read(source)

    def write_answers(self, column: str, file: Path, answer: Answer, at_once: int) -> None:
        """Write the rows with their answers beside them, whole or not at all.

        Args:
            column: the column with the queries' texts.
            file: the parquet file.
            answer: called for one batch after another.
            at_once: rows of a batch, at most.
        """
        with open_parquet(self.group.path, self.group.filesystem) as parquet:
            schema = pa.schema([*parquet.schema_arrow, *ANSWERS])
            with (
                whole_file(file) as aside,
                pq.ParquetWriter(aside, schema, compression="zstd") as writer,
            ):
                for read in self._read(parquet):
                    for start in range(0, len(read), at_once):
                        rows = read.slice(start, at_once)
                        columns = [*rows.columns, *answer(rows[column]).columns]
                        writer.write_table(pa.Table.from_arrays(columns, schema=schema))

    def _read(self, parquet: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        first = 0
        for rows in parquet.iter_batches(QUERIES_PER_BATCH, row_groups=[self.group.start]):
            begin, end = max(self.start - first, 0), min(self.stop - first, len(rows))
            if begin < end:
                yield rows.slice(begin, end - begin)
            first += len(rows)
            if first >= self.stop:
                return
