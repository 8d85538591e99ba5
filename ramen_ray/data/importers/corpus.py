"""Turn a small corpus of named nodes, clicks and anchors into the dataset directory's tables."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from ramen_ray.data.store.schemas import SPLITS, schema_of


@dataclass(frozen=True)
class AnchorSet:
    """One graph: the anchors' texts by name, and each node's anchors."""

    texts: Mapping[str, str]
    anchors_of: Mapping[str, Iterable[str]]


@dataclass(frozen=True)
class Corpus:
    """Nodes that can be queries and ads; all mappings are keyed by a node's name."""

    query_texts: Mapping[str, str]
    ad_texts: Mapping[str, str]
    clicks: Mapping[str, Iterable[str]]
    split_of: Mapping[str, str]
    anchor_sets: Mapping[str, AnchorSet]


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

    Queries without ads and anchors without edges are left out. An edge of either side
    is dropped if it joins the two texts of a held-out click, in either direction.
    """
    clicks = {query: sorted(set(ads)) for query, ads in sorted(corpus.clicks.items())}
    clicks = {query: ads for query, ads in clicks.items() if ads}
    ads = sorted({ad for targets in clicks.values() for ad in targets})
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
    held_out = {
        (corpus.query_texts[query], corpus.ad_texts[ad])
        for split in ("validation", "test")
        for query in queries[split]
        for ad in clicks[query]
    }
    for name, anchor_set in corpus.anchor_sets.items():
        tables |= _anchor_tables(name, anchor_set, corpus, (queries["train"], ads), held_out)
    return tables


def _text_table(table: str, texts: list[str]) -> pa.Table:
    schema = schema_of(table)
    return pa.table({schema.names[0]: range(len(texts)), "text": texts}, schema=schema)


def _own_text_filters(names: list[str], split: str, ad_ids: Mapping[str, int]) -> pa.Table:
    pairs = [(row, ad_ids[name]) for row, name in enumerate(names) if name in ad_ids]
    columns = {"query_id": [row for row, _ in pairs], "ad_id": [ad for _, ad in pairs]}
    return pa.table(columns, schema=schema_of(f"filters/{split}"))


def _anchor_tables(
    name: str,
    anchor_set: AnchorSet,
    corpus: Corpus,
    nodes: tuple[list[str], list[str]],
    held_out: set[tuple[str, str]],
) -> dict[str, pa.Table]:
    train_queries, ads = nodes

    def edges_of(names: list[str], texts: Mapping[str, str]) -> list[tuple[int, str]]:
        edges = []
        for row, node in enumerate(names):
            for anchor in set(anchor_set.anchors_of.get(node, ())):
                pair = texts[node], anchor_set.texts[anchor]
                if pair not in held_out and pair[::-1] not in held_out:
                    edges.append((row, anchor))
        return edges

    sides = {
        "query": edges_of(train_queries, corpus.query_texts),
        "ad": edges_of(ads, corpus.ad_texts),
    }
    anchors = sorted({anchor for edges in sides.values() for _, anchor in edges})
    anchor_ids = {anchor: row for row, anchor in enumerate(anchors)}
    tables = {
        f"anchors/{name}": _text_table(f"anchors/{name}", [anchor_set.texts[a] for a in anchors])
    }
    for side, edges in sides.items():
        schema = schema_of(f"edges/{name}/{side}")
        rows = sorted((node, anchor_ids[anchor]) for node, anchor in edges)
        tables[f"edges/{name}/{side}"] = pa.table(
            [[node for node, _ in rows], [anchor for _, anchor in rows], [1.0] * len(rows)],
            schema=schema,
        )
    return tables
