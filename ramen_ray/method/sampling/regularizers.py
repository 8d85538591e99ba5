"""The regularisers R_x and R_z of anchor sets, and the graphs that they draw from."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from ramen_ray.data.prepared.csr import Csr

NodeChoice = Literal["all", "rare", "clicked"]
"""Which nodes regularisers draw: all with edges alike, or the rarely clicked more often, or the
batch's queries and ads."""


class Regularizer(NamedTuple):
    """R_x (side query) or R_z (side ad) of an anchor set: pulls nodes to their anchors."""

    anchor_set: str
    side: Literal["query", "ad"]

    @property
    def name(self) -> str:
        """Its name among the terms of the objective."""
        return f"R_{'x' if self.side == 'query' else 'z'}/{self.anchor_set}"

    @property
    def path(self) -> str:
        """Where its edges are in a folder of graphs."""
        return f"{self.anchor_set}/{self.side}"


Graphs = Mapping[Regularizer, Csr]
"""Each regulariser's edges: train query rows, or ads, x anchors."""


def open_graphs(edges: Path, regularizers: Iterable[Regularizer]) -> Graphs:
    """Map the graphs in the folder ``edges``, stored as SET/{query,ad}."""
    return {one: Csr.open(edges / one.path) for one in regularizers}
