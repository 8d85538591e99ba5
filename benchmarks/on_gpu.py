"""All that only a GPU can show, the most telling first, for one that is lent for minutes.

Each part is a process with a limit of its own, and what it wrote until then stays in ``--into``: a
log of each part, and the tables. A part that fails, as for a package that is missing there, is
named, and the next begins.

    python -m benchmarks.on_gpu --into FOLDER [--minutes 14] [--only tests memory]
        [--smoke: tiny sizes, on the CPU, with no limit but that of all]
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import ENVIRONMENT, ROOT, finish, options

ALL = "all"
ENDS_WITHIN_S = 5.0


@dataclass(frozen=True)
class Part:
    """A command of Python, what it shows, and how long it may take."""

    name: str
    limit_s: int
    words: str
    smoke: str  # its words for a try on a CPU


def parts(into: Path) -> list[Part]:
    """Return the parts in the order in which they are run."""
    gain, batches = f"-m benchmarks.transformer_gain --into {into}", "-m benchmarks.large_batches"
    sizes = "--batches 512 1024 4096 --whole 4096 --texts-at-once 4096 --steps 10 --device cuda"
    tiny = "--batches 16 --whole 16 --texts-at-once 8 --layers 1 --steps 1"
    step = "-m benchmarks.gpu_step"
    tests = "-m pytest -rs -m gpu tests/gpu tests/orchestration/run/test_train_on_gpu.py"
    return [
        Part("tests", 120, tests, tests),
        Part("memory", 120, f"{batches} {sizes}", f"{batches} {tiny}"),
        Part(
            "gain_rdocs",
            300,
            f"{gain} --sets rdocs --presets minilm-6-unidec",
            f"{gain} --sets rdocs --presets tiny --epochs 1 --seeds 1",
        ),
        Part("step", 120, f"{step} --compiled", f"{step} --smoke --rounds 1 --steps 1"),
        Part("profile", 60, f"{step} --rounds 1 --profile", f"{step} --smoke --rounds 1 --profile"),
        Part("gain_foldoc", 300, f"{gain} --sets foldoc --presets minilm-6-unidec", ""),
    ]


def main() -> None:
    asked = options(__doc__, into=".", minutes=14.0, only=[ALL], smoke=False)
    into = Path(asked.into).absolute()
    ends_at = time.monotonic() + 60 * asked.minutes
    figures = {}
    for part in parts(into):
        left = ends_at - time.monotonic()
        words, limit_s = (part.smoke, left) if asked.smoke else (part.words, part.limit_s)
        if words and left > ENDS_WITHIN_S and {part.name, ALL} & set(asked.only):
            figures[part.name] = run(part.name, words, min(limit_s, left), into)
            print(f"{part.name}: {figures[part.name]}", flush=True)
    finish(1.0, figures)


def run(name: str, words: str, limit_s: float, into: Path) -> str:
    """Run a part with its output in ``into``, and end what it leaves; returns how it ended."""
    command = [sys.executable, *words.split()]
    started = time.monotonic()
    with (into / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"cut off after {limit_s:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = time.monotonic() - started
    return f"code {code}, {seconds:.0f} s"


if __name__ == "__main__":
    main()
