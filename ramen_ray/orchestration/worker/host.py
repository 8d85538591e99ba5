"""What a run asks of the process that it trains in: a worker of Ray Train, or this one.

Both keep the same folders, so that a run can go on in either.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import ray
import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, CheckpointConsistencyMode
from torch import nn

CHECKPOINTS = "checkpoint_[0-9]*"
REPORT_FILE = "report.json"
"""What was reported with a checkpoint; in its folder."""
SNAPSHOT_FILE = "checkpoint_manager_snapshot.json"
"""Ray Train's list of the checkpoints in a run's folder."""
SCORE = "score"
"""The selection metric's name in reports; the checkpoint with the highest is kept."""

OnReport = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Reported:
    """A checkpoint's folder, and the metrics that were reported with it."""

    folder: Path
    metrics: dict[str, Any]


class Host(Protocol):
    """The process that a run trains in."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    def is_first_on_machine(self) -> bool:
        """Whether it is the one of its machine's workers that copies files there."""

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Return what steps call: the model, or its wrapper for several workers."""

    def last_checkpoint(self) -> Path | None:
        """Return what the run goes on from; None if it begins."""

    def report(self, metrics: dict[str, Any], folder: Path | None, name: str) -> None:
        """Keep the checkpoint in ``folder`` under ``name``; on return it outlives this process."""

    def reported(self) -> list[Reported]:
        """Return the checkpoints that are kept, the best and the last, from old to new."""


class RayTrain:
    """A worker of Ray Train."""

    @property
    def device(self) -> torch.device:
        """The device that Ray Train gives this worker."""
        return ray.train.torch.get_device()

    @property
    def is_first_on_machine(self) -> bool:
        """Whether this worker is the first of its machine."""
        return bool(ray.train.get_context().get_local_rank() == 0)

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Wrap the model, if there are several workers."""
        return ray.train.torch.prepare_model(model)

    def last_checkpoint(self) -> Path | None:
        """Return the last that Ray Train knows."""
        checkpoint = ray.train.get_checkpoint()
        return None if checkpoint is None else Path(checkpoint.path)

    def report(self, metrics: dict[str, Any], folder: Path | None, name: str) -> None:
        """Report to Ray Train, which puts the files of all workers together."""
        checkpoint = None if folder is None else Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint, checkpoint_dir_name=name)
        ray.train.get_all_reported_checkpoints(consistency_mode=CheckpointConsistencyMode.COMMITTED)

    def reported(self) -> list[Reported]:
        """Return what Ray Train keeps."""
        kept = ray.train.get_all_reported_checkpoints()
        return [Reported(Path(one.checkpoint.path), one.metrics) for one in kept]


class OwnProcess:
    """This process, which holds what one worker needs."""

    def __init__(self, run: Path, on_report: OnReport = lambda metrics: None) -> None:
        """Keep checkpoints in the folder ``run``, and pass on what is reported."""
        self._run, self._on_report = run, on_report
        (run / SNAPSHOT_FILE).unlink(missing_ok=True)  # it would not know of what follows

    @property
    def device(self) -> torch.device:
        """The GPU that Ray gives this process, or else the CPU."""
        return torch.device("cuda", 0) if ray.get_gpu_ids() else torch.device("cpu")

    @property
    def is_first_on_machine(self) -> bool:
        """True: a run has one such process."""
        return True

    def prepare_model(self, model: nn.Module) -> nn.Module:
        """Return the model itself."""
        return model

    def last_checkpoint(self) -> Path | None:
        """Return the newest in the run's folder."""
        return max(self._run.glob(CHECKPOINTS), default=None)

    def report(self, metrics: dict[str, Any], folder: Path | None, name: str) -> None:
        """Put the checkpoint in place as a whole, and remove those that are not kept."""
        assert folder is not None, "the only worker has a checkpoint"
        aside = self._run / ".checkpoint"
        shutil.rmtree(aside, ignore_errors=True)  # of a process that was killed
        aside.mkdir()
        mode = aside.stat().st_mode  # not that of a temporary folder, which is copied too
        shutil.copytree(folder, aside, dirs_exist_ok=True)
        aside.chmod(mode)
        aside.rename(self._run / name)
        *earlier, last = self.reported()
        best = max([*earlier, last], key=lambda one: (one.metrics[SCORE], one.folder.name))
        for one in earlier:
            if one != best:
                one.folder.rename(aside)  # so that a kill leaves no half of it
                shutil.rmtree(aside)
        self._on_report(metrics)

    def reported(self) -> list[Reported]:
        """Return what the run's folder has."""
        return [
            Reported(folder, json.loads((folder / REPORT_FILE).read_text()))
            for folder in sorted(self._run.glob(CHECKPOINTS))
        ]
