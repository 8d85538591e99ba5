"""A retriever's ads: which match a filter, and answers spelt out with their ids and texts."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .requests import RefusedError

ADS = "ads.parquet"
NUMBERS = "numbers.npy"
FILTER = "filter_"  # prefix of the columns that answers can be filtered by
MOST_NAMED = 10
ANSWERS = pa.schema(
    [
        ("ad_ids", pa.list_(pa.string())),
        ("ads", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("error", pa.string()),
    ]
)

Flags = NDArray[np.bool_]
Int64s = NDArray[np.int64]


class Ads:
    """The ads in the order of the index.

    Attributes:
        ids: (ads,) the user's.
        texts: (ads,)
        lengths: (ads,) the bytes of both.
        numbers: (ads,) see :func:`numbers_of`.
        columns: by name, the number of each value, and that of each ad's value (ads,), or -1.
    """

    def __init__(self, folder: Path) -> None:
        """Load the ads of the retriever in ``folder``."""
        ads = pq.read_table(folder / ADS)
        self.ids, self.texts = (
            ads[name].cast(pa.large_string()).combine_chunks() for name in ("ad_id", "text")
        )
        lengths = pc.add(pc.binary_length(self.ids), pc.binary_length(self.texts))
        self.lengths = np.asarray(lengths)
        self.numbers = numbers_of(folder, len(ads))
        self.columns: dict[str, tuple[dict[str, int], NDArray[np.int32]]] = {}
        for name in ads.column_names:
            if name.startswith(FILTER):
                cells = ads[name].combine_chunks().dictionary_encode()
                number_of = {value: code for code, value in enumerate(cells.dictionary.to_pylist())}
                codes = cells.indices.fill_null(-1).to_numpy()
                self.columns[name.removeprefix(FILTER)] = number_of, codes

    def __len__(self) -> int:
        return len(self.ids)

    def matching(self, wanted: Mapping[str, Any]) -> Flags:
        """Flag the ads (ads,) that have all wanted values, or one of each list of them.

        Raises a RefusedError if there is no such column or value.
        """
        flags = []
        for name, choice in wanted.items():
            if name not in self.columns:
                raise RefusedError(
                    f"there is no column {name!r} to filter by; {_named('columns', self.columns)}; "
                    f"jobs/index.py --sync gives ads others"
                )
            number_of, codes = self.columns[name]
            values = choice if isinstance(choice, list | tuple) else [choice]
            if not values:
                raise RefusedError(
                    f"the filter {name} is an empty list; give values, or leave it out"
                )
            for value in values:
                if not isinstance(value, str):
                    raise RefusedError(
                        f"the filter {name} is {value!r}; give a text, or a list of texts"
                    )
                if value not in number_of:
                    raise RefusedError(
                        f"no ad has the {name} {value!r}; {_named('values', number_of)}"
                    )
            flags.append(np.isin(codes, [number_of[value] for value in values]))
        return np.asarray(np.logical_and.reduce(flags))

    def rows_of(self, numbers: Int64s) -> Int64s:
        """Return the rows of the ads with these numbers, of any shape; -1 is no ad."""
        return np.where(numbers < 0, -1, np.searchsorted(self.numbers, numbers))

    def spell_out(
        self, errors: Sequence[str | None], rows: Int64s, scores: NDArray[np.float32]
    ) -> pa.Table:
        """Return ANSWERS, one per query, from the ``rows`` (n, k) of the n without an error.

        Rows of -1, and their ``scores`` (n, k), are left out.
        """
        is_ad = rows >= 0
        lengths = np.zeros(len(errors), dtype=np.int32)
        lengths[[error is None for error in errors]] = is_ad.sum(axis=1)
        ends = pa.array(np.append(0, lengths.cumsum()), pa.int32())
        ad_rows = pa.array(rows[is_ad])
        flat = [self.ids.take(ad_rows), self.texts.take(ad_rows), pa.array(scores[is_ad])]
        lists = [pa.ListArray.from_arrays(ends, column) for column in flat]
        columns = [*lists, pa.array(errors, pa.string())]
        return pa.table(columns, ANSWERS.names).cast(ANSWERS)


def numbers_of(folder: Path, num_ads: int) -> Int64s:
    """Return the numbers (ads,) of a retriever's ads, ascending, by which ties are broken.

    They are what the dataset's ads had when the retriever was trained, then those that were added
    since; so no ad's place among its equals changes as others come and go.
    """
    file = folder / NUMBERS
    return np.load(file) if file.exists() else np.arange(num_ads)


def _named(what: str, names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - MOST_NAMED} more" if len(ordered) > MOST_NAMED else ""
    return f"its {what} are {', '.join(ordered[:MOST_NAMED])}{more}" if ordered else "it has none"
