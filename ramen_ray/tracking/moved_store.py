"""Stores that were moved with their artifacts, whose places MLflow notes as absolute addresses."""

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

logger = logging.getLogger(__name__)

SQLITE = "sqlite:///"
ARTIFACTS = "mlartifacts"  # the folder of a sqlite store's artifacts, beside it
ADDRESSES = {
    "experiments": "artifact_location",
    "runs": "artifact_uri",
    "logged_models": "artifact_location",
    "model_versions": "storage_location",
}
"""Tables of MLflow's databases, and the column with the address of artifacts."""


def find_artifacts_beside(uri: str) -> None:
    """Point a sqlite store to the artifacts beside it, if it was moved or copied with them.

    Artifacts that are elsewhere on purpose are left alone: some of theirs are not beside the store.
    Raises a sqlite3.Error if the store cannot be written.
    """
    file = Path(unquote(uri.removeprefix(SQLITE).partition("?")[0])).absolute()
    new = file.parent / ARTIFACTS
    if not uri.startswith(SQLITE) or not file.is_file() or not new.is_dir():
        return
    with closing(sqlite3.connect(file, timeout=60)) as database, database:
        tables = {name for (name,) in database.execute("select name from sqlite_master")}
        if not tables.issuperset(ADDRESSES):
            return  # MLflow has not made or upgraded it yet
        known = database.execute("select distinct artifact_location from experiments")
        for old in [str(old) for (old,) in known if str(old).endswith(f"/{ARTIFACTS}")]:
            if old != new.as_uri() and _are_there(database, old, new):
                _move(database, old, new.as_uri())
                logger.info("%s was moved: its artifacts are now found in %s", file, new)


def _are_there(database: sqlite3.Connection, old: str, new: Path) -> bool:
    """Return whether artifacts are in ``new``, and none in ``old`` alone."""
    if _path(old).exists() and _path(old).samefile(new):
        return False  # another spelling of the same
    ends = [
        address.removeprefix(f"{old}/")
        for table in ("runs", "logged_models")
        for (address,) in database.execute(f"select {ADDRESSES[table]} from {table}")
        if str(address).startswith(f"{old}/")
    ]
    places = [(_path(f"{old}/{end}"), new / unquote(end)) for end in ends]
    return any(here.exists() for _, here in places) and not any(
        there.exists() and not here.exists() for there, here in places
    )


def _move(database: sqlite3.Connection, old: str, new: str) -> None:
    for table, column in ADDRESSES.items():
        database.execute(
            f"update {table} set {column} = :new || substr({column}, length(:old) + 1) "
            f"where {column} = :old or substr({column}, 1, length(:old) + 1) = :old || '/'",
            {"old": old, "new": new},
        )


def _path(address: str) -> Path:
    return Path(unquote(address.removeprefix("file://")))
