"""Turn a small corpus of named nodes, clicks and anchors into the dataset directory's tables.

Two protocols say which edges training may see of the texts of held-out queries. *Strict*: no edge,
of either side, joins a held-out query's text to one of its answers. *As published*: edges as the
source has them, except that a held-out click is no edge of the query side. Each anchor set follows
the strict one; where the two differ, a second set with the suffix ``_published`` follows the other.
The edges of held-out queries themselves are kept apart, for an oracle; under either protocol none
of them joins the texts of a held-out click. Texts that differ only in case, white space or Unicode
form count as one text.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ramen_ray.data.store.same_texts import fold
from ramen_ray.data.store.schemas import HELD_OUT_SIDES, PUBLISHED, SPLITS, schema_of

Pairs = set[tuple[str, str]]
Nodes = Mapping[str, Mapping[str, str]]
"""By side: each node's folded text by its name, in the order of the nodes' ids."""
Edges = Mapping[str, set[tuple[int, str]]]
"""By side: each edge's node id and anchor's name."""


@dataclass(frozen=True)
class AnchorSet:
    """One graph: the anchors' texts by name, and each node's anchors."""

    texts: Mapping[str, str]
    anchors_of: Mapping[str, Iterable[str]]


@dataclass(frozen=True)
class Corpus:
    """Nodes that can be queries and ads; all mappings are keyed by a node's name.

    ``further_ads`` are ads whether or not a click names them.
    """

    query_texts: Mapping[str, str]
    ad_texts: Mapping[str, str]
    clicks: Mapping[str, Iterable[str]]
    split_of: Mapping[str, str]
    anchor_sets: Mapping[str, AnchorSet]
    further_ads: Iterable[str] = ()


def hash_fraction(*strings: str) -> float:
    """Map strings to a fixed pseudo-random number in [0, 1)."""
    digest = hashlib.blake2b("\0".join(strings).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def split_by_hash(name: str, test_fraction: float = 0.2, validation_fraction: float = 0.1) -> str:
    """Assign a name to a split; ``validation_fraction`` is a share of what is not test."""
    if hash_fraction("test", name) < test_fraction:
        return "test"
    return "validation" if hash_fraction("validation", name) < validation_fraction else "train"


def build_tables(corpus: Corpus) -> dict[str, pa.Table]:
    """Number queries, ads and anchors densely and build all tables.

    Queries without ads are left out, and so are anchors without edges of train queries or ads. Each
    anchor set is made strict; a second one as published is added where it has other edges.
    """
    clicks = {query: sorted(set(ads)) for query, ads in sorted(corpus.clicks.items())}
    clicks = {query: ads for query, ads in clicks.items() if ads}
    ads = sorted({*corpus.further_ads, *(ad for targets in clicks.values() for ad in targets)})
    ad_ids = {ad: row for row, ad in enumerate(ads)}
    queries = {
        split: [query for query in clicks if corpus.split_of[query] == split] for split in SPLITS
    }
    tables = {"ads": _text_table("ads", [corpus.ad_texts[ad] for ad in ads])}
    for split, names in queries.items():
        tables[f"queries/{split}"] = pa.table(
            {
                "query_id": range(len(names)),
                "text": [corpus.query_texts[name] for name in names],
                "ad_ids": [[ad_ids[ad] for ad in clicks[name]] for name in names],
            },
            schema=schema_of(f"queries/{split}"),
        )
        if split != "train":
            tables[f"filters/{split}"] = _own_text_filters(names, split, ad_ids)
    query_texts, ad_texts = _folded(corpus.query_texts), _folded(corpus.ad_texts)
    held_out = {
        (query_texts[query], ad_texts[ad])
        for split in ("validation", "test")
        for query in queries[split]
        for ad in clicks[query]
    }
    nodes = {
        "query": {query: query_texts[query] for query in queries["train"]},
        "ad": {ad: ad_texts[ad] for ad in ads},
    }
    for split, side in HELD_OUT_SIDES.items():
        nodes[side] = {query: query_texts[query] for query in queries[split]}
    for name, anchor_set in corpus.anchor_sets.items():
        strict = _strict_edges(anchor_set, nodes, held_out)
        published = _published_edges(anchor_set, nodes, held_out)
        tables |= _anchor_tables(name, strict, anchor_set.texts)
        if published != strict:
            tables |= _anchor_tables(name + PUBLISHED, published, anchor_set.texts)
    return tables


def _text_table(table: str, texts: list[str]) -> pa.Table:
    schema = schema_of(table)
    return pa.table({schema.names[0]: range(len(texts)), "text": texts}, schema=schema)


def _own_text_filters(names: list[str], split: str, ad_ids: Mapping[str, int]) -> pa.Table:
    pairs = [(row, ad_ids[name]) for row, name in enumerate(names) if name in ad_ids]
    columns = {"query_id": [row for row, _ in pairs], "ad_id": [ad for _, ad in pairs]}
    return pa.table(columns, schema=schema_of(f"filters/{split}"))


def _folded(texts: Mapping[str, str]) -> dict[str, str]:
    return dict(zip(texts, fold(pa.array(texts.values(), pa.string())).to_pylist(), strict=True))


def _strict_edges(anchor_set: AnchorSet, nodes: Nodes, held_out: Pairs) -> Edges:
    leaks = held_out | {(ad, query) for query, ad in held_out}
    return {side: _edges(anchor_set, names, leaks) for side, names in nodes.items()}


def _published_edges(anchor_set: AnchorSet, nodes: Nodes, held_out: Pairs) -> Edges:
    return {
        **_strict_edges(anchor_set, nodes, held_out),
        "query": _edges(anchor_set, nodes["query"], held_out),
        "ad": _edges(anchor_set, nodes["ad"], set()),
    }


def _edges(anchor_set: AnchorSet, text_of: Mapping[str, str], leaks: Pairs) -> set[tuple[int, str]]:
    anchor_texts = _folded(anchor_set.texts)
    return {
        (row, anchor)
        for row, (name, text) in enumerate(text_of.items())
        for anchor in anchor_set.anchors_of.get(name, ())
        if (text, anchor_texts[anchor]) not in leaks
    }


def _anchor_tables(name: str, edges: Edges, texts: Mapping[str, str]) -> dict[str, pa.Table]:
    anchors = sorted({anchor for side in ("query", "ad") for _, anchor in edges[side]})
    anchor_ids = {anchor: row for row, anchor in enumerate(anchors)}
    tables = {f"anchors/{name}": _text_table(f"anchors/{name}", [texts[a] for a in anchors])}
    for side, pairs in edges.items():
        rows = sorted((node, anchor_ids[anchor]) for node, anchor in pairs if anchor in anchor_ids)
        if not rows:
            continue
        tables[f"edges/{name}/{side}"] = pa.table(
            [[node for node, _ in rows], [anchor for _, anchor in rows], [1.0] * len(rows)],
            schema=schema_of(f"edges/{name}/{side}"),
        )
    return tables
