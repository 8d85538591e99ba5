"""Lists of names of brands, places and so on, and the texts that contain them."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.same_texts import fold
from ramen_ray.data.store.schemas import schema_of
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.loading import CORRECT, UserTable

SAME_AS = "same_as"
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

    def find_in_table(self, dataset: Dataset, table: str, ids: Int64s | None = None) -> csr_array:
        """Return (rows, entities) bool: which a table's rows, or those with ``ids`` (n,), name."""
        wanted = None if ids is None else pa.array(ids, pa.int64())
        pairs = [np.empty((2, 0), np.int64)]
        for batch in dataset.batches(table, [schema_of(table).names[0], "text"]):
            chosen = batch if wanted is None else batch.filter(pc.is_in(batch[0], wanted))
            positions, entities = self.find(chosen["text"])
            pairs.append(np.stack([chosen[0].to_numpy()[positions], entities]))
        rows, entities = np.concatenate(pairs, axis=1)
        shape = dataset.num_rows(table), len(self.kind_of)
        return csr_array((np.ones(len(rows), dtype=np.bool_), (rows, entities)), shape)

    def find(self, texts: pa.StringArray) -> tuple[Int64s, Int64s]:
        """Find the entities that texts (n,) name, as unique, ascending (position, entity) pairs."""
        named = enumerate(map(self._named_by, _words(texts)))
        pairs = sorted({(position, entity) for position, found in named for entity in found})
        positions, entities = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return positions, entities

    def _named_by(self, words: Sequence[str]) -> Iterator[int]:
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
    for role, bad, message in (
        ("name", [not words for _, words in names], "names need a letter or a digit"),
        (SAME_AS, ~is_known, "are not a name of the kind, or have a same_as themselves"),
        ("name", is_known & has_several, "same names have another same_as"),
    ):
        table.report_rows(role, message, CORRECT, rows.filter(pa.array(bad, pa.bool_())))
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
