"""Copies on each machine's own disk of what its workers read in every step."""

import errno
import logging
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import torch

from ramen_ray.data.store.made_folder import DamagedError, check_intact, made_once
from ramen_ray.errors import first_line_of
from ramen_ray.method.distributed import sum_over_workers
from ramen_ray.method.sampling.training_data import Regularizer

SECONDS_BETWEEN_SIGNS = 10
CPU = torch.device("cpu")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalFolder:
    """A folder on this machine's own disk that mirrors shared folders, which are copied whole."""

    # the shared folders' copies are here, at the same paths; None to copy nothing
    path: Path | None = None
    is_first: bool = True  # whether this worker is the one of its machine that copies
    device: torch.device = CPU

    def copy_of(self, folder: Path) -> Path:
        """Return this machine's copy of ``folder``, an absolute path, or ``folder`` without one.

        Every worker calls this; it returns when all machines have made their copies.
        """
        if self.path is None:
            return folder
        place = self._place(self.path, folder)
        with ThreadPoolExecutor(1) as pool:
            begun = [pool.submit(_copy, folder, place)] if self.is_first else []
            is_busy = True
            while is_busy:  # a collective would time out before a large folder is copied
                unfinished = len(wait(begun, SECONDS_BETWEEN_SIGNS).not_done)
                is_busy = bool(sum_over_workers(torch.tensor(unfinished, device=self.device)))
        for copied in begun:
            copied.result()
        return place if place.is_dir() else folder

    def copy_of_graphs(self, folder: Path, regularizers: Iterable[Regularizer]) -> Path:
        """Return a folder with the graphs of ``regularizers``, each of which has its checksums."""
        copies = {self.copy_of(folder / graph.path).parent.parent for graph in regularizers}
        return copies.pop() if len(copies) == 1 else folder  # if some could not be copied

    def forget(self, folder: Path) -> None:
        """Remove this machine's copies of ``folder`` and of what is in it."""
        if self.path is not None and self.is_first:
            shutil.rmtree(self._place(self.path, folder), ignore_errors=True)

    def _place(self, path: Path, folder: Path) -> Path:
        return path / folder.relative_to(folder.anchor)


def _copy(folder: Path, place: Path) -> None:
    try:
        with made_once(place, like=folder) as aside:
            if aside is not None:
                _copy_files(folder, aside)
                check_intact(aside)
    except (OSError, DamagedError) as error:
        reason = first_line_of(error)
        logger.warning("warning: %s is not copied, and read where it is: %s", folder, reason)


def _copy_files(folder: Path, aside: Path) -> None:
    names = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    if sum((folder / name).stat().st_size for name in names) > shutil.disk_usage(aside).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(aside))  # others write there too
    for name in names:
        (aside / name).parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as threads:  # a network folder answers many requests at once
        list(threads.map(lambda name: shutil.copyfile(folder / name, aside / name), names))
