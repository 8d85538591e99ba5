"""Build the ``debian`` dataset directory from a Debian package index and debtags' vocabulary.

Query: a package's name and short description. Ads: the packages that it recommends or suggests,
and those that declare that they enhance it. Anchor set ``depends``: the packages that it depends
on, as directed edges. Anchor set ``tags``: its debtags labels and its section. Anchor set
``sources``: the source package that it is built from, if other packages are built from it too.

    python datasets/build/debian.py --source sources/debian --output debian

The source is a folder with a package index (Packages, plain, .xz or .gz), the file vocabulary of
Debian's debtags and, to record suite and date, InRelease.
"""

import gzip
import lzma
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from command import run_recipe
from corpus import AnchorSet, Corpus, build_tables, split_by_hash
from ramen_ray.data.store.dataset import Dataset, DatasetError, write_dataset

LICENCE = "Package descriptions: the free licence of each package; tag texts: GPL-2"
SOURCE = "Debian package index (Packages) and the vocabulary of Debian's package debtags"
MAX_DEPENDANT_FRACTION = 0.05

_INDEX_FILES = ("Packages", "Packages.xz", "Packages.gz")
_RELEASE_FILES = ("InRelease", "Release")
_RELEASE_FIELDS = {"suite": "Codename", "suite_version": "Version", "date": "Date"}
_PACKAGE_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9+.-]+)")
# "transition" and "dummy" alone also occur with state machines, display drivers and bridge.
_LEFT_OUT = re.compile(
    r"\btransitionn?al\b|\btransition package\b|\bdummy package\b|\(dummy\)"
    r"|\bdebug(?:ging)? symbols\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Package:
    """One binary package; relations hold package names as written, without their qualifiers."""

    name: str
    source: str
    description: str
    section: str
    tags: frozenset[str]
    depends: frozenset[str]
    recommends: frozenset[str]
    enhances: frozenset[str]
    provides: frozenset[str]

    @property
    def text(self) -> str:
        """The package's text as a query, an ad or an anchor."""
        return f"{self.name}: {self.description}"


def build_debian(source: Path, output: Path) -> Dataset:
    """Rebuild the built-in package archive from Packages and vocabulary.

    Args:
        source: Folder with the package index, the vocabulary and perhaps a release file.
        output: Dataset directory to write; must not exist.

    Raises:
        DatasetError: a source file is missing or broken, or ``output`` exists.
    """
    tag_texts = read_tag_texts(source / "vocabulary")
    corpus = build_corpus(read_packages(source), tag_texts)
    metadata = {"name": "debian", "source": SOURCE, **read_release(source), "licence": LICENCE}
    return write_dataset(output, build_tables(corpus), **metadata)


def read_packages(source: Path) -> dict[str, Package]:
    """Read the packages by name, the first of each name, but no transitional or debug packages."""
    file = _first_file(source, _INDEX_FILES)
    if file is None:
        raise DatasetError(f"{source} has no Debian package index: {' or '.join(_INDEX_FILES)}")
    packages: dict[str, Package] = {}
    for line, paragraph in _read_paragraphs(file):
        package = _parse_package(paragraph, f"{file}, line {line}")
        if not _is_left_out(package):
            packages.setdefault(package.name, package)
    if not packages:
        raise DatasetError(f"{file} lists no packages")
    return packages


def read_tag_texts(file: Path) -> dict[str, str]:
    """Read the text of each tag of the vocabulary, as the words "facet: value".

    Service tags (``special::``) and placeholders (``TODO``) are left out, as they say nothing about
    a package.
    """
    if not file.is_file():
        raise DatasetError(f"{file} is missing; it is usr/share/debtags/vocabulary of debtags")
    facets, texts = {}, {}
    for line, paragraph in _read_paragraphs(file):
        text = paragraph.get("description", "").split("\n")[0]
        if "facet" in paragraph:
            facets[paragraph["facet"]] = text
        elif "tag" in paragraph:
            tag = paragraph["tag"]
            facet = tag.split("::")[0]
            if facet not in facets:
                raise DatasetError(f"{file}, line {line}: tag {tag!r} comes before its facet")
            if facet != "special" and not tag.endswith("TODO"):
                texts[tag] = f"{facets[facet]}: {text}"
    return texts


def read_release(source: Path) -> dict[str, str]:
    """Read suite, version and date from the index's release file, if the folder has it."""
    file = _first_file(source, _RELEASE_FILES)
    text = file.read_text(encoding="utf-8") if file else ""
    found = {
        key: re.search(rf"^{field}: *(.+)$", text, re.MULTILINE)
        for key, field in _RELEASE_FIELDS.items()
    }
    return {key: match.group(1).strip() if match else "unknown" for key, match in found.items()}


def _first_file(folder: Path, names: Iterable[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _read_paragraphs(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each paragraph's first line number and fields, names in lower case, as a stream."""
    try:
        with _open_text(file) as lines:
            yield from _parse_paragraphs(lines, file)
    except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError) as error:
        raise DatasetError(f"{file} cannot be read: {error}") from error


def _open_text(file: Path) -> IO[str]:
    if file.suffix == ".xz":
        return lzma.open(file, "rt", encoding="utf-8")
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8")
    return file.open(encoding="utf-8")


def _parse_paragraphs(lines: Iterable[str], file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    fields: dict[str, str] = {}
    name, first = "", 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            if fields:
                yield first, fields
            fields = {}
        elif line[0].isspace() and fields:
            fields[name] += "\n" + line.strip()
        else:
            name, colon, value = line.partition(":")
            if not colon:
                raise DatasetError(f"{file}, line {number}: no 'Field: value' in {line.strip()!r}")
            first = first if fields else number
            name = name.lower()
            fields[name] = value.strip()
    if fields:
        yield first, fields


def _parse_package(paragraph: dict[str, str], place: str) -> Package:
    for field in ("package", "description"):
        if not paragraph.get(field):
            raise DatasetError(f"{place}: the paragraph has no {field.capitalize()!r} field")

    def names(*fields: str) -> frozenset[str]:
        items = (item for field in fields for item in re.split("[,|]", paragraph.get(field, "")))
        matches = map(_PACKAGE_NAME.match, items)
        return frozenset(match.group(1) for match in matches if match)

    name = paragraph["package"]
    return Package(
        name=name,
        source=(paragraph.get("source") or name).split()[0],
        description=paragraph["description"].split("\n")[0],
        section=paragraph.get("section", ""),
        tags=frozenset(re.split(r"[,\s]+", paragraph.get("tag", ""))),
        depends=names("depends", "pre-depends"),
        recommends=names("recommends", "suggests"),
        enhances=names("enhances"),
        provides=names("provides"),
    )


def _is_left_out(package: Package) -> bool:
    return (
        package.section.endswith("debug")
        or package.name.endswith(("-dbg", "-dbgsym"))
        or _LEFT_OUT.search(package.description) is not None
    )


def build_corpus(packages: dict[str, Package], tag_texts: dict[str, str]) -> Corpus:
    """Resolve the packages' relations into clicks and anchor sets.

    A package that the query depends on is not an ad of it. ``depends`` leaves out hubs: packages
    that more than ``MAX_DEPENDANT_FRACTION`` of all packages depend on.
    """
    providers = _single_providers(packages)

    def resolve(package: Package, relation: frozenset[str]) -> set[str]:
        return {providers[name] for name in relation if name in providers} - {package.name}

    depends = {name: resolve(package, package.depends) for name, package in packages.items()}
    clicks = {name: resolve(package, package.recommends) for name, package in packages.items()}
    for name, package in packages.items():
        for enhanced in resolve(package, package.enhances):
            clicks[enhanced].add(name)
    if not any(clicks.values()):
        raise DatasetError("no package of the index recommends, suggests or enhances another")
    num_dependants = Counter(target for targets in depends.values() for target in targets)
    limit = MAX_DEPENDANT_FRACTION * len(packages)
    hubs = {name for name, count in num_dependants.items() if count > limit}
    labels = {name: _labels(package, tag_texts) for name, package in packages.items()}
    tags = {text: text for texts in labels.values() for text in texts}
    num_built = Counter(package.source for package in packages.values())
    sources = {
        name: {package.source} if num_built[package.source] > 1 else set()
        for name, package in packages.items()
    }
    texts = {name: package.text for name, package in packages.items()}
    return Corpus(
        query_texts=texts,
        ad_texts=texts,
        clicks={name: targets - depends[name] for name, targets in clicks.items()},
        split_of={name: split_by_hash(package.source) for name, package in packages.items()},
        anchor_sets={
            "depends": AnchorSet(texts, {name: needed - hubs for name, needed in depends.items()}),
            "tags": AnchorSet(tags, labels),
            "sources": AnchorSet({source: source for source in num_built}, sources),
        },
    )


def _single_providers(packages: dict[str, Package]) -> dict[str, str]:
    """Map each name, real or virtual, that only one package provides to that package's name."""
    providers = defaultdict(set)
    for package in packages.values():
        for virtual in package.provides:
            providers[virtual].add(package.name)
    single = {virtual: min(names) for virtual, names in providers.items() if len(names) == 1}
    return single | {name: name for name in packages}


def _labels(package: Package, tag_texts: dict[str, str]) -> set[str]:
    section = {f"Section: {package.section}"} if package.section else set()
    return {tag_texts[tag] for tag in package.tags if tag in tag_texts} | section


if __name__ == "__main__":
    run_recipe(build_debian, __doc__)
