"""Build the ``rdocs`` dataset directory from the help topics of R and of packages for it.

Query: a topic's title. Ads: the topics that its section "See also" links to. Anchor set ``links``:
the topics that its other sections link to, in both directions. Anchor set ``categories``: its
package, keywords and concepts.

    Rscript datasets/build/rdocs.R sources/rdocs.tsv
    python datasets/build/rdocs.py --source sources/rdocs.tsv --output rdocs

The source is the list of topics that rdocs.R writes (plain or .xz), or a folder with it as
rdocs.tsv or rdocs.tsv.xz.
"""

import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from command import run_recipe
from corpus import AnchorSet, Corpus, build_tables, split_by_hash
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset

LICENCE = "Topics' titles: the free licence of each package"
SOURCE = "Help pages of R 4.2.2 and of 604 r-cran packages of Debian 12 bookworm"
MAX_MENTION_FRACTION = 0.05
MIN_CATEGORY_TOPICS = 5
MAX_CATEGORY_FRACTION = 0.1

TOPIC_FILES = ("rdocs.tsv", "rdocs.tsv.xz")
COLUMNS = ("package", "name", "title", "aliases", "see also", "links", "keywords")
R_PACKAGES = (
    *("base", "stats", "utils", "methods", "graphics", "grDevices", "datasets", "tools", "grid"),
    *("splines", "stats4", "parallel", "tcltk", "compiler"),
)
_LEFT_OUT = re.compile(
    r"internal|deprecat|defunct|re-?export|(?:ex|im)ported from|pipe operator|tidy ?eval",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Topic:
    """One help page; links are ``OPTION|TEXT`` as their page has them."""

    package: str
    name: str
    title: str
    aliases: tuple[str, ...]
    see_also: tuple[str, ...]
    links: tuple[str, ...]
    keywords: tuple[str, ...]


def build_rdocs(source: Path, output: Path) -> Dataset:
    """Rebuild the built-in help topics from what rdocs.R has listed.

    Args:
        source: The list of topics, or a folder with it.
        output: Dataset directory to write; must not exist.

    Raises:
        DatasetError: the list is missing or broken, or ``output`` exists.
    """
    tables = build_tables(build_corpus(read_topics(source)))
    return write_dataset(output, tables, name="rdocs", source=SOURCE, licence=LICENCE)


def read_topics(source: Path) -> list[Topic]:
    """Read the topics: one a line, columns by tabs, lists by semicolons.

    Whatever the order of the lines, they come by package and page.
    """
    files = [source / name for name in TOPIC_FILES] if source.is_dir() else [source]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise DatasetError(f"{' or '.join(map(str, files))} is missing; rdocs.R writes it")
    topics = [_parse_topic(line, f"{file}, line {row}") for row, line in _read_lines(file)]
    if not any(topic.see_also for topic in topics):
        raise DatasetError(f"{file} lists no topic with a see-also link")
    return sorted(topics, key=lambda topic: (topic.package.casefold(), topic.package, topic.name))


def _read_lines(file: Path) -> Iterator[tuple[int, str]]:
    open_text = lzma.open if file.suffix == ".xz" else open
    try:
        with open_text(file, "rt", encoding="utf-8", newline="\n") as lines:
            yield from enumerate(lines, start=1)
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise DatasetError(f"{file} cannot be read: {error}") from error


def _parse_topic(line: str, place: str) -> Topic:
    cells = line.rstrip("\r\n").split("\t")
    if len(cells) != len(COLUMNS):
        raise DatasetError(
            f"{place}: {len(cells)} cells between tabs, expected {len(COLUMNS)}: "
            f"{', '.join(COLUMNS)}"
        )
    if not all(cells[:3]):
        raise DatasetError(f"{place}: package, name or title is empty")
    package, name, title = cells[:3]
    aliases, see_also, links, keywords = (
        tuple(filter(None, cell.split(";"))) for cell in cells[3:]
    )
    return Topic(package, name, title, aliases, see_also, links, keywords)


class _Titles:
    """The titles that names stand for; titles that differ in letter case only are one title."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        self._spellings: dict[str, str] = {}
        self._by_alias: dict[str, dict[str, str]] = defaultdict(dict)
        self._by_page: dict[tuple[str, str], str] = {}
        for topic in topics:
            title = self._spellings.setdefault(topic.title.casefold(), topic.title)
            self._by_page.setdefault((topic.package, topic.name), title)
            for alias in topic.aliases:
                self._by_alias[alias].setdefault(topic.package, title)

    def of(self, topic: Topic) -> str:
        return self._spellings[topic.title.casefold()]

    def linked(self, links: Iterable[str], topic: Topic) -> set[str]:
        """Resolve links of a topic; those to its own title, or to nothing known, are left out."""
        targets = (self._target(link, topic.package) for link in links)
        return {title for title in targets if title is not None} - {self.of(topic)}

    def _target(self, link: str, package: str) -> str | None:
        # R's \link[=ALIAS]{text}, \link[PACKAGE:PAGE]{text}, \link[PACKAGE]{PAGE}, \link{ALIAS}
        option, _, text = link.partition("|")
        if option and not option.startswith("="):
            package, _, page = option.partition(":")
            name = page or text
            return self._by_alias[name].get(package) or self._by_page.get((package, name))
        titles = self._by_alias[option[1:] or text]
        known = [titles[place] for place in (package, *R_PACKAGES) if place in titles]
        only = list(titles.values()) if len(titles) == 1 else []
        return next(iter(known + only), None)


def build_corpus(topics: list[Topic]) -> Corpus:
    """Merge the topics of one title and resolve their links.

    Topics that are not meant for readers (internal, deprecated, re-exported) are left out. A train
    click is dropped where its reverse is a held-out click; what it leads to stays an ad.
    """
    topics = [topic for topic in topics if not _LEFT_OUT.search(topic.title)]
    titles = _Titles(topics)
    see_also: dict[str, set[str]] = defaultdict(set)
    mentions: dict[str, set[str]] = defaultdict(set)
    labels: dict[str, set[str]] = defaultdict(set)
    for topic in topics:
        title = titles.of(topic)
        see_also[title] |= titles.linked(topic.see_also, topic)
        mentions[title] |= titles.linked(topic.links, topic)
        labels[title] |= {topic.package, *topic.keywords}
    texts = {title: title for title in see_also}
    split_of = {title: split_by_hash(title) for title in texts}
    return Corpus(
        query_texts=texts,
        ad_texts=texts,
        clicks=_without_reversed(see_also, split_of),
        split_of=split_of,
        anchor_sets={
            "links": AnchorSet(texts, _links(mentions, see_also)),
            "categories": _categories(labels),
        },
        further_ads={title for targets in see_also.values() for title in targets},
    )


def _without_reversed(clicks: dict[str, set[str]], split_of: dict[str, str]) -> dict[str, set[str]]:
    """Drop the train clicks whose reverse is a held-out click."""
    return {
        query: {
            ad
            for ad in ads
            if split_of[query] != "train" or split_of[ad] == "train" or query not in clicks[ad]
        }
        for query, ads in clicks.items()
    }


def _links(mentions: dict[str, set[str]], see_also: dict[str, set[str]]) -> dict[str, set[str]]:
    """Join titles both ways where one mentions the other outside its see-also list; no hubs."""
    counts = Counter(target for targets in mentions.values() for target in targets)
    limit = MAX_MENTION_FRACTION * len(mentions)
    links: dict[str, set[str]] = defaultdict(set)
    for title, targets in mentions.items():
        for target in targets - see_also[title]:
            if counts[target] <= limit:
                links[title].add(target)
                links[target].add(title)
    return links


def _categories(labels: dict[str, set[str]]) -> AnchorSet:
    counts = Counter(label for names in labels.values() for label in names)
    limit = MAX_CATEGORY_FRACTION * len(labels)
    kept = {name: name for name, n in counts.items() if MIN_CATEGORY_TOPICS <= n <= limit}
    return AnchorSet(kept, {title: names & set(kept) for title, names in labels.items()})


if __name__ == "__main__":
    run_recipe(build_rdocs, __doc__)
