"""What background results renew in a run: the graph, or the shortlists, from one epoch on."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramen_ray.orchestration.background.results import BackgroundResults, read_report


@dataclass
class Renewal:
    """Takes each new result when it is there, and knows which one is in use.

    Attributes:
        name: of what is renewed, in metrics.
        results: made from the run's checkpoints.
        take: puts the result in a folder to use.
        taken: step of the checkpoint that the result in use was made from; None before the first.
        waited_s: seconds that training has waited for results so far.
    """

    name: str
    results: BackgroundResults
    take: Callable[[Path], None]
    taken: int | None = None
    waited_s: float = 0.0

    def advance(self, step: int, encoder: Path) -> dict[str, float]:
        """At the start of an epoch, begin what is due and take the newest result.

        Every worker calls this after the same steps.

        Args:
            step: steps made.
            encoder: folder of the encoder after these steps.

        Returns:
            ``waited_s``; if a result was taken, also its ``step`` and what its report says.
        """
        started = time.monotonic()
        newest = self.results.advance(step, encoder)
        known: dict[str, float] = {}
        if newest is not None and newest != self.taken:
            self._take(newest)
            known = {"step": newest, **read_report(self.results.result(newest))}
        self.waited_s += time.monotonic() - started
        return {**known, "waited_s": self.waited_s}

    @property
    def progress(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"taken": self.taken, "waited_s": self.waited_s}

    def restore(self, progress: dict[str, Any]) -> None:
        """Go on from what :attr:`progress` gave."""
        self.waited_s = progress["waited_s"]
        if progress["taken"] is not None:
            self._take(progress["taken"])

    def _take(self, step: int) -> None:
        self.take(self.results.result(step))
        self.taken = step
