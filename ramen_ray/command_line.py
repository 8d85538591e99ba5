"""Parse the command line into settings, and turn errors into exit codes."""
# ruff: noqa: E402

import argparse
import errno
import io
import json
import logging
import os
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from itertools import dropwhile, takewhile
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

from ramen_ray.errors import LOST, UserError, is_disk_full, no_room_message, printable, redacted


class _Redacting(logging.Formatter):
    """Shows no secrets of the addresses that libraries log."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


def _show_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show an error with its traceback, but Ctrl-C in one line, with its exit code."""
    if not issubclass(kind, KeyboardInterrupt):
        text = redacted("".join(traceback.format_exception(kind, error, trace)))
        print(text, end="", file=sys.stderr)  # noqa: T201
        return
    print("interrupted", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(128 + signal.SIGINT)


sys.excepthook = _show_uncaught  # before the imports that take seconds

import tyro
from pydantic import ValidationError

from ramen_ray.config import (
    ConfigError,
    RunConfig,
    Section,
    flatten,
    message_of,
    overlay,
)
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.idle_settings import refuse_idle
from ramen_ray.orchestration.run.directory import RUNS, RunDirectory, read_run_config
from ramen_ray.presets import DEFAULT_PRESET, PRESETS, lambdas, linked_sets, on_dataset, with_base
from ramen_ray.tracking.addresses import sqlite_uri, tracking_uri

if TYPE_CHECKING:
    from ramen_ray.orchestration.tune.settings import RecommendConfig
    from ramen_ray.tracking.registry import Registry

BASE_PARTS = ("base.kind", "base.loss")  # they bring constants of other settings with them
Settings = TypeVar("Settings", bound=Section)

USER_ERROR_CODE = 2
RAY_IS_LOST = "Ray's control process (gcs_server) has died; run the same command again to go on"
SECONDS_TO_END = 20.0

_OF_PYDANTIC = re.compile(
    r"Error parsing (?:[A-Z]\w+|(?:\d+\.)?([\w.]+)): \d+ validation errors? for \w+ "
    r"(?:(\w+) (?=Input ))?"
    r"|Error parsing __tyro-dummy-inner__[\w.]*: "  # dataclasses, whose errors say what is wrong
)

logger = logging.getLogger(__name__)
_CHECK_RIGHTS = "; check its permissions, and run the same command again"
_TO_DO = {
    errno.EACCES: _CHECK_RIGHTS,
    errno.EPERM: _CHECK_RIGHTS,
    errno.ENOENT: "; if it was deleted while the job ran, run the same command again",
    errno.EROFS: "; make the folder writable, and run the same command again",
}
"""What is said after the system's own words, by the error's number."""


class StoreSettings(Section):
    """Settings of a job that works on the retrievers of an MLflow store."""

    output: Path = Path("outputs")
    """Folder with the MLflow store; ignored if MLFLOW_TRACKING_URI is set."""

    def registry(self) -> "Registry":
        """Open the store; a ConfigError if there is none. Importing its library takes seconds."""
        uri = tracking_uri(self.output)
        if uri == sqlite_uri(self.output) and not self.output.is_dir():
            raise ConfigError(
                f"there is no folder {self.output}; go to the project's folder, or give --output"
            )
        from ramen_ray.tracking.registry import Registry

        return Registry(uri)


class ModelSettings(StoreSettings):
    """Settings of a job that works on one retriever."""

    model: str
    """The retriever: models:/NAME@champion, models:/NAME/VERSION or models:/MODEL_ID."""

    def registry(self) -> "Registry":
        """Open the store and look the retriever up, before what takes seconds; or its errors."""
        registry = super().registry()
        registry.look_up(self.model)
        return registry


def run_job(job: Callable[[], int | None], seconds_to_end: float | None = None) -> NoReturn:
    """Run ``job`` and exit by the code that it may return; a user's error is one line and code 2.

    So does a full disk, or a file that the system refuses. SIGINT ends the job with code 130,
    SIGTERM with 143; both unwind, so that runs and folders are closed. Threads that do not end in
    ``seconds_to_end``, by default SECONDS_TO_END, after that are left.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Redacting("%(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("ramen_ray").setLevel(logging.INFO)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    with _unwinding_at_signals() as ended_by:
        try:
            code = job() or 0
        except BrokenPipeError:
            code = _unread()
        except Exception as error:
            message = _what_to_do_about(error)
            if message is None:
                raise
            text = "\n".join(map(printable, message.split("\n")))
            print(f"error: {text}", file=sys.stderr)  # noqa: T201
            code = USER_ERROR_CODE
        except KeyboardInterrupt as stop:
            code = _ended_by(ended_by[-1], str(stop), seconds_to_end or SECONDS_TO_END)
    sys.exit(code)


@contextmanager
def _unwinding_at_signals() -> Iterator[list[signal.Signals]]:
    """Raise KeyboardInterrupt at a signal that ends a job; yield a list that then ends with it."""
    came = [signal.SIGINT]

    def interrupt(number: int, _: FrameType | None) -> None:
        came.append(signal.Signals(number))
        raise KeyboardInterrupt  # Ray's blocking calls let this one through

    for number in (signal.SIGTERM, LOST):
        signal.signal(number, interrupt)
    of_ctrl_c = signal.getsignal(signal.SIGINT)
    if of_ctrl_c is not signal.SIG_IGN:  # as it is in the background
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, of_ctrl_c)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # amid the exit there is nothing to unwind


def _ended_by(number: signal.Signals, advice: str, seconds: float) -> int:
    """Say what has ended the job, and what to do next; return its exit code."""
    is_lost = number == LOST
    said = f"error: {RAY_IS_LOST}" if is_lost else "; ".join(filter(None, ["interrupted", advice]))
    print(said, file=sys.stderr)  # noqa: T201
    sys.stdout.flush()
    code = USER_ERROR_CODE if is_lost else 128 + number
    last = threading.Timer(seconds, os._exit, [code])  # if threads, or Ray, do not end
    last.daemon = True
    last.start()
    return code


def _unread() -> int:
    """Return the exit code of a job whose output nobody reads any more, as after ``| head``."""
    output = select.poll()
    output.register(sys.stdout, 0)  # it says in any case that there is no reader
    if not output.poll(0):
        raise
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
    return 128 + signal.SIGPIPE


def _what_to_do_about(error: Exception) -> str | None:
    """Return one line for the user; None if the error is a fault of this program."""
    if isinstance(error, UserError):
        return str(error)
    if is_disk_full(error):
        return no_room_message(sys.argv[1:])
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        what_to_do = _TO_DO.get(error.errno or 0, "")
        return f"{error.filename}: {error.strerror}{what_to_do}"
    return None


def write_json(json_file: Path, content: Any) -> None:
    """Write ``content`` to the file of ``--json-file``; a ConfigError if that is not possible."""
    try:
        json_file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json-file {json_file}: {error.strerror}") from error


def parse_settings(
    kind: type[Settings] | Mapping[str, type[Settings]], description: str
) -> Settings:
    """Parse the command line into a job's settings, whose kind its first word may choose.

    ``--help`` begins with the ``description``. Raises a ConfigError if an argument is unknown,
    missing or bad.
    """
    parse: Any = tyro.extras.subcommand_cli_from_dict if isinstance(kind, Mapping) else tyro.cli
    with _errors_in_one_line():
        settings: Settings = parse(
            kind, description=description, config=(tyro.conf.FlagCreatePairsOff,)
        )
    for name, value in settings:
        if isinstance(value, Path) and value.parts and value.parts[0].endswith(":"):  # such as s3:
            raise ConfigError(f"{name} {value}: a file or folder is needed, not an address")
    return settings


def parse_with_run_config(
    job: Settings, description: str, argv: Sequence[str] | None = None
) -> tuple[Settings, RunConfig]:
    """Parse ``[PRESET | --config FILE] [--section.key value ...]`` and the flags of a ``job``.

    ``--dataset`` brings the λ of the preset's recipe on these data, and ``--base.kind`` and
    ``--base.loss`` the constants of that base; other flags then change single settings. Raises a
    ConfigError if a preset, flag, value or file is bad, a DatasetError without the dataset, and a
    TrackingError if ``--output`` cannot hold a store.
    """
    default, rest = _starting_config(argv)
    unprefixed = tyro.conf.arg(name="")
    kind: Any = tuple[Annotated[type(job), unprefixed], Annotated[RunConfig, unprefixed]]  # type: ignore[misc]
    width = max(map(len, PRESETS))
    presets = "\n".join(
        f"    {name:{width}}  {str(preset.__doc__).splitlines()[0]}"
        for name, preset in PRESETS.items()
    )
    with _errors_in_one_line():
        settings, config = tyro.cli(
            kind,
            default=(job, default),
            args=rest,
            prog=f"{sys.argv[0]} [PRESET | --config FILE]",
            description=f"{description}\nPresets (default {DEFAULT_PRESET}; PRESET --help shows "
            f"its values):\n{presets}\n",
        )
    tracking_uri(Path(config.output))  # refuses what cannot hold a store before anything is made
    config = overlay(config, {})  # without the zeros that made flags
    before = flatten(default)
    refuse_idle(config, [key for key, value in flatten(config).items() if before.get(key) != value])
    return settings, config


def _starting_config(argv: Sequence[str] | None) -> tuple[RunConfig, list[str]]:
    """Return the configuration that is to be changed, and the words that change it."""
    match list(sys.argv[1:] if argv is None else argv):
        case ["--config"]:
            raise ConfigError("--config needs a file")
        case ["--config", file, *rest]:
            config = read_run_config(Path(file))
            flags = _deciding(rest)
            if flags.dataset is not None:
                config = on_dataset(config, flags.dataset)
        case [name, *_] if not name.startswith("-") and name not in PRESETS:
            raise ConfigError(f"unknown preset {name!r}; presets are {', '.join(PRESETS)}")
        case words:
            is_named = words and not words[0].startswith("-")
            name, rest = (words[0], words[1:]) if is_named else (DEFAULT_PRESET, words)
            preset = PRESETS[name]
            flags = _deciding(rest)
            config = preset() if flags.dataset is None else preset(flags.dataset)
    parts = {key: getattr(flags, key) for key in BASE_PARTS if getattr(flags, key) is not None}
    return _with_a_flag_for_each_set(with_base(config, parts)), rest


def _deciding(words: list[str]) -> argparse.Namespace:
    """Return the values of the flags that other settings follow from; None where not given."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for key in ("dataset", *BASE_PARTS):
        parser.add_argument(
            f"--{key}", nargs="?", type=lambda word: None if word == "None" else word
        )
    return parser.parse_known_args(words)[0]


def _with_a_flag_for_each_set(config: RunConfig) -> RunConfig:
    """Give a weight of 0 to the other anchor sets of the dataset, on sides that have edges."""
    weights = lambdas(config)
    with suppress(DatasetError):  # checked when it is needed
        for side, names in linked_sets(Dataset(config.dataset)).items():
            weights[side] = dict.fromkeys(names, 0.0) | weights[side]
    return config.model_copy(
        update={"regularization": config.regularization.model_copy(update=weights)}
    )


def refuse_early(
    config: "RunConfig | RecommendConfig", plan: Mapping[str, Any], kind: str = RUNS
) -> None:
    """Raise a DatasetError or RunError that is known before libraries are loaded, in seconds."""
    Dataset(config.dataset)
    if config.name is not None:
        RunDirectory.of(config.output, config.name, kind).refuse_taken(plan)


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Turn the box that tyro draws around an error into a ConfigError of one line."""
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            yield
    except ValidationError as error:
        raise ConfigError(message_of(error)) from None
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ConfigError(_in_one_line(box.getvalue())) from None


def _in_one_line(box: str) -> str:
    """Return what tyro says in its box, without title and help."""
    lines = [line.strip("│|+╭╮╰╯ ") for line in box.splitlines()[1:]]  # some terminals get ASCII
    of_text = dropwhile(lambda line: not line.strip("─-"), lines)
    said = takewhile(lambda line: line.strip("─-"), of_text)
    words = " ".join(said).partition(" [type=")[0].replace("Value error, ", "")

    def key(match: re.Match[str]) -> str:
        named = ".".join(filter(None, match.groups()))
        return f"{named}: " if named else ""

    return _OF_PYDANTIC.sub(key, words)
