"""Recipes of the built-in datasets: sources worked by hand, errors, and what keeps edges strict."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import run_python
from written_out import clicked_pairs, clicks_of, column_of, edges_of, pairs_of

from corpus import AnchorSet, Corpus, build_tables
from debian import build_debian
from foldoc import build_foldoc
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.data.store.schemas import SPLITS
from rdocs import build_rdocs

BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

# Enough entries and packages for the shares that make a mention junk and a dependency a hub.
ENTRIES = {
    "alpha": "<letter, greek> First, like {beta} and {delta}. See also\n   {GAMMA}.",
    "beta\nthe second": "<letter> After {alpha}. See {junk}.",
    "gamma": "<letter> After {The  Second}; {junk}, {gamma}, {nowhere}.",
    "delta": "<letter> After {gamma}. {junk}.",
    "epsilon": "<letter> After {delta}.",
    "junk": "What everyone names.",
} | {f"filler {number}": "No references." for number in range(44)}

# In both, " / " ends a line.
VOCABULARY = """\
Facet: role / Description: Role

Tag: role::program / Description: Program /  Executable computer program.

Tag: role::TODO / Description: Need an extra tag

Facet: special / Description: Service tags

Tag: special::unreviewed / Description: Needs review
""".replace(" / ", "\n")

PACKAGES = (
    """\
Package: vim / Version: 2:9.0
Depends: libc6 (>= 2.34), libedit [amd64] | libedit-tiny, editor-common:any
Pre-Depends: dpkg / Recommends: vim-data
Suggests: speller (>= 1) | aspell:any, mail-agent, ambiguous, old-vim, libedit, vim, nowhere
Description: text editor /  The long description is not read.
Tag: role::program, role::TODO, /  special::unreviewed, unknown::tag
Section: editors

Package: vim-data / Source: vim (2:9.0-3) / Depends: aspell / Suggests: vim
Description: text editor - data / Section: misc

Package: vim-plugin / Source: plugins / Depends: vim / Suggests: speller / Enhances: vim
Description: plugin

Package: aspell / Description: spell checker / Recommends: vim-data
Depends: vim-data-reader | speller

Package: speller / Description: other spell checker / Suggests: libc6, libedit

Package: postie / Depends: libc6 / Provides: mail-agent (= 1) / Description: mail agent

Package: one / Provides: ambiguous / Description: first provider

Package: two / Provides: ambiguous / Description: second provider

Package: libedit / Description: line editing

Package: libc6 / Description: C library

Package: dpkg / Description: package manager

Package: vim / Version: 1:1.0 / Recommends: two / Description: text editor of another version

Package: old-vim / Description: transitional package for vim / Recommends: vim

Package: vim-dbg / Description: text editor / Recommends: vim

Package: vim-debug / Section: debug / Description: text editor / Recommends: vim

Package: vim-symbols / Description: text editor (debugging symbols) / Recommends: vim
""".replace(" / ", "\n")
    + "".join(
        f"\nPackage: filler{number}\nDescription: filler\nDepends: libc6\n" for number in range(44)
    )
)

REFUSED = [
    ("vocabulary", None, "vocabulary"),
    ("Packages", "Package: a\nDescription\n", "Packages.* line 2"),
    ("rdocs.tsv", "base\tsort\tSort\n", r"rdocs\.tsv.* line 1"),
]
"""A file of a source, what is written in its place, and the place that is named."""


# Package, page, title, aliases, see also, links, keywords. "twice" stands for two pages of packages
# that are not R's own, "pick" for one, as topics that are not for readers do not count.
TOPICS = [
    "base|sort|Sort a vector|sort;sorts|^order;^rev;^sort|^split;^index;=rank^ranks;^order|manip",
    "base|order|Order a table|order|^nowhere;zoo^merge;^pick||manip",
    "base|split|Split a vector|split|^sort;^rev;^merge|^rank|",
    "base|rev|Reverse a vector|rev|^split;^sort||rare",
    "base|rank|Rank values|rank|plots:line-page^any;^twice;zoo^sort||rare",
    "stats|merge-page|Merge two tables|merge|||rare",
    "plots|line-page|Draw a line|line|^fit||",
    "plots|fit|Fit a line|fit;twice||^line|manip;rare",
    "zoo|bind|Bind rows|merge;twice|||manip",
    "zoo|pick|Sample values|pick|stats:merge-page^any||",
    "zoo|line|draw a line|zooline|^merge||manip",
    "zoo|zoo-internal|Internal sort functions|sort.zoo|^sort|^sort|",
    "plots|old|Deprecated Functions|pick|^sort|^sort|",
    "plots|reexports|Objects exported from other packages|sort;pick|^sort|^sort|",
    "guide|index|Index of help|index|||",
] + [f"filler|f{n}|Filler {n}|f{n}||{'^index' if n < 3 else ''}|" for n in range(44)]


def _write_rdocs(folder):
    folder.mkdir()
    lines = [topic.replace("|", "\t").replace("^", "|") + "\n" for topic in TOPICS]
    (folder / "rdocs.tsv").write_text("".join(lines), encoding="utf-8")
    return folder


def _write_foldoc(folder):
    folder.mkdir()
    data = b""
    index = []
    for headwords, body in ENTRIES.items():
        entry = f"{headwords}\n\n   {body}\n\n".encode()
        for headword in headwords.split("\n"):
            index.append(f"{headword}\t{_to_base64(len(data))}\t{_to_base64(len(entry))}\n")
        data += entry
    (folder / "foldoc.index").write_text("".join(index), encoding="utf-8")
    (folder / "foldoc.dict.dz").write_bytes(gzip.compress(data))
    return folder


def _to_base64(number):
    return (_to_base64(number // 64) if number >= 64 else "") + BASE64[number % 64]


def _write_debian(folder):
    folder.mkdir()
    (folder / "Packages").write_text(PACKAGES, encoding="utf-8")
    (folder / "vocabulary").write_text(VOCABULARY, encoding="utf-8")
    return folder


def _names(pairs):
    """Shorten package texts to names; tag texts stay."""
    return {(a.split(": ")[0], b if b[0].isupper() else b.split(": ")[0]) for a, b in pairs}


def test_foldoc_tables(tmp_path):
    """A dictionary by hand; the hash has given beta and gamma to test and split the mentions."""
    dataset = build_foldoc(_write_foldoc(tmp_path / "source"), tmp_path / "output")
    assert clicks_of(dataset, "train") == {
        "alpha": ["gamma"],
        "delta": ["gamma"],
        "epsilon": ["delta"],
    }
    assert clicks_of(dataset, "validation") == {}
    assert clicks_of(dataset, "test") == {"beta": ["alpha"], "gamma": ["beta"]}
    # alpha also mentions beta, but beta -> alpha is a test click: no edge on any side.
    links = {("alpha", "delta"), ("delta", "alpha")}
    assert edges_of(dataset, "links", "query") == edges_of(dataset, "links", "ad") == links
    published = {side: edges_of(dataset, "links_published", side) for side in ("query", "ad")}
    leaks = {("alpha", "beta"), ("beta", "alpha")}
    assert published == {"query": links | {("alpha", "beta")}, "ad": links | leaks}
    # beta's only link is to alpha, its answer, which no oracle may see
    assert not dataset.has("edges/links/test_query")
    assert not dataset.has("edges/links_published/test_query")
    assert edges_of(dataset, "categories", "test_query") == {
        ("beta", "letter"),
        ("gamma", "letter"),
    }
    assert column_of(dataset, "anchors/categories") == ["letter"]
    assert edges_of(dataset, "categories", "ad") == {
        (a, "letter") for a in column_of(dataset, "ads")
    }
    own = {("beta", "beta"), ("gamma", "gamma")}
    assert pairs_of(dataset, "filters/test", "queries/test", "ads") == own


def test_debian_tables(tmp_path):
    """An index by hand; the hash has given the source plugins to test and aspell to validation.

    By its own name, or its source field as written, vim-data would be in test; its source vim
    brings it into train.
    """
    source = _write_debian(tmp_path / "source")
    release = "Origin: Debian\nCodename: bookworm\nDate: Sat, 11 Jul 2026 10:16:37 UTC\n"
    (source / "InRelease").write_text(release, encoding="utf-8")
    dataset = build_debian(source, tmp_path / "output")
    aspell = "aspell: spell checker"
    data = "vim-data: text editor - data"
    speller = "speller: other spell checker"
    assert clicks_of(dataset, "train") == {
        "vim: text editor": [aspell, "postie: mail agent", speller, data, "vim-plugin: plugin"],
        data: ["vim: text editor"],
        speller: ["libc6: C library", "libedit: line editing"],
    }
    assert clicks_of(dataset, "validation") == {aspell: [data]}
    assert clicks_of(dataset, "test") == {"vim-plugin: plugin": [speller]}
    # libc6 is a hub, and vim-data -> aspell would join the texts of aspell's validation click.
    own = {("vim", "dpkg"), ("vim", "libedit")}
    assert _names(edges_of(dataset, "depends", "query")) == own
    others = {("aspell", "speller"), ("vim-plugin", "vim")}
    assert _names(edges_of(dataset, "depends", "ad")) == own | others
    tags = {("vim", "Role: Program"), ("vim", "Section: editors"), ("vim-data", "Section: misc")}
    assert _names(edges_of(dataset, "tags", "query")) == tags
    built = {("vim", "vim"), ("vim-data", "vim")}  # aspell and plugins build one package each
    assert _names(edges_of(dataset, "sources", "query")) == built
    assert pairs_of(dataset, "filters/validation", "queries/validation", "ads") == {
        (aspell, aspell)
    }
    assert dataset.metadata["suite"] == "bookworm"


def test_rdocs_tables(tmp_path):
    """Help topics by hand; the hash has given Split to test and Sample to validation.

    The reverse of a test click, Reverse -> Split, is no train click.
    """
    dataset = build_rdocs(_write_rdocs(tmp_path / "source"), tmp_path / "output")
    assert clicks_of(dataset, "train") == {
        "Draw a line": ["Bind rows", "Fit a line"],
        "Order a table": ["Bind rows", "Sample values"],
        "Rank values": ["Draw a line"],
        "Reverse a vector": ["Sort a vector"],
        "Sort a vector": ["Order a table", "Reverse a vector"],
    }
    assert clicks_of(dataset, "validation") == {"Sample values": ["Merge two tables"]}
    assert clicks_of(dataset, "test") == {
        "Split a vector": ["Merge two tables", "Reverse a vector", "Sort a vector"]
    }
    ads = set(column_of(dataset, "ads"))
    clicked = {ad for _, ad in clicked_pairs(dataset)}
    assert ads == clicked | {"Split a vector"}
    mentions = [("Sort a vector", "Rank values"), ("Split a vector", "Rank values")]
    mentions += [("Fit a line", "Draw a line")]
    links = {*mentions, *(pair[::-1] for pair in mentions)}
    leak = ("Sort a vector", "Split a vector")
    for side, nodes in (("query", clicks_of(dataset, "train")), ("ad", ads)):
        strict = {edge for edge in links if edge[0] in nodes}
        assert edges_of(dataset, "links", side) == strict
        more = {edge for edge in (leak, leak[::-1]) if edge[0] in nodes}
        assert edges_of(dataset, "links_published", side) == strict | more
    # package guide and keyword "rare" have too few topics, package filler has too many
    manip = {"Bind rows", "Draw a line", "Fit a line", "Order a table", "Sort a vector"}
    in_manip = {node for node, anchor in edges_of(dataset, "categories", "ad") if anchor == "manip"}
    assert in_manip == manip & ads
    assert sorted(column_of(dataset, "anchors/categories")) == ["base", "manip"]


@pytest.mark.parametrize(("file", "content", "place"), REFUSED)
def test_broken_sources_are_refused_by_file_and_line(file, content, place, tmp_path):
    is_rdocs = file == "rdocs.tsv"
    source = (_write_rdocs if is_rdocs else _write_debian)(tmp_path / "source")
    (source / file).unlink()
    if content is not None:
        (source / file).write_text(content)
    with pytest.raises(DatasetError, match=place):
        (build_rdocs if is_rdocs else build_debian)(source, tmp_path / "output")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


NODES = st.sampled_from("abcdef")
RELATION = st.dictionaries(NODES, st.sets(NODES))


@given(
    clicks=RELATION,
    anchors=RELATION,
    splits=st.lists(st.sampled_from(SPLITS), min_size=6, max_size=6),
)
def test_tables_drop_just_the_edges_that_join_a_held_out_click(clicks, anchors, splits):
    split_of = dict(zip("abcdef", splits, strict=True))
    texts = {name: name.upper() for name in "abcdef"}
    tables = build_tables(
        Corpus(texts, texts, clicks, split_of, {"graph": AnchorSet(texts, anchors)})
    )
    held_out = {
        frozenset((query.upper(), ad.upper()))
        for query, ads in clicks.items()
        if split_of[query] != "train"
        for ad in ads
    }
    clicked = {ad for ads in clicks.values() for ad in ads}
    train = {query for query, ads in clicks.items() if ads and split_of[query] == "train"}
    found = {}
    for name in {table.split("/")[1] for table in tables if table.startswith("anchors/")}:
        anchor_texts = tables[f"anchors/{name}"]["text"].to_pylist()
        used = set()
        for side, table in (("query", "queries/train"), ("ad", "ads")):
            edges = tables.get(f"edges/{name}/{side}")  # none if it would be empty
            rows = [] if edges is None else edges.to_pylist()
            pairs = [(row[f"{side}_id"], row["anchor_id"]) for row in rows]
            node_texts = tables[table]["text"].to_pylist()
            found.setdefault(name, []).append({(node_texts[n], anchor_texts[a]) for n, a in pairs})
            used |= {anchor for _, anchor in pairs}
        assert used == set(range(len(anchor_texts)))
    published = [
        {(node.upper(), anchor.upper()) for node in nodes for anchor in anchors.get(node, ())}
        for nodes in (train, clicked)
    ]
    strict = [{edge for edge in edges if frozenset(edge) not in held_out} for edges in published]
    more = {} if strict == published else {"graph_published": published}
    assert found == {"graph": strict, **more}
    for nodes, table in ((train, "queries/train"), (clicked, "ads")):
        assert tables[table].columns[0].to_pylist() == list(range(len(nodes)))


def test_a_recipe_is_one_command(tmp_path):
    """It prints where the result is; one that exists stays as it is: one line, code 2."""
    source = _write_foldoc(tmp_path / "source")
    output = tmp_path / "output"
    command = ["datasets/build/foldoc.py", "--source", str(source), "--output", str(output)]
    assert str(output) in run_python(*command).stdout
    before = Dataset(output).fingerprint
    refused = run_python(*command, code=2)
    assert refused.stderr.startswith("error: ")
    assert len(refused.stderr.splitlines()) == 1
    assert Dataset(output).fingerprint == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "source"]
