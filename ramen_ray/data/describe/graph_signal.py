"""What an anchor set could bring, as far as one can tell before training.

A graph helps where it ties queries to the ads that are clicked for them. Held-out queries have no
edges, so this is measured on train clicks: how often does a query share an anchor with its ad, and
how often with an ad that was clicked for another query? A set with edges on one side only is
measured by its pairs: how often do ads that it joins share a query that led to both?

The dataset must be free of errors (:func:`ramen_ray.data.checks.validation.check`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Booleans, Int64s, keyed_hash
from ramen_ray.data.checks.rules import find_answers, leaking, texts_of
from ramen_ray.data.describe.counts import CLICKS, Degrees
from ramen_ray.data.engine import Connection, add_function, count, name_literal, run, text_literal
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN

NUM_SHUFFLES = 10
OF_CLICKS = 0.995
FEWEST_LIFT = 2.0
MAX_CLICKS = 200_000  # if there are more train clicks, this many are used, chosen by their hash
_SAMPLE = NUM_SHUFFLES  # a hash key that no shuffle has

Pairs = tuple[Int64s, Int64s]  # the ids (n,) of the two nodes of each pair


@dataclass(frozen=True)
class Shared:
    """How many of some pairs have a third thing in common, and how many by chance."""

    pairs: int  # clicks whose query and ad both have edges; or that a set of one side joins
    shared: int  # clicks whose query and ad share an anchor; or pairs that share a click
    by_chance: float  # ``shared`` if one end is shuffled among the pairs, on average

    @property
    def share(self) -> float:
        """``shared`` over ``pairs``."""
        return self.shared / self.pairs if self.pairs else 0.0

    @property
    def share_by_chance(self) -> float:
        """``by_chance`` over ``pairs``."""
        return self.by_chance / self.pairs if self.pairs else 0.0

    @property
    def lift(self) -> float:
        """``shared`` over ``by_chance``, which is at least what the shuffles can resolve."""
        return self.shared / max(self.by_chance, 1 / NUM_SHUFFLES)


@dataclass(frozen=True)
class GraphSignal:
    """What an anchor set could bring."""

    sides: tuple[str, ...]  # those with edges: query, ad or both
    edges_per_query: float  # on average over the train queries
    edges_per_ad: float  # on average over the ads
    test_clicks: int
    reached_clicks: int  # those of them on ads without a train click but with edges
    shared: Shared  # over the train clicks, or over the pairs that a set of one side joins
    shared_beyond_words: Shared  # over those of them that have no word in common
    edges: int
    leaking_edges: int  # those of them that join a held-out query to its answer

    @property
    def is_void(self) -> bool:
        """Whether it was made from the clicks themselves, so that its lift says nothing."""
        return self.shared.share >= OF_CLICKS and self.shared.lift >= FEWEST_LIFT

    @property
    def share_reached(self) -> float:
        """Share of the test clicks that only the graph reaches."""
        return self.reached_clicks / max(self.test_clicks, 1)

    @property
    def share_leaking(self) -> float:
        """Share of the edges that leak."""
        return self.leaking_edges / max(self.edges, 1)


def graph_signals(
    connection: Connection, dataset: Dataset, degrees: Mapping[tuple[str, str], Degrees]
) -> dict[str, GraphSignal]:
    """Measure every anchor set, by the ``degrees`` of :func:`count_degrees` in the connection."""
    if not dataset.anchor_sets:
        return {}
    queries, ads = _sample_clicks(connection, degrees[CLICKS, "ad"].nodes)
    tests = f"SELECT unnest(ad_ids) AS node FROM {name_literal('queries/test')}"
    num_tests = count(connection, f"SELECT count(*) FROM ({tests})")
    is_bare = f"node NOT IN ({_linked(CLICKS, 'ad')})"
    bare_tests = connection.sql(f"SELECT node FROM ({tests}) WHERE {is_bare}").fetchnumpy()["node"]
    signals = {}
    leaks = _count_leaks(connection, dataset)
    wordless = ~_words_in_common(connection, ("query", "ad"), (queries, ads))
    for name in dataset.anchor_sets:
        per_side = {side: degrees[name, side] for side in NODE_TABLES}
        sides = tuple(side for side, of_side in per_side.items() if of_side.edges)
        linked = {
            side: connection.sql(_linked(name, side)).fetchnumpy()["node"] for side in per_side
        }
        if len(sides) == 2:
            both = np.isin(queries, linked["query"]) & np.isin(ads, linked["ad"])
            pairs = (queries[both], ads[both])
            chosen = wordless[both]
            things = _edges_of(name, "query"), _edges_of(name, "ad")
        else:
            (side,) = sides
            nodes = np.unique(queries if side == "query" else ads)
            pairs = joined_pairs(connection, name, side, nodes)
            chosen = ~_words_in_common(connection, (side, side), pairs)
            things = _clicks_of(side), _clicks_of(side)
        _create_things(connection, things, pairs)
        beyond_words = pairs[0][chosen], pairs[1][chosen]
        signals[name] = GraphSignal(
            sides=sides,
            edges_per_query=per_side["query"].edges / per_side["query"].nodes,
            edges_per_ad=per_side["ad"].edges / per_side["ad"].nodes,
            test_clicks=num_tests,
            reached_clicks=int(np.isin(bare_tests, linked["ad"]).sum()),
            shared=_count_shared(connection, pairs, sides),
            shared_beyond_words=_count_shared(connection, beyond_words, sides),
            edges=sum(of_side.edges for of_side in per_side.values()),
            leaking_edges=leaks[name],
        )
    return signals


def _linked(graph: str, side: str) -> str:
    """Return the SQL that selects each ``node`` of a side that has edges or clicks."""
    where = f"graph = {text_literal(graph)} AND side = '{side}' AND degree > 0"
    return f"SELECT node FROM degrees WHERE {where}"


def _count_leaks(connection: Connection, dataset: Dataset) -> dict[str, int]:
    """Count the edges of each anchor set that join a held-out query to its answer."""
    in_answers = "SELECT query FROM answers UNION SELECT ad FROM answers"
    counts = dict.fromkeys(dataset.anchor_sets, 0)
    find_answers(connection, dataset.tables)
    for side, table in NODE_TABLES.items():
        ends = f"FROM ({texts_of(table)}) WHERE folded IN ({in_answers})"
        run(connection, f"reading {table}", f"CREATE OR REPLACE TABLE ends AS {ends}")
        for name in dataset.anchor_sets:
            edges = f"edges/{name}/{side}"
            if dataset.has(edges):
                pairs = leaking("FROM ends", texts_of(f"anchors/{name}"))
                joined = f"JOIN ({pairs}) ON {side}_id = node AND anchor_id = anchor"
                counts[name] += count(
                    connection, f"SELECT count(*) FROM {name_literal(edges)} {joined}"
                )
    return counts


def _sample_clicks(connection: Connection, num_ads: int) -> Pairs:
    """Return the query and the ad of each train click (clicks,), of at most ``MAX_CLICKS``."""
    add_function(connection, "draw", partial(keyed_hash, (_SAMPLE,)), "BIGINT", "UBIGINT")
    lowest = f"""SELECT *
        FROM (SELECT query_id, unnest(ad_ids) AS ad_id FROM {name_literal(TRAIN)})
        ORDER BY draw(query_id * {num_ads} + ad_id) LIMIT {MAX_CLICKS}"""
    clicks = connection.sql(f"FROM ({lowest}) ORDER BY ALL").fetchnumpy()
    return clicks["query_id"], clicks["ad_id"]


def joined_pairs(connection: Connection, name: str, side: str, nodes: Int64s) -> Pairs:
    """Return the pairs among ``nodes`` (n,), which ascend, that an anchor set joins.

    An anchor whose text is a node's joins that node to others, as in co-click graphs. Other anchors
    join nodes that have them in common. What there is more of counts.
    """
    draws = keyed_hash((_SAMPLE,), np.arange(len(nodes)))
    connection.register("nodes", pa.table({"node": nodes, "draw": draws}))
    edges = f"({_edges_of(name, side)}) JOIN nodes USING (node)"
    direct = f"""SELECT node, named.node AS other FROM {edges}
        JOIN ({texts_of(f"anchors/{name}")}) AS anchors ON anchors.id = thing
        JOIN (
            SELECT min(node) AS node, fold(text) AS folded FROM ({_texts_of(side, "nodes")})
            GROUP BY folded) AS named
        ON named.folded = anchors.folded
        WHERE node <> named.node ORDER BY node, thing"""
    common = f"""SELECT * EXCLUDE (thing, draw) FROM (
            SELECT node, thing, draw, coalesce(
                lead(node) OVER of_anchor, first_value(node) OVER of_anchor) AS other
            FROM {edges} WINDOW of_anchor AS (PARTITION BY thing ORDER BY draw))
        WHERE node <> other ORDER BY thing, draw"""
    joined = (connection.execute(sql).fetchnumpy() for sql in (direct, common))
    pairs = max(((pair["node"], pair["other"]) for pair in joined), key=lambda pair: len(pair[0]))
    chosen = np.argsort(keyed_hash((_SAMPLE,), np.arange(len(pairs[0]))))[:MAX_CLICKS]
    return pairs[0][chosen], pairs[1][chosen]


def _edges_of(anchor_set: str, side: str) -> str:
    """Return the SQL that selects each ``node`` of a side and each ``thing``, an anchor, it has."""
    edges = name_literal(f"edges/{anchor_set}/{side}")
    return f"SELECT {side}_id AS node, anchor_id AS thing FROM {edges}"


def _clicks_of(side: str) -> str:
    """Return the SQL that selects nodes of a side and the things that have a click with them."""
    clicks = f"SELECT query_id, unnest(ad_ids) AS ad_id FROM {name_literal(TRAIN)}"
    node, thing = ("query_id", "ad_id") if side == "query" else ("ad_id", "query_id")
    return f"SELECT {node} AS node, {thing} AS thing FROM ({clicks})"


def _words_of(side: str) -> str:
    """Return the SQL that selects ``wanted`` nodes of a side, and words of their folded texts."""
    words = r"unnest(regexp_extract_all(fold(text), '[\p{L}\p{N}]+'))"
    return f"SELECT node, {words} AS thing FROM ({_texts_of(side, 'wanted')})"


def _texts_of(side: str, nodes: str) -> str:
    """Select the ``node`` and ``text`` of the nodes in a table; to fold all texts takes long."""
    texts = texts_of(NODE_TABLES[side])
    return f"SELECT id AS node, text FROM ({texts}) WHERE id IN (SELECT node FROM {nodes})"


def _count_shared(connection: Connection, pairs: Pairs, sides: tuple[str, ...]) -> Shared:
    """Count the pairs (n,) whose nodes have a thing in common, and how many do by chance."""
    left, right = pairs
    by_chance = []
    for key in range(NUM_SHUFFLES):
        dealt = right[np.argsort(keyed_hash((key,), np.arange(len(right))))]
        # a shuffle may pair a node of one side with itself
        apart = (left != dealt) | (len(sides) == 2)
        num_shared = int(_flag_shared(connection, left[apart], dealt[apart]).sum())
        by_chance.append(num_shared * len(left) / max(int(apart.sum()), 1))
    shared = int(_flag_shared(connection, left, right).sum())
    return Shared(len(left), shared, float(np.mean(by_chance)))


def _words_in_common(connection: Connection, sides: tuple[str, str], pairs: Pairs) -> Booleans:
    """Flag the pairs (n,) of nodes of two sides whose texts share a word, in any case."""
    _create_things(connection, (_words_of(sides[0]), _words_of(sides[1])), pairs)
    return _flag_shared(connection, *pairs)


def _create_things(connection: Connection, things: tuple[str, str], pairs: Pairs) -> None:
    """Create ``left_things`` and ``right_things``: ``node`` and ``thing``, of the pairs' nodes."""
    for name, sql, nodes in zip(("left", "right"), things, pairs, strict=True):
        connection.register("wanted", pa.table({"node": np.unique(nodes)}))
        rows = f"SELECT DISTINCT node, thing FROM ({sql}) SEMI JOIN wanted USING (node)"
        create = f"CREATE OR REPLACE TABLE {name}_things AS {rows}"
        run(connection, "reading what nodes may have in common", create)


def _flag_shared(connection: Connection, left: Int64s, right: Int64s) -> Booleans:
    """Flag the pairs (n,) whose nodes have something in common in the tables of things."""
    pairs = pa.table({"pair": np.arange(len(left)), "left_": left, "right_": right})
    connection.register("pairs", pairs)
    shared = """SELECT DISTINCT pair FROM pairs
        JOIN left_things AS one ON one.node = left_
        JOIN right_things AS other ON other.node = right_ AND other.thing = one.thing"""
    flags = np.zeros(len(left), dtype=np.bool_)
    flags[connection.execute(shared).fetchnumpy()["pair"]] = True
    return flags
