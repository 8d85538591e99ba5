"""Progress of a run: its first worker writes it into the run's folder, the driver shows it."""

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from ramen_ray.data.store.whole_files import whole_file

PROGRESS_FILE = "progress.json"
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_BETWEEN_LINES = 30

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LiveProgress:
    """How far a run has come.

    Attributes:
        step: the last step that is done (from 1).
        total_steps: steps of the whole training.
        message: the results of the last epoch, or the latest news.
    """

    step: int
    total_steps: int
    message: str = ""

    def write(self, folder: Path) -> None:
        """Write the progress into the run's folder."""
        with whole_file(folder / PROGRESS_FILE) as aside:
            aside.write_text(json.dumps(asdict(self)) + "\n")


def read_progress(folder: Path) -> LiveProgress | None:
    """Read how far the run in ``folder`` has come; None before its first step."""
    try:
        return LiveProgress(**json.loads((folder / PROGRESS_FILE).read_text()))
    except FileNotFoundError:
        return None


@contextmanager
def shown_progress(folder: Path) -> Iterator[None]:
    """Show the progress of the run in ``folder`` until the ``with`` block ends.

    A terminal shows one line that changes. Elsewhere a line is logged for each new message, and
    every half minute. The time left includes validations and checkpoints.
    """
    (folder / PROGRESS_FILE).unlink(missing_ok=True)  # of an earlier attempt
    ended = Event()
    show = _show_bar if sys.stdout.isatty() else _log_lines
    thread = Thread(target=show, args=(folder, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show_bar(folder: Path, ended: Event) -> None:
    rest = TextColumn("{task.fields[rest]}", table_column=Column(no_wrap=True, ratio=1))
    with Progress(TextColumn("{task.description}"), BarColumn(20), rest, expand=True) as bar:
        task = bar.add_task("starting workers", total=None, rest="")
        for now, left in _updates(folder, ended):
            bar.update(
                task,
                description="training" if now.step < now.total_steps else "evaluating",
                completed=now.step,
                total=now.total_steps,
                rest=_line(now, left),
            )


def _log_lines(folder: Path, ended: Event) -> None:
    message, next_line_at = "", time.monotonic() + SECONDS_BETWEEN_LINES
    for now, left in _updates(folder, ended):
        if now.message != message or time.monotonic() > next_line_at:
            logger.info(_line(now, left))
            message, next_line_at = now.message, time.monotonic() + SECONDS_BETWEEN_LINES


def _updates(folder: Path, ended: Event) -> Iterator[tuple[LiveProgress, str]]:
    """Yield the progress in ``folder`` and the time left until ``ended``, and once more then."""
    first: tuple[int, float] | None = None
    is_last = False
    while not is_last:
        is_last = ended.wait(SECONDS_BETWEEN_LOOKS)
        now = read_progress(folder)
        if now is None:
            continue
        if first is None or now.step < first[0]:  # after a lost worker, from a checkpoint
            first = (now.step, time.monotonic())
        yield now, _time_left(now, *first)


def _time_left(now: LiveProgress, first_step: int, first_seen: float) -> str:
    steps, to_come = now.step - first_step, now.total_steps - now.step
    if not steps or not to_come:
        return ""
    seconds = (time.monotonic() - first_seen) / steps * to_come
    return f"{timedelta(seconds=round(seconds))} left"


def _line(now: LiveProgress, left: str) -> str:
    return "  ".join(filter(None, (f"step {now.step}/{now.total_steps}", left, now.message)))
