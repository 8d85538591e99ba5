"""Where a store of MLflow is, and the artifacts of a sqlite store that was moved with them.

MLflow notes their absolute addresses.
"""

import os
import shlex
from pathlib import Path
from urllib.parse import unquote

from ramen_ray.errors import UserError, shown_address

STORE_VARIABLE = "MLFLOW_TRACKING_URI"
NOT_IN_PATHS = "%?"  # MLflow takes them for parts of an address: a quoted character, and a query
SQLITE = "sqlite:///"
ARTIFACTS = "mlartifacts"  # the folder of a sqlite store's artifacts, beside it


class TrackingError(UserError):
    """The MLflow store cannot be used, or a page cannot be written."""


def tracking_uri(output: Path) -> str:
    """Return MLFLOW_TRACKING_URI, or else the URI of a sqlite store in ``output``.

    Raises a TrackingError if ``output`` is no folder but an address, or a folder that MLflow would
    look for elsewhere.
    """
    if any(part.endswith(":") for part in output.parts):  # such as s3:
        raise TrackingError(f"--output {output}: this must be a folder that all machines can reach")
    if uri := os.environ.get(STORE_VARIABLE):
        return uri
    path = str(output.absolute())
    if odd := [character for character in NOT_IN_PATHS if character in path]:
        raise TrackingError(
            f"--output {path}: MLflow takes {odd[0]} in it for a part of an address; rename the "
            f"folder, or choose another"
        )
    return sqlite_uri(output)


def sqlite_uri(folder: Path) -> str:
    """Return the URI of the sqlite store in ``folder``."""
    return f"{SQLITE}{folder.absolute()}/mlflow.db"


def ui_command(uri: str) -> str:
    """Return the command that shows the store in a browser; without secrets."""
    here = sqlite_uri(Path()).removesuffix("mlflow.db")
    uri = shown_address(uri).replace(here, SQLITE)
    if uri.startswith("http"):
        return shlex.join(["open", uri])
    command = ["mlflow", "ui", "--host", "127.0.0.1", "--backend-store-uri", uri]
    return shlex.join(["env", "MLFLOW_DISABLE_TELEMETRY=true", *command])


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
