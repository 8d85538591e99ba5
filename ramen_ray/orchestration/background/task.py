"""Results that are computed from a checkpoint while training goes on, and used when they are ready.

A result is a folder ``step_NNNNNNNNN``, named after the checkpoint and either whole or absent. A
Ray task makes it in ``.pending``, from a copy of the model, as old checkpoints are deleted; the
first worker renames it. An interrupted run sees from the folders what it had and what was pending.

Ray Train's ``ValidationConfig``, an alpha, returns metrics only and runs one task at a time.
"""

import logging
import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from ramen_ray.data.store.made_folder import is_intact, made_once, read_json, write_json
from ramen_ray.errors import UserError, is_disk_full
from ramen_ray.method.distributed import from_first_worker, is_first_worker
from ramen_ray.method.model.dual_encoder import copy_model
from ramen_ray.method.sampling.batches import SamplingSources
from ramen_ray.orchestration.cluster.local_folder import LocalFolder
from ramen_ray.orchestration.cluster.resources import as_task, free_share

logger = logging.getLogger(__name__)

STEP_FOLDER = "step_{:09d}"
SECONDS_BETWEEN_SIGNS = 10  # to waiting workers, whose collectives would time out
SIGNS_BETWEEN_LINES = 6
NUM_RETRIES = 2
PATIENCE_S = 600  # with a late result, however short the epochs are
NUM_KEPT = 2  # the newest, and the one that the last checkpoint uses

REPORT_FILE = "report.json"
PENDING = ".pending"
WHOLE = "whole"


class LateError(UserError):
    """A result has not come for half of a run, which would be trained without it."""


@dataclass(frozen=True)
class Schedule:
    """At the start of which epochs results are computed: after ``first``, then every ``every``.

    With ``wait``, training waits for each result, as the setting ``wait_flag`` synchronous says;
    else for some minutes, if a result is pending when the next is due or the last epoch begins.
    """

    first: int
    every: int
    num_epochs: int
    steps_per_epoch: int
    wait: bool
    wait_flag: str = ""

    def epochs_late(self, step: int, newest: int) -> int:
        """Return for how many epochs a result has been due after ``newest``, -1 for none."""
        due = self.first if newest < 0 else newest // self.steps_per_epoch + self.every
        return step // self.steps_per_epoch - due

    def is_due(self, step: int, newest: int) -> bool:
        """Say whether to compute from the checkpoint of ``step``."""
        taken_at = step // self.steps_per_epoch + (not self.wait)
        return self.epochs_late(step, newest) >= 0 and taken_at < self.num_epochs


class Work(Protocol):
    """What a background task does: plain values, as it is sent to a Ray task."""

    def __call__(self, model: Path, folder: Path) -> Mapping[str, float]:
        """Compute a result from a saved model into ``folder``; returns figures for the report."""

    def take(self, folder: Path, sources: SamplingSources) -> SamplingSources:
        """Return the state of the draws, changed to use the result in ``folder``."""


@dataclass
class BackgroundTask:
    """Computes results of one kind, at most one at a time, and lets a run use the newest.

    The first worker submits tasks; all workers switch to a new result at the same step.
    """

    name: str  # the kind's name, in logs and metrics
    folder: Path  # of the results
    work: Work
    schedule: Schedule
    has_own_tasks: bool = False  # the work starts other tasks, and needs no CPU of its own
    local: LocalFolder = field(default_factory=LocalFolder)  # has a copy of the result in use
    taken: int | None = None  # step of the checkpoint that the result in use was made from
    waited_s: float = 0.0  # seconds that training has waited for results so far
    _task: ray.ObjectRef | None = field(default=None, init=False)

    def result(self, step: int) -> Path:
        """Return the folder of the result from the checkpoint of ``step``."""
        return self.folder / STEP_FOLDER.format(step)

    def advance(
        self, step: int, checkpoint: Path, sources: SamplingSources
    ) -> tuple[SamplingSources, dict[str, float]]:
        """At the start of an epoch, start what is due, take the newest result, or wait for it.

        Every worker calls this after the same steps. Returns what batches are drawn from now on,
        and figures: ``waited_s``; of a new result, its ``step`` and the figures of its report.
        Raises a LateError if a result has not come for half of the epochs of the run.
        """
        started = time.monotonic()
        is_first = is_first_worker()
        if is_first:
            self._check()
            self._submit_if_due(step, checkpoint)
        if late := from_first_worker(self._epochs_late(step) if is_first else 0):
            self._wait_for_late(step, late)
            if is_first:
                self._submit_if_due(step, checkpoint)
        if self.schedule.wait:
            self._wait(step)
        newest = self._newest_intact()
        for old in sorted(_steps(self.folder))[:-NUM_KEPT] if is_first else ():
            shutil.rmtree(self.result(old))
        figures: dict[str, float] = {}
        if newest is not None and newest != self.taken:
            sources = self._take(newest, sources)
            figures = {"step": newest, **read_report(self.result(newest))}
        self.waited_s += time.monotonic() - started
        return sources, {**figures, "waited_s": self.waited_s}

    @property
    def progress(self) -> dict[str, Any]:
        """What a checkpoint keeps of this task."""
        return {"taken": self.taken, "waited_s": self.waited_s}

    def restore(self, progress: dict[str, Any], sources: SamplingSources) -> SamplingSources:
        """Take the result that was in use when :attr:`progress` was kept, an older one, or none."""
        self.waited_s = progress["waited_s"]
        if progress["taken"] is None:
            return sources
        step = self._newest_intact(progress["taken"])
        return sources if step is None else self._take(step, sources)

    def forget_after(self, step: int) -> None:
        """Remove what was computed from later checkpoints, of which one must have been damaged."""
        if not is_first_worker():
            return
        if (self._pending or 0) > step:
            shutil.rmtree(self.folder / PENDING)
        for later in _steps(self.folder):
            if later > step:
                shutil.rmtree(self.result(later))

    def _take(self, step: int, sources: SamplingSources) -> SamplingSources:
        before = self.taken
        self.taken = step
        sources = self.work.take(self.local.copy_of(self.result(step)), sources)
        if before is not None:
            self.local.forget(self.result(before))
        return sources

    def _epochs_late(self, step: int) -> int:
        """Return for how many epochs a result has been due, if it is time to wait for it.

        Attempts that failed, and processes that were interrupted, count too.
        """
        schedule = self.schedule
        epochs = max(schedule.epochs_late(step, self._newest), 0)
        is_last = self.taken is None and step // schedule.steps_per_epoch == schedule.num_epochs - 1
        return epochs if epochs % schedule.every == 0 or is_last else 0

    def _wait_for_late(self, step: int, epochs: int) -> None:
        # Epochs of seconds on a GPU would all be over before a task's process has started.
        before = self._newest
        self._wait(step, PATIENCE_S)
        if from_first_worker(self._newest != before):
            return
        share = "leave them a CPU (workers.num_workers, workers.cpus_per_worker)"
        if self.local.device.type == "cuda":
            share = "take at most 0.75 of a GPU for a worker (workers.gpus_per_worker)"
        said = (
            f"{self.name} have not come for {epochs} of {self.schedule.num_epochs} epochs, which "
            f"are trained without them: {share} and run the same command again; or start a run "
            f"that waits for them ({self.schedule.wait_flag} synchronous)"
        )
        if 2 * epochs >= self.schedule.num_epochs:
            raise LateError(said)
        if is_first_worker():
            logger.warning(said)

    def _wait(self, step: int, seconds: float = math.inf) -> bool:
        """Return, on all workers together, when no task is running, or False after ``seconds``."""
        is_first = is_first_worker()
        started = time.monotonic()
        signs = 0
        while True:
            left = started + seconds - time.monotonic()
            is_done = is_first and self._check(max(min(SECONDS_BETWEEN_SIGNS, left), 0))
            is_done, is_over = from_first_worker((is_done, left <= 0))
            if is_done or is_over:
                return is_done
            signs += 1
            if is_first and signs % SIGNS_BETWEEN_LINES == 0:
                waited = signs * SECONDS_BETWEEN_SIGNS
                logger.info("step %d has waited for %s for %d s", step, self.name, waited)

    def cancel(self) -> None:
        """Cancel a running task; a run that goes on starts it anew."""
        if self._task is not None:
            done, _ = ray.wait([self._task], timeout=0)
            if not done:  # to cancel a task that has ended can end this process
                ray.cancel(self._task)
                ray.wait([self._task], timeout=SECONDS_BETWEEN_SIGNS)
            self._task = None

    def keep_only_taken(self) -> None:
        """At the end, remove what was begun, and all results but the one in use."""
        if is_first_worker():
            shutil.rmtree(self.folder / PENDING, ignore_errors=True)
            for step in _steps(self.folder):
                if step != self.taken:
                    shutil.rmtree(self.result(step))

    def _newest_intact(self, last: int | None = None) -> int | None:
        """Return, on all workers, the step of the newest result up to ``last`` that is whole."""
        newest = None
        if is_first_worker():
            otherwise = f"{self.name} are made again when they are due"
            steps = [step for step in _steps(self.folder) if last is None or step <= last]
            whole = (
                step
                for step in sorted(steps, reverse=True)
                if step == self.taken or is_intact(self.result(step), otherwise)
            )
            newest = next(whole, None)
        return from_first_worker(newest)

    @property
    def _pending(self) -> int | None:
        begun = set(_steps(self.folder / PENDING))  # one that has its result was cut off below
        return max(begun.difference(_steps(self.folder)), default=None)

    @property
    def _newest(self) -> int:
        return max(_steps(self.folder), default=-1)

    def _submit_if_due(self, step: int, checkpoint: Path) -> None:
        if self._pending is not None or not self.schedule.is_due(step, self._newest):
            return
        pending = self.folder / PENDING
        shutil.rmtree(pending, ignore_errors=True)
        copy_model(checkpoint, pending / "copy")
        (pending / "copy").rename(pending / STEP_FOLDER.format(step))  # begun only once it is whole
        self._start(step)

    def _start(self, step: int) -> None:
        share = {} if self.has_own_tasks else free_share()
        run = as_task(_run, **share, max_retries=NUM_RETRIES, retry_exceptions=True)
        begun = self.folder / PENDING / STEP_FOLDER.format(step)
        self._task = run.remote(self.work, begun)

    def _check(self, seconds: float = 0) -> bool:
        """Wait up to ``seconds`` for a running task; returns whether none is running any more."""
        step = self._pending
        if step is None:
            return True
        if self._task is None:  # started before the run was interrupted
            self._start(step)
        done, _ = ray.wait([self._task], timeout=seconds)
        if not done:
            return False
        try:
            ray.get(self._task).rename(self.result(step))
        except RayError as error:
            if is_disk_full(error):
                raise  # the run stops, and makes this result when it goes on
            # the last line of the task's traceback
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            again = "will be tried again after the next epoch"
            logger.warning("%s of step %d failed, %s: %s", self.name, step, again, reason)
        self._task = None
        shutil.rmtree(self.folder / PENDING, ignore_errors=True)
        return True


def _steps(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step_")) for path in folder.glob("step_*")]


def _run(work: Work, pending: Path) -> Path:
    """Return the folder of a whole result, in what was begun; it may be there already."""
    whole = pending / WHOLE
    with made_once(whole) as aside:
        if aside is not None:
            started = time.monotonic()
            report = dict(work(pending, aside))
            report["seconds"] = time.monotonic() - started
            write_json(aside / REPORT_FILE, report)
    return whole


def read_report(result: Path) -> dict[str, float]:
    """Return a result's figures, and the ``seconds`` that it took."""
    return dict(read_json(result / REPORT_FILE))
