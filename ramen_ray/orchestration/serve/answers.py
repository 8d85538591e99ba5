"""The folder of a table's answers: a file for each part, and a note that tells if it is intact."""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ramen_ray.config import ConfigError
from ramen_ray.data.store.checksums import (
    find_difference,
    parse_checked,
    size_and_checksum,
    with_checksum,
)
from ramen_ray.data.store.whole_files import scratch_folder, whole_file

PLAN_FILE, LOCK_FILE = "_predictions.json", ".lock"  # readers of parquet folders ignore such names
PART = "part-{:06d}.parquet"
ASIDE, NOTES = ".attempts", ".notes"
"""Folders for what is needed until all is answered, and for the parts' notes."""


logger = logging.getLogger(__name__)


@dataclass
class NewPart:
    """A part that is being written.

    Attributes:
        file: the temporary file to write.
        rows: its number of rows.
        errors: how many of them have no answer.
    """

    file: Path
    rows: int = 0
    errors: int = 0


@dataclass(frozen=True)
class Parts:
    """The parts of one call's answers.

    Attributes:
        folder: the folder of the answers.
        call: identifies what is answered, and with what.
    """

    folder: Path
    call: str

    @property
    def aside(self) -> Path:
        """A folder for what is needed until all is answered."""
        return self.folder / ASIDE

    @contextmanager
    def new(self, number: int) -> Iterator[NewPart]:
        """Yield a part to write, which is in its place, whole, when the block ends."""
        file = self.folder / PART.format(number)
        with whole_file(file, self.aside) as aside:
            part = NewPart(aside)
            yield part
            content = {"call": self.call, "rows": part.rows, "errors": part.errors}
            content["file"] = size_and_checksum(aside)
        note = self._note(number)
        note.parent.mkdir(exist_ok=True)
        with whole_file(note, self.aside) as aside:
            aside.write_text(with_checksum(content), encoding="utf-8")

    def counts(self, numbers: Sequence[int]) -> dict[int, tuple[int, int] | None]:
        """Return the rows of parts, and those without an answer; None for one that is not intact.

        Parts that are there but not as they were written are warned of.
        """
        with ThreadPoolExecutor() as threads:
            counts = dict(zip(numbers, threads.map(self._count, numbers), strict=True))
        names = (PART.format(number) for number, found in counts.items() if found is None)
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
        file = self.folder / PART.format(number)
        if note.get("call") != self.call or find_difference(file, note["file"]) is not None:
            return None
        return note["rows"], note["errors"]

    def _note(self, number: int) -> Path:
        return self.folder / NOTES / f"{PART.format(number)}.json"


@contextmanager
def locked(output: Path) -> Iterator[Path]:
    """Keep other calls from writing to ``output``; yields a folder in it that is removed again.

    Raises:
        ConfigError: another call writes to ``output``, it has files of others, or it cannot be
            written.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        if not (output / PLAN_FILE).exists() and any(output.glob("part-*.parquet")):
            raise ConfigError(f"{output} has parts of another table; choose another folder")
        held = FileLock(output / LOCK_FILE).acquire(blocking=False)
    except Timeout:
        raise ConfigError(
            f"another call is writing to {output}; wait until it has ended, or choose another "
            f"folder"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot write the folder {output}: {error.strerror}") from error
    with held, scratch_folder(output / ASIDE) as aside:
        yield aside


def claim(output: Path, plan: Mapping[str, Any]) -> Parts:
    """Note in ``output``, which is locked, what will be written there; returns the parts.

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
    return Parts(output, hashlib.blake2b(content, digest_size=16).hexdigest())
