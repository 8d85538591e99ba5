"""A run's folder: its lock, its notes, and whether what it was made from is still the same."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramen_ray.config import RunConfig, flatten, read_config
from ramen_ray.data.store.made_folder import folder_lock, is_intact, read_json, write_json
from ramen_ray.errors import UserError, shown_path
from ramen_ray.long_work import warn_once
from ramen_ray.tracking.runs import Run, open_run

WHERE_IT_RUNS = {
    "dataset",
    "name",
    "output",
    "local_folder",
    "experiment",
    "workers",
    "allow_changed",
}
OPENED = {"encoder.pretrained", "encoder.kind"}  # settings that an encoder's folder resolves
RUNS = "runs"
CONFIG_FILE = "config.json"
RUN_FILE = "run.json"
TEST_ADS_FILE = "test_ads.npy"
VALIDATION_ADS_FILE = "validation_ads.npy"
PART_ADS_FILE = "test_ads_{}.npy"
OTHER_NAME = "choose another name"
CHECKPOINT = re.compile(r"checkpoint_\d{9,}")  # the name of a checkpoint's folder
IDENTITY_FILE = "made_from.json"  # in a checkpoint: what its run is made from
REMOVES = "python", "jobs/graph.py", "remove"
TABLES = "tables"
"""In what a run is made from: a digest of each table, which says what of the dataset differs."""

Identity = dict[str, str]  # what a run is made from besides its settings, by name; see made_from


class RunError(UserError):
    """A run cannot be started or continued under its name."""


@dataclass(frozen=True)
class RunDirectory:
    """The folder ``output/runs/NAME``; it has the checkpoints too."""

    path: Path

    @classmethod
    def of(cls, output: str, name: str, kind: str = RUNS) -> "RunDirectory":
        """Return the folder of a run, or another ``kind``, which need not exist yet."""
        return cls(Path(output).absolute() / kind / name)

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def notes(self) -> dict[str, Any]:
        """What is noted of it, such as made_from and metrics; a RunError if it is damaged."""
        file = self.path / RUN_FILE
        try:
            return dict(read_json(file))
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError) as error:
            raise RunError(
                f"{file} is damaged; to train this run from the start, delete {self.path}"
            ) from error

    @property
    def is_run(self) -> bool:
        """Whether a run, sweep or other search has begun here."""
        return (self.path / RUN_FILE).is_file()

    @property
    def is_finished(self) -> bool:
        """Whether it has ended."""
        return bool(self.notes.get("finished"))

    @property
    def best_checkpoint(self) -> Path:
        """The folder of the best model; a RunError if the run is not finished."""
        if not self.is_finished:
            raise RunError(
                f"the run {self.path} is not finished; run its command again to finish it, or "
                f"give one of its checkpoints"
            )
        return self.path / self.notes["best_checkpoint"]

    @property
    def mlflow_run_id(self) -> str | None:
        """The id of its run in MLflow."""
        return self.notes.get("mlflow_run_id")

    def open_run(self, uri: str, experiment: str, output: Path, parent: Run | None = None) -> Run:
        """Open its run in MLflow, new or known; see :func:`~ramen_ray.tracking.runs.open_run`."""
        run = open_run(uri, experiment, self.name, output, self.mlflow_run_id, parent)
        self.note(mlflow_run_id=run.id)
        return run

    def create(self) -> bool:
        """Make the folder, or raise a RunError; returns whether it did not exist yet."""
        try:
            self.path.mkdir(parents=True)
        except FileExistsError as error:
            if not self.path.is_dir():
                raise RunError(f"{self.path} is a file, not a folder") from error
            return False
        except OSError as error:
            raise RunError(f"cannot write the folder {self.path}: {error.strerror}") from error
        return True

    def note(self, **notes: Any) -> None:
        """Add to the notes."""
        write_json(self.path / RUN_FILE, {**self.notes, **notes})

    @contextmanager
    def held(self, made_from: Identity, dataset: str | Path, allow_changed: bool) -> Iterator[None]:
        """Lock the folder, made if it is missing, and note what it is made from; or a RunError."""
        self.create()
        with self.locked():
            self.refuse_changed(made_from, dataset, allow_changed)
            self.note(made_from=made_from)
            yield

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock; a RunError if another process has it."""
        with folder_lock(self.path) as is_ours:
            if not is_ours:
                raise RunError(f"{self.path} is in use by another process")
            yield

    def refuse_taken(self, settings: Mapping[str, Any]) -> None:
        """Raise a RunError if others use the folder now, or it was begun with other ``settings``.

        This only looks, before libraries are loaded; who works in the folder looks again.
        """
        if not self.is_run:
            return
        if not self.is_finished:
            with self.locked():
                pass
        begun = self.notes.get("plan", {})
        known = {
            key: value for key, value in settings.items() if key in begun and key not in OPENED
        }
        refuse_other({key: begun[key] for key in known}, known, f"{self.path} holds another run")

    def refuse_another(self, plan: Mapping[str, Any], what: str) -> None:
        """Raise a RunError if the folder holds another ``what``, such as a sweep, of other plan."""
        refuse_other(self.notes.get("plan", plan), plan, f"{self.path} holds another {what}")

    def refuse_changed(self, made_from: Identity, dataset: str | Path, allow_changed: bool) -> None:
        """Raise a RunError if what the folder has so far is ``made_from`` something else."""
        notes = self.notes
        before = notes.get("made_from", {}) if notes else made_from
        refuse_changed(self.path, before, made_from, dataset, allow_changed)


def checkpoint_folders(run: Path) -> list[Path]:
    """Return the folders of a run's checkpoints, from old to new."""
    named = (folder for folder in run.glob("checkpoint_*") if CHECKPOINT.fullmatch(folder.name))
    return sorted(folder for folder in named if folder.is_dir())


def keep_intact_checkpoints(run: Path) -> list[Path]:
    """Remove the damaged checkpoints of a run before it is resumed, with a warning each.

    Returns the others.
    """
    folders = checkpoint_folders(run)
    kept: list[Path] = []
    for folder in folders:
        otherwise = "the run goes on from " + (kept[-1].name if kept else "its start")
        if folder != folders[-1]:
            otherwise = f"the best model so far is lost; to train from the start, delete {run}"
        if is_intact(folder, otherwise):
            kept.append(folder)
    return kept


def checkpoint_of(named: Path) -> Path:
    """Return the folder that is ``named``, or the best checkpoint of a run's; else a RunError."""
    if not named.exists():
        raise RunError(f"{named} does not exist; give one such as outputs/{RUNS}/NAME")
    directory = RunDirectory(named)
    return directory.best_checkpoint if directory.is_run else named


def step_of(checkpoint: Path) -> int:
    """Return the number of steps done when a checkpoint was written, by its folder's name."""
    return int(checkpoint.name.rpartition("_")[2])


def refuse_other(
    there: Mapping[str, Any], ours: Mapping[str, Any], said: str, advice: str = OTHER_NAME
) -> None:
    """Raise a RunError if what decided a thing that is there is not what decides ours."""
    if changed := differences(*json.loads(json.dumps([there, ours]))):  # as files are read
        raise RunError(f"{said}: {changed}; {advice}")


def refuse_anothers(checkpoint: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise a RunError if what decides a checkpoint's numbers is not what decides ours."""
    advice = "move it away, and run the same command again"
    refuse_other(theirs, ours, f"{checkpoint} is another run's", advice)


def refuse_changed(
    path: Path, before: Identity, now: Identity, dataset: str | Path, allow_changed: bool
) -> None:
    """Raise a RunError if a folder was made from something else than what is there ``now``.

    With ``allow_changed`` a change is only said, unless it is one of the dataset.
    """
    changed = differences(before, now)
    is_same_data = before.get("dataset", now["dataset"]) == now["dataset"]
    if changed and not (allow_changed and is_same_data):
        allow = ", or give --allow-changed to go on all the same" if is_same_data else ""
        raise RunError(
            f"what {path} is made from has changed: {changed}; put it back"
            f"{removals(before, now, dataset)}, or choose another name{allow}"
        )
    if changed:
        warn_once(f"warning: goes on, although what it is made from has changed: {changed}")


def read_run_config(file: Path) -> RunConfig:
    """Read a configuration, or raise a ConfigError; ``output`` is where its run's folder is now."""
    config = read_config(file)
    for folder in file.absolute().parents:
        if folder.parent.name == RUNS and RunDirectory(folder).is_run:
            return config.model_copy(update={"output": str(folder.parent.parent)})
    return config


def run_with_id(output: Path, mlflow_run_id: str) -> RunDirectory | None:
    """Return the run in ``output`` that has this id in MLflow; None if there is none."""
    for file in sorted((output.absolute() / RUNS).glob(f"*/{RUN_FILE}")):
        with suppress(RunError):  # of another run, which is damaged
            if RunDirectory(file.parent).mlflow_run_id == mlflow_run_id:
                return RunDirectory(file.parent)
    return None


@contextmanager
def told_how_to_go_on(path: Path) -> Iterator[None]:
    """Let Ctrl-C say where the same command goes on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        checkpoints = checkpoint_folders(path)
        where = f"goes on after step {step_of(checkpoints[-1])}" if checkpoints else "starts anew"
        raise KeyboardInterrupt(f"the same command {where}") from stop


def started_from(config: RunConfig) -> str:
    """Return what tables call the encoder that a run starts from: an earlier run, or untrained."""
    checkpoint = Path(config.encoder.pretrained).parent
    is_of_run = (checkpoint / IDENTITY_FILE).is_file()
    return f"start: {checkpoint.parent.name}" if is_of_run else "untrained"


def deciding_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that determine a run's result, by dotted key."""
    settings = flatten(config).items()
    return {key: value for key, value in settings if key.split(".")[0] not in WHERE_IT_RUNS}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe in one line which keys have different values now than before, and which tables."""
    values = [
        f"{key} ({before.get(key)!r} there, {now.get(key)!r} now)"
        for key in sorted({*before, *now} - {TABLES})
        if before.get(key) != now.get(key)
    ]
    kinds = _changed_tables(before, now)
    tables = [f"{', '.join(names)}: {kind}" for kind, names in kinds.items() if names]
    return "; ".join([*values, *tables] if values else [])


def removals(before: Mapping[str, Any], now: Mapping[str, Any], dataset: str | Path) -> str:
    """Return the commands that remove a dataset's new anchor sets, each in brackets."""
    new = _changed_tables(before, now)["new"]
    names = [table.removeprefix("anchors/") for table in new if table.startswith("anchors/")]
    commands = ([*REMOVES, shown_path(dataset), "--name", name] for name in names)
    return "".join(f" ({shlex.join(command)})" for command in commands)


def _changed_tables(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of the tables that are new, that differ, and that are gone, if noted."""
    if not before.get(TABLES) or not now.get(TABLES):
        return {"new": []}
    was, is_now = (
        dict(word.split(":") for word in identity[TABLES].split()) for identity in (before, now)
    )
    return {
        "new": sorted(is_now.keys() - was),
        "different": sorted(table for table in was.keys() & is_now if was[table] != is_now[table]),
        "gone": sorted(was.keys() - is_now),
    }
