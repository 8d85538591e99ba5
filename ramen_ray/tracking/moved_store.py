"""Artifacts of a sqlite store that was moved with them: MLflow notes their absolute addresses."""

from pathlib import Path
from urllib.parse import unquote

SQLITE = "sqlite:///"
ARTIFACTS = "mlartifacts"  # the folder of a sqlite store's artifacts, beside it


def place_beside(uri: str, address: str) -> Path | None:
    """Return where artifacts are beside the store ``uri``; None if they are at their ``address``.

    None, too, if they are neither here nor there, or the store is a server's.
    """
    place = Path(unquote(address.removeprefix("file://")))
    if not uri.startswith(SQLITE) or ARTIFACTS not in place.parts or place.exists():
        return None
    store = Path(unquote(uri.removeprefix(SQLITE).partition("?")[0])).absolute()
    last = len(place.parts) - place.parts[::-1].index(ARTIFACTS)
    beside = store.parent.joinpath(ARTIFACTS, *place.parts[last:])
    return beside if beside.exists() else None
