"""Datasets made from others: what they say of them, and kept rows with new ids."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans, Int64s, to_lists
from ramen_ray.data.checks.validation import check
from ramen_ray.data.store.dataset import WHILE_READ, Dataset, DatasetWriter, new_dataset
from ramen_ray.data.store.schemas import ids_in
from ramen_ray.naming import joined_name

Kept = Mapping[str, Booleans]
"""By table, which of its rows (rows,), by id, are kept; of the others all are."""


@contextmanager
def new_dataset_from(
    parent: Dataset, output: Path, kind: str, how: str, settings: Mapping[str, Any]
) -> Iterator[DatasetWriter]:
    """Build a dataset from another one, which must stay as it is while the block reads it.

    ``kind`` ends its name; ``dataset.json`` has the parent and the ``settings`` under ``how``.
    Raises a DatasetError if the parent is not usable, or changes, or ``output`` exists.
    """
    # the fingerprint is taken before all reading
    made = {"parent": parent.name, "parent_fingerprint": parent.fingerprint, **settings}
    metadata = {**parent.metadata, "name": joined_name(parent.name, kind), how: made}
    with new_dataset(output, **metadata) as writer, parent.unchanged(WHILE_READ):
        check(parent)
        yield writer


def write_kept(parent: Dataset, table: str, kept: Kept, writer: DatasetWriter) -> None:
    """Write the rows of a table whose ids are kept, with new ids; without rows there is no table.

    Lists of ids name only what is kept.
    """
    new_ids = {name: np.cumsum(flags) - 1 for name, flags in kept.items()}
    named = {column: node for column, node in ids_in(table).items() if node in kept}

    def renumbered() -> Iterator[pa.RecordBatch]:
        for batch in parent.batches(table) if parent.has(table) else ():
            chosen = np.ones(len(batch), dtype=bool)
            for column, node in named.items():
                if column != "ad_ids":
                    chosen &= kept[node][batch[column].to_numpy()]
            batch = batch.filter(pa.array(chosen))
            for column, node in named.items():
                place = batch.schema.get_field_index(column)
                batch = batch.set_column(place, column, _mapped(batch[column], new_ids[node]))
            if len(batch):
                yield batch

    filled = renumbered()
    first = next(filled, None)
    if first is not None:
        writer.write(table, chain([first], filled))


def lowest(draws: NDArray[Any], count: int) -> Booleans:
    """Flag the ``count`` lowest of the finite draws (n,)."""
    chosen = np.zeros(len(draws), dtype=bool)
    chosen[np.argsort(draws)[:count]] = True
    return chosen & np.isfinite(draws)


def _mapped(ids: pa.Array, new_ids: Int64s) -> pa.Array:
    """Replace ids, or lists of ids, all of them kept."""
    if pa.types.is_list(ids.type):
        return to_lists(new_ids[ids.flatten().to_numpy()], pc.list_value_length(ids).to_numpy())
    return pa.array(new_ids[ids.to_numpy()])
