"""Estimate how often predictions name a different brand, place, ... than the query.

    python -m experiments.names predictions.parquet --names datasets/debian/names.csv

Predictions are those of ``jobs/evaluate.py --predictions``. The list of names is a CSV of kind and
name, such as brand,sony; optionally same_as: place,nyc,new york.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tyro
from scipy.sparse import csr_array

from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.config import Section
from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.engine import engine
from ramen_ray.data.findings import FaultKind
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.same_texts import fold
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.loading import CORRECT, UserTable
from ramen_ray.reports.report_tables import ReportTable, show

SAME_AS = "same_as"
KS = (1, 3, 5)
NOT_IN_A_WORD = r"[^\p{L}\p{M}\p{N}+#]+"
SIGNS_BEFORE_A_WORD = r"(^|\s)[+#]+"
SIGNS_BEHIND_A_WORD = r"[+#]+"

Key = tuple[str, tuple[str, ...]]  # a name: its kind and its words


@dataclass(frozen=True)
class NameList:
    """Names of entities, such as brands or places; an entity may have several names.

    A text names an entity if it contains the words of one of its names in sequence. Words are runs
    of letters and digits, with trailing ``+`` or ``#`` (``c++``), in any case and Unicode form. A
    name inside a longer name of any kind does not count: "new york times" does not name "york".
    """

    kinds: list[str]
    kind_of: Int64s  # (entities,) index of each entity's kind in ``kinds``
    named: dict[tuple[str, ...], set[int]]  # by a name's words, the entities
    longest: dict[str, int]  # by a first word, how many words its longest name has

    @classmethod
    def from_names(cls, names: Sequence[Key], entities: Sequence[Key]) -> "NameList":
        """Build from names (names,), and what each of them names by its main name (names,)."""
        kinds = list(dict.fromkeys(kind for kind, _ in names))
        numbers = {entity: number for number, entity in enumerate(dict.fromkeys(entities))}
        named = defaultdict[tuple[str, ...], set[int]](set)
        longest = defaultdict[str, int](int)
        for (_, words), entity in zip(names, entities, strict=True):
            named[words].add(numbers[entity])
            longest[words[0]] = max(longest[words[0]], len(words))
        kind_of = np.array([kinds.index(kind) for kind, _ in numbers])
        return cls(kinds, kind_of, dict(named), dict(longest))

    def named_by(self, texts: pa.ChunkedArray) -> csr_array:
        """Return (texts, entities) bool: which entities each text names."""
        rows, entities = self.find(texts.combine_chunks())
        shape = len(texts), len(self.kind_of)
        return csr_array((np.ones(len(rows), dtype=np.bool_), (rows, entities)), shape)

    def find(self, texts: pa.StringArray) -> tuple[Int64s, Int64s]:
        """Find the entities that texts (n,) name, as unique, ascending (position, entity) pairs."""
        named = enumerate(map(self._entities_of, _words(texts)))
        pairs = sorted(
            {(position, entity) for position, entities_named in named for entity in entities_named}
        )
        positions, entities = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return positions, entities

    def _entities_of(self, words: Sequence[str]) -> Iterator[int]:
        """Yield the entities of the longest name that starts at each word."""
        reached = 0
        for start, word in enumerate(words):
            furthest = min(start + self.longest.get(word, 0), len(words))
            # up to what is reached, it would be inside a name that starts earlier
            for stop in range(furthest, max(start, reached), -1):
                if entities := self.named.get(tuple(words[start:stop])):
                    yield from entities
                    reached = stop
                    break


def read_names(source: str) -> NameList:
    """Read a list of names in CSV, TSV or parquet: ``kind``, ``name`` and optionally ``same_as``.

    ``same_as`` is another name of the same entity and kind: ``place,nyc,new york``. Raises a
    DatasetError if the list is missing or empty, lacks a column, or has rows that are wrong.
    """
    first = find_files(source, ["kind", "name"])[0]
    if first.format == "jsonl":
        raise DatasetError(f"{source}: a list of names must be CSV, TSV or parquet")
    columns = {"kind": Column("kind"), "name": Column("name", optional=True)}
    if SAME_AS in first.header:
        columns[SAME_AS] = Column(SAME_AS, optional=True)
    table = UserTable(source, columns)
    rows = table.read()
    kinds = fold(rows["kind"].combine_chunks()).to_pylist()
    names = entities = _keys(kinds, rows["name"])
    if SAME_AS in columns:
        aliases = rows[SAME_AS]
        pairs = zip(names, _keys(kinds, aliases), aliases.is_null().to_pylist(), strict=True)
        entities = [name if is_main else alias for name, alias, is_main in pairs]
    main = {name for name, entity in zip(names, entities, strict=True) if name == entity}
    of_name = defaultdict[Key, set[Key]](set)
    for name, entity in zip(names, entities, strict=True):
        of_name[name].add(entity)
    is_known = np.array([entity in main for entity in entities], dtype=bool)
    has_several = np.array([len(of_name[name]) > 1 for name in names], dtype=bool)
    with engine(Path(gettempdir())) as connection:
        for role, bad, message in (
            ("name", [not words for _, words in names], "names need a letter or a digit"),
            (SAME_AS, ~is_known, "are not a name of the kind, or have a same_as themselves"),
            ("name", is_known & has_several, "same names have another same_as"),
        ):
            if np.any(bad):
                connection.register("bad", rows.filter(pa.array(bad, pa.bool_())))
                kind = FaultKind(message, CORRECT)
                table.report(connection, role, kind, f"SELECT place, {role} FROM bad")
    table.check()
    if not len(rows):
        raise DatasetError(f"{source} holds no names")
    return NameList.from_names(names, entities)


def _keys(kinds: Sequence[str], names: pa.ChunkedArray) -> list[Key]:
    words = _words(names.combine_chunks().fill_null(""))
    return [(kind, tuple(of_name)) for kind, of_name in zip(kinds, words, strict=True)]


def _words(texts: pa.StringArray) -> list[list[str]]:
    """Return the words of each text (n,)."""
    spaced = pc.replace_substring_regex(fold(texts), NOT_IN_A_WORD, " ")
    spaced = pc.replace_substring_regex(spaced, SIGNS_BEFORE_A_WORD, " ")
    spaced = pc.replace_substring_regex(spaced, SIGNS_BEHIND_A_WORD, r"\0 ")
    return [text.split() for text in spaced.to_pylist()]


def bad_match_rates(names: NameList, predictions: pa.Table) -> dict[str, float]:
    """Return bad match rates (fractions), such as ``brand/BMR@1``, and ``BMR@1`` for any kind.

    ``predictions`` have columns query, ad and rank, from 1. The RAMEN paper has the rates from a
    search engine (section 4, Table 2); this is an estimate, which misses names that are not listed.
    A prediction is a bad match of a kind, such as brands, if query and ad both have names of it,
    but none in common. A rate is the share of bad matches among the first k predictions for the
    queries that have a name of the kind, whose share is ``brand/named_queries``.
    """
    first = predictions.filter(pc.less_equal(predictions["rank"], max(KS)))
    ranks = first["rank"].to_numpy()
    queries = names.named_by(first["query"])
    ads = names.named_by(first["ad"])
    has_any_name = np.zeros(len(first), dtype=np.bool_)
    is_bad_at_all = np.zeros(len(first), dtype=np.bool_)
    rates: dict[str, float] = {}
    for kind, has_name, is_bad in bad_matches(names.kind_of, queries, ads):
        of_kind = _rates(ranks, has_name, is_bad)
        rates |= {f"{names.kinds[kind]}/{name}": rate for name, rate in of_kind.items()}
        has_any_name |= has_name
        is_bad_at_all |= is_bad
    return rates | _rates(ranks, has_any_name, is_bad_at_all)


def bad_matches(
    kind_of: Int64s, queries: csr_array, ads: csr_array
) -> Iterator[tuple[int, Booleans, Booleans]]:
    """Yield each kind, and which pairs (n,) have a query with a name of it, and are bad matches.

    ``queries`` and ``ads`` (n, entities) say which entities, of ``kind_of`` (entities,), they name.
    """
    for kind in np.unique(kind_of).tolist():
        is_of_kind = np.flatnonzero(kind_of == kind)
        in_query = queries[:, is_of_kind]
        in_ad = ads[:, is_of_kind]
        has_name = np.diff(in_query.indptr) > 0
        in_common = in_query.multiply(in_ad).sum(axis=1)
        yield kind, has_name, has_name & (np.diff(in_ad.indptr) > 0) & (in_common == 0)


def _rates(ranks: Int64s, has_name: Booleans, is_bad: Booleans) -> dict[str, float]:
    rates = {"named_queries": float(has_name[ranks == 1].mean())}
    for k in KS:
        is_counted = has_name & (ranks <= k)
        rates[f"BMR@{k}"] = float(is_bad[is_counted].sum() / max(int(is_counted.sum()), 1))
    return rates


class NameSettings(Section):
    """Which predictions to judge, by which names."""

    predictions: tyro.conf.Positional[Path]
    """The parquet file."""
    names: str
    """The list of names: CSV, TSV or parquet."""


def main() -> None:
    """Print the rates by kind of names, in per cent."""
    settings = parse_settings(NameSettings, str(__doc__))
    table = pq.read_table(settings.predictions, columns=["query", "ad", "rank"])
    rates = bad_match_rates(read_names(settings.names), table)
    columns = ("named_queries", *(f"BMR@{k}" for k in KS))
    prefixes = [name.removesuffix(columns[0]) for name in rates if name.endswith(columns[0])]
    rows = [
        [prefix.rstrip("/") or "all", *(f"{100 * rates[prefix + name]:.2f}" for name in columns)]
        for prefix in prefixes
    ]
    show(ReportTable("", ("kind of names", "queries with one", *columns[1:]), rows))


if __name__ == "__main__":
    run_job(main)
