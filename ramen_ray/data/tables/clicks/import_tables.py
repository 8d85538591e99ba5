"""Import a user's own tables into a dataset directory: read, number, sum, split, write."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from ramen_ray.data.engine import Connection, count, engine
from ramen_ray.data.findings import raise_errors
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter, new_dataset
from ramen_ray.data.store.same_texts import normalized
from ramen_ray.data.store.schemas import FILTER, PLURAL, SIDES, SPLITS
from ramen_ray.data.tables.clicks import numbering, splits
from ramen_ray.data.tables.clicks.settings import UserTables
from ramen_ray.data.tables.graphs import edges
from ramen_ray.data.tables.graphs.anchor_sets import made_by
from ramen_ray.data.tables.reading.columns import (
    Column,
    filter_columns,
    grade_column,
    listed_id_column,
    split_column,
    text_column,
    time_column,
    weight_column,
    within,
)
from ramen_ray.data.tables.reading.files import pinned
from ramen_ray.data.tables.reading.loading import UserTable
from ramen_ray.errors import shown_address, without_secrets
from ramen_ray.naming import dataset_name

logger = logging.getLogger(__name__)

TABLES = (
    *("clicks", "queries", "ads", "query_splits", "filters", "judged"),
    *("query_edges", "ad_edges", "anchors"),
)


def import_tables(
    tables: UserTables, output: Path, name: str | None = None, memory: str | None = None
) -> Dataset:
    """Import a user's own tables into a new dataset directory at ``output``.

    The same tables and settings give the same bytes, on any machine and number of threads. The
    dataset's ``name`` is by default the folder's; for ``memory`` see
    :func:`~ramen_ray.data.engine.engine`. If a table cannot be read, or rows are bad, it raises a
    DatasetError and leaves no directory.
    """
    tables = pinned(tables, *TABLES)
    lists = tables.edge_lists
    metadata = {
        "name": dataset_name(name, output),
        "source": shown_address(tables.clicks),
        "licence": "",
        "imported": without_secrets(asdict(tables)),
        "held_out_from": tables.held_out_from,
        "anchor_sets": {key: made_by("edges", edge_list) for key, edge_list in lists.items()},
    }
    opened = open_tables(tables)  # all of them, to report errors before the work begins
    of_edges = {key: edges.open_tables(edge_list, metadata) for key, edge_list in lists.items()}
    with new_dataset(output, is_checked=True, **metadata) as writer:
        with engine(writer.folder, memory) as connection:
            _Import(tables, opened, connection).write(writer)
        if lists:
            written = Dataset(writer.folder, metadata)
            with engine(writer.folder, memory, written) as connection:
                for key, edge_list in lists.items():
                    of_set = written, edge_list, of_edges[key], key, writer
                    _log(f"anchor set {key}", edges.write_edge_list(connection, *of_set))
    dataset = Dataset(output)
    queries = ", ".join(f"{dataset.num_rows(f'queries/{split}'):,} {split}" for split in SPLITS)
    logger.info("wrote %s queries and %s ads", queries, f"{dataset.num_rows('ads'):,}")
    return dataset


def open_tables(tables: UserTables) -> dict[str, UserTable]:
    """Find the tables' files, by what they hold; a DatasetError if a file or column is missing."""
    columns = tables.columns
    null_words = tables.null_words
    change = normalized if tables.normalize_texts else lambda texts: texts
    as_text = partial(text_column, null_words=null_words, change=change)

    def of_nodes(name: str, text: tuple[str, ...]) -> dict[str, Column]:
        texts = as_text(text)
        same = (name,) == text  # texts are their own ids
        return {"id": texts if same else listed_id_column(name, null_words), "text": texts}

    def of_names(names: Mapping[str, str]) -> dict[str, Column]:
        """Read names of queries or ads: ids if they have a table, else texts."""
        listed = {"query": tables.queries, "ad": tables.ads}
        return {
            side: listed_id_column(name, null_words)
            if listed[side]
            else as_text(name, are_names=side == "ad")
            for side, name in names.items()
        }

    names = tables.click_columns
    read = {
        "query": of_nodes(columns.query_id, columns.query_text),
        "ad": of_nodes(columns.ad_id, columns.ad_text) | filter_columns(columns.ad_filters),
        "clicks": of_names({side: names[side] for side in SIDES}) | _number_columns(tables),
        "filters": of_names(tables.pair_columns("filters")),
        "judged": of_names(tables.pair_columns("judged")),
    }
    read["judged"]["grade"] = grade_column(columns.judged_grade, tables.judged_highest)
    if columns.judged_source:
        read["judged"]["source"] = text_column(columns.judged_source)
    sources = {
        "query": tables.queries,
        "ad": tables.ads,
        "clicks": tables.clicks,
        "filters": tables.filters,
        "judged": tables.judged,
    }
    if tables.given_splits:
        sources["splits"], given = tables.given_splits
        split = split_column(given["split"])
        read["splits"] = of_names({"query": given["query"]}) | {"split": split}
    return {
        what: UserTable(source, read[what], tables.skip_bad_rows, tables.encoding)
        for what, source in sources.items()
        if source is not None
    }


def _number_columns(tables: UserTables) -> dict[str, Column]:
    """Return the columns of a click's numbers that are given: weight, views, position and time."""
    names = tables.click_columns
    has_views = tables.counts_views
    read: dict[str, Column] = {}
    if "weight" in names:
        zeros = "" if has_views else "impressions, rows of 0 clicks"
        read["weight"] = weight_column(names["weight"], zeros, from_zero=has_views)
    for role in names.keys() & {"views", "position"}:
        read[role] = weight_column(names[role], from_zero=True)
    if "time" in names:
        unit = tables.columns.clicks_time_unit
        flag = "--columns.clicks-time-unit"
        reasons = "clicks before clicks_from", "clicks from clicks_until on"
        times = time_column(names["time"], unit, flag)
        read["time"] = within(times, *tables.click_bounds, reasons)
    return read


@dataclass(frozen=True)
class _Import:
    """One import: the user's tables, and the engine that has what was made of them so far."""

    tables: UserTables
    opened: Mapping[str, UserTable]
    connection: Connection

    def write(self, writer: DatasetWriter) -> None:
        """Do it all."""
        self._read()
        self._number()
        self._sum_clicks()
        self._split()
        self._use_views()
        filters = [FILTER + name for name in self.tables.columns.ad_filters]
        ids = {side: ["source_id"] if side in self.opened else [] for side in SIDES}
        weights = ["weights"] if self.tables.columns.clicks_weight else []
        splits.write_ads(self.connection, writer, ids["ad"] + filters)
        splits.write_queries(self.connection, writer, ids["query"] + weights)
        for side in SIDES:
            splits.write_aliases(self.connection, side, writer)
        has_pairs = "filters" in self.opened
        own_text = self.tables.drop_own_text
        if has_pairs or own_text:
            counts = splits.write_filters(
                self.connection, writer, given=has_pairs, own_text=own_text
            )
            _log("filters", counts)
        if "judged" in self.opened or self.tables.min_expected is not None:
            _log("judgements", splits.write_judgements(self.connection, writer))

    def _read(self) -> None:
        """Read the tables; refuse one without rows."""
        columns = {"clicks": self._click_columns, "query": "*, key(text) AS key"}
        if not self.tables.columns.judged_source:
            columns["judged"] = "*, 'given' AS source"
        clicks = self.opened["clicks"]
        numbering.register_key(self.connection)
        for name, table in self.opened.items():
            query = f"SELECT {columns.get(name, '*')} FROM source"
            table.load(self.connection, f"{name}_rows", query)
        if "weight" in clicks.columns:
            numbering.check_totals(self.connection, clicks, "clicks_rows")
            numbering.check_views(self.connection, clicks)
        for name, shown in (*PLURAL.items(), ("clicks", "clicks")):
            if read := self.opened.get(name):
                left_out = {f"left out: {why}": number for why, number in read.left_out.items()}
                _log(shown, {"rows read": read.rows_read} | left_out)
                if not read.refused():
                    read.refuse_no_rows()

    @property
    def _click_columns(self) -> str:
        weight = "weight" if self.tables.columns.clicks_weight else "1.0"
        bounds = self.tables.period_bounds or ()
        period = " + ".join(f"(time >= {bound!r})::TINYINT" for bound in bounds) or "0::TINYINT"
        names = self.opened["clicks"].columns
        views = "views" if "views" in names else "greatest(weight, 1)"
        position = "position" if "position" in names else "0.0::DOUBLE"
        counted = f", {views} AS views, {position} AS position" * self.tables.counts_views
        return f"place, query, ad, {weight} AS weight, {period} AS period{counted}"

    def _number(self) -> None:
        """Number the names in the tables' rows; refuse what is wrong with these, all at once."""
        clicks = self.opened["clicks"]
        # a name is also unknown if something else is wrong with the row that lists it
        known = [side for side in SIDES if not self.opened.get(side, clicks).refused()]
        for side in SIDES:
            counts = numbering.number_nodes(self.connection, side, self.opened.get(side))
            _log(PLURAL[side], counts)
        for name, table in self.opened.items():
            if name not in SIDES:
                numbering.number_rows(self.connection, name, table)
                for side in (side for side in known if side in table.columns):
                    listed = getattr(self.tables, PLURAL[side]) or self.tables.clicks
                    numbering.report_unknown(self.connection, name, table, side, listed)
        if "splits" in self.opened:
            splits.read_given(self.connection, self.opened["splits"])
        tables = self.opened.values()
        refused = dict.fromkeys(fault for table in tables for fault in table.refused())
        raise_errors("the import", refused)  # of a table that also has splits, once
        for table in tables:
            table.check()

    def _sum_clicks(self) -> None:
        numbering.sum_clicks(self.connection, counts_views=self.tables.counts_views)
        num_clicks = count(self.connection, "SELECT sum(clicks) FROM sums")
        if not num_clicks:
            roles = " and ".join(list(self.tables.click_columns.values())[:2])
            raise DatasetError(
                f"no click of {self.opened['clicks'].source} names a known query and a known ad;"
                f" are {roles} the right columns?"
            )
        pairs = "SELECT count(*) FROM (SELECT DISTINCT query, ad FROM sums)"
        counts = {
            "rows of known queries and ads": num_clicks,
            "different pairs of query and ad among them": count(self.connection, pairs),
        }
        _log("clicks", counts)
        if left_out := numbering.leave_out(self.connection, self.tables):
            _log("clicks", left_out)

    def _split(self) -> None:
        """Decide what is kept, and in which split."""
        tables = self.tables
        connection = self.connection
        all_periods = tables.splits.held_out == "later-clicks"
        splits.count_clicks(connection, all_periods=all_periods)
        counts: dict[str, int] = {}
        if tables.given_splits:
            splits.split_as_given(connection, tables.splits)
        else:
            splits.split_by_draws(connection, tables.splits)
        splits.keep_ads(connection, tables.min_queries_per_ad, all_periods=all_periods)
        keep = partial(splits.keep_queries, connection, tables.fewest_ads, all_periods=all_periods)
        left_out = keep()
        if tables.drop_reversed_clicks:
            what = "train clicks left out as held-out ones reversed"
            counts[what] = splits.drop_reversed(connection)
            left_out = keep()
        if any((counts := counts | left_out).values()):
            _log("splits", counts)

    def _use_views(self) -> None:
        """Weigh clicks by what was to be expected, and judge what was shown in vain, if asked."""
        if self.tables.counts_views:
            numbering.expect_clicks(self.connection)
        if self.tables.weights == "coec":
            numbering.weigh_by_coec(self.connection)
        if (least := self.tables.min_expected) is not None:
            _log("impressions", numbering.judge_refused(self.connection, least))


def _log(what: str, counts: Mapping[str, int]) -> None:
    """Log the counts that are not 0."""
    counted = ", ".join(f"{number:,} {name}" for name, number in counts.items() if number)
    logger.info("%s: %s", what, counted or "none")
