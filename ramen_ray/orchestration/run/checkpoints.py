"""The checkpoints of a run: folders that come and go by renaming; the best and the last stay.

The run's folder is on a disk that all machines can reach, so Ray Train is told of no checkpoint.
"""

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ramen_ray.data.store.made_folder import (
    owned_folder,
    read_json,
    write_checksums,
    write_json,
)
from ramen_ray.method.distributed import from_first_worker, is_first_worker, sum_over_workers, world
from ramen_ray.orchestration.run.directory import (
    RunDirectory,
    RunError,
    checkpoint_folders,
    step_of,
)

CHECKPOINT_FOLDER = "checkpoint_{:09d}"
REPORT_FILE = "report.json"  # in a checkpoint: what was reported with it
WRITER = "writer"  # note of a run: the token of whoever may write checkpoints, the latest to begin
SCORE = "score"  # in a report: the higher, the better


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's folder, and what was reported with it."""

    folder: Path
    report: Mapping[str, Any]

    @property
    def step(self) -> int:
        """The number of steps done when it was written."""
        return step_of(self.folder)

    @property
    def rank(self) -> tuple[float, int]:
        """Its score and then its step: the highest is the best."""
        return self.report[SCORE], self.step


class Checkpoints:
    """What the workers of a run write and go on from; all of them make one together."""

    def __init__(self, run: Path, device: torch.device) -> None:
        """Take over the run in a folder: a writer that began before can write no more."""
        self._run = run
        self._device = device
        self._token = from_first_worker(secrets.randbits(62))  # fits an int64
        if is_first_worker():
            RunDirectory(run).note(**{WRITER: self._token})

    def last(self) -> Checkpoint | None:
        """Return what the run goes on from; None if it begins."""
        return self._known_to_the_first(next(reversed(kept_in(self._run)), None))

    def best(self) -> Checkpoint:
        """Return the one of the highest score, of equals the latest."""
        best = max(kept_in(self._run), key=lambda checkpoint: checkpoint.rank, default=None)
        best = self._known_to_the_first(best)
        assert best is not None, "the last step has a checkpoint"
        return best

    @contextmanager
    def written(self, report: Mapping[str, Any], is_shared: bool) -> Iterator[Path]:
        """Yield a folder of this worker's own; the checkpoint of ``report["step"]`` has all files.

        If it ``is_shared``, all workers write into the checkpoint, or else only the first. Raises a
        RunError if another process has taken over the run.
        """
        rank, num_workers = world()
        writes = rank == 0 or is_shared
        with owned_folder(self._run) if writes else nullcontext(self._run) as share:
            whole = from_first_worker(share)
            if rank == 0:
                write_json(whole / REPORT_FILE, report)
            yield share
            if writes:
                write_checksums(share, rank, num_workers if is_shared else 1)
            if is_shared:
                if rank != 0:
                    _move_into(whole, share)
                sum_over_workers(torch.zeros(1, device=self._device)).item()  # until all have
            if rank == 0:
                self._publish(whole, CHECKPOINT_FOLDER.format(report["step"]))

    def _publish(self, aside: Path, name: str) -> None:
        if RunDirectory(self._run).notes.get(WRITER) != self._token:
            raise RunError(f"another process trains {self._run} now, so this one ends")
        aside.rename(self._run / name)
        *earlier, last = kept_in(self._run)
        best = max([*earlier, last], key=lambda checkpoint: checkpoint.rank)
        for checkpoint in earlier:
            if checkpoint != best:
                folder = checkpoint.folder
                folder.rename(aside.with_name(folder.name))  # which goes with what it is in

    def _known_to_the_first(self, checkpoint: Checkpoint | None) -> Checkpoint | None:
        """Return what the first worker has found: others may see a shared folder late."""
        step = from_first_worker(None if checkpoint is None else checkpoint.step)
        return None if step is None else _open(self._run / CHECKPOINT_FOLDER.format(step))


def _move_into(folder: Path, share: Path) -> None:
    """Move the files of a worker's share of a checkpoint into the ``folder`` of the first one's."""
    for file in [path for path in share.rglob("*") if path.is_file()]:
        place = folder / file.relative_to(share)
        place.parent.mkdir(exist_ok=True)
        file.rename(place)


def kept_in(run: Path) -> list[Checkpoint]:
    """Return the checkpoints in a run's folder, from old to new."""
    return list(map(_open, checkpoint_folders(run)))


def _open(folder: Path) -> Checkpoint:
    return Checkpoint(folder, read_json(folder / REPORT_FILE))
