"""Tables of a dataset that is made from another one: the rows that are kept, with new ids."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Booleans, Int64s, list_entries, to_lists
from ramen_ray.data.store.dataset import Dataset, DatasetWriter
from ramen_ray.data.store.schemas import ids_in

Kept = Mapping[str, Booleans]
"""By table, which of its rows (rows,), by id, are kept; of the others all are."""


def write_kept(
    parent: Dataset,
    table: str,
    kept: Kept,
    writer: DatasetWriter,
    rows: Iterable[pa.RecordBatch] | None = None,
    target: str | None = None,
) -> bool:
    """Write the rows of a table whose ids are kept, with new ids; returns whether there were any.

    ``rows`` are batches to take in place of all, whose lists of ids name what is kept; ``target``
    is another name for the new table. None is written without rows.
    """
    new_ids = {name: np.cumsum(flags) - 1 for name, flags in kept.items()}
    named = {column: of for column, of in ids_in(table).items() if of in kept}

    def renumbered() -> Iterator[pa.RecordBatch]:
        own = parent.batches(table) if parent.has(table) else ()
        for batch in own if rows is None else rows:
            chosen = np.ones(len(batch), dtype=bool)
            for column, of in named.items():
                if column != "ad_ids":
                    chosen &= kept[of][batch[column].to_numpy()]
            batch = batch.filter(pa.array(chosen))
            for column, of in named.items():
                place = batch.schema.get_field_index(column)
                batch = batch.set_column(place, column, _mapped(batch[column], new_ids[of]))
            if len(batch):
                yield batch

    filled = renumbered()
    first = next(filled, None)
    if first is not None:
        writer.write(target or table, chain([first], filled))
    return first is not None


def _mapped(ids: pa.Array, new_ids: Int64s) -> pa.Array:
    """Replace ids, or lists of ids, all of them kept."""
    if not pa.types.is_list(ids.type):
        return pa.array(new_ids[ids.to_numpy()])
    rows, entries = list_entries(ids)
    return to_lists(new_ids[entries.to_numpy()], np.bincount(rows, minlength=len(ids)))
