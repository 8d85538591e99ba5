"""Parse the command line into settings, and turn errors into exit codes."""

import argparse
import io
import json
import logging
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from pydantic import ValidationError

from ramen_ray.config import ConfigError, RunConfig, Section, describe, flatten, overlay
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.errors import LOST, UserError, printable, redacted
from ramen_ray.full_disk import is_disk_full, no_room_message
from ramen_ray.orchestration.run.directory import read_run_config
from ramen_ray.presets import PRESETS

DEFAULT_PRESET = "rdocs"
DEFAULT_LAMBDA = 0.1
PROPENSITY = ("propensity_a", "propensity_b")
"""Keys of ``dataset.json``, and of the section evaluation."""
Settings = TypeVar("Settings", bound=Section)

USER_ERROR_CODE = 2
RAY_IS_LOST = "Ray's control process (gcs_server) has died; run the same command again to go on"
SECONDS_TO_END = 20.0
RAYS_COPIES = "working_dir_files"
"""Folder of the copies that Ray makes of the files of submitted jobs, which run there."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

logger = logging.getLogger(__name__)


class StoreSettings(Section):
    """Settings of a job that works on the retrievers of an MLflow store."""

    output: Path = Path("outputs")
    """Folder with the MLflow store; ignored if MLFLOW_TRACKING_URI is set."""


class RetrieverSettings(StoreSettings):
    """Settings of a job that works on one retriever."""

    model: str
    """The retriever: models:/NAME@champion, models:/NAME/VERSION or models:/MODEL_ID."""


def run_job(job: Callable[[], int | None]) -> int:
    """Run ``job``, which may return an exit code; a user's error becomes one message and code 2.

    So is a full disk, or a file that the system refuses, such as one with an endless name. SIGINT
    ends the job with code 130, SIGTERM with 143; both unwind, so that runs and folders are closed.
    """
    ended_by = [signal.SIGINT]

    def interrupt(number: int, _: object) -> None:
        ended_by.append(signal.Signals(number))
        raise KeyboardInterrupt  # Ray's blocking calls let this one through

    for number in (signal.SIGTERM, LOST):
        signal.signal(number, interrupt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    try:
        _refuse_odd_characters(sys.argv[1:])
        return job() or 0
    except Exception as error:
        message = _what_to_do_about(error)
        if message is None:
            raise
        shown = "\n".join(map(printable, message.split("\n")))
        print(f"error: {shown}", file=sys.stderr)  # noqa: T201
    except KeyboardInterrupt:
        return _ended_by(ended_by[-1])
    return USER_ERROR_CODE


def _ended_by(number: signal.Signals) -> int:
    """Say what has ended the job, and return its exit code."""
    is_lost = number == LOST
    print(f"error: {RAY_IS_LOST}" if is_lost else "interrupted", file=sys.stderr)  # noqa: T201
    return _ending_soon(USER_ERROR_CODE if is_lost else 128 + number)


def _ending_soon(code: int) -> int:
    """Return ``code``, with which the process ends even if its threads, or Ray, do not end."""
    sys.stdout.flush()
    last = threading.Timer(SECONDS_TO_END, os._exit, [code])
    last.daemon = True
    last.start()
    return code


def _what_to_do_about(error: Exception) -> str | None:
    """Return one line for the user; None if the error is a fault of this program."""
    if isinstance(error, UserError):
        return redacted(str(error))
    if is_disk_full(error):
        return no_room_message(sys.argv[1:])
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    return None


def _refuse_odd_characters(words: Sequence[str]) -> None:
    """Refuse names that cannot be stored, or shown in the commands that jobs print."""
    for before, word in zip(["", *words], words, strict=False):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{word!r} is not UTF-8; rename what it names") from error
        if control := _CONTROL.search(word):
            flag = f"{before} " if before.startswith("--") else ""
            raise UserError(
                f"{flag}{word!r} has the control character {control[0]!r}; rename what it names"
            )


def write_json(json_file: Path, content: Any) -> None:
    """Write ``content`` to the file that ``--json-file`` names.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        json_file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json-file {json_file}: {error.strerror}") from error


def parse_settings(
    kind: type[Settings] | Mapping[str, type[Settings]], description: str
) -> Settings:
    """Parse the command line into the settings of a job, or of the job named by its first word.

    Args:
        kind: the section whose fields become flags, or several sections by the first word.
        description: the beginning of the ``--help`` text.

    Raises:
        ConfigError: an argument is unknown, missing or bad.
        SystemExit: with code 0 after ``--help``.
    """
    parse: Any = tyro.extras.subcommand_cli_from_dict if isinstance(kind, Mapping) else tyro.cli
    with _errors_in_one_line():
        settings: Settings = parse(
            kind, description=description, config=(tyro.conf.FlagCreatePairsOff,)
        )
    return settings


def parse_run_config(description: str, argv: Sequence[str] | None = None) -> RunConfig:
    """Parse ``[PRESET | --config FILE] [--section.key value ...]``.

    With ``--dataset`` the anchor sets of that dataset become the keys of ``lambda_x`` and
    ``lambda_z``, with the preset's weight, else 0.1.

    Raises:
        ConfigError: a preset or flag is unknown, or a value or a saved file is bad.
        DatasetError: the dataset directory that ``--dataset`` names is missing.
        SystemExit: with code 0 after ``--help``.
    """
    default, rest = _starting_config(argv)
    config: RunConfig = _parse_changes(RunConfig, default, rest, description)
    _warn_of_rays_copy(config.output)
    return config


def parse_with_run_config(
    own: Settings, description: str, argv: Sequence[str] | None = None
) -> tuple[Settings, RunConfig]:
    """Parse like :func:`parse_run_config`, with the flags of a job's own section added.

    Args:
        own: the section's defaults.
        description: the beginning of the ``--help`` text.
        argv: arguments; by default those of the process.

    Raises:
        ConfigError, DatasetError, SystemExit: as :func:`parse_run_config`.
    """
    default, rest = _starting_config(argv)
    unprefixed = tyro.conf.arg(name="")
    kind: Any = tuple[Annotated[type(own), unprefixed], Annotated[RunConfig, unprefixed]]  # type: ignore[misc]
    both: tuple[Settings, RunConfig] = _parse_changes(kind, (own, default), rest, description)
    _warn_of_rays_copy(both[1].output)
    return both


def _warn_of_rays_copy(output: str) -> None:
    if RAYS_COPIES in Path.cwd().parts and not Path(output).is_absolute():
        logger.warning(
            "warning: --output %s is in Ray's copy of the submitted files, %s, which Ray may "
            "delete and other machines do not see; give an absolute path",
            output,
            Path.cwd(),
        )


def _starting_config(argv: Sequence[str] | None) -> tuple[RunConfig, list[str]]:
    """Return the configuration that the first words name, and the words that change it."""
    match list(sys.argv[1:] if argv is None else argv):
        case ["--config"]:
            raise ConfigError("--config needs a file")
        case ["--config", file, *rest]:
            config = read_run_config(Path(file))
        case [name, *rest] if name in PRESETS:
            config = PRESETS[name]()
        case [name, *_] if not name.startswith("-"):
            raise ConfigError(f"unknown preset {name!r}; presets are {', '.join(PRESETS)}")
        case rest:
            config = PRESETS[DEFAULT_PRESET]()
    return _for_dataset(config, rest), rest


def _parse_changes(kind: Any, default: Any, arguments: list[str], description: str) -> Any:
    """Parse flags that change ``default``; the help lists the presets."""
    width = max(map(len, PRESETS))
    presets = "\n".join(
        f"    {name:{width}}  {str(preset.__doc__).splitlines()[0]}"
        for name, preset in PRESETS.items()
    )
    with _errors_in_one_line():
        return tyro.cli(
            kind,
            default=default,
            args=arguments,
            prog=f"{sys.argv[0]} [PRESET | --config FILE]",
            description=f"{description}\nPresets (default {DEFAULT_PRESET}; PRESET --help shows "
            f"its values):\n{presets}\n",
        )


def training_command(config: RunConfig) -> str:
    """Return the command that trains with ``config``, from the preset that needs fewest flags."""
    commands: list[list[str]] = []
    for name, preset in PRESETS.items():
        own = preset()
        is_own = Path(own.dataset).absolute() == Path(config.dataset).absolute()
        dataset = [] if is_own else ["--dataset", config.dataset]
        start = own if is_own else _for_dataset(own, dataset)
        flags = [*dataset, *_flags(flatten(start), flatten(config))]
        commands.append(["python", "jobs/train.py", name, *flags])
    return shlex.join(sorted(commands, key=len)[0])


def _flags(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the settings that differ as flags; a weight that is missing becomes 0."""
    gone = {key: 0 for key in before if key not in after}
    words = []
    for key, value in {**after, **gone}.items():
        is_same_path = key == "output" and Path(before[key]).absolute() == Path(value)
        if key in {"dataset", "allow_changed"} or is_same_path or before.get(key) == value:
            continue
        *sections, leaf = key.replace("_", "-").split(".")
        if isinstance(value, bool):
            words.append(f"--{'.'.join([*sections, leaf if value else f'no-{leaf}'])}")
        else:
            values = value if isinstance(value, list | tuple) else [value]
            words += [f"--{'.'.join([*sections, leaf])}", *map(str, values)]
    return words


def command_with_edges(dataset: Path, written: Iterable[str]) -> str:
    """Return the command that trains on a dataset directory with its new edges.

    Args:
        dataset: the dataset directory.
        written: names of tables; each table of edges gives a flag.
    """
    words = ["python", "jobs/train.py", "--dataset", str(dataset)]
    for table in written:
        match table.split("/"):
            case ["edges", name, side]:
                weight = {"query": "lambda-x", "ad": "lambda-z"}[side]
                words += [
                    f"--regularization.{weight}.{name.replace('_', '-')}",
                    str(DEFAULT_LAMBDA),
                ]
    return shlex.join(words)


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Turn the box that tyro draws around an error into a ConfigError of one line."""
    shown = io.StringIO()
    try:
        with redirect_stderr(shown):
            yield
    except ValidationError as error:
        raise ConfigError(describe(error)) from None
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ConfigError(_in_one_line(shown.getvalue())) from None


def _in_one_line(box: str) -> str:
    """Return the text in tyro's box without the box's title, which the text repeats."""
    _, _, text = box.replace("│", " ").partition("\n")
    parts = [" ".join(part.split()) for part in re.split(r"[─╰╯]+|-{5,}", text)]
    words = "; ".join(part.rstrip(".") for part in parts if part)
    noise = r"\d+ validation errors? for \w+ | \[type=.*?For further information visit [^\s;]+"
    words = re.sub(r":? Value error, ", ": ", re.sub(noise, "", words))
    words = re.sub(r"Error parsing [A-Z]\w*: (\w+) (?=Input )", r"\1: ", words)  # of a class
    return re.sub(r"Error parsing (?:\d+\.)?([\w.]+): (\w+) (?=Input )", r"\1.\2: ", words)


def _for_dataset(config: RunConfig, arguments: list[str]) -> RunConfig:
    """Give ``config`` the anchor sets and the constants of the dataset that ``arguments`` name."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--dataset", nargs="?")  # tyro reports a missing value
    path = parser.parse_known_args(arguments)[0].dataset
    if path is None:
        return config
    dataset = Dataset(path)
    off = dict.fromkeys(dataset.anchor_sets, 0.0)
    default = off | dict.fromkeys(dataset.strict_anchor_sets, DEFAULT_LAMBDA)
    given = config.regularization
    weights = {
        side: {name: known.get(name, weight) for name, weight in default.items()}
        for side, known in (("lambda_x", given.lambda_x), ("lambda_z", given.lambda_z))
    }
    regularization = given.model_copy(update=weights)
    config = config.model_copy(update={"dataset": path, "regularization": regularization})
    constants = {key: dataset.metadata[key] for key in PROPENSITY if key in dataset.metadata}
    return overlay(config, {f"evaluation.{key}": value for key, value in constants.items()})
