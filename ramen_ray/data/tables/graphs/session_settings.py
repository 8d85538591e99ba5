"""Settings of co-session graphs: where the log is, and which pairs become edges."""

from dataclasses import dataclass, field
from typing import Literal

from ramen_ray.data.leaks import Protocol
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.tables.column_names import SessionColumns
from ramen_ray.data.tables.reading.columns import NullWords

Weight = Literal["cosine", "pmi"]


@dataclass(frozen=True)
class SessionLog:
    """A log of search sessions: one row per query searched or ad clicked."""

    sessions: str
    """CSV, TSV, JSON lines or parquet; a file, a folder or a glob."""
    columns: SessionColumns = field(default_factory=SessionColumns)
    """Names of the columns in the log."""
    null_words: NullWords = "leave-out"
    """What to do with rows whose query or ad is a word for nothing, such as NULL or N/A."""


@dataclass(frozen=True)
class SessionSettings:
    """Which pairs become edges, and their weights.

    Attributes:
        min_support: Smallest number of sessions in which a pair must occur.
        max_session_length: Largest number of events of a session; later ones are dropped.
        window_s: Largest number of seconds between the two events of a pair.
        top_k: Largest number of anchors of a node; the heaviest edges are kept.
        max_anchor_degree: Largest number of edges of an anchor; the heaviest are kept.
        weight: With c sessions that have both, n and m that have the one and the other, and N in
            all: cosine is c / sqrt(n m); pmi is log(c N / (n m)), and only edges above 0 are kept.
        query_set: Name of the anchor set of queries that share sessions.
        ad_set: Name of the anchor set of ads that are clicked in the same sessions.
        protocol: strict leaves out edges that join a held-out query to its answer, unclicked also
            those that repeat a train click; as-published keeps all.
    """

    min_support: int = 2
    max_session_length: int = 100
    window_s: float = 1800.0
    top_k: int = 10
    max_anchor_degree: int = 500
    weight: Weight = "cosine"
    query_set: str = "co_session"
    ad_set: str = "co_click"
    protocol: Protocol = "strict"

    def __post_init__(self) -> None:
        """Refuse settings that would leave no edges."""
        lowest = {"min_support": 1, "max_session_length": 2, "top_k": 1, "max_anchor_degree": 1}
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise DatasetError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if not self.window_s >= 0:
            raise DatasetError(f"window_s is {self.window_s}; it must be at least 0")
        if self.query_set == self.ad_set:
            raise DatasetError(f"query_set and ad_set are both {self.ad_set!r}; they must differ")
