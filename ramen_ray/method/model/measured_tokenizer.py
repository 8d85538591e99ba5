"""Measure what a stranger's tokenizer does, in a process of its own with limits of time and memory.

A few kilobytes can stand for tokens or letters without end, and a call into Rust cannot be stopped.
Run as a program, this file imports only ``tokenizers``, which takes a tenth of a second.
"""

import json
import resource
import string
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

CPU_S = 20
MEMORY = 2 << 30
MOST_ADDED = 20_000
MOST_PER_LETTER = 100
LETTERS = string.printable + "".join(map(chr, range(0xA0, 0x530)))
TEXT = "Air bed for two (2 x 90 cm), packable; caf\u00e9 chairs & 12 V lamps: from $9.99"


def fault_of(tokenizer: Path, *lists: Path) -> str | None:
    """Say why a ``tokenizer.json`` cannot be used; None if it can.

    ``lists`` are files beside it that add tokens. Files that have not changed are not read again.
    """
    files = (tokenizer, *lists)
    stamps = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return _fault_of(files, tuple(stamps))


@lru_cache(maxsize=64)
def _fault_of(files: tuple[Path, ...], stamps: tuple[tuple[int, int], ...]) -> str | None:
    command = [sys.executable, "-P", __file__, *map(str, files)]
    measured = subprocess.run(command, capture_output=True, text=True)
    if measured.returncode:
        return f"it takes over {CPU_S} s or {MEMORY >> 30} GB, or ends the process that opens it"
    return measured.stdout or None


def _measure(tokenizer: Tokenizer, lists: list[str]) -> str | None:
    num_added = len(tokenizer.get_added_tokens_decoder())
    for file in lists:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
        num_added += len(content.get("added_tokens_decoder", content))
    if num_added > MOST_ADDED:
        return f"it adds {num_added} tokens to a vocabulary, more than {MOST_ADDED}"
    for text in (TEXT, *LETTERS):
        written = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        longest = max(len(written), len(tokenizer.encode(text).ids))
        if longest > MOST_PER_LETTER * len(text):
            return f"it makes {longest} letters or tokens of {text!r}"
    return None


def _main(file: str, *lists: str) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        tokenizer = Tokenizer.from_file(file)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        fault = _measure(tokenizer, list(lists))
    except BaseException as error:  # a panic of Rust is no Exception
        fault = " ".join(str(error).split())[:300] or type(error).__name__
    sys.stdout.write(fault or "")


if __name__ == "__main__":
    _main(*sys.argv[1:])
