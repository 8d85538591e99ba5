"""What ``dataset.json`` says of a dataset directory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramen_ray.data.store.made_folder import FileContent, read_json
from ramen_ray.errors import DatasetError
from ramen_ray.naming import VERSIONED, naming_fault

FORMAT_VERSION = 1
CHECKED = "checked"
"""Key: by table, the hash of what was checked as it was written."""


def read_metadata(path: Path) -> dict[str, Any]:
    """Read ``dataset.json``; a DatasetError if it is missing, or of another format version."""
    file = path / "dataset.json"
    if not path.is_dir():
        raise DatasetError(f"there is no dataset directory at {path}")
    if not file.is_file():
        raise DatasetError(f"{path} is not a dataset directory: it has no dataset.json")
    try:
        metadata = read_json(file)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{file} is not valid JSON: {error}") from error
    version = metadata.get("format_version") if isinstance(metadata, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:  # true and 1.0 equal 1
        raise DatasetError(
            f"{file}: format_version is {version!r}, but this program reads {FORMAT_VERSION}"
        )
    name = metadata.get("name")
    if not isinstance(name, str):
        raise DatasetError(f"{file}: 'name' is missing or not a string")
    if fault := naming_fault(name):
        raise DatasetError(f"{file}: 'name': {fault}; change it there")
    return metadata


def delta_versions(metadata: Mapping[str, Any]) -> Iterator[FileContent]:
    """Yield the versions of Delta tables that ``dataset.json`` names."""
    values: list[Any] = [metadata]
    for value in values:
        if isinstance(value, dict):
            values += [part for _, part in sorted(value.items())]
        elif isinstance(value, str) and (versioned := VERSIONED.match(value)):
            yield "version", 0, versioned[2].encode()


def checked_tables(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return what was checked as it was written: a hash by table."""
    checked = metadata.get(CHECKED)
    return checked if isinstance(checked, dict) else {}
