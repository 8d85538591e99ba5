"""The folder of a table's answers: a file for each partition, and a note if it is intact."""

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ramen_ray.config import ConfigError
from ramen_ray.data.store.checksums import (
    find_difference,
    parse_checked,
    size_and_checksum,
    with_checksum,
)
from ramen_ray.data.store.whole_files import folder_lock, scratch_folder, whole_file

PLAN_FILE = "_predictions.json"  # readers of parquet folders ignore such names
FILE = "part-{:06d}.parquet"
ASIDE, NOTES = ".attempts", ".notes"
"""Folders for what is needed until all is answered, and for a note of each file."""
ANSWERS = pa.schema(
    [
        ("ad_ids", pa.list_(pa.string())),
        ("ads", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("error", pa.string()),
    ]
)


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answers:
    """The files of one call's answers, one for each partition.

    ``call`` identifies what is answered, and with what.
    """

    folder: Path
    call: str

    @property
    def aside(self) -> Path:
        """A folder for what is needed until all is answered."""
        return self.folder / ASIDE

    def write(self, number: int, schema: pa.Schema, batches: Iterable[pa.Table]) -> None:
        """Write the file of a partition, whole or not at all.

        The ``schema`` is that of the queries; ``batches`` have their columns, then those of
        ANSWERS.
        """
        file, rows, errors = self.folder / FILE.format(number), 0, 0
        with whole_file(file, self.aside) as aside:
            with pq.ParquetWriter(aside, with_answers(schema), compression="zstd") as writer:
                for batch in batches:
                    writer.write_table(batch)
                    rows += len(batch)
                    errors += len(batch) - batch[batch.num_columns - 1].null_count
            content = {"call": self.call, "rows": rows, "errors": errors}
            content["file"] = size_and_checksum(aside)
        note = self._note(number)
        note.parent.mkdir(exist_ok=True)
        with whole_file(note, self.aside) as aside:
            aside.write_text(with_checksum(content), encoding="utf-8")

    def counts(self, numbers: Sequence[int]) -> dict[int, tuple[int, int] | None]:
        """Return rows, and rows without an answer, by partition; None where a file is not intact.

        Of files that are there but not as they were written, one is named in a warning.
        """
        with ThreadPoolExecutor() as threads:
            counts = dict(zip(numbers, threads.map(self._count, numbers), strict=True))
        names = (FILE.format(number) for number, found in counts.items() if found is None)
        damaged = [name for name in names if (self.folder / name).exists()]
        if damaged:
            rest = f" and {len(damaged) - 1} more parts" if damaged[1:] else ""
            logger.warning("warning: %s%s: damaged, and made again", self.folder / damaged[0], rest)
        return counts

    def _count(self, number: int) -> tuple[int, int] | None:
        try:
            note = parse_checked(self._note(number).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        file = self.folder / FILE.format(number)
        if note.get("call") != self.call or find_difference(file, note["file"]) is not None:
            return None
        return note["rows"], note["errors"]

    def _note(self, number: int) -> Path:
        return self.folder / NOTES / f"{FILE.format(number)}.json"


def with_answers(schema: pa.Schema) -> pa.Schema:
    """Return the columns of queries, and those of their answers beside them."""
    return pa.schema([*schema, *ANSWERS])


@contextmanager
def locked(output: Path) -> Iterator[Path]:
    """Keep other calls from writing to ``output``; yields a folder in it that is removed again.

    Raises:
        ConfigError: another call writes to it, it has files of others, or it cannot be written.
    """
    with ExitStack() as stack:
        try:
            output.mkdir(parents=True, exist_ok=True)
            if not (output / PLAN_FILE).exists() and any(output.glob("part-*.parquet")):
                raise ConfigError(f"{output} has parts of another table; choose another folder")
            is_ours = stack.enter_context(folder_lock(output))
        except OSError as error:
            raise ConfigError(f"cannot write the folder {output}: {error.strerror}") from error
        if not is_ours:
            raise ConfigError(
                f"another call is writing to {output}; wait until it has ended, or choose another "
                f"folder"
            )
        yield stack.enter_context(scratch_folder(output / ASIDE))


def claim(output: Path, plan: Mapping[str, Any]) -> Answers:
    """Note in ``output``, which is locked, what will be written there; returns the answers.

    Raises:
        ConfigError: it has something else already.
    """
    file = output / PLAN_FILE
    if not file.exists():
        with whole_file(file, output / ASIDE) as aside:
            aside.write_text(with_checksum(plan), encoding="utf-8")
    try:
        before = parse_checked(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is damaged; choose another folder for the answers") from error
    differ = [key for key in plan if before.get(key) != plan[key]]
    if differ:
        raise ConfigError(
            f"{output} has predictions of a different call ({', '.join(differ)} "
            f"differ); choose another folder"
        )
    content = json.dumps(plan, sort_keys=True).encode()
    return Answers(output, hashlib.blake2b(content, digest_size=16).hexdigest())
