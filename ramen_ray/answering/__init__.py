"""The code that answers queries: a retriever keeps a copy of this package, and answers by it.

So later versions of the library do not change a retriever. The package imports none of the library,
and torch only for a transformer that was not compiled; its modules import each other relatively.
"""

import hashlib
import shutil
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

CODE = "code"  # the copy's folder in that of the retriever


def code_of(folder: str | Path) -> Any:
    """Return the module :mod:`.retriever` that the retriever in ``folder`` keeps.

    Copies that differ have modules of their own, so that one process can hold retrievers of several
    versions. A retriever of an earlier version has no copy, and gets this version's module.
    """
    package = Path(folder) / CODE
    if not package.is_dir():
        return import_module(".retriever", __package__)
    content = b"".join(file.read_bytes() for file in sorted(package.glob("*.py")))
    name = f"retriever_{hashlib.blake2b(content, digest_size=16).hexdigest()}"
    kept = ModuleType(name)
    kept.__path__ = [str(package)]
    sys.modules.setdefault(name, kept)
    writes_bytecode = not sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # the folder stays as it was logged
    try:
        return import_module(f"{name}.retriever")
    finally:
        sys.dont_write_bytecode = not writes_bytecode


def keep_code(folder: Path) -> None:
    """Copy this package into the folder of a retriever, in place of another copy."""
    package = folder / CODE
    shutil.rmtree(package, ignore_errors=True)
    package.mkdir()
    for file in Path(__file__).parent.glob("*.py"):
        shutil.copy(file, package)
