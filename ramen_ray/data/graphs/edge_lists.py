"""Settings for importing a user's own edges, and the nodes that their cells name."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import pyarrow as pa

from ramen_ray.data.arrays import Booleans, Int64s, UInt64s
from ramen_ray.data.leaks import Protocol


@dataclass(frozen=True)
class EdgeList:
    """Where the edges are: CSV, TSV, JSON lines or parquet; files, folders or globs.

    Attributes:
        query_edges: Edges of queries; those of validation and test queries are left out.
        ad_edges: Edges of ads.
        anchors: Table of the anchors' ids and texts; without it, edges name anchors by text.
        query_column: The query: your id of it, its text, or, if the dataset does not have your ids,
            its number among the train queries.
        ad_column: The ad: your id of it, its text, or, if the dataset does not have your ids, its
            number.
        anchor_column: The anchor: its text, or its id in the table of anchors.
        weight_column: An edge's weight, above 0; without it all edges have weight 1.
        anchor_id_column: Id of an anchor in the table of anchors.
        anchor_text_column: Text of an anchor in the table of anchors.
        skip_bad_rows: Leave out and count rows with empty cells, bad weights, or unknown queries,
            ads and anchors, instead of refusing them.
        protocol: strict leaves out edges that join a held-out query to its answer; as-published
            keeps them.
    """

    query_edges: str | None = None
    ad_edges: str | None = None
    anchors: str | None = None
    query_column: str = "query"
    ad_column: str = "ad_id"
    anchor_column: str = "anchor"
    weight_column: str | None = None
    anchor_id_column: str = "anchor_id"
    anchor_text_column: str = "text"
    skip_bad_rows: bool = False
    protocol: Protocol = "strict"

    @property
    def tables(self) -> dict[str, tuple[str, list[str]]]:
        """The given tables among anchors, query and ad, with the columns to read."""
        of_edge = [self.anchor_column, *([self.weight_column] if self.weight_column else [])]
        named = {
            "anchors": (self.anchors, [self.anchor_id_column, self.anchor_text_column]),
            "query": (self.query_edges, [self.query_column, *of_edge]),
            "ad": (self.ad_edges, [self.ad_column, *of_edge]),
        }
        return {kind: (source, names) for kind, (source, names) in named.items() if source}


@dataclass(frozen=True)
class Named:
    """The nodes that cells name; a cell may name several nodes, or none.

    Attributes:
        positions: (pairs,) positions of cells.
        nodes: (pairs,) the nodes that they name.
        left_out: by kind of node, which cells (cells,) name one that must not have edges.
        is_leak: given the hashes (pairs,) of the anchors' folded texts, flags the edges that join a
            held-out query to its answer; None keeps them.
    """

    positions: Int64s
    nodes: Int64s
    left_out: Mapping[str, Booleans]
    is_leak: Callable[[UInt64s], Booleans] | None = None


Naming = Callable[[pa.StringArray], Named]


def made_by(edge_list: EdgeList) -> dict[str, object]:
    """Return how the anchor set was made, for ``dataset.json``."""
    return {"made_by": "edges", "settings": asdict(edge_list)}
