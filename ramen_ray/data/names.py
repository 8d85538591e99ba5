"""Lists of names of brands, places and so on, and the texts that contain them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.sparse import csr_array

from ramen_ray.data.arrays import Booleans, Int64s, UInt64s
from ramen_ray.data.prepared.hashing import HashIndex, find, hash_strings, mix
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.schemas import schema_of
from ramen_ray.data.store.texts import fold
from ramen_ray.data.tables.reading.columns import Column
from ramen_ray.data.tables.reading.files import find_files
from ramen_ray.data.tables.reading.loading import UserTable

SAME_AS = "same_as"
ADVICE = "correct these rows"
NOT_IN_A_WORD = r"[^\p{L}\p{M}\p{N}+#]+"
SIGNS_BEFORE_A_WORD = r"(^|\s)[+#]+"
SIGNS_BEHIND_A_WORD = r"[+#]+"


@dataclass(frozen=True)
class NameList:
    """Names of entities, such as brands or places; an entity may have several names.

    A text names an entity if it contains the words of one of its names in sequence. Words are runs
    of letters and digits, with trailing ``+`` or ``#`` (``c++``), in any case and Unicode form. A
    name inside a longer name of any kind does not count: "new york times" does not name "york".
    """

    kinds: list[str]
    kind_of: Int64s  # (entities,) index of each entity's kind in ``kinds``
    entity_of: Int64s  # (names,) the entity of each name
    whole: HashIndex  # the names by the hash of their words
    prefixes: UInt64s  # ascending hashes of the first one, two, ... words of names

    @classmethod
    def from_names(
        cls, kinds: pa.StringArray, names: pa.StringArray, entities: UInt64s
    ) -> "NameList":
        """Build from kinds and names (names,); ``entities`` (names,) number what they name."""
        encoded = kinds.dictionary_encode()
        _, first, entity_of = np.unique(entities, return_index=True, return_inverse=True)
        phrases, prefixes = _hash_phrases(names)
        return cls(
            encoded.dictionary.to_pylist(),
            encoded.indices.to_numpy()[first].astype(np.int64),
            entity_of,
            HashIndex.from_hashes(phrases),
            prefixes,
        )

    @cached_property
    def _is_whole(self) -> Booleans:
        return find(self.prefixes, self.whole.hashes) >= 0

    def find_in_table(self, dataset: Dataset, table: str, ids: Int64s | None = None) -> csr_array:
        """Return (rows, entities) bool: which a table's rows, or those with ``ids`` (n,), name."""
        id_column = schema_of(table).names[0]
        wanted = None if ids is None else pa.array(ids, pa.int64())
        rows, entities = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for batch in dataset.batches(table, [id_column, "text"]):
            chosen = batch if wanted is None else batch.filter(pc.is_in(batch[0], wanted))
            positions, found = self.find(chosen["text"])
            rows.append(chosen[0].to_numpy()[positions])
            entities.append(found)
        pairs = np.concatenate(rows), np.concatenate(entities)
        shape = (dataset.num_rows(table), len(self.kind_of))
        return csr_array((np.ones(len(pairs[0]), dtype=np.bool_), pairs), shape=shape)

    def find(self, texts: pa.StringArray) -> tuple[Int64s, Int64s]:
        """Find the entities that texts (n,) name, as unique, ascending (position, entity) pairs."""
        words, lengths = _words(texts)
        text_of_word = np.repeat(np.arange(len(texts)), lengths)
        end_of_text = np.repeat(np.cumsum(lengths), lengths)
        names = np.zeros(len(words), dtype=np.uint64)  # the longest one that starts at each word
        ends = np.zeros(len(words), dtype=np.int64)
        starts, phrases, length = np.arange(len(words)), np.zeros_like(words), 0
        while len(starts):
            phrases = mix(phrases ^ words[starts + length])
            places = find(phrases, self.prefixes)
            length += 1
            is_whole = (places >= 0) & self._is_whole[places]
            names[starts[is_whole]] = phrases[is_whole]
            ends[starts[is_whole]] = starts[is_whole] + length
            goes_on = (places >= 0) & (starts + length < end_of_text[starts])
            starts, phrases = starts[goes_on], phrases[goes_on]
        reached = np.concatenate([[0], np.maximum.accumulate(ends)])[:-1]
        counted = np.flatnonzero(ends > reached)  # the others are inside a name that starts earlier
        positions, found = self.whole.all(names[counted])
        pairs = text_of_word[counted[positions]] * len(self.kind_of) + self.entity_of[found]
        return np.divmod(np.unique(pairs), len(self.kind_of))


def read_names(source: str) -> NameList:
    """Read a list of names in CSV, TSV or parquet: ``kind``, ``name`` and optionally ``same_as``.

    ``same_as`` is another name of the same entity and kind: ``place,nyc,new york``.

    Raises:
        DatasetError: the list is missing or empty, lacks a column, or has rows that are wrong.
    """
    first = find_files(source, ["kind", "name"])[0]
    if first.format == "jsonl":
        raise DatasetError(f"{source}: a list of names must be CSV, TSV or parquet")
    columns = {"kind": Column("kind"), "name": Column("name", optional=True)}
    if SAME_AS in first.header:
        columns[SAME_AS] = Column(SAME_AS, optional=True)
    table = UserTable(source, columns, skip_bad_rows=False, advice=ADVICE)
    rows = table.read()
    kinds, names = fold(rows["kind"].combine_chunks()), rows["name"].combine_chunks()
    of_kind, phrases = hash_strings(kinds), _hash_phrases(names.fill_null(""))[0]
    entities = own = mix(phrases ^ of_kind)
    if SAME_AS in columns:
        aliases = rows[SAME_AS].combine_chunks()
        named = mix(_hash_phrases(aliases.fill_null(""))[0] ^ of_kind)
        entities = np.where(aliases.is_null(), own, named)
    is_known = np.isin(entities, own[entities == own])
    for role, bad, message in (
        ("name", phrases == 0, "names need a letter or a digit"),
        (SAME_AS, ~is_known, "are not a name of the kind, or have a same_as themselves"),
        ("name", is_known & _has_several(own, entities), "same names have another same_as"),
    ):
        table.report_rows(role, message, ADVICE, rows.filter(pa.array(bad)))
    table.check()
    if not len(rows):
        raise DatasetError(f"{source} holds no names")
    return NameList.from_names(kinds, names, entities)


def _has_several(keys: UInt64s, values: UInt64s) -> Booleans:
    """Flag the rows (n,) whose key has several values."""
    key_of_pair = np.unique(np.stack([keys, values]), axis=1)[0]
    return np.isin(keys, key_of_pair[1:][key_of_pair[1:] == key_of_pair[:-1]])


def _hash_phrases(texts: pa.StringArray) -> tuple[UInt64s, UInt64s]:
    """Hash each text's words (n,), 0 if it has none, and all of its prefixes.

    Prefixes are the first one, two, ... words, up to all; their hashes are unique and ascending.
    """
    words, lengths = _words(texts)
    firsts = np.cumsum(lengths) - lengths
    phrases = np.zeros(len(texts), dtype=np.uint64)
    prefixes = [phrases[:0]]
    for length in range(lengths.max(initial=0)):
        goes_on = lengths > length
        phrases[goes_on] = mix(phrases[goes_on] ^ words[firsts[goes_on] + length])
        prefixes.append(phrases[goes_on])
    return phrases, np.unique(np.concatenate(prefixes))


def _words(texts: pa.StringArray) -> tuple[UInt64s, Int64s]:
    """Return the hashes of all words (words,) and how many of them each text (n,) has."""
    spaced = pc.replace_substring_regex(fold(texts), NOT_IN_A_WORD, " ")
    spaced = pc.replace_substring_regex(spaced, SIGNS_BEFORE_A_WORD, " ")
    spaced = pc.replace_substring_regex(spaced, SIGNS_BEHIND_A_WORD, r"\0 ")
    lists = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(spaced))
    words = lists.flatten().dictionary_encode()
    hashes = hash_strings(words.dictionary)[words.indices.to_numpy()]
    is_word = pc.not_equal(words, "").to_numpy(zero_copy_only=False)  # an empty text has ""
    lengths = pc.list_value_length(lists).to_numpy().astype(np.int64)
    text_of_word = np.repeat(np.arange(len(texts)), lengths)[is_word]
    return hashes[is_word], np.bincount(text_of_word, minlength=len(texts))
