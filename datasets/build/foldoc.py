"""Build the ``foldoc`` dataset directory from the dictionary's dictd files.

Query: an entry's title. Ads: the entries that it lists under "see also", and half of the other
entries that it mentions, chosen by a hash. Anchor set ``links``: the remaining mentions, in both
directions. Anchor set ``categories``: the entry's category labels.

    python datasets/build/foldoc.py --source /usr/share/dictd --output foldoc

The source is the folder with foldoc.index and foldoc.dict.dz of Debian's dict-foldoc.
"""

import gzip
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from command import run_recipe
from corpus import AnchorSet, Corpus, build_tables, hash_fraction, split_by_hash
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset

LICENCE = "GNU Free Documentation License, version 1.1 or later"
SOURCE = "Debian package dict-foldoc 20230119-1 (The Free On-line Dictionary of Computing)"
MAX_MENTION_FRACTION = 0.05
MIN_CATEGORY_ENTRIES = 5

_DIGITS = {
    character: value
    for value, character in enumerate(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    )
}
_REFERENCE = re.compile(r"\{([^{}]*)\}")
_SEE_ALSO = re.compile(r"\b[Ss]ee also\b((?:\{[^{}]*\}|[^.{}])*)")
_CATEGORIES = re.compile(r"\s*<([a-z][^<>]*)>")


@dataclass(frozen=True)
class Entry:
    """One definition: its title, other headwords and body, with runs of white space joined."""

    title: str
    aliases: tuple[str, ...]
    body: str


def build_foldoc(source: Path, output: Path) -> Dataset:
    """Rebuild the built-in dictionary from foldoc.index and foldoc.dict.dz.

    Args:
        source: Folder with the two files.
        output: Dataset directory to write; must not exist.

    Raises:
        DatasetError: a source file is missing or ``output`` exists.
    """
    tables = build_tables(build_corpus(read_entries(source)))
    return write_dataset(output, tables, name="foldoc", source=SOURCE, licence=LICENCE)


def read_entries(source: Path) -> list[Entry]:
    """Read the dictionary's entries in file order, one per title (letter case ignored)."""
    index, data = source / "foldoc.index", source / "foldoc.dict.dz"
    for file in (index, data):
        if not file.is_file():
            raise DatasetError(f"{file} is missing; unpack Debian's dict-foldoc package there")
    text = gzip.decompress(data.read_bytes())
    spans = set()
    for line in index.read_text(encoding="utf-8").splitlines():
        headword, offset, length = line.split("\t")
        if not headword.startswith("00database"):
            spans.add((_from_base64(offset), _from_base64(length)))
    entries: dict[str, Entry] = {}
    for start, size in sorted(spans):
        entry = _parse_entry(text[start : start + size].decode("utf-8", errors="replace"))
        if entry is not None:
            entries.setdefault(entry.title.casefold(), entry)
    return list(entries.values())


def _from_base64(text: str) -> int:
    value = 0
    for character in text:
        value = value * 64 + _DIGITS[character]
    return value


def _parse_entry(text: str) -> Entry | None:
    """Split a definition into headwords (the unindented first lines) and its indented body."""
    lines = text.strip("\n").split("\n")
    first_body_line = next(
        (row for row, line in enumerate(lines) if not line or line[0].isspace()), len(lines)
    )
    headwords = [line.strip() for line in lines[:first_body_line]]
    if not headwords:
        return None
    body = " ".join(" ".join(lines[first_body_line:]).split())
    return Entry(headwords[0], tuple(headwords[1:]), body)


def build_corpus(entries: list[Entry]) -> Corpus:
    """Resolve the entries' references and divide them among clicks and anchor sets."""
    titles = {name.casefold(): e.title for e in entries for name in (*e.aliases,)}
    titles |= {e.title.casefold(): e.title for e in entries}
    mentions = {e.title: _resolve(_REFERENCE.findall(e.body), titles, e.title) for e in entries}
    see_also = {
        e.title: _resolve(_REFERENCE.findall(" ".join(_SEE_ALSO.findall(e.body))), titles, e.title)
        for e in entries
    }
    counts = Counter(target for targets in mentions.values() for target in targets)
    junk = {title for title, count in counts.items() if count > MAX_MENTION_FRACTION * len(entries)}
    clicks, links = {}, defaultdict(set)
    for title, targets in mentions.items():
        others = targets - see_also[title] - junk
        mentioned_ads = {target for target in others if hash_fraction(title, target) < 0.5}
        clicks[title] = (see_also[title] - junk) | mentioned_ads
        for target in others - mentioned_ads:
            links[title].add(target)
            links[target].add(title)
    texts = {e.title: e.title for e in entries}
    categories = {e.title: _categories(e.body) for e in entries}
    category_counts = Counter(name for names in categories.values() for name in names)
    frequent = {name: name for name, n in category_counts.items() if n >= MIN_CATEGORY_ENTRIES}
    return Corpus(
        query_texts=texts,
        ad_texts=texts,
        clicks=clicks,
        split_of={title: split_by_hash(title) for title in texts},
        anchor_sets={
            "links": AnchorSet(texts, links),
            "categories": AnchorSet(
                frequent, {title: names & set(frequent) for title, names in categories.items()}
            ),
        },
    )


def _resolve(references: list[str], titles: dict[str, str], own_title: str) -> set[str]:
    found = (titles.get(" ".join(reference.split()).casefold()) for reference in references)
    return {title for title in found if title is not None and title != own_title}


def _categories(body: str) -> set[str]:
    match = _CATEGORIES.match(body)
    return {name.strip() for name in match.group(1).split(",")} if match else set()


if __name__ == "__main__":
    run_recipe(build_foldoc, __doc__)
