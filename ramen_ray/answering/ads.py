"""A retriever's ads: which match a filter, and answers spelt out with their ids and texts."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .ranking import SCORES_AT_ONCE, TopK
from .requests import ANSWERS, COLUMNS, RefusedError

ADS = "ads.parquet"
NUMBERS = "numbers.npy"
FILTER = "filter_"  # prefix of the columns that answers can be filtered by
MOST_NAMED = 10
BYTES_BESIDE_TEXTS = 30  # of a score, and what is around it and the texts in JSON
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
        self._values: dict[str, pa.Array] = {}
        for name in ads.column_names:
            if name.startswith(FILTER):
                cells = ads[name].combine_chunks().dictionary_encode()
                number_of = {value: code for code, value in enumerate(cells.dictionary.to_pylist())}
                codes = cells.indices.fill_null(-1).to_numpy()
                self.columns[name.removeprefix(FILTER)] = number_of, codes
                self._values[name.removeprefix(FILTER)] = cells.dictionary

    def __len__(self) -> int:
        return len(self.ids)

    def check_columns(self, names: Iterable[Any]) -> None:
        """Raise a RefusedError if there is no column of one of the names."""
        for name in names:
            if not isinstance(name, str) or name not in self.columns:
                raise RefusedError(
                    f"there is no column {name!r} of the ads; {_named('columns', self.columns)}; "
                    f"jobs/index.py --sync gives ads others"
                )

    def matching(self, wanted: Mapping[str, Any]) -> Flags:
        """Flag the ads (ads,) that have all wanted values, or one of each list of them.

        Raises a RefusedError if there is no such column.
        """
        self.check_columns(wanted)
        flags = []
        for name, choice in wanted.items():
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
            known = [number_of[value] for value in values if value in number_of]
            flags.append(np.isin(codes, known))
        return np.asarray(np.logical_and.reduce(flags))

    def why_none(self, wanted: Mapping[str, Any]) -> str:
        """Say why no ad matches."""
        for name, choice in wanted.items():
            number_of, _ = self.columns[name]
            values = choice if isinstance(choice, list | tuple) else [choice]
            if not number_of.keys() & {*values}:
                gone = " or ".join(map(repr, values[:MOST_NAMED]))
                return f"no ad has the {name} {gone}; {_named('values', number_of)}"
        return f"no ad has the wanted values of {', '.join(wanted)} at once"

    def rows_of(self, numbers: Int64s) -> Int64s:
        """Return the rows of the ads with these numbers, of any shape; -1 is no ad."""
        return np.where(numbers < 0, -1, np.searchsorted(self.numbers, numbers))

    def spell_out(
        self,
        errors: Sequence[str | None],
        rows: Int64s,
        scores: NDArray[np.float32],
        doubts: Sequence[str | None],
        columns: Sequence[str],
    ) -> pa.Table:
        """Return ANSWERS, one per query, from the ``rows`` (n, k) of the n without an error.

        Rows of -1, and their ``scores`` (n, k), are left out. ``doubts`` (n,) are told beside them.
        Values of ``columns`` are in a column of that name before the last.
        """
        is_ad = rows >= 0
        lengths = np.zeros(len(errors), dtype=np.int32)
        lengths[[error is None for error in errors]] = is_ad.sum(axis=1)
        ends = pa.array(np.append(0, lengths.cumsum()), pa.int32())
        ad_rows = pa.array(rows[is_ad])
        flat = [self.ids.take(ad_rows), self.texts.take(ad_rows), pa.array(scores[is_ad])]
        lists = [pa.ListArray.from_arrays(ends, column) for column in flat]
        told = iter(doubts)
        beside = [None if error else next(told) for error in errors], errors
        texts = [pa.array(column, pa.string()) for column in beside]
        answers = pa.table([*lists, *texts], ANSWERS.names).cast(ANSWERS)
        if not columns:
            return answers
        of_ads = []
        for name in columns:
            codes = self.columns[name][1][rows[is_ad]]
            values = self._values[name].take(pa.array(codes, mask=codes < 0))
            of_ads.append(pa.ListArray.from_arrays(ends, values))
        place = answers.num_columns - 1
        return answers.add_column(place, COLUMNS, pa.StructArray.from_arrays(of_ads, [*columns]))

    def num_bytes(self, rows: Int64s, columns: Sequence[str]) -> int:
        """Return about how large the ads in ``rows`` (n,) are as JSON."""
        total = (self.lengths[rows] + BYTES_BESIDE_TEXTS).sum()
        for name in columns:
            lengths = np.append(pc.binary_length(self._values[name]), 0)
            total += (lengths[self.columns[name][1][rows]] + BYTES_BESIDE_TEXTS).sum()
        return int(total)

    def topk_with_limits(
        self,
        search: Callable[[Int64s, int], TopK],
        num_queries: int,
        k: int,
        most: Mapping[str, int],
    ) -> TopK:
        """Take each query's best ads (queries, k), but at most so many with one value of a column.

        ``search`` returns the rows of some queries' best ads, and their scores, at a depth. Ads
        without a value are not counted.
        """
        rows = np.full((num_queries, k), -1)
        scores = np.full((num_queries, k), -np.inf, dtype=np.float32)
        unfinished = np.arange(num_queries)
        depth = min(k, len(self))
        while len(unfinished):
            left = list[int]()
            at_once = max(SCORES_AT_ONCE // depth, 1)
            for start in range(0, len(unfinished), at_once):
                queries = unfinished[start : start + at_once]
                for query, near, similar in zip(queries, *search(queries, depth), strict=True):
                    taken = self._within(near, k, most)
                    rows[query, : len(taken)] = near[taken]
                    scores[query, : len(taken)] = similar[taken]
                    if len(taken) < k and near[-1] >= 0 and depth < len(self):
                        left.append(query)
            unfinished = np.array(left, dtype=np.int64)
            depth = min(4 * depth, len(self))
        return rows, scores

    def _within(self, rows: Int64s, k: int, most: Mapping[str, int]) -> list[int]:
        """Return the first places in ``rows``, best first, at most k, that the limits let in."""
        counts = Counter[tuple[str, int]]()
        taken = list[int]()
        for place, row in enumerate(rows[rows >= 0].tolist()):
            values = [(name, int(self.columns[name][1][row])) for name in most]
            is_within = all(code < 0 or counts[name, code] < most[name] for name, code in values)
            if is_within and len(taken) < k:
                counts.update(values)
                taken.append(place)
        return taken


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
