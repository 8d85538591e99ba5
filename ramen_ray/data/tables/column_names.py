"""What a user calls the columns of tables: the flags ``--columns``, alike in every command."""

from dataclasses import dataclass, fields

from ramen_ray.data.tables.reading.cells import TimeUnit


@dataclass(frozen=True)
class AdColumns:
    """Names of the columns in a table of ads."""

    ad_id: str = "ad_id"
    """Id of an ad in a table of ads."""
    ad_text: tuple[str, ...] = ("text",)
    """Text of an ad in a table of ads; several columns are joined by a space."""
    ad_filters: tuple[str, ...] = ()
    """Columns of a table of ads that are kept to filter answers by, such as market and status."""


@dataclass(frozen=True)
class NewAdColumns(AdColumns):
    """Names of the columns in tables of new ads and of first clicks on them."""

    clicks_ad: str = "ad_id"
    """Ad of a click: its id."""
    clicks_query: str = "query"
    """Query of a click: its text."""


@dataclass(frozen=True)
class EdgeColumns:
    """Names of the columns in tables of edges and anchors."""

    edges_query: str | None = None
    """Query of an edge: your id of it, its text, or, if the dataset does not have your ids, its
    number among the train queries; default query, or in an import the clicks' column."""
    edges_ad: str | None = None
    """Ad of an edge: your id of it, its text, or, if the dataset does not have your ids, its
    number; default ad_id, or in an import the clicks' column."""
    edges_anchor: str = "anchor"
    """Anchor of an edge: its id, or its text if there is no table of anchors."""
    edges_weight: str | None = None
    """Weight of an edge; without it every edge has weight 1."""
    anchor_id: str = "anchor_id"
    """Id of an anchor in a table of anchors."""
    anchor_text: tuple[str, ...] = ("text",)
    """Text of an anchor in a table of anchors; several columns are joined by a space."""


@dataclass(frozen=True)
class SessionColumns:
    """Names of the columns in a log of sessions."""

    sessions_session: str = "session_id"
    """The row's session."""
    sessions_time: str = "time"
    """The row's time: a timestamp, ISO 8601 text, or a number of sessions_time_unit."""
    sessions_time_unit: TimeUnit = "s"
    """What numbers in the column of times count since 1970; yyyymmdd are days such as 20260901."""
    sessions_query: str = "query"
    """The query's text, or your id of it."""
    sessions_ad: str | None = "ad_id"
    """The clicked ad, or empty: your id, its text or, if the dataset does not have your ids, its
    number; None if the log has no ads."""


@dataclass(frozen=True)
class Columns(EdgeColumns, AdColumns):
    """Names of the columns in the tables of an import."""

    clicks_query: str | None = None
    """Query of a click: its id (default query_id), or its text (default query) if there is no
    table of queries."""
    clicks_ad: str | None = None
    """Ad of a click: its id (default ad_id), or its text (default ad) if there is no table of
    ads."""
    clicks_weight: str | None = None
    """Weight of a click, such as a count; without it every row counts 1."""
    clicks_time: str | None = None
    """Time of a click: a timestamp, ISO 8601 text, or a number of clicks_time_unit."""
    clicks_time_unit: TimeUnit = "s"
    """What numbers in the column of times count since 1970; yyyymmdd are days such as
    20260901."""
    query_id: str = "query_id"
    """Id of a query in the table of queries."""
    query_text: tuple[str, ...] = ("text",)
    """Text of a query in the table of queries; several columns are joined by a space."""
    query_split: str | None = None
    """Split of a query in the table of queries: train, validation or test."""
    splits_query: str | None = None
    """Query in the table of splits, named as the clicks name it; default the clicks' column."""
    splits_split: str = "split"
    """Split in the table of splits: train, validation or test."""
    filters_query: str | None = None
    """Query of a filter pair, named as the clicks name it; default the clicks' column."""
    filters_ad: str | None = None
    """Ad of a filter pair, named as the clicks name it; default the clicks' column."""

    def of_edges(self, query: str, ad: str) -> EdgeColumns:
        """Return the names in tables of edges, which name queries and ads as the clicks do."""
        own = {one.name: getattr(self, one.name) for one in fields(EdgeColumns)}
        own["edges_query"], own["edges_ad"] = self.edges_query or query, self.edges_ad or ad
        return EdgeColumns(**own)
