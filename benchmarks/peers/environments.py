"""Environments of the rivals' own, so that the project's dependencies stay as they are."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import CACHE
from ramen_ray.errors import UserError

FOLDER = CACHE / "peers" / "environments"


@dataclass(frozen=True)
class Environment:
    """Packages by name and version; nothing else is installed, so all that is needed is named."""

    name: str
    packages: tuple[str, ...]

    def python(self) -> Path:
        """Return its Python, made now by uv or earlier.

        Raises:
            UserError: there is no uv, or it cannot install the packages.
        """
        key = hashlib.blake2b(" ".join(self.packages).encode(), digest_size=4).hexdigest()
        folder = FOLDER / f"{self.name}-{key}"
        if not folder.exists():
            FOLDER.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(dir=FOLDER))
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            _uv("venv", "--quiet", "--relocatable", "--python", version, str(aside / "made"))
            python = str(aside / "made" / "bin" / "python")
            _uv("pip", "install", "--quiet", "--no-deps", "--python", python, *self.packages)
            (aside / "made").rename(folder)
            aside.rmdir()
        return folder / "bin" / "python"


def _uv(*arguments: str) -> None:
    found = shutil.which(
        "uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if found is None:
        raise UserError("uv makes the rivals' environments and is not installed: pip install uv")
    made = subprocess.run([found, *arguments], check=False, capture_output=True, text=True)
    if made.returncode:
        raise UserError(f"uv {' '.join(arguments)} failed:\n{made.stderr.strip()}")
