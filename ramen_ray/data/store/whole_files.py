"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a file of another name to write, which takes the place of ``path`` at the end.

    The name is hidden and nobody else's, so that two who write the same do not mix it.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    os.close(descriptor)
    aside = Path(name)
    try:
        yield aside
        aside.chmod(0o644)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
