"""The dataset directory: one on-disk form for queries, ads, anchors, edges and filters."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ramen_ray.data.schemas import SPLITS, schema_of

FORMAT_VERSION = 1


class DatasetError(ValueError):
    """A dataset directory is missing, incomplete or inconsistent; the message says where."""


class Dataset:
    """A dataset directory, opened for reading; tables stay on disk until they are asked for.

    Raises:
        DatasetError: the folder or its ``dataset.json`` is missing or of another format version.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the dataset directory at ``path``."""
        self.path = Path(path).absolute()
        self.metadata = _read_metadata(self.path)

    @property
    def name(self) -> str:
        """The dataset's name, as ``dataset.json`` gives it."""
        return str(self.metadata["name"])

    @cached_property
    def tables(self) -> list[str]:
        """Names of the tables that lie in the directory, sorted."""
        names = {
            str((file if file.parent.suffix != ".parquet" else file.parent).relative_to(self.path))
            for file in self.path.rglob("*.parquet")
            if file.is_file()
        }
        return sorted(name.removesuffix(".parquet") for name in names)

    @property
    def anchor_sets(self) -> list[str]:
        """Names of the anchor sets, sorted."""
        return [
            name.removeprefix("anchors/") for name in self.tables if name.startswith("anchors/")
        ]

    def has(self, table: str) -> bool:
        """Say whether the directory holds ``table``."""
        return table in self.tables

    def files(self, table: str) -> list[Path]:
        """Return the table's parquet files in row order: one file, or the parts of a folder.

        Raises:
            DatasetError: the table is not there.
        """
        path = self.path / f"{table}.parquet"
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not files or not files[0].exists():
            raise DatasetError(f"{self.path} has no table {table!r} (expected {path})")
        return files

    def num_rows(self, table: str) -> int:
        """Return the table's row count from the parquet footers."""
        return sum(pq.read_metadata(file).num_rows for file in self.files(table))

    def read(self, table: str) -> pa.Table:
        """Read a whole table into memory; for small tables, reports and tests."""
        return pa.concat_tables(
            pq.read_table(file, schema=schema_of(table)) for file in self.files(table)
        )

    def rows(self, table: str, row_numbers: list[int]) -> pa.Table:
        """Read some rows (ascending numbers) of a table, streaming over the others."""
        chosen, first, wanted = [], 0, np.asarray(row_numbers, dtype=np.int64)
        for file in self.files(table):
            for batch in pq.ParquetFile(file).iter_batches():
                inside = wanted[(wanted >= first) & (wanted < first + len(batch))]
                chosen.append(batch.take(pa.array(inside - first)))
                first += len(batch)
        return pa.Table.from_batches(chosen)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the content of all tables, read as a stream."""
        digest = hashlib.blake2b(digest_size=16)
        for table in self.tables:
            for file in self.files(table):
                digest.update(f"{table}\0{file.stat().st_size}\0".encode())
                with file.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "blake2b").digest())
        return digest.hexdigest()


def write_dataset(path: str | Path, tables: Mapping[str, pa.Table], **metadata: Any) -> Dataset:
    """Write ``tables`` (name to rows) and ``metadata`` as a dataset directory at ``path``.

    The directory is built beside its final place and renamed, so that it is whole or absent.

    Raises:
        DatasetError: something lies at ``path`` already.
    """
    path = Path(path).absolute()
    if path.exists():
        raise DatasetError(f"{path} exists already; move it away or choose another output")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        for name, table in tables.items():
            file = aside / f"{name}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table.cast(schema_of(name)), file, compression="zstd")
        counts = {name: table.num_rows for name, table in sorted(tables.items())}
        description = {"format_version": FORMAT_VERSION, **metadata, "num_rows": counts}
        (aside / "dataset.json").write_text(json.dumps(description, indent=2) + "\n")
        aside.chmod(0o755)
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return Dataset(path)


def required_tables(anchor_sets: list[str]) -> list[str]:
    """Name the tables that training reads: splits, ads and, per anchor set, texts and edges."""
    per_set = [f"anchors/{name}" for name in anchor_sets]
    per_set += [f"edges/{name}/{side}" for name in anchor_sets for side in ("query", "ad")]
    return [f"queries/{split}" for split in SPLITS] + ["ads", *per_set]


def _read_metadata(path: Path) -> dict[str, Any]:
    file = path / "dataset.json"
    if not path.is_dir():
        raise DatasetError(f"there is no dataset directory at {path}")
    if not file.is_file():
        raise DatasetError(f"{path} is not a dataset directory: it has no dataset.json")
    try:
        metadata = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DatasetError(f"{file} is not valid JSON: {error}") from error
    version = metadata.get("format_version") if isinstance(metadata, dict) else None
    if version != FORMAT_VERSION:
        raise DatasetError(
            f"{file}: format_version is {version!r}, this program reads {FORMAT_VERSION}"
        )
    if not isinstance(metadata.get("name"), str):
        raise DatasetError(f"{file}: 'name' is missing or not a string")
    return metadata
