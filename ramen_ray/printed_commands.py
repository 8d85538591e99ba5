"""Commands that jobs print, to be run next."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ramen_ray.command_line import BASE_PARTS, StoreSettings
from ramen_ray.config import RunConfig, flatten, shown_dataset
from ramen_ray.errors import shown_path
from ramen_ray.idle_settings import advice_on_idle
from ramen_ray.presets import DEFAULT_PRESET, PRESETS, lambdas, with_base
from ramen_ray.tracking.addresses import ui_command
from ramen_ray.tracking.runs import Run

UNADVISED_LAMBDA = 0.3


def training_command(config: RunConfig) -> str:
    """Return the command that trains with ``config``, in fewest flags; or a DatasetError."""
    settings = flatten(config)
    idle = {key for key in settings if advice_on_idle(config, key) is not None}
    parts = {key: settings[key] for key in BASE_PARTS}
    commands: list[list[str]] = []

    def acting(settings: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in settings.items() if key not in idle}

    for name, preset in PRESETS.items():
        start = preset(config.dataset)
        before = flatten(start)
        base = _flags({key: before[key] for key in parts}, parts)
        others = _flags(*map(acting, (flatten(with_base(start, parts)), settings)))
        data = ["--dataset", shown_dataset(config.dataset)]
        commands.append(["python", "jobs/train.py", name, *data, *base, *others])
    shortest = min(commands, key=len)
    return shlex.join(shortest)


def cheaper_than(config: RunConfig) -> str:
    """Return the command that trains sooner than a transformer on CPUs; "" where there is none."""
    if config.encoder.kind == "bag" or config.workers.use_gpu:
        return ""
    return training_command(PRESETS[DEFAULT_PRESET](config.dataset))


def asking(model: str | Path, output: str | Path) -> str:
    """Return the command that asks a run or a retriever, in the store of ``output``, one query."""
    return in_store(output, "jobs/ask.py", "a query", "--model", str(model))


def in_store(output: str | Path, *words: str) -> str:
    """Return the command of a job, with the ``output`` folder if that is not the default."""
    is_default = Path(output).absolute() == StoreSettings().output.absolute()
    flag = [] if is_default else ["--output", shown_path(output)]
    return shlex.join(["python", *words, *flag])


def looking_at(report: Path, run: Run) -> str:
    """Say where the report on many runs is, and their parent in MLflow."""
    return f"report:  {shown_path(report)} (MLflow run {run.id})\nlook at: {ui_command(run.uri)}"


def training_on(dataset: Path, added: Iterable[str]) -> str:
    """Return the command that trains on a dataset directory, with its ``added`` tables."""
    used = lambdas(PRESETS[DEFAULT_PRESET](str(dataset)))["lambda_z"]
    command = shlex.join(["python", "jobs/train.py", "--dataset", shown_path(dataset)])
    flags = {"query": "lambda-x", "ad": "lambda-z"}
    tables = sorted(
        (table.split("/") for table in added if table.startswith("edges/")), reverse=True
    )
    sides = {name: flags[side] for _, name, side in tables if side in flags}  # of two, the ads'
    for name in sorted(sides.keys() - used):
        flag = f"--regularization.{sides[name]}.{name.replace('_', '-')} {UNADVISED_LAMBDA}"
        command += f"\n{name} stays out, as on this side a graph gains little; try it: {flag}"
    return command


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
            flag = f"--{'.'.join([*sections, leaf])}"
            values = list(map(str, value if isinstance(value, list | tuple) else [value]))
            reads_as_flag = isinstance(value, str) and value.startswith("-")
            words += [f"{flag}={value}"] if reads_as_flag else [flag, *values]
    return words
