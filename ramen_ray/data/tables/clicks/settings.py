"""Settings of an import of a user's own tables."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Literal

import numpy as np
import pyarrow as pa

from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.schemas import Protocol
from ramen_ray.data.tables.graphs.anchor_sets import check_spelling
from ramen_ray.data.tables.graphs.edges import EdgeColumns, EdgeList
from ramen_ray.data.tables.reading.cells import TimeUnit, as_seconds, in_our_time
from ramen_ray.data.tables.reading.columns import AdColumns, NullWords


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
    clicks_views: str | None = None
    """Impressions of a row, for weights coec and min_expected; without it every row is one, or as
    many as its clicks."""
    clicks_position: str | None = None
    """Position at which the ad was shown, a number; for weights coec and min_expected."""
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
    judged_query: str | None = None
    """Query of a judgement, named as the clicks name it; default the clicks' column."""
    judged_ad: str | None = None
    """Ad of a judgement, named as the clicks name it; default the clicks' column."""
    judged_grade: str = "grade"
    """Grade of a judgement, from 0 to judged_highest."""
    judged_source: str | None = None
    """Who judged, such as human; without it, all judgements are by one source, called given."""

    def __post_init__(self) -> None:
        """Raise a DatasetError for a text in place of a tuple: its letters would be columns."""
        for name in ("query_text", "ad_text", "ad_filters"):
            if isinstance(value := getattr(self, name), str):
                raise DatasetError(f"columns.{name} is a tuple of names: ({value!r},)")

    def of_edges(self, query: str, ad: str) -> EdgeColumns:
        """Return the names in tables of edges, which name queries and ads as the clicks do."""
        names = {column.name: getattr(self, column.name) for column in fields(EdgeColumns)}
        names["edges_query"] = self.edges_query or query
        names["edges_ad"] = self.edges_ad or ad
        return EdgeColumns(**names)


@dataclass(frozen=True)
class Splits:
    """Which queries are held out; queries that differ only in case share a split."""

    test_fraction: float = 0.1
    """Share of the queries in the test split."""
    validation_fraction: float = 0.05
    """Share of the queries in the validation split."""
    test_from: str | None = None
    """Queries first clicked from this time on are the test split, and no later click is trained on;
    ISO 8601, or a number of columns.clicks_time_unit."""
    validation_from: str | None = None
    """Queries first clicked from this time on (and before test_from) are the validation split."""
    held_out: Literal["new-queries", "later-clicks"] = "new-queries"
    """What test_from and validation_from hold out: queries first clicked from then on; or all
    clicks from then on, also those of queries that are trained on, as in a next week of traffic."""
    seed: int = 0
    """Seed of the random split."""


@dataclass(frozen=True)
class UserTables:
    """A user's own tables: files, folders or globs of CSV, TSV, JSON lines or parquet.

    If there is no table of queries (or ads), the clicks name them by their texts.
    """

    clicks: str
    """Table of clicks."""
    queries: str | None = None
    """Table of queries: id and text."""
    ads: str | None = None
    """Table of ads: id and text."""
    query_splits: str | None = None
    """Table of queries and their splits: train, validation or test. Queries that it does not list
    are train queries; if it lists no validation query, a share of the train queries is held
    out."""
    filters: str | None = None
    """Table of pairs of query and ad that are dropped from predictions."""
    judged: str | None = None
    """Table of judgements: pairs of query and ad with a grade of how well the ad answers."""
    judged_highest: float = 1.0
    """The best grade, such as 3 for levels from 0 to 3."""
    query_edges: dict[str, str] = field(default_factory=dict)
    """Anchor sets, each with its table of edges from queries: NAME TABLE NAME TABLE..."""
    ad_edges: dict[str, str] = field(default_factory=dict)
    """Anchor sets, each with its table of edges from ads."""
    anchors: dict[str, str] = field(default_factory=dict)
    """Anchor sets, each with its table of anchors: id and text; if absent, edges name texts."""
    columns: Columns = field(default_factory=Columns)
    """Names of the columns in the tables."""
    splits: Splits = field(default_factory=Splits)
    """Which queries are held out."""
    weights: Literal["clicks", "coec"] = "clicks"
    """What weighs train clicks: their sum, or clicks over expected clicks (coec), which are a
    pair's impressions times the log's clicks per impression at their positions; both plus 1. Rows
    of 0 clicks are then impressions."""
    min_expected: float | None = None
    """Ads that were shown until so many clicks were expected, such as 3, and had none, are judged
    0, by the source shown."""
    clicks_from: str | None = None
    """Clicks before this time are left out; ISO 8601, or a number of columns.clicks_time_unit."""
    clicks_until: str | None = None
    """Clicks from this time on are left out."""
    max_clicks_per_query: float | None = None
    """Queries with a larger sum of click weights are left out, as bots' are. In splits by time,
    later clicks do not count."""
    min_click_weight: float = 0.0
    """Pairs of query and ad with a smaller sum of click weights are left out. In splits by time,
    each has a sum of its own."""
    min_ads_per_query: int | None = None
    """Queries with fewer clicked ads are left out. 0 keeps queries without clicks as train queries,
    for their edges. Default 0 if there are a table of queries and edges of queries, otherwise 1.
    Validation and test queries always need a click."""
    min_queries_per_ad: int = 0
    """Ads clicked from fewer train queries are left out; 0 keeps ads that were never clicked."""
    drop_own_text: bool = False
    """Leave out clicks on ads with the query's own text, and drop these ads from the predictions
    of validation and test queries."""
    drop_reversed_clicks: bool = False
    """Leave out train clicks that are held-out clicks reversed, from an answer's text to a held-out
    query's: the answer could be learnt from them."""
    normalize_texts: bool = False
    """Normalise texts to Unicode NFKC, trim them, join runs of white space, and take out soft
    hyphens and spaces without a width."""
    null_words: NullWords = "refuse"
    """What to do with rows whose text or id is a word for nothing, such as NULL or N/A, if there
    are more than a few."""
    encoding: str = "utf-8"
    """Encoding of text files, such as windows-1252."""
    protocol: Protocol = "strict"
    """strict leaves out edges that join a held-out query to its answer; as-published keeps all."""
    skip_bad_rows: bool = False
    """Leave out rows with empty cells, bad numbers or unknown ids, instead of refusing them. Of a
    query that is given two splits, the held-out one counts."""

    def __post_init__(self) -> None:
        """Raise a DatasetError if the settings do not fit together."""
        for name in {**self.query_edges, **self.ad_edges}:
            check_spelling(name)
        for fault in self._faults():
            raise DatasetError(fault)

    def _faults(self) -> Iterator[str]:
        yield from self._table_faults()
        yield from self._number_faults()
        yield from self._split_faults()
        yield from self._time_faults()

    def _table_faults(self) -> Iterator[str]:
        roles: dict[str, str] = {}
        for role, name in self.click_columns.items():
            if (other := roles.setdefault(name, role)) != role:
                yield f"columns.clicks_{other} and columns.clicks_{role} are both {name!r}"
        for name in sorted(self.anchors.keys() - {*self.query_edges, *self.ad_edges}):
            yield f"anchors {name}: give query_edges or ad_edges too"
        if self.columns.ad_filters and not self.ads:
            yield "columns.ad_filters needs the table that has them: ads"
        if self.columns.query_split and not self.queries:
            yield "columns.query_split needs the table that has it: queries"

        views = [
            name for name in ("clicks_views", "clicks_position") if getattr(self.columns, name)
        ]
        if views and not self.counts_views:
            yield f"columns.{views[0]} needs weights coec, or min_expected"
        if self.counts_views and not self.columns.clicks_weight:
            yield "weights coec and min_expected need a column of clicks: set columns.clicks_weight"

    def _number_faults(self) -> Iterator[str]:
        for limit in ("max_clicks_per_query", "min_click_weight"):
            value = getattr(self, limit) or 0.0
            if not 0 <= value < np.inf:
                yield f"{limit} is {value:g}; it must be a number from 0 on"
        if self.min_expected is not None and not 0 < self.min_expected < np.inf:
            yield f"min_expected is {self.min_expected:g}; it must be a number above 0"
        if not 0 < self.judged_highest < np.inf:
            yield f"judged_highest is {self.judged_highest:g}; it must be a number above 0"

    def _split_faults(self) -> Iterator[str]:
        splits = self.splits
        given = {
            "columns.query_split": self.columns.query_split,
            "query_splits": self.query_splits,
            "splits.test_from": splits.test_from,
        }
        chosen = [name for name, value in given.items() if value]
        if len(chosen) > 1:
            yield f"{' and '.join(chosen)} both say which queries are held out"
        fractions = {
            "splits.test_fraction": splits.test_fraction,
            "splits.validation_fraction": splits.validation_fraction,
        }
        fractions[" + ".join(fractions)] = sum(fractions.values())
        for name, fraction in fractions.items():
            if not 0 < fraction < 1:
                yield f"{name} is {fraction:g}; it must be between 0 and 1"
        if splits.validation_from and not splits.test_from:
            yield "splits.validation_from needs splits.test_from"
        if splits.held_out == "later-clicks" and not splits.validation_from:
            yield "splits.held_out later-clicks needs splits.validation_from and splits.test_from"

    def _time_faults(self) -> Iterator[str]:
        if not self.columns.clicks_time:
            needs = "a column of times: set columns.clicks_time"
            if self.splits.test_from:
                yield f"splits.test_from needs {needs}"
            if self.clicks_from or self.clicks_until:
                yield f"clicks_from and clicks_until need {needs}"
        validation, test = self.period_bounds or (0.0, 1.0)
        if self.splits.validation_from and validation >= test:
            yield "splits.validation_from is not before splits.test_from"
        first, last = self.click_bounds
        if first >= last:
            yield "clicks_from is not before clicks_until"

    @property
    def counts_views(self) -> bool:
        """Whether impressions count."""
        return self.weights == "coec" or self.min_expected is not None

    @property
    def fewest_ads(self) -> int:
        """How many clicked ads a query needs to be kept."""
        if self.min_ads_per_query is not None:
            return self.min_ads_per_query
        return 0 if self.queries and self.query_edges else 1

    @property
    def period_bounds(self) -> tuple[float, float] | None:
        """Start of the validation and test periods, in seconds since 1970; None without periods."""
        if not self.splits.test_from:
            return None
        test = self._seconds("splits.test_from", self.splits.test_from)
        if not self.splits.validation_from:
            return test, test
        return self._seconds("splits.validation_from", self.splits.validation_from), test

    @property
    def held_out_from(self) -> str | None:
        """From when on clicks are held out, in ISO 8601; None without periods."""
        if not self.period_bounds:
            return None
        return datetime.fromtimestamp(self.period_bounds[0], UTC).isoformat()

    @property
    def click_bounds(self) -> tuple[float, float]:
        """The first time of a click that counts, and the first that no longer does, in seconds."""
        first = self._seconds("clicks_from", self.clicks_from) if self.clicks_from else -np.inf
        last = self._seconds("clicks_until", self.clicks_until) if self.clicks_until else np.inf
        return first, last

    def _seconds(self, name: str, time: str) -> float:
        seconds, bad = as_seconds(pa.chunked_array([[time]]), self.columns.clicks_time_unit)
        if bad.any():
            raise DatasetError(f"{name} must be a time, not {time!r}")
        if not in_our_time(seconds).all():
            raise DatasetError(
                f"{name} is {time!r}, outside the years 1990 to 2100; write it as ISO 8601, such as"
                " 2026-10-01, or set columns.clicks_time_unit"
            )
        return float(seconds[0])

    @property
    def click_columns(self) -> dict[str, str]:
        """Names of the click table's columns by role: query, ad and others that are given."""
        columns = self.columns
        named = {
            "query": columns.clicks_query or ("query_id" if self.queries else "query"),
            "ad": columns.clicks_ad or ("ad_id" if self.ads else "ad"),
            "weight": columns.clicks_weight,
            "time": columns.clicks_time,
            "views": columns.clicks_views,
            "position": columns.clicks_position,
        }
        return {role: name for role, name in named.items() if name is not None}

    @property
    def given_splits(self) -> tuple[str, dict[str, str]] | None:
        """The table that says which split a query is in, and its columns by role."""
        columns = self.columns
        if self.queries and columns.query_split:
            return self.queries, {"query": columns.query_id, "split": columns.query_split}
        if self.query_splits:
            query = columns.splits_query or self.click_columns["query"]
            return self.query_splits, {"query": query, "split": columns.splits_split}
        return None

    def pair_columns(self, table: Literal["filters", "judged"]) -> dict[str, str]:
        """Names of the columns of a table of pairs by role: query and ad."""
        return {
            side: getattr(self.columns, f"{table}_{side}") or self.click_columns[side]
            for side in ("query", "ad")
        }

    @property
    def edge_lists(self) -> dict[str, EdgeList]:
        """The edges of each anchor set."""
        clicks = self.click_columns
        return {
            name: EdgeList(
                self.query_edges.get(name),
                self.ad_edges.get(name),
                self.anchors.get(name),
                self.columns.of_edges(clicks["query"], clicks["ad"]),
                self.null_words,
                self.skip_bad_rows,
                self.protocol,
                self.encoding,
            )
            for name in sorted({**self.query_edges, **self.ad_edges})
        }
